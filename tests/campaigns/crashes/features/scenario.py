"""Scenario with queues of all kinds, their clients, and the final checks.

    report = await run_campaign(plan, folder, scenario=FeatureScenario(plan.seed))

At the end no client holds a message, and messages with a short time to live or schedule have expired or become due.
Then all messages are peeked and removed, and both must agree with the counts of the server. Messages are removed by
receiving them (session by session, if there are sessions), receiving deferred ones by sequence number, cancelling
scheduled ones, and receiving dead letters.

Owns: the order of these steps. The guarantees are in the checker.
"""

from __future__ import annotations

import asyncio
import collections
import random
import time
from typing import TYPE_CHECKING, Final

from tests.campaigns import management
from tests.campaigns.clients import connect_client, disconnect
from tests.campaigns.crashes.campaign import drain_client
from tests.campaigns.crashes.features.checker import FeatureChecker
from tests.campaigns.crashes.features.clients import (
    DEAD_LETTERS,
    DeadLetterReceiverClient,
    FeatureReceiverClient,
    ManagementClient,
    SessionReceiverClient,
)
from tests.campaigns.crashes.features.management_operations import cancel, peek_all, receive_deferred, settle
from tests.campaigns.crashes.features.messages import ACTIVE, DEFERRED, SCHEDULED
from tests.campaigns.crashes.features.queue_kinds import QUEUE_KINDS, SESSIONS, SHORT_DELAY_RANGE_MS
from tests.campaigns.crashes.features.workload import FeatureWorkload
from tests.campaigns.management import MessageCounts
from twinbus.amqp.types import Int, Timestamp

if TYPE_CHECKING:
    from tests.campaigns.crashes.features.messages import ReceivedMessage
    from tests.campaigns.crashes.features.queue_kinds import QueueKind
    from tests.campaigns.crashes.workload import Workload
    from tests.campaigns.restartable_server import Endpoint, RestartableServer

SETTLE_TIMEOUT_S: Final = 20.0
"""Time limit after a start for handling all expired and due messages."""
POLL_INTERVAL_S: Final = 0.2
BATCH_SIZE: Final = 50
ALL_SESSIONS_MS: Final = 253_402_300_800_000
NO_MESSAGES: Final = MessageCounts(active=0, dead_lettered=0, scheduled=0, deferred=0)


