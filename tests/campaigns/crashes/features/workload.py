"""Workload: clients that use all features of queues and continue through crashes of the server.

Owns: the random choices of the clients. The checker checks the guarantees.
"""

from __future__ import annotations

import collections
import time
from typing import TYPE_CHECKING, Final

from tests.campaigns.clients import connect_client, disconnect
from tests.campaigns.crashes.features.clients import (
    DEFERRED,
    DeadLetterReceiverClient,
    FeatureReceiverClient,
    ManagementClient,
    SessionReceiverClient,
    TermsSenderClient,
)
from tests.campaigns.crashes.features.management_operations import (
    cancel,
    receive_and_delete_deferred,
    receive_deferred,
    settle,
)
from tests.campaigns.crashes.features.messages import MessageTerms
from tests.campaigns.crashes.features.queue_kinds import LONG_MS, QUEUE_KINDS, SESSIONS, SHORT_DELAY_RANGE_MS
from tests.campaigns.crashes.workload import Workload
from twinbus.amqp.outcomes import ACCEPTED, RELEASED

if TYPE_CHECKING:
    import random
    from collections.abc import Awaitable, Callable, Sequence

    from tests.campaigns.crashes.features.checker import FeatureChecker
    from tests.campaigns.crashes.features.clients import ManagementLinks
    from tests.campaigns.crashes.features.queue_kinds import QueueKind
    from tests.campaigns.restartable_server import RestartableServer
    from twinbus.amqp.codec.composite import Composite

MAX_RESENDABLE: Final = 400
"""Messages of each queue that are kept for repeated sends."""

IMPATIENT_PROBABILITY: Final = 0.2
IMPATIENT_TIMEOUT_S: Final = 0.02


