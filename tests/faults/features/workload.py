"""Clients that use all that queues can do, and go on whatever happens to the server.

Owns: the randomness of what they do. What is promised to them is judged by `ledger`.
"""

from __future__ import annotations

import collections
import time
from typing import TYPE_CHECKING, Final

from tests.faults.features.kinds import BRIEF_MS, KINDS, LONG_MS, SESSIONS
from tests.faults.features.letter import Terms
from tests.faults.features.lines import (
    DEFERRED,
    DeadLetterLine,
    DeskLine,
    FeatureLine,
    SessionLine,
    TermsLine,
)
from tests.faults.features.operations import cancel, fetch, fetch_and_delete, settle
from tests.faults.line import close, connected
from tests.faults.workload import Workload
from twinbus.amqp.outcomes import ACCEPTED, RELEASED

if TYPE_CHECKING:
    import random
    from collections.abc import Awaitable, Callable, Sequence

    from tests.faults.features.kinds import Kind
    from tests.faults.features.ledger import FeatureLedger
    from tests.faults.features.lines import Desk
    from tests.faults.server_process import ServerProcess
    from twinbus.amqp.composite import Composite

RESENDABLE: Final = 400
"""Messages of which so many are kept to be sent again."""

IN_A_HURRY: Final = 0.2
HURRY_S: Final = 0.02


