"""Senders, receivers and makers of queues that go on whatever happens to the server, and hang up at random themselves.

    async with Workload(server, ledger, queues, rng) as workload:
        ...                                     # kill the server, and start it again

Owns: the randomness of clients. What is promised to them is judged by `ledger`.
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
    from twinbus.amqp.composite import Composite

SENDERS: Final = 4
RECEIVERS: Final = 3
BACKLOG_MAX: Final = 1_000
"""Messages that wait in all queues together, above which no sender begins: a long run must not fill the disk."""
RESPONSE_TIMEOUT_S: Final = 5.0
RECONNECT_PAUSE_S: Final = 0.05
"""Between two tries to reach a server that is just going down or coming up."""
LARGE_BYTES: Final = 150_000
LARGE_PROBABILITY: Final = 0.01


class Workload:
    """All clients of a run."""

    messages_max: ClassVar = 400
    """One sender sends so many at most before it hangs up."""

    def __init__(
        self, server: RestartableServer, checker: DeliveryChecker, queues: Sequence[str], rng: random.Random
    ) -> None:
        self.created_queues: dict[str, bool | None] = {}
        """Queues of the maker: there, not there, or (None) nobody knows, because the answer did not come."""
        self.disconnect_reasons: collections.Counter[str] = collections.Counter()
        """Why clients had to begin again, other than by their own will."""
        self._server = server
        self._checker = checker
        self._queues = queues
        self._rng = rng
        self._is_stopping = False
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        self._tasks = [asyncio.ensure_future(self._repeat(work)) for work in self.client_loops()]
        return self

    def client_loops(self) -> Sequence[Callable[[], Awaitable[None]]]:
        """What is done all the time, each by a client of its own."""
        return [self._send] * SENDERS + [self._receive] * RECEIVERS + [self._create_queues]

    def new_sender(self) -> SenderClient:
        return SenderClient(self._checker, self._rng.choice(self._queues))

    def new_receiver(self) -> ReceiverClient:
        return ReceiverClient(self._checker, self._rng.choice(self._queues), self._choose_outcome)

    @property
    def has_failed(self) -> bool:
        """A client did what it never should; the end will tell."""
        return any(task.done() for task in self._tasks)

    async def __aexit__(self, *_: object) -> None:
        self._is_stopping = True
        for task in self._tasks:
            task.cancel()
        results = await asyncio.gather(*self._tasks, return_exceptions=True)
        faults = [result for result in results if isinstance(result, Exception)]
        if faults:
            raise ExceptionGroup("clients failed", faults)

    async def _repeat(self, client_loop: Callable[[], Awaitable[None]]) -> None:
        """Do it again and again; a server that goes away in the middle of it is what this is all about."""
        while not self._is_stopping:
            await self._server.wait_until_serving()
            try:
                await client_loop()
            except (OSError, TimeoutError) as end:
                self.disconnect_reasons[str(end) or type(end).__name__] += 1
                await asyncio.sleep(RECONNECT_PAUSE_S)

    # --- one life of each ---------------------------------------------------------------------------------------------

    async def _send(self) -> None:
        """Send for a while with so many unanswered at a time, and hang up, politely or not."""
        rng = self._rng
        if len(self._checker.pending) > BACKLOG_MAX:
            await asyncio.sleep(RECONNECT_PAUSE_S)
            return
        line = self.new_sender()
        most_unanswered, messages = rng.choice([1, 5, 50, 200]), rng.randint(1, self.messages_max)
        async with connect_client(line, await self._server.wait_until_serving()):
            for _ in range(messages):
                await line.wait_until(
                    lambda: line.can_send and len(line.unsettled) < most_unanswered, timeout_s=RESPONSE_TIMEOUT_S
                )
                if line.can_send:
                    line.send(LARGE_BYTES if rng.random() < LARGE_PROBABILITY else rng.randint(0, 1500))
            if rng.random() < 0.5:
                await line.wait_until(lambda: not line.unsettled, timeout_s=RESPONSE_TIMEOUT_S)
            if rng.random() < 0.5:
                await disconnect(line)

    async def _receive(self) -> None:
        """Receive for a while with some credit, complete most, give some back, keep a few; and hang up."""
        rng = self._rng
        line = self.new_receiver()
        async with connect_client(line, await self._server.wait_until_serving()):
            line.link.keep_credit(rng.choice([1, 10, 100]))
            await line.wait_until(lambda: False, timeout_s=rng.uniform(0.1, 1.0))
            if rng.random() < 0.5:
                await disconnect(line)

    def _choose_outcome(self) -> Composite | None:
        luck = self._rng.random()
        if luck < 0.01:
            return None
        if luck < 0.05:
            return ABANDONED
        return RELEASED if luck < 0.1 else ACCEPTED

    async def _create_queues(self) -> None:
        """Make a queue, or remove one that was made before, and remember what was answered."""
        endpoint = await self._server.wait_until_serving()
        known = [name for name, is_there in self.created_queues.items() if is_there]
        if len(known) > 5 or (known and self._rng.random() < 0.3):
            name = self._rng.choice(known)
            self.created_queues[name] = None
            await management.delete_queue(endpoint, name)
            self.created_queues[name] = False
        else:
            name = f"made-{len(self.created_queues)}"
            self.created_queues[name] = None
            await management.create_queue(endpoint, name)
            self.created_queues[name] = True
        await asyncio.sleep(self._rng.uniform(0, 0.3))