class FeatureWorkload(Workload):
    """Clients of a run."""

    def __init__(self, server: RestartableServer, checker: FeatureChecker, rng: random.Random) -> None:
        super().__init__(server, checker, list(QUEUE_KINDS), rng)
        self._feature_checker = checker
        self._sent: dict[str, collections.deque[tuple[int, bytes, float]]] = {
            name: collections.deque(maxlen=MAX_RESENDABLE) for name in QUEUE_KINDS
        }
        """Messages with their payloads and the times of their first sends."""
        self._queues_without_sessions = [name for name, kind in QUEUE_KINDS.items() if not kind.has_sessions]
        self._session_queues = [name for name, kind in QUEUE_KINDS.items() if kind.has_sessions]
        self._dead_lettering_queues = [name for name, kind in QUEUE_KINDS.items() if kind.dead_letters_expired]
        self._states = 0

    def client_loops(self) -> Sequence[Callable[[], Awaitable[None]]]:
        return [
            *[self._send] * 5,
            *[self._receive] * 4,
            *[self._receive_session] * 3,
            self._receive_dead_letters,
            self._schedule,
            *[self._receive_deferred] * 2,
        ]

    def _open(self, management: ManagementLinks) -> None:
        """Grant credit for responses; some clients disconnect while a request is under way."""
        management.grant_credit()
        if self._rng.random() < IMPATIENT_PROBABILITY:
            management.timeout_s = self._rng.uniform(0.0, IMPATIENT_TIMEOUT_S)

    # --- sending ------------------------------------------------------------------------------------------------------

    def new_sender(self) -> TermsSenderClient:
        return TermsSenderClient(self._feature_checker, self._rng.choice(self._queues), self._compose)

    def _compose(self, client: TermsSenderClient, filler_bytes: int) -> tuple[int, bytes]:
        """Return a new message with random terms, or one that was sent before."""
        kind, sent, now = QUEUE_KINDS[client.queue], self._sent[client.queue], time.monotonic()
        if kind.duplicate_window_s and sent and self._rng.random() < 0.4:
            number, payload, first = self._rng.choice(sent)
            if now - first < kind.resend_s:
                self._feature_checker.resent(number)
                return number, payload
        number, payload = self._feature_checker.record_send_with_terms(
            client.queue, client.order_key, filler_bytes, self._choose_terms(kind)
        )
        if kind.duplicate_window_s:
            sent.append((number, payload, now))
        return number, payload

    def _choose_terms(self, kind: QueueKind) -> MessageTerms:
        draw, rng = self._rng.random(), self._rng
        session = f"session-{rng.randrange(SESSIONS)}" if kind.has_sessions else None
        if draw < kind.expires_soon:
            return MessageTerms(session=session, ttl_ms=rng.randint(*SHORT_DELAY_RANGE_MS))
        draw -= kind.expires_soon
        if draw < kind.expires_late:
            return MessageTerms(session=session, ttl_ms=LONG_MS)
        draw -= kind.expires_late
        if draw < kind.scheduled:
            return MessageTerms(session=session, due_ms=self._choose_due_ms())
        return MessageTerms(session=session)

    def _choose_due_ms(self) -> int:
        delay_ms = LONG_MS if self._rng.random() < 0.05 else self._rng.randint(*SHORT_DELAY_RANGE_MS)
        return time.time_ns() // 1_000_000 + delay_ms

    async def _schedule(self) -> None:
        """Schedule messages, alone or together, and cancel some."""
        rng = self._rng
        client = ManagementClient(self._feature_checker, "schedule")
        async with connect_client(client, await self._server.wait_until_serving()):
            self._open(client.management)
            for _ in range(rng.randint(1, 20)):
                if len(self._feature_checker.pending) < 1_000:
                    await self._schedule_some(client, rng.choice([1, 1, 2, 5]))
                if rng.random() < 0.5:
                    await self._cancel_some(client, rng.choice([1, 1, 3]))
            if rng.random() < 0.5:
                await disconnect(client)

    async def _schedule_some(self, client: ManagementClient, count: int) -> None:
        terms = [MessageTerms(due_ms=self._choose_due_ms()) for _ in range(count)]
        recorded = [
            self._feature_checker.record_send_with_terms(
                client.queue, client.order_key, self._rng.randint(0, 500), message_terms
            )
            for message_terms in terms
        ]
        numbers = [number for number, _ in recorded]
        self._feature_checker.scheduled_together(numbers)
        messages = [{"message-id": f"message-{number}", "message": payload} for number, payload in recorded]
        response = await client.management.request("com.microsoft:schedule-message", {"messages": messages})
        if response.status != 200:
            for number in numbers:
                self._feature_checker.send_refused(number, response.description)
            return
        for number, sequence_number in zip(numbers, response.body["sequence-numbers"].items, strict=True):
            self._feature_checker.scheduled(number, sequence_number)

    async def _cancel_some(self, client: ManagementClient, count: int) -> None:
        known = list(self._feature_checker.cancellable)
        numbers = self._rng.sample(known, min(count, len(known)))
        if numbers:
            sequence_numbers = [self._feature_checker.cancellable[number] for number in numbers]
            self._feature_checker.cancel_requested(numbers)
            await cancel(self._feature_checker, client.management, numbers, sequence_numbers)

    # --- receiving ----------------------------------------------------------------------------------------------------

    def new_receiver(self) -> FeatureReceiverClient:
        queue = self._rng.choice(self._queues_without_sessions)
        return FeatureReceiverClient(self._feature_checker, queue, self._outcome_chooser(queue))

    def _outcome_chooser(self, queue: str) -> Callable[[], Composite | None]:
        deferred = QUEUE_KINDS[queue].deferred
        return lambda: DEFERRED if self._rng.random() < deferred else self._choose_outcome()

    async def _receive_dead_letters(self) -> None:
        rng = self._rng
        client = DeadLetterReceiverClient(
            self._feature_checker,
            rng.choice(self._dead_lettering_queues),
            lambda: RELEASED if rng.random() < 0.1 else ACCEPTED,
        )
        async with connect_client(client, await self._server.wait_until_serving()):
            client.link.keep_credit(rng.choice([1, 10, 100]))
            await client.wait_until(lambda: False, timeout_s=rng.uniform(0.1, 1.0))

    async def _receive_session(self) -> None:
        """Hold a session for a while: read and set its state, receive messages, receive deferred ones."""
        rng, queue = self._rng, self._rng.choice(self._session_queues)
        requested_session = f"session-{rng.randrange(SESSIONS)}" if rng.random() < 0.2 else None
        client = SessionReceiverClient(self._feature_checker, queue, self._outcome_chooser(queue), requested_session)
        async with connect_client(client, await self._server.wait_until_serving()):
            self._open(client.management)
            if rng.random() < 0.5:
                await client.read_state()
            client.link.keep_credit(rng.choice([1, 10, 100]))
            for _ in range(rng.randint(1, 6)):
                await client.wait_until(lambda: False, timeout_s=rng.uniform(0.01, 0.2))
                draw = rng.random()
                if draw < 0.5:
                    self._states += 1
                    await client.set_state(None if rng.random() < 0.1 else b"%d" % self._states + rng.randbytes(50))
                elif draw < 0.7:
                    await client.read_state()
                else:
                    await self._receive_some_deferred(client.management, queue, client.session)
            if rng.random() < 0.5:
                await disconnect(client)

    # --- deferred messages --------------------------------------------------------------------------------------------

    async def _receive_deferred(self) -> None:
        """Receive deferred messages by sequence number, and settle most of them."""
        queue = self._rng.choice([name for name in self._queues_without_sessions if QUEUE_KINDS[name].deferred])
        client = ManagementClient(self._feature_checker, queue)
        async with connect_client(client, await self._server.wait_until_serving()):
            self._open(client.management)
            for _ in range(self._rng.randint(1, 20)):
                await self._receive_some_deferred(client.management, queue)
                await client.wait_until(lambda: False, timeout_s=self._rng.uniform(0, 0.05))
            if self._rng.random() < 0.5:
                await disconnect(client)

    async def _receive_some_deferred(self, management: ManagementLinks, queue: str, session: str | None = None) -> None:
        checker, rng = self._feature_checker, self._rng
        known = [
            number
            for number in checker.deferred_sequence_numbers
            if checker.messages[number].sent_to == queue and checker.histories[number].terms.session == session
        ]
        numbers = rng.sample(known, min(rng.choice([1, 1, 5]), len(known)))
        if not numbers:
            return
        sequence_numbers = [checker.deferred_sequence_numbers[number] for number in numbers]
        if rng.random() < 0.1:
            await receive_and_delete_deferred(checker, management, queue, numbers, sequence_numbers, session)
            return
        tokens = await receive_deferred(checker, management, queue, numbers, sequence_numbers, session)
        draw = rng.random()
        if not tokens or draw < 0.05:
            return
        status = "completed" if draw < 0.7 else "abandoned" if draw < 0.85 else "defered"
        await settle(checker, management, numbers, tokens, status, session)
