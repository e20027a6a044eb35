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
"""After a start: by then all that is over is dealt with."""
POLL_INTERVAL_S: Final = 0.2
BATCH_SIZE: Final = 50
ALL_SESSIONS_MS: Final = 253_402_300_800_000
NO_MESSAGES: Final = MessageCounts(active=0, dead_lettered=0, scheduled=0, deferred=0)


class FeatureScenario:
    """A scene for `harness`."""

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
        told = await management.message_counts(endpoint, kind.name)
        if told != NO_MESSAGES:
            self._problems.append(f"count: {kind.name} is empty and is said to hold {told}")
        await self._receive_all(endpoint, kind)
        if kind.has_sessions:
            await self._check_sessions(endpoint, kind.name, [])

    async def _drain_queue(self, endpoint: Endpoint, kind: QueueKind) -> None:
        told, peeked, dead = await self._wait_for_counts(endpoint, kind.name)
        states = collections.Counter(got.state for got in peeked)
        seen = MessageCounts(states[ACTIVE], len(dead), states[SCHEDULED], states[DEFERRED])
        self._compare(kind.name, "peeked", told, seen)
        if kind.has_sessions:
            await self._check_sessions(endpoint, kind.name, peeked)
        active, buried = await self._receive_all(endpoint, kind)
        taken = MessageCounts(
            active,
            buried,
            await self._cancel_all(endpoint, kind.name, peeked),
            await self._receive_all_deferred(endpoint, kind, peeked),
        )
        self._compare(kind.name, "taken out", told, taken)

    def _compare(self, queue: str, how: str, reported: MessageCounts, actual: MessageCounts) -> None:
        if reported != actual:
            self._problems.append(f"count: {queue} was said to hold {reported}, and {how} were {actual}")

    async def _wait_for_counts(
        self, endpoint: Endpoint, queue: str
    ) -> tuple[MessageCounts, list[ReceivedMessage], list[ReceivedMessage]]:
        """What a queue is said to hold, what is peeked, and its dead letters, once these change no more."""
        deadline = time.monotonic() + SETTLE_TIMEOUT_S
        while True:
            told = await management.message_counts(endpoint, queue)
            peeked, dead = await self._peek(endpoint, queue), await self._peek(endpoint, queue, DEAD_LETTERS)
            overdue = self._overdue(queue, peeked)
            is_over = time.monotonic() > deadline
            if is_over or (not overdue and told == await management.message_counts(endpoint, queue)):
                break
            await asyncio.sleep(POLL_INTERVAL_S)
        self._problems += [f"late: message {number} of {queue} lies there, and its time has come" for number in overdue]
        return told, peeked, dead

    def _overdue(self, queue: str, peeked: list[ReceivedMessage]) -> list[int]:
        """Messages that should be active or gone by now."""
        now_ms, overdue = time.time_ns() // 1_000_000, []
        for got in peeked:
            number = self.checker.message_peeked(queue, got)
            if number is None:
                continue
            due_ms = self.checker.histories[number].terms.due_ms
            is_over = got.state == ACTIVE and got.expires_ms is not None and got.expires_ms <= now_ms
            is_due = got.state == SCHEDULED and due_ms is not None and due_ms <= now_ms
            if is_over or is_due:
                overdue.append(number)
        return overdue

    async def _peek(self, endpoint: Endpoint, queue: str, sub_queue: str = "") -> list[ReceivedMessage]:
        async with connect_client(ManagementClient(self.checker, queue, sub_queue), endpoint) as line:
            line.management.grant_credit()
            found = await peek_all(line.management)
            await disconnect(line)
        return found

    # --- taking everything out ----------------------------------------------------------------------------------------

    async def _receive_all(self, endpoint: Endpoint, kind: QueueKind) -> tuple[int, int]:
        """Receive and complete all that is active, and all dead letters: how many these were."""
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
        line = FeatureReceiverClient(self.checker, kind.name)
        async with connect_client(line, endpoint):
            await drain_client(line, has_no_active)
            await disconnect(line)
        return line.completed, dead.completed

    async def _receive_sessions(self, endpoint: Endpoint, queue: str) -> int:
        completed = 0
        for session in range(SESSIONS):
            line = SessionReceiverClient(self.checker, queue, session=f"session-{session}")
            async with connect_client(line, endpoint):
                line.management.grant_credit()
                await line.read_state()

                async def is_empty(line: SessionReceiverClient = line) -> bool:
                    await line.management.request("com.microsoft:renew-session-lock", {"session-id": line.session})
                    return not any(got.state == ACTIVE for got in await peek_all(line.management, line.session))

                await drain_client(line, is_empty)
                await disconnect(line)
            completed += line.completed
        return completed

    async def _check_sessions(self, endpoint: Endpoint, queue: str, peeked: list[ReceivedMessage]) -> None:
        """Those that have messages or a state are listed, and no others."""
        async with connect_client(ManagementClient(self.checker, queue), endpoint) as line:
            line.management.grant_credit()
            arguments = {"last-updated-time": Timestamp(ALL_SESSIONS_MS), "skip": Int(0), "top": Int(1_000)}
            answer = await line.management.request("com.microsoft:get-message-sessions", dict(arguments))
            listed = set(answer.body["sessions-ids"].items) if answer.status == 200 else set()
            await disconnect(line)
        must = {got.session for got in peeked if got.state == ACTIVE} | self.checker.sessions_with_state(queue)
        may = must | self.checker.sessions_with_possible_state(queue)
        if not must <= listed <= may:
            self._problems.append(f"sessions: {queue} lists {sorted(listed)}, must list {must} and may list {may}")

    async def _receive_all_deferred(self, endpoint: Endpoint, kind: QueueKind, peeked: list[ReceivedMessage]) -> int:
        """Ask for all deferred messages by their numbers, and complete them: how many these were."""
        by_session: dict[str | None, list[ReceivedMessage]] = collections.defaultdict(list)
        for got in peeked:
            if got.state == DEFERRED:
                by_session[got.session].append(got)
        fetched = 0
        for session, messages in by_session.items():
            line: ManagementClient | SessionReceiverClient
            if kind.has_sessions:
                line = SessionReceiverClient(self.checker, kind.name, session=session)
            else:
                line = ManagementClient(self.checker, kind.name)
            async with connect_client(line, endpoint):
                line.management.grant_credit()
                for at in range(0, len(messages), BATCH_SIZE):
                    fetched += await self._receive_some_deferred(line, messages[at : at + BATCH_SIZE], session)
                await disconnect(line)
        return fetched

    async def _receive_some_deferred(
        self, client: ManagementClient | SessionReceiverClient, messages: list[ReceivedMessage], session: str | None
    ) -> int:
        numbers = [number for got in messages if (number := self.checker.message_peeked(client.queue, got)) is not None]
        sequence_numbers = [got.sequence_number for got in messages]
        tokens = await receive_deferred(
            self.checker, client.management, client.queue, numbers, sequence_numbers, session
        )
        is_done = bool(tokens) and await settle(self.checker, client.management, numbers, tokens, "completed", session)
        return len(numbers) if is_done else 0

    async def _cancel_all(self, endpoint: Endpoint, queue: str, peeked: list[ReceivedMessage]) -> int:
        """Cancel all that is scheduled, which is for long after now: how many these were."""
        found = [
            (number, got.sequence_number)
            for got in peeked
            if got.state == SCHEDULED and (number := self.checker.message_peeked(queue, got)) is not None
        ]
        cancelled = 0
        async with connect_client(ManagementClient(self.checker, queue), endpoint) as line:
            line.management.grant_credit()
            for at in range(0, len(found), BATCH_SIZE):
                numbers = [number for number, _ in found[at : at + BATCH_SIZE]]
                self.checker.cancel_requested(numbers)
                await cancel(
                    self.checker, line.management, numbers, [number for _, number in found[at : at + BATCH_SIZE]]
                )
                cancelled += sum(self.checker.is_cancelled(number) for number in numbers)
            await disconnect(line)
        return cancelled
