"""Queues of all kinds, their clients, and the reckoning of what is left.

    report = await endure(plan, folder, scene=Features(plan.seed))

At the end nobody has anything, and what expires soon or is scheduled for soon has come to it. Then everything is
looked at in two ways, which must agree with each other and with what the server tells: it is peeked, and it is taken
out: received, session by session where there are sessions; asked for by its number, what is deferred; cancelled, what
is scheduled; and the dead letters.

Owns: that order of things. The promises are in `ledger`.
"""

from __future__ import annotations

import asyncio
import collections
import random
import time
from typing import TYPE_CHECKING, Final

from tests.faults import management
from tests.faults.features.kinds import BRIEF_MS, KINDS, SESSIONS
from tests.faults.features.ledger import FeatureLedger
from tests.faults.features.letter import ACTIVE, DEFERRED, SCHEDULED
from tests.faults.features.lines import DEAD_LETTERS, DeadLetterLine, DeskLine, FeatureLine, SessionLine
from tests.faults.features.operations import cancel, fetch, peek_all, settle
from tests.faults.features.workload import FeatureWorkload
from tests.faults.harness import drain_line
from tests.faults.line import close, connected
from tests.faults.management import Counts
from twinbus.amqp.types import Int, Timestamp

if TYPE_CHECKING:
    from tests.faults.features.kinds import Kind
    from tests.faults.features.letter import Received
    from tests.faults.server_process import Endpoint, ServerProcess
    from tests.faults.workload import Workload

SETTLE_S: Final = 20.0
"""After a start: by then all that is over is dealt with."""
LOOK_EVERY_S: Final = 0.2
AT_ONCE: Final = 50
ALL_SESSIONS_MS: Final = 253_402_300_800_000
NOTHING: Final = Counts(active=0, dead=0, scheduled=0, deferred=0)


