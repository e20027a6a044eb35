"""Workload: senders, receivers and creators of queues that continue through crashes, and disconnect at random.

    async with Workload(server, checker, queues, rng) as workload:
        ...                                     # kill the server, and start it again

Owns: the random choices of the clients. The checker checks the guarantees.
"""

from __future__ import annotations

import asyncio
import collections
from typing import TYPE_CHECKING, ClassVar, Final, Self

from tests.campaigns import management
from tests.campaigns.clients import ABANDONED, ReceiverClient, SenderClient, connect_client, disconnect
from twinbus.amqp.outcomes import ACCEPTED, RELEASED

if TYPE_CHECKING:
    import random
    from collections.abc import Awaitable, Callable, Sequence

    from tests.campaigns.restartable_server import RestartableServer
    from tests.support.delivery_checker.checker import DeliveryChecker
    from twinbus.amqp.codec.composite import Composite

SENDERS: Final = 4
RECEIVERS: Final = 3
BACKLOG_MAX: Final = 1_000
"""Pending messages above which no sender starts, so that a long run does not fill the disk."""
RESPONSE_TIMEOUT_S: Final = 5.0
RECONNECT_PAUSE_S: Final = 0.05
"""Pause between two attempts to connect to a server that is stopping or starting."""
LARGE_BYTES: Final = 150_000
LARGE_PROBABILITY: Final = 0.01


class Workload:
    """Clients of a run."""

    messages_max: ClassVar = 400
    """Maximum number of messages of a sender on one connection."""

    def __init__(
        self, server: RestartableServer, checker: DeliveryChecker, queues: Sequence[str], rng: random.Random
    ) -> None:
        self.created_queues: dict[str, bool | None] = {}
        """Queues of `_create_queues`: they exist, do not exist, or (None) are uncertain for lack of a response."""
        self.disconnect_reasons: collections.Counter[str] = collections.Counter()
        """Reasons of unexpected disconnects."""
        self._server = server
        self._checker = checker
        self._queues = queues
        self._rng = rng
        self._is_stopping = False
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        self._tasks = [asyncio.ensure_future(self._repeat(client_loop)) for client_loop in self.client_loops()]
        return self

    def client_loops(self) -> Sequence[Callable[[], Awaitable[None]]]:
        """Return the loops of the clients, one for each client."""
        return [self._send] * SENDERS + [self._receive] * RECEIVERS + [self._create_queues]

    def new_sender(self) -> SenderClient:
        return SenderClient(self._checker, self._rng.choice(self._queues))

    def new_receiver(self) -> ReceiverClient:
        return ReceiverClient(self._checker, self._rng.choice(self._queues), self._choose_outcome)

    @property
    def has_failed(self) -> bool:
        """A client task has ended unexpectedly; leaving the context raises its error."""
        return any(task.done() for task in self._tasks)

    async def __aexit__(self, *_: object) -> None:
        self._is_stopping = True
        for task in self._tasks:
            task.cancel()
        results = await asyncio.gather(*self._tasks, return_exceptions=True)
        errors = [result for result in results if isinstance(result, Exception)]
        if errors:
            raise ExceptionGroup("clients failed", errors)

    async def _repeat(self, client_loop: Callable[[], Awaitable[None]]) -> None:
        """Repeat the loop of a client; a crash of the server is expected in it."""
        while not self._is_stopping:
            await self._server.wait_until_serving()
            try:
                await client_loop()
            except (OSError, TimeoutError) as error:
                self.disconnect_reasons[str(error) or type(error).__name__] += 1
                await asyncio.sleep(RECONNECT_PAUSE_S)

    # --- one connection of each client --------------------------------------------------------------------------------

    async def _send(self) -> None:
        """Send messages with a limited number pending, and disconnect, cleanly or not."""
        rng = self._rng
        if len(self._checker.pending) > BACKLOG_MAX:
            await asyncio.sleep(RECONNECT_PAUSE_S)
            return
        client = self.new_sender()
        max_pending, messages = rng.choice([1, 5, 50, 200]), rng.randint(1, self.messages_max)
        async with connect_client(client, await self._server.wait_until_serving()):
            for _ in range(messages):
                await client.wait_until(
                    lambda: client.can_send and len(client.unsettled) < max_pending, timeout_s=RESPONSE_TIMEOUT_S
                )
                if client.can_send:
                    client.send(LARGE_BYTES if rng.random() < LARGE_PROBABILITY else rng.randint(0, 1500))
            if rng.random() < 0.5:
                await client.wait_until(lambda: not client.unsettled, timeout_s=RESPONSE_TIMEOUT_S)
            if rng.random() < 0.5:
                await disconnect(client)

    async def _receive(self) -> None:
        """Receive with some credit, complete most messages, return some, keep a few locked; then disconnect."""
        rng = self._rng
        client = self.new_receiver()
        async with connect_client(client, await self._server.wait_until_serving()):
            client.link.keep_credit(rng.choice([1, 10, 100]))
            await client.wait_until(lambda: False, timeout_s=rng.uniform(0.1, 1.0))
            if rng.random() < 0.5:
                await disconnect(client)

    def _choose_outcome(self) -> Composite | None:
        draw = self._rng.random()
        if draw < 0.01:
            return None
        if draw < 0.05:
            return ABANDONED
        return RELEASED if draw < 0.1 else ACCEPTED

    async def _create_queues(self) -> None:
        """Create a queue, or delete one that was created before, and record the response."""
        endpoint = await self._server.wait_until_serving()
        existing = [name for name, exists in self.created_queues.items() if exists]
        if len(existing) > 5 or (existing and self._rng.random() < 0.3):
            name = self._rng.choice(existing)
            self.created_queues[name] = None
            await management.delete_queue(endpoint, name)
            self.created_queues[name] = False
        else:
            name = f"made-{len(self.created_queues)}"
            self.created_queues[name] = None
            await management.create_queue(endpoint, name)
            self.created_queues[name] = True
        await asyncio.sleep(self._rng.uniform(0, 0.3))