class FeatureScenario:
    """Scenario with queues of all kinds."""

    def __init__(self, seed: int) -> None:
        self.checker = FeatureChecker(random.Random(seed))
        self._problems: list[str] = []

    async def prepare(self, server: RestartableServer) -> None:
        for kind in QUEUE_KINDS.values():
            await management.create_queue(server.endpoint, kind.name, **kind.settings)

    def start_clients(self, server: RestartableServer, rng: random.Random) -> Workload:
        return FeatureWorkload(server, self.checker, rng)

    async def verify(self, server: RestartableServer, clients: Workload) -> list[str]:
        del clients
        await asyncio.sleep(SHORT_DELAY_RANGE_MS[1] / 1000)
        await server.kill()
        await server.start()
        await asyncio.gather(*[self._drain_queue(server.endpoint, kind) for kind in QUEUE_KINDS.values()])
        self.checker.finish()
        await server.stop()
        await server.start()
        await asyncio.gather(*[self._check_empty(server.endpoint, kind) for kind in QUEUE_KINDS.values()])
        await server.stop()
        return self._problems

    async def _check_empty(self, endpoint: Endpoint, kind: QueueKind) -> None:
        reported = await management.message_counts(endpoint, kind.name)
        if reported != NO_MESSAGES:
            self._problems.append(f"count: {kind.name} is empty and is said to hold {reported}")
        await self._receive_all(endpoint, kind)
        if kind.has_sessions:
            await self._check_sessions(endpoint, kind.name, [])

    async def _drain_queue(self, endpoint: Endpoint, kind: QueueKind) -> None:
        reported, peeked, dead = await self._wait_for_counts(endpoint, kind.name)
        states = collections.Counter(message.state for message in peeked)
        peeked_counts = MessageCounts(states[ACTIVE], len(dead), states[SCHEDULED], states[DEFERRED])
        self._compare(kind.name, "peeked", reported, peeked_counts)
        if kind.has_sessions:
            await self._check_sessions(endpoint, kind.name, peeked)
        active, dead_lettered = await self._receive_all(endpoint, kind)
        removed = MessageCounts(
            active,
            dead_lettered,
            await self._cancel_all(endpoint, kind.name, peeked),
            await self._receive_all_deferred(endpoint, kind, peeked),
        )
        self._compare(kind.name, "taken out", reported, removed)

    def _compare(self, queue: str, how: str, reported: MessageCounts, actual: MessageCounts) -> None:
        if reported != actual:
            self._problems.append(f"count: {queue} was said to hold {reported}, and {how} were {actual}")

    async def _wait_for_counts(
        self, endpoint: Endpoint, queue: str
    ) -> tuple[MessageCounts, list[ReceivedMessage], list[ReceivedMessage]]:
        """Return the reported counts, the peeked messages and the dead letters, after they stop changing."""
        deadline = time.monotonic() + SETTLE_TIMEOUT_S
        while True:
            reported = await management.message_counts(endpoint, queue)
            peeked, dead = await self._peek(endpoint, queue), await self._peek(endpoint, queue, DEAD_LETTERS)
            overdue = self._overdue(queue, peeked)
            is_over = time.monotonic() > deadline
            if is_over or (not overdue and reported == await management.message_counts(endpoint, queue)):
                break
            await asyncio.sleep(POLL_INTERVAL_S)
        self._problems += [f"late: message {number} of {queue} lies there, and its time has come" for number in overdue]
        return reported, peeked, dead

    def _overdue(self, queue: str, peeked: list[ReceivedMessage]) -> list[int]:
        """Return messages that should be active or expired by now."""
        now_ms, overdue = time.time_ns() // 1_000_000, []
        for message in peeked:
            number = self.checker.message_peeked(queue, message)
            if number is None:
                continue
            due_ms = self.checker.histories[number].terms.due_ms
            is_over = message.state == ACTIVE and message.expires_ms is not None and message.expires_ms <= now_ms
            is_due = message.state == SCHEDULED and due_ms is not None and due_ms <= now_ms
            if is_over or is_due:
                overdue.append(number)
        return overdue

    async def _peek(self, endpoint: Endpoint, queue: str, sub_queue: str = "") -> list[ReceivedMessage]:
        async with connect_client(ManagementClient(self.checker, queue, sub_queue), endpoint) as client:
            client.management.grant_credit()
            peeked = await peek_all(client.management)
            await disconnect(client)
        return peeked

    # --- removing all messages ----------------------------------------------------------------------------------------

    async def _receive_all(self, endpoint: Endpoint, kind: QueueKind) -> tuple[int, int]:
        """Receive and complete all active messages and dead letters; return both numbers."""
        dead = DeadLetterReceiverClient(self.checker, kind.name)

        async def has_no_dead() -> bool:
            return (await management.message_counts(endpoint, kind.name)).dead_lettered == 0

        async def has_no_active() -> bool:
            return (await management.message_counts(endpoint, kind.name)).active == 0

        async with connect_client(dead, endpoint):
            await drain_client(dead, has_no_dead)
            await disconnect(dead)
        if kind.has_sessions:
            return await self._receive_sessions(endpoint, kind.name), dead.completed
        client = FeatureReceiverClient(self.checker, kind.name)
        async with connect_client(client, endpoint):
            await drain_client(client, has_no_active)
            await disconnect(client)
        return client.completed, dead.completed

    async def _receive_sessions(self, endpoint: Endpoint, queue: str) -> int:
        completed = 0
        for session in range(SESSIONS):
            client = SessionReceiverClient(self.checker, queue, session=f"session-{session}")
            async with connect_client(client, endpoint):
                client.management.grant_credit()
                await client.read_state()

                async def is_empty(client: SessionReceiverClient = client) -> bool:
                    await client.management.request("com.microsoft:renew-session-lock", {"session-id": client.session})
                    return not any(
                        message.state == ACTIVE for message in await peek_all(client.management, client.session)
                    )

                await drain_client(client, is_empty)
                await disconnect(client)
            completed += client.completed
        return completed

    async def _check_sessions(self, endpoint: Endpoint, queue: str, peeked: list[ReceivedMessage]) -> None:
        """Check that exactly the sessions with messages or a state are listed."""
        async with connect_client(ManagementClient(self.checker, queue), endpoint) as client:
            client.management.grant_credit()
            arguments = {"last-updated-time": Timestamp(ALL_SESSIONS_MS), "skip": Int(0), "top": Int(1_000)}
            response = await client.management.request("com.microsoft:get-message-sessions", dict(arguments))
            listed = set(response.body["sessions-ids"].items) if response.status == 200 else set()
            await disconnect(client)
        must = {message.session for message in peeked if message.state == ACTIVE} | self.checker.sessions_with_state(
            queue
        )
        may = must | self.checker.sessions_with_possible_state(queue)
        if not must <= listed <= may:
            self._problems.append(f"sessions: {queue} lists {sorted(listed)}, must list {must} and may list {may}")

    async def _receive_all_deferred(self, endpoint: Endpoint, kind: QueueKind, peeked: list[ReceivedMessage]) -> int:
        """Receive all deferred messages by sequence number and complete them; return their number."""
        by_session: dict[str | None, list[ReceivedMessage]] = collections.defaultdict(list)
        for message in peeked:
            if message.state == DEFERRED:
                by_session[message.session].append(message)
        fetched = 0
        for session, messages in by_session.items():
            client: ManagementClient | SessionReceiverClient
            if kind.has_sessions:
                client = SessionReceiverClient(self.checker, kind.name, session=session)
            else:
                client = ManagementClient(self.checker, kind.name)
            async with connect_client(client, endpoint):
                client.management.grant_credit()
                for start in range(0, len(messages), BATCH_SIZE):
                    fetched += await self._receive_some_deferred(client, messages[start : start + BATCH_SIZE], session)
                await disconnect(client)
        return fetched

    async def _receive_some_deferred(
        self, client: ManagementClient | SessionReceiverClient, messages: list[ReceivedMessage], session: str | None
    ) -> int:
        numbers = [
            number for message in messages if (number := self.checker.message_peeked(client.queue, message)) is not None
        ]
        sequence_numbers = [message.sequence_number for message in messages]
        tokens = await receive_deferred(
            self.checker, client.management, client.queue, numbers, sequence_numbers, session
        )
        is_done = bool(tokens) and await settle(self.checker, client.management, numbers, tokens, "completed", session)
        return len(numbers) if is_done else 0

    async def _cancel_all(self, endpoint: Endpoint, queue: str, peeked: list[ReceivedMessage]) -> int:
        """Cancel all scheduled messages, which are due much later; return their number."""
        scheduled = [
            (number, message.sequence_number)
            for message in peeked
            if message.state == SCHEDULED and (number := self.checker.message_peeked(queue, message)) is not None
        ]
        cancelled = 0
        async with connect_client(ManagementClient(self.checker, queue), endpoint) as client:
            client.management.grant_credit()
            for start in range(0, len(scheduled), BATCH_SIZE):
                numbers = [number for number, _ in scheduled[start : start + BATCH_SIZE]]
                self.checker.cancel_requested(numbers)
                await cancel(
                    self.checker,
                    client.management,
                    numbers,
                    [number for _, number in scheduled[start : start + BATCH_SIZE]],
                )
                cancelled += sum(self.checker.is_cancelled(number) for number in numbers)
            await disconnect(client)
        return cancelled