class FeatureWorkload(Workload):
    """All clients of a run."""

    def __init__(self, server: ServerProcess, ledger: FeatureLedger, rng: random.Random) -> None:
        super().__init__(server, ledger, list(KINDS), rng)
        self._book = ledger
        self._sent: dict[str, collections.deque[tuple[int, bytes, float]]] = {
            name: collections.deque(maxlen=RESENDABLE) for name in KINDS
        }
        """Messages with their payloads, and when they were sent first."""
        self._plain = [name for name, kind in KINDS.items() if not kind.has_sessions]
        self._of_sessions = [name for name, kind in KINDS.items() if kind.has_sessions]
        self._burying = [name for name, kind in KINDS.items() if kind.buries_expired]
        self._states = 0

    def works(self) -> Sequence[Callable[[], Awaitable[None]]]:
        return [
            *[self._send] * 5,
            *[self._receive] * 4,
            *[self._receive_session] * 3,
            self._receive_dead_letters,
            self._schedule,
            *[self._fetch_deferred] * 2,
        ]

    def _open(self, desk: Desk) -> None:
        """Some clients are in a hurry, and hang up on a request that is being done."""
        desk.open()
        if self._rng.random() < IN_A_HURRY:
            desk.patience_s = self._rng.uniform(0.0, HURRY_S)

    # --- sending ------------------------------------------------------------------------------------------------------

    def new_sender(self) -> TermsLine:
        return TermsLine(self._book, self._rng.choice(self._queues), self._compose)

    def _compose(self, line: TermsLine, filler_bytes: int) -> tuple[int, bytes]:
        """A message with some terms, or one that was sent before, whatever became of it."""
        kind, sent, now = KINDS[line.queue], self._sent[line.queue], time.monotonic()
        if kind.duplicate_window_s and sent and self._rng.random() < 0.4:
            number, payload, first = self._rng.choice(sent)
            if now - first < kind.resend_s:
                self._book.sent_again(number)
                return number, payload
        number, payload = self._book.write_with(line.queue, line.order_key, filler_bytes, self._choose_terms(kind))
        if kind.duplicate_window_s:
            sent.append((number, payload, now))
        return number, payload

    def _choose_terms(self, kind: Kind) -> Terms:
        luck, rng = self._rng.random(), self._rng
        session = f"session-{rng.randrange(SESSIONS)}" if kind.has_sessions else None
        if luck < kind.expires_soon:
            return Terms(session=session, ttl_ms=rng.randint(*BRIEF_MS))
        luck -= kind.expires_soon
        if luck < kind.expires_late:
            return Terms(session=session, ttl_ms=LONG_MS)
        luck -= kind.expires_late
        if luck < kind.scheduled:
            return Terms(session=session, due_ms=self._choose_due_ms())
        return Terms(session=session)

    def _choose_due_ms(self) -> int:
        delay_ms = LONG_MS if self._rng.random() < 0.05 else self._rng.randint(*BRIEF_MS)
        return time.time_ns() // 1_000_000 + delay_ms

    async def _schedule(self) -> None:
        """Schedule messages, some of them together, and cancel some."""
        rng = self._rng
        line = DeskLine(self._book, "schedule")
        async with connected(line, await self._server.serving()):
            self._open(line.desk)
            for _ in range(rng.randint(1, 20)):
                if len(self._book.waiting) < 1_000:
                    await self._schedule_some(line, rng.choice([1, 1, 2, 5]))
                if rng.random() < 0.5:
                    await self._cancel_some(line, rng.choice([1, 1, 3]))
            if rng.random() < 0.5:
                await close(line)

    async def _schedule_some(self, line: DeskLine, count: int) -> None:
        terms = [Terms(due_ms=self._choose_due_ms()) for _ in range(count)]
        written = [self._book.write_with(line.queue, line.order_key, self._rng.randint(0, 500), one) for one in terms]
        numbers = [number for number, _ in written]
        self._book.scheduled_together(numbers)
        messages = [{"message-id": f"message-{number}", "message": payload} for number, payload in written]
        answer = await line.desk.ask("com.microsoft:schedule-message", {"messages": messages})
        if answer.status != 200:
            for number in numbers:
                self._book.refused(number, answer.description)
            return
        for number, sequence_number in zip(numbers, answer.body["sequence-numbers"].items, strict=True):
            self._book.scheduled(number, sequence_number)

    async def _cancel_some(self, line: DeskLine, count: int) -> None:
        known = list(self._book.cancellable)
        numbers = self._rng.sample(known, min(count, len(known)))
        if numbers:
            sequence_numbers = [self._book.cancellable[number] for number in numbers]
            self._book.cancel_requested(numbers)
            await cancel(self._book, line.desk, numbers, sequence_numbers)

    # --- receiving ----------------------------------------------------------------------------------------------------

    def new_receiver(self) -> FeatureLine:
        queue = self._rng.choice(self._plain)
        return FeatureLine(self._book, queue, self._chooser(queue))

    def _chooser(self, queue: str) -> Callable[[], Composite | None]:
        deferred = KINDS[queue].deferred
        return lambda: DEFERRED if self._rng.random() < deferred else self._choose()

    async def _receive_dead_letters(self) -> None:
        rng = self._rng
        line = DeadLetterLine(
            self._book, rng.choice(self._burying), lambda: RELEASED if rng.random() < 0.1 else ACCEPTED
        )
        async with connected(line, await self._server.serving()):
            line.link.keep_credit(rng.choice([1, 10, 100]))
            await line.until(lambda: False, patience_s=rng.uniform(0.1, 1.0))

    async def _receive_session(self) -> None:
        """Have a session for a while: look at what it remembers, receive, ask for what was deferred, remember more."""
        rng, queue = self._rng, self._rng.choice(self._of_sessions)
        wanted = f"session-{rng.randrange(SESSIONS)}" if rng.random() < 0.2 else None
        line = SessionLine(self._book, queue, self._chooser(queue), wanted)
        async with connected(line, await self._server.serving()):
            self._open(line.desk)
            if rng.random() < 0.5:
                await line.read_state()
            line.link.keep_credit(rng.choice([1, 10, 100]))
            for _ in range(rng.randint(1, 6)):
                await line.until(lambda: False, patience_s=rng.uniform(0.01, 0.2))
                luck = rng.random()
                if luck < 0.5:
                    self._states += 1
                    await line.set_state(None if rng.random() < 0.1 else b"%d" % self._states + rng.randbytes(50))
                elif luck < 0.7:
                    await line.read_state()
                else:
                    await self._fetch_some(line.desk, queue, line.session)
            if rng.random() < 0.5:
                await close(line)

    # --- deferred messages --------------------------------------------------------------------------------------------

    async def _fetch_deferred(self) -> None:
        """Ask for deferred messages by their numbers, and settle most of them."""
        queue = self._rng.choice([name for name in self._plain if KINDS[name].deferred])
        line = DeskLine(self._book, queue)
        async with connected(line, await self._server.serving()):
            self._open(line.desk)
            for _ in range(self._rng.randint(1, 20)):
                await self._fetch_some(line.desk, queue)
                await line.until(lambda: False, patience_s=self._rng.uniform(0, 0.05))
            if self._rng.random() < 0.5:
                await close(line)

    async def _fetch_some(self, desk: Desk, queue: str, session: str | None = None) -> None:
        book, rng = self._book, self._rng
        known = [
            number
            for number in book.set_aside
            if book.messages[number].path == queue and book.stories[number].terms.session == session
        ]
        numbers = rng.sample(known, min(rng.choice([1, 1, 5]), len(known)))
        if not numbers:
            return
        sequence_numbers = [book.set_aside[number] for number in numbers]
        if rng.random() < 0.1:
            await fetch_and_delete(book, desk, queue, numbers, sequence_numbers, session)
            return
        tokens = await fetch(book, desk, queue, numbers, sequence_numbers, session)
        luck = rng.random()
        if not tokens or luck < 0.05:
            return
        status = "completed" if luck < 0.7 else "abandoned" if luck < 0.85 else "defered"
        await settle(book, desk, numbers, tokens, status, session)