class Features:
    """A scene for `harness`."""

    def __init__(self, seed: int) -> None:
        self.ledger = FeatureLedger(random.Random(seed))
        self._problems: list[str] = []

    async def prepare(self, server: ServerProcess) -> None:
        for kind in KINDS.values():
            await management.make_queue(server.endpoint, kind.name, **kind.settings)

    def clients(self, server: ServerProcess, rng: random.Random) -> Workload:
        return FeatureWorkload(server, self.ledger, rng)

    async def reckon(self, server: ServerProcess, clients: Workload) -> list[str]:
        del clients
        await asyncio.sleep(BRIEF_MS[1] / 1000)
        await server.kill()
        await server.start()
        await asyncio.gather(*[self._empty(server.endpoint, kind) for kind in KINDS.values()])
        self.ledger.close()
        await server.stop()
        await server.start()
        await asyncio.gather(*[self._check_empty(server.endpoint, kind) for kind in KINDS.values()])
        await server.stop()
        return self._problems

    async def _check_empty(self, endpoint: Endpoint, kind: Kind) -> None:
        told = await management.counts(endpoint, kind.name)
        if told != NOTHING:
            self._problems.append(f"count: {kind.name} is empty and is said to hold {told}")
        await self._receive_all(endpoint, kind)
        if kind.has_sessions:
            await self._check_sessions(endpoint, kind.name, [])

    async def _empty(self, endpoint: Endpoint, kind: Kind) -> None:
        told, peeked, dead = await self._look(endpoint, kind.name)
        states = collections.Counter(got.state for got in peeked)
        seen = Counts(states[ACTIVE], len(dead), states[SCHEDULED], states[DEFERRED])
        self._compare(kind.name, "peeked", told, seen)
        if kind.has_sessions:
            await self._check_sessions(endpoint, kind.name, peeked)
        active, buried = await self._receive_all(endpoint, kind)
        taken = Counts(
            active,
            buried,
            await self._cancel_all(endpoint, kind.name, peeked),
            await self._fetch_all(endpoint, kind, peeked),
        )
        self._compare(kind.name, "taken out", told, taken)

    def _compare(self, queue: str, how: str, told: Counts, seen: Counts) -> None:
        if told != seen:
            self._problems.append(f"count: {queue} was said to hold {told}, and {how} were {seen}")

    async def _look(self, endpoint: Endpoint, queue: str) -> tuple[Counts, list[Received], list[Received]]:
        """What a queue is said to hold, what is peeked, and its dead letters, once these change no more."""
        deadline = time.monotonic() + SETTLE_S
        while True:
            told = await management.counts(endpoint, queue)
            peeked, dead = await self._peek(endpoint, queue), await self._peek(endpoint, queue, DEAD_LETTERS)
            overdue = self._overdue(queue, peeked)
            is_over = time.monotonic() > deadline
            if is_over or (not overdue and told == await management.counts(endpoint, queue)):
                break
            await asyncio.sleep(LOOK_EVERY_S)
        self._problems += [f"late: message {number} of {queue} lies there, and its time has come" for number in overdue]
        return told, peeked, dead

    def _overdue(self, queue: str, peeked: list[Received]) -> list[int]:
        """Messages that should be active or gone by now."""
        now_ms, overdue = time.time_ns() // 1_000_000, []
        for got in peeked:
            number = self.ledger.peek(queue, got)
            if number is None:
                continue
            due_ms = self.ledger.stories[number].terms.due_ms
            is_over = got.state == ACTIVE and got.expires_ms is not None and got.expires_ms <= now_ms
            is_due = got.state == SCHEDULED and due_ms is not None and due_ms <= now_ms
            if is_over or is_due:
                overdue.append(number)
        return overdue

    async def _peek(self, endpoint: Endpoint, queue: str, sub_queue: str = "") -> list[Received]:
        async with connected(DeskLine(self.ledger, queue, sub_queue), endpoint) as line:
            line.desk.open()
            found = await peek_all(line.desk)
            await close(line)
        return found

    # --- taking everything out ----------------------------------------------------------------------------------------

    async def _receive_all(self, endpoint: Endpoint, kind: Kind) -> tuple[int, int]:
        """Receive and complete all that is active, and all dead letters: how many these were."""
        dead = DeadLetterLine(self.ledger, kind.name)

        async def has_no_dead() -> bool:
            return (await management.counts(endpoint, kind.name)).dead == 0

        async def has_no_active() -> bool:
            return (await management.counts(endpoint, kind.name)).active == 0

        async with connected(dead, endpoint):
            await drain_line(dead, has_no_dead)
            await close(dead)
        if kind.has_sessions:
            return await self._receive_sessions(endpoint, kind.name), dead.completed
        line = FeatureLine(self.ledger, kind.name)
        async with connected(line, endpoint):
            await drain_line(line, has_no_active)
            await close(line)
        return line.completed, dead.completed

    async def _receive_sessions(self, endpoint: Endpoint, queue: str) -> int:
        completed = 0
        for session in range(SESSIONS):
            line = SessionLine(self.ledger, queue, session=f"session-{session}")
            async with connected(line, endpoint):
                line.desk.open()
                await line.read_state()

                async def is_empty(line: SessionLine = line) -> bool:
                    await line.desk.ask("com.microsoft:renew-session-lock", {"session-id": line.session})
                    return not any(got.state == ACTIVE for got in await peek_all(line.desk, line.session))

                await drain_line(line, is_empty)
                await close(line)
            completed += line.completed
        return completed

    async def _check_sessions(self, endpoint: Endpoint, queue: str, peeked: list[Received]) -> None:
        """Those that have messages or a state are listed, and no others."""
        async with connected(DeskLine(self.ledger, queue), endpoint) as line:
            line.desk.open()
            arguments = {"last-updated-time": Timestamp(ALL_SESSIONS_MS), "skip": Int(0), "top": Int(1_000)}
            answer = await line.desk.ask("com.microsoft:get-message-sessions", dict(arguments))
            listed = set(answer.body["sessions-ids"].items) if answer.status == 200 else set()
            await close(line)
        must = {got.session for got in peeked if got.state == ACTIVE} | self.ledger.remembering(queue)
        may = must | self.ledger.perhaps_remembering(queue)
        if not must <= listed <= may:
            self._problems.append(f"sessions: {queue} lists {sorted(listed)}, must list {must} and may list {may}")

    async def _fetch_all(self, endpoint: Endpoint, kind: Kind, peeked: list[Received]) -> int:
        """Ask for all deferred messages by their numbers, and complete them: how many these were."""
        by_session: dict[str | None, list[Received]] = collections.defaultdict(list)
        for got in peeked:
            if got.state == DEFERRED:
                by_session[got.session].append(got)
        fetched = 0
        for session, messages in by_session.items():
            line: DeskLine | SessionLine
            if kind.has_sessions:
                line = SessionLine(self.ledger, kind.name, session=session)
            else:
                line = DeskLine(self.ledger, kind.name)
            async with connected(line, endpoint):
                line.desk.open()
                for at in range(0, len(messages), AT_ONCE):
                    fetched += await self._fetch_some(line, messages[at : at + AT_ONCE], session)
                await close(line)
        return fetched

    async def _fetch_some(self, line: DeskLine | SessionLine, messages: list[Received], session: str | None) -> int:
        numbers = [number for got in messages if (number := self.ledger.peek(line.queue, got)) is not None]
        sequence_numbers = [got.sequence_number for got in messages]
        tokens = await fetch(self.ledger, line.desk, line.queue, numbers, sequence_numbers, session)
        is_done = bool(tokens) and await settle(self.ledger, line.desk, numbers, tokens, "completed", session)
        return len(numbers) if is_done else 0

    async def _cancel_all(self, endpoint: Endpoint, queue: str, peeked: list[Received]) -> int:
        """Cancel all that is scheduled, which is for long after now: how many these were."""
        found = [
            (number, got.sequence_number)
            for got in peeked
            if got.state == SCHEDULED and (number := self.ledger.peek(queue, got)) is not None
        ]
        cancelled = 0
        async with connected(DeskLine(self.ledger, queue), endpoint) as line:
            line.desk.open()
            for at in range(0, len(found), AT_ONCE):
                numbers = [number for number, _ in found[at : at + AT_ONCE]]
                self.ledger.cancel_requested(numbers)
                await cancel(self.ledger, line.desk, numbers, [number for _, number in found[at : at + AT_ONCE]])
                cancelled += sum(self.ledger.is_cancelled(number) for number in numbers)
            await close(line)
        return cancelled
