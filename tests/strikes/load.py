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

from tests.faults.line import ABANDONED, close, connected
from tests.strikes.answers import Drop, Return
from tests.strikes.line import SessionLine, StreamLine, TakingLine
from tests.strikes.scene import has_sessions
from twinbus.amqp.outcomes import ACCEPTED, RELEASED

if TYPE_CHECKING:
    import random
    from collections.abc import Awaitable, Callable

    from tests.strikes.ledger import StrikeLedger
    from tests.strikes.scene import Scene, Stream
    from tests.strikes.several import Several
    from twinbus.amqp.composite import Composite

PAUSE_S: Final = 0.02
"""Between two messages of a sender, in the mean."""
LIFE_S: Final = (2.0, 10.0)
SHORT_LIFE_S: Final = (0.5, 4.0)
"""Of a receiver."""
ROOM_S: Final = 0.25
ANSWER_S: Final = 30.0
AGAIN_S: Final = 0.02
"""After a connection was lost: then at once."""
POLITE: Final = 0.7
TRIES: Final = 8
"""Of a sender, to be held by a process that does not hold many."""
CROWDED: Final = 1.5
"""So many times its share of all senders are many."""


class Load:
    """All clients."""

    def __init__(self, server: Several, scene: Scene, ledger: StrikeLedger, rng: random.Random) -> None:
        self.drops: list[Drop] = []
        self.returns: list[Return] = []
        self.lines: set[StreamLine] = set()
        """Senders that are connected."""
        self.connections = 0
        self._server = server
        self._scene = scene
        self._ledger = ledger
        self._rng = rng
        self._is_over = False
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        works: list[Callable[[], Awaitable[None]]] = []
        works += [self._sending(stream) for stream in self._scene.streams]
        works += [
            self._taking(destination) for destination, count in self._scene.receivers.items() for _ in range(count)
        ]
        self._tasks = [asyncio.ensure_future(self._keep_at(work)) for work in works]
        return self

    async def __aexit__(self, *_error: object) -> None:
        """Senders wait for their answers, and all hang up."""
        self._is_over = True
        _, late = await asyncio.wait(self._tasks, timeout=2 * ANSWER_S)
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

    def shares(self, workers: list[int]) -> list[float]:
        """What part of the senders' connections each of these processes holds."""
        return [sum(line.holder == worker for line in self.lines) / max(1, len(self.lines)) for worker in workers]

    async def _keep_at(self, work: Callable[[], Awaitable[None]]) -> None:
        while not self._is_over:
            try:
                await work()
            except (OSError, TimeoutError):
                await asyncio.sleep(AGAIN_S)

    # --- senders ------------------------------------------------------------------------------------------------------

    def _sending(self, stream: Stream) -> Callable[[], Awaitable[None]]:
        """What one sender does in the life of one connection."""
        dropped_s: float | None = None
        tries = 0

        async def live() -> None:
            nonlocal dropped_s, tries
            line = StreamLine(self._ledger, stream, self._rng)
            try:
                async with connected(line, self._server.endpoint):
                    line.holder = self._server.holder_of(line)
                    self.connections += 1
                    if dropped_s is not None:
                        self.returns.append(Return(dropped_s, time.monotonic()))
                        dropped_s = None
                    tries += 1
                    if tries < TRIES and self._is_crowded(line.holder):
                        await close(line)
                        return
                    tries = 0
                    self.lines.add(line)
                    await self._send(line)
            except (OSError, TimeoutError):
                if dropped_s is None:
                    dropped_s = time.monotonic()
                if line.end is not None:
                    self.drops.append(Drop(line.holder, time.monotonic(), f"{stream.name}: {line.end}"))
                raise
            finally:
                self.lines.discard(line)
                line.cut_off()

        return live

    def _is_crowded(self, holder: int) -> bool:
        fair = len(self._scene.streams) / self._server.wanted
        return sum(line.holder == holder for line in self.lines) + 1 > CROWDED * fair

    async def _send(self, line: StreamLine) -> None:
        """One message after the other, with so many unanswered at a time; then hang up when all are answered."""
        until, most_unanswered = time.monotonic() + self._rng.uniform(*LIFE_S), self._rng.choice([1, 5, 20])
        most_unanswered = most_unanswered if not line.stream.has_keys else 20
        while time.monotonic() < until and not self._is_over:
            if await line.until(lambda: line.has_room and len(line.unanswered) < most_unanswered, patience_s=ROOM_S):
                line.send_next()
            await asyncio.sleep(self._rng.uniform(0, 2 * PAUSE_S))
        await line.until(lambda: not line.unanswered, patience_s=ANSWER_S)
        await close(line)

    # --- receivers ----------------------------------------------------------------------------------------------------

    def _taking(self, destination: str) -> Callable[[], Awaitable[None]]:
        """What one receiver does in the life of one connection."""

        async def live() -> None:
            make = SessionLine if has_sessions(destination) else TakingLine
            line = make(self._ledger, destination, self._choose_of_session if make is SessionLine else self._choose)
            try:
                async with connected(line, self._server.endpoint):
                    line.holder = self._server.holder_of(line)
                    self.connections += 1
                    await self._take(line)
            except (OSError, TimeoutError):
                self._note_drop(line)
                raise
            finally:
                line.let_go()

        return live

    async def _take(self, line: TakingLine) -> None:
        line.take_always(self._rng.choice([1, 10, 50]))
        until = time.monotonic() + self._rng.uniform(*SHORT_LIFE_S)
        while time.monotonic() < until and not self._is_over:
            await line.until(lambda: False, patience_s=ROOM_S)
        if self._rng.random() < POLITE:
            await line.until(lambda: not line.unconfirmed, patience_s=ANSWER_S)
            await close(line)

    def _note_drop(self, line: TakingLine) -> None:
        """A session may be lost, with its fragment, or there was none: then its link ends, and no more."""
        is_of_session = isinstance(line, SessionLine) and line.end is not None and line.end.startswith("LinkDetached")
        if line.end is not None and not is_of_session:
            self.drops.append(Drop(line.holder, time.monotonic(), f"receiver of {line.queue}: {line.end}"))

    def _choose(self) -> Composite | None:
        luck = self._rng.random()
        if luck < 0.02:
            return None
        if luck < 0.05:
            return ABANDONED
        return RELEASED if luck < 0.08 else ACCEPTED

    def _choose_of_session(self) -> Composite | None:
        """Nothing is given back out of turn."""
        return None if self._rng.random() < 0.02 else ACCEPTED


async def drain(server: Several, ledger: StrikeLedger, destination: str) -> None:
    """Receive and complete what comes for a moment: one connection's worth, or one session's."""
    line = (SessionLine if has_sessions(destination) else TakingLine)(ledger, destination)
    try:
        with contextlib.suppress(OSError, TimeoutError):  # there is no session, or it is held for a while
            async with connected(line, server.endpoint):
                line.holder = server.holder_of(line)
                line.link.grant(DRAINED_AT_ONCE, drain=True)
                await line.until(lambda: line.has_drained and not line.unconfirmed, patience_s=ANSWER_S)
                await close(line)
    finally:
        line.let_go()


DRAINED_AT_ONCE: Final = 500
