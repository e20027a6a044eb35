"""Senders and receivers that go on whatever is struck, and hang up at random themselves.

    async with Load(server, scene, ledger, rng) as load:
        ...                                     # strike, and look at what the ledger has

Owns: the clients of a campaign, and when their connections ended against their will. Which process accepts a connection
is the kernel's choice; a sender that came to one which holds many already hangs up and tries again, a few times. What
is promised is judged elsewhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Final, Self

from tests.campaigns.clients import ABANDONED, connect_client, disconnect
from tests.campaigns.cluster_faults.clients import SessionReceiverClient, StreamReceiverClient, StreamSenderClient
from tests.campaigns.cluster_faults.response_checker import ConnectionDrop, Reconnection
from tests.campaigns.cluster_faults.scenario import has_sessions
from twinbus.amqp.outcomes import ACCEPTED, RELEASED

if TYPE_CHECKING:
    import random
    from collections.abc import Awaitable, Callable

    from tests.campaigns.cluster_faults.checker import ClusterChecker
    from tests.campaigns.cluster_faults.restartable_cluster import RestartableCluster
    from tests.campaigns.cluster_faults.scenario import Scenario, Stream
    from twinbus.amqp.composite import Composite

PAUSE_S: Final = 0.02
"""Between two messages of a sender, in the mean."""
SENDER_LIFETIME_RANGE_S: Final = (2.0, 10.0)
RECEIVER_LIFETIME_RANGE_S: Final = (0.5, 4.0)
"""Of a receiver."""
CREDIT_TIMEOUT_S: Final = 0.25
RESPONSE_TIMEOUT_S: Final = 30.0
RECONNECT_PAUSE_S: Final = 0.02
"""After a connection was lost: then at once."""
CLEAN_CLOSE_PROBABILITY: Final = 0.7
MAX_CONNECTION_ATTEMPTS: Final = 8
"""Of a sender, to be held by a process that does not hold many."""
MAX_SHARE_FACTOR: Final = 1.5
"""So many times its share of all senders are many."""


class Workload:
    """All clients."""

    def __init__(
        self, server: RestartableCluster, scenario: Scenario, checker: ClusterChecker, rng: random.Random
    ) -> None:
        self.drops: list[ConnectionDrop] = []
        self.reconnections: list[Reconnection] = []
        self.sender_clients: set[StreamSenderClient] = set()
        """Senders that are connected."""
        self.connections = 0
        self._server = server
        self._scenario = scenario
        self._checker = checker
        self._rng = rng
        self._is_stopping = False
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        works: list[Callable[[], Awaitable[None]]] = []
        works += [self._sender_loop(stream) for stream in self._scenario.streams]
        works += [
            self._receiver_loop(destination)
            for destination, count in self._scenario.receivers.items()
            for _ in range(count)
        ]
        self._tasks = [asyncio.ensure_future(self._repeat(work)) for work in works]
        return self

    async def __aexit__(self, *_error: object) -> None:
        """Senders wait for their answers, and all hang up."""
        self._is_stopping = True
        _, late = await asyncio.wait(self._tasks, timeout=2 * RESPONSE_TIMEOUT_S)
        for task in late:
            task.cancel()
        results = await asyncio.gather(*self._tasks, return_exceptions=True)
        faults = [result for result in results if isinstance(result, Exception)]
        if faults:
            raise ExceptionGroup("clients failed", faults)

    @property
    def has_failed(self) -> bool:
        """A client did what it never should; the end will tell."""
        return any(task.done() for task in self._tasks)

    def connection_shares(self, workers: list[int]) -> list[float]:
        """What part of the senders' connections each of these processes holds."""
        return [
            sum(line.process == worker for line in self.sender_clients) / max(1, len(self.sender_clients))
            for worker in workers
        ]

    async def _repeat(self, client_loop: Callable[[], Awaitable[None]]) -> None:
        while not self._is_stopping:
            try:
                await client_loop()
            except (OSError, TimeoutError):
                await asyncio.sleep(RECONNECT_PAUSE_S)

    # --- senders ------------------------------------------------------------------------------------------------------

    def _sender_loop(self, stream: Stream) -> Callable[[], Awaitable[None]]:
        """What one sender does in the life of one connection."""
        dropped_s: float | None = None
        tries = 0

        async def live() -> None:
            nonlocal dropped_s, tries
            line = StreamSenderClient(self._checker, stream, self._rng)
            try:
                async with connect_client(line, self._server.endpoint):
                    line.process = self._server.process_of_connection(line)
                    self.connections += 1
                    if dropped_s is not None:
                        self.reconnections.append(Reconnection(dropped_s, time.monotonic()))
                        dropped_s = None
                    tries += 1
                    if tries < MAX_CONNECTION_ATTEMPTS and self._is_crowded(line.process):
                        await disconnect(line)
                        return
                    tries = 0
                    self.sender_clients.add(line)
                    await self._send(line)
            except (OSError, TimeoutError):
                if dropped_s is None:
                    dropped_s = time.monotonic()
                if line.end_reason is not None:
                    self.drops.append(
                        ConnectionDrop(line.process, time.monotonic(), f"{stream.name}: {line.end_reason}")
                    )
                raise
            finally:
                self.sender_clients.discard(line)
                line.record_disconnect()

        return live

    def _is_crowded(self, process: int) -> bool:
        fair = len(self._scenario.streams) / self._server.worker_count
        return sum(line.process == process for line in self.sender_clients) + 1 > MAX_SHARE_FACTOR * fair

    async def _send(self, client: StreamSenderClient) -> None:
        """One message after the other, with so many unanswered at a time; then hang up when all are answered."""
        until, most_unanswered = (
            time.monotonic() + self._rng.uniform(*SENDER_LIFETIME_RANGE_S),
            self._rng.choice([1, 5, 20]),
        )
        most_unanswered = most_unanswered if not client.stream.has_keys else 20
        while time.monotonic() < until and not self._is_stopping:
            if await client.wait_until(
                lambda: client.can_send and len(client.unsettled) < most_unanswered, timeout_s=CREDIT_TIMEOUT_S
            ):
                client.send_next()
            await asyncio.sleep(self._rng.uniform(0, 2 * PAUSE_S))
        await client.wait_until(lambda: not client.unsettled, timeout_s=RESPONSE_TIMEOUT_S)
        await disconnect(client)

    # --- receivers ----------------------------------------------------------------------------------------------------

    def _receiver_loop(self, destination: str) -> Callable[[], Awaitable[None]]:
        """What one receiver does in the life of one connection."""

        async def live() -> None:
            make = SessionReceiverClient if has_sessions(destination) else StreamReceiverClient
            line = make(
                self._checker,
                destination,
                self._choose_session_outcome if make is SessionReceiverClient else self._choose_outcome,
            )
            try:
                async with connect_client(line, self._server.endpoint):
                    line.process = self._server.process_of_connection(line)
                    self.connections += 1
                    await self._receive(line)
            except (OSError, TimeoutError):
                self._record_drop(line)
                raise
            finally:
                line.record_disconnect()

        return live

    async def _receive(self, client: StreamReceiverClient) -> None:
        client.keep_credit(self._rng.choice([1, 10, 50]))
        until = time.monotonic() + self._rng.uniform(*RECEIVER_LIFETIME_RANGE_S)
        while time.monotonic() < until and not self._is_stopping:
            await client.wait_until(lambda: False, timeout_s=CREDIT_TIMEOUT_S)
        if self._rng.random() < CLEAN_CLOSE_PROBABILITY:
            await client.wait_until(lambda: not client.unconfirmed_settlements, timeout_s=RESPONSE_TIMEOUT_S)
            await disconnect(client)

    def _record_drop(self, client: StreamReceiverClient) -> None:
        """A session may be lost, with its fragment, or there was none: then its link ends, and no more."""
        is_of_session = (
            isinstance(client, SessionReceiverClient)
            and client.end_reason is not None
            and client.end_reason.startswith("LinkDetached")
        )
        if client.end_reason is not None and not is_of_session:
            self.drops.append(
                ConnectionDrop(client.process, time.monotonic(), f"receiver of {client.queue}: {client.end_reason}")
            )

    def _choose_outcome(self) -> Composite | None:
        luck = self._rng.random()
        if luck < 0.02:
            return None
        if luck < 0.05:
            return ABANDONED
        return RELEASED if luck < 0.08 else ACCEPTED

    def _choose_session_outcome(self) -> Composite | None:
        """Nothing is given back out of turn."""
        return None if self._rng.random() < 0.02 else ACCEPTED


async def drain(server: RestartableCluster, checker: ClusterChecker, destination: str) -> None:
    """Receive and complete what comes for a moment: one connection's worth, or one session's."""
    line = (SessionReceiverClient if has_sessions(destination) else StreamReceiverClient)(checker, destination)
    try:
        with contextlib.suppress(OSError, TimeoutError):  # there is no session, or it is held for a while
            async with connect_client(line, server.endpoint):
                line.process = server.process_of_connection(line)
                line.link.grant(DRAIN_CREDIT, drain=True)
                await line.wait_until(
                    lambda: line.has_drained and not line.unconfirmed_settlements, timeout_s=RESPONSE_TIMEOUT_S
                )
                await disconnect(line)
    finally:
        line.record_disconnect()


DRAIN_CREDIT: Final = 500
