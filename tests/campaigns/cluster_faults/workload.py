"""Workload: senders and receivers that continue during faults, and disconnect at random.

    async with Workload(server, scenario, checker, rng) as workload:
        ...                                     # inject faults, and read the checker

Owns: the clients of a campaign, and the times of lost connections. The kernel chooses the process that accepts a
connection; a sender whose process has many connections already reconnects, a few times. The checkers check the
guarantees.
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
    from twinbus.amqp.codec.composite import Composite

PAUSE_S: Final = 0.02
"""Mean pause between two messages of a sender."""
SENDER_LIFETIME_RANGE_S: Final = (2.0, 10.0)
RECEIVER_LIFETIME_RANGE_S: Final = (0.5, 4.0)
"""Lifetime of a receiver."""
CREDIT_TIMEOUT_S: Final = 0.25
RESPONSE_TIMEOUT_S: Final = 30.0
RECONNECT_PAUSE_S: Final = 0.02
"""Pause after a lost connection."""
CLEAN_CLOSE_PROBABILITY: Final = 0.7
MAX_CONNECTION_ATTEMPTS: Final = 8
"""Attempts of a sender to connect to a process with few connections."""
MAX_SHARE_FACTOR: Final = 1.5
"""A process has many connections if it has more than this multiple of its share."""


class Workload:
    """Senders and receivers of a campaign."""

    def __init__(
        self, server: RestartableCluster, scenario: Scenario, checker: ClusterChecker, rng: random.Random
    ) -> None:
        self.drops: list[ConnectionDrop] = []
        self.reconnections: list[Reconnection] = []
        self.sender_clients: set[StreamSenderClient] = set()
        """Connected senders."""
        self.connections = 0
        self._server = server
        self._scenario = scenario
        self._checker = checker
        self._rng = rng
        self._is_stopping = False
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        loops: list[Callable[[], Awaitable[None]]] = []
        loops += [self._sender_loop(stream) for stream in self._scenario.streams]
        loops += [
            self._receiver_loop(destination)
            for destination, count in self._scenario.receivers.items()
            for _ in range(count)
        ]
        self._tasks = [asyncio.ensure_future(self._repeat(client_loop)) for client_loop in loops]
        return self

    async def __aexit__(self, *_error: object) -> None:
        """Wait for pending responses, and disconnect all clients."""
        self._is_stopping = True
        _, late = await asyncio.wait(self._tasks, timeout=2 * RESPONSE_TIMEOUT_S)
        for task in late:
            task.cancel()
        results = await asyncio.gather(*self._tasks, return_exceptions=True)
        errors = [result for result in results if isinstance(result, Exception)]
        if errors:
            raise ExceptionGroup("clients failed", errors)

    @property
    def has_failed(self) -> bool:
        """A client task has ended unexpectedly; leaving the context raises its error."""
        return any(task.done() for task in self._tasks)

    def connection_shares(self, workers: list[int]) -> list[float]:
        """Return the share of the senders' connections that each of these processes has."""
        return [
            sum(client.process == worker for client in self.sender_clients) / max(1, len(self.sender_clients))
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
        """Return the work of a sender on one connection."""
        dropped_s: float | None = None
        attempts = 0

        async def run_connection() -> None:
            nonlocal dropped_s, attempts
            client = StreamSenderClient(self._checker, stream, self._rng)
            try:
                async with connect_client(client, self._server.endpoint):
                    client.process = self._server.process_of_connection(client)
                    self.connections += 1
                    if dropped_s is not None:
                        self.reconnections.append(Reconnection(dropped_s, time.monotonic()))
                        dropped_s = None
                    attempts += 1
                    if attempts < MAX_CONNECTION_ATTEMPTS and self._is_crowded(client.process):
                        await disconnect(client)
                        return
                    attempts = 0
                    self.sender_clients.add(client)
                    await self._send(client)
            except (OSError, TimeoutError):
                if dropped_s is None:
                    dropped_s = time.monotonic()
                if client.end_reason is not None:
                    self.drops.append(
                        ConnectionDrop(client.process, time.monotonic(), f"{stream.name}: {client.end_reason}")
                    )
                raise
            finally:
                self.sender_clients.discard(client)
                client.record_disconnect()

        return run_connection

    def _is_crowded(self, process: int) -> bool:
        fair_share = len(self._scenario.streams) / self._server.worker_count
        return sum(client.process == process for client in self.sender_clients) + 1 > MAX_SHARE_FACTOR * fair_share

    async def _send(self, client: StreamSenderClient) -> None:
        """Send messages with a limited number pending; then wait for all responses and disconnect."""
        until, max_pending = (
            time.monotonic() + self._rng.uniform(*SENDER_LIFETIME_RANGE_S),
            self._rng.choice([1, 5, 20]),
        )
        max_pending = max_pending if not client.stream.has_keys else 20
        while time.monotonic() < until and not self._is_stopping:
            if await client.wait_until(
                lambda: client.can_send and len(client.unsettled) < max_pending, timeout_s=CREDIT_TIMEOUT_S
            ):
                client.send_next()
            await asyncio.sleep(self._rng.uniform(0, 2 * PAUSE_S))
        await client.wait_until(lambda: not client.unsettled, timeout_s=RESPONSE_TIMEOUT_S)
        await disconnect(client)

    # --- receivers ----------------------------------------------------------------------------------------------------

    def _receiver_loop(self, destination: str) -> Callable[[], Awaitable[None]]:
        """Return the work of a receiver on one connection."""

        async def run_connection() -> None:
            client_class = SessionReceiverClient if has_sessions(destination) else StreamReceiverClient
            client = client_class(
                self._checker,
                destination,
                self._choose_session_outcome if client_class is SessionReceiverClient else self._choose_outcome,
            )
            try:
                async with connect_client(client, self._server.endpoint):
                    client.process = self._server.process_of_connection(client)
                    self.connections += 1
                    await self._receive(client)
            except (OSError, TimeoutError):
                self._record_drop(client)
                raise
            finally:
                client.record_disconnect()

        return run_connection

    async def _receive(self, client: StreamReceiverClient) -> None:
        client.keep_credit(self._rng.choice([1, 10, 50]))
        until = time.monotonic() + self._rng.uniform(*RECEIVER_LIFETIME_RANGE_S)
        while time.monotonic() < until and not self._is_stopping:
            await client.wait_until(lambda: False, timeout_s=CREDIT_TIMEOUT_S)
        if self._rng.random() < CLEAN_CLOSE_PROBABILITY:
            await client.wait_until(lambda: not client.unconfirmed_settlements, timeout_s=RESPONSE_TIMEOUT_S)
            await disconnect(client)

    def _record_drop(self, client: StreamReceiverClient) -> None:
        """Record a lost connection. A detached session link is none: its session was lost, or there was no session."""
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
        draw = self._rng.random()
        if draw < 0.02:
            return None
        if draw < 0.05:
            return ABANDONED
        return RELEASED if draw < 0.08 else ACCEPTED

    def _choose_session_outcome(self) -> Composite | None:
        """Session receivers never abandon or release, which would change the order."""
        return None if self._rng.random() < 0.02 else ACCEPTED


async def drain(server: RestartableCluster, checker: ClusterChecker, destination: str) -> None:
    """Receive and complete the available messages, of one session if the destination has sessions."""
    client = (SessionReceiverClient if has_sessions(destination) else StreamReceiverClient)(checker, destination)
    try:
        with contextlib.suppress(OSError, TimeoutError):  # there is no session, or another receiver has it
            async with connect_client(client, server.endpoint):
                client.process = server.process_of_connection(client)
                client.link.grant(DRAIN_CREDIT, drain=True)
                await client.wait_until(
                    lambda: client.has_drained and not client.unconfirmed_settlements, timeout_s=RESPONSE_TIMEOUT_S
                )
                await disconnect(client)
    finally:
        client.record_disconnect()


DRAIN_CREDIT: Final = 500
