"""Senders, receivers and makers of queues that go on whatever happens to the server, and hang up at random themselves.

    async with Workload(server, ledger, queues, rng) as workload:
        ...                                     # kill the server, and start it again

Owns: the randomness of clients. What is promised to them is judged by `ledger`.
"""

from __future__ import annotations

import asyncio
import collections
from typing import TYPE_CHECKING, ClassVar, Final, Self

from tests.faults import management
from tests.faults.line import ABANDONED, ReceivingLine, SendingLine, close, connected
from twinbus.amqp.outcomes import ACCEPTED, RELEASED

if TYPE_CHECKING:
    import random
    from collections.abc import Awaitable, Callable, Sequence

    from tests.faults.server_process import ServerProcess
    from tests.ledger.ledger import Ledger
    from twinbus.amqp.composite import Composite

SENDERS: Final = 4
RECEIVERS: Final = 3
BACKLOG_MAX: Final = 1_000
"""Messages that wait in all queues together, above which no sender begins: a long run must not fill the disk."""
ANSWER_S: Final = 5.0
PAUSE_S: Final = 0.05
"""Between two tries to reach a server that is just going down or coming up."""
LARGE_BYTES: Final = 150_000
LARGE: Final = 0.01


class Workload:
    """All clients of a run."""

    messages_max: ClassVar = 400
    """One sender sends so many at most before it hangs up."""

    def __init__(self, server: ServerProcess, ledger: Ledger, queues: Sequence[str], rng: random.Random) -> None:
        self.made: dict[str, bool | None] = {}
        """Queues of the maker: there, not there, or (None) nobody knows, because the answer did not come."""
        self.ends: collections.Counter[str] = collections.Counter()
        """Why clients had to begin again, other than by their own will."""
        self._server = server
        self._ledger = ledger
        self._queues = queues
        self._rng = rng
        self._is_over = False
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        self._tasks = [asyncio.ensure_future(self._keep_at(work)) for work in self.works()]
        return self

    def works(self) -> Sequence[Callable[[], Awaitable[None]]]:
        """What is done all the time, each by a client of its own."""
        return [self._send] * SENDERS + [self._receive] * RECEIVERS + [self._make_queues]

    def new_sender(self) -> SendingLine:
        return SendingLine(self._ledger, self._rng.choice(self._queues))

    def new_receiver(self) -> ReceivingLine:
        return ReceivingLine(self._ledger, self._rng.choice(self._queues), self._choose)

    @property
    def has_failed(self) -> bool:
        """A client did what it never should; the end will tell."""
        return any(task.done() for task in self._tasks)

    async def __aexit__(self, *_: object) -> None:
        self._is_over = True
        for task in self._tasks:
            task.cancel()
        results = await asyncio.gather(*self._tasks, return_exceptions=True)
        faults = [result for result in results if isinstance(result, Exception)]
        if faults:
            raise ExceptionGroup("clients failed", faults)

    async def _keep_at(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do it again and again; a server that goes away in the middle of it is what this is all about."""
        while not self._is_over:
            await self._server.serving()
            try:
                await work()
            except (OSError, TimeoutError) as end:
                self.ends[str(end) or type(end).__name__] += 1
                await asyncio.sleep(PAUSE_S)

    # --- one life of each ---------------------------------------------------------------------------------------------

    async def _send(self) -> None:
        """Send for a while with so many unanswered at a time, and hang up, politely or not."""
        rng = self._rng
        if len(self._ledger.waiting) > BACKLOG_MAX:
            await asyncio.sleep(PAUSE_S)
            return
        line = self.new_sender()
        most_unanswered, messages = rng.choice([1, 5, 50, 200]), rng.randint(1, self.messages_max)
        async with connected(line, await self._server.serving()):
            for _ in range(messages):
                await line.until(lambda: line.has_room and len(line.unanswered) < most_unanswered, patience_s=ANSWER_S)
                if line.has_room:
                    line.send(LARGE_BYTES if rng.random() < LARGE else rng.randint(0, 1500))
            if rng.random() < 0.5:
                await line.until(lambda: not line.unanswered, patience_s=ANSWER_S)
            if rng.random() < 0.5:
                await close(line)

    async def _receive(self) -> None:
        """Receive for a while with some credit, complete most, give some back, keep a few; and hang up."""
        rng = self._rng
        line = self.new_receiver()
        async with connected(line, await self._server.serving()):
            line.link.keep_credit(rng.choice([1, 10, 100]))
            await line.until(lambda: False, patience_s=rng.uniform(0.1, 1.0))
            if rng.random() < 0.5:
                await close(line)

    def _choose(self) -> Composite | None:
        luck = self._rng.random()
        if luck < 0.01:
            return None
        if luck < 0.05:
            return ABANDONED
        return RELEASED if luck < 0.1 else ACCEPTED

    async def _make_queues(self) -> None:
        """Make a queue, or remove one that was made before, and remember what was answered."""
        endpoint = await self._server.serving()
        known = [name for name, is_there in self.made.items() if is_there]
        if len(known) > 5 or (known and self._rng.random() < 0.3):
            name = self._rng.choice(known)
            self.made[name] = None
            await management.delete_queue(endpoint, name)
            self.made[name] = False
        else:
            name = f"made-{len(self.made)}"
            self.made[name] = None
            await management.make_queue(endpoint, name)
            self.made[name] = True
        await asyncio.sleep(self._rng.uniform(0, 0.3))
