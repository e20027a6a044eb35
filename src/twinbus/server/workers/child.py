"""A worker, as the supervisor has it: started, watched, and started again when it has ended.

Owns: its process, in life after life, and how far it has got in this one. A process that gives no sign of life is
killed: one that was only slow would else come back and serve what another has changed meanwhile. Nothing is started
before the last process is gone, so that no store has two owners.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from contextlib import suppress
from enum import Enum
from typing import TYPE_CHECKING, Final

from twinbus.server.peers.transport import over
from twinbus.server.process import python
from twinbus.server.workers.control import Control
from twinbus.server.workers.words import FROM_WORKER, Beat, Buried, Failed, Hello, Loaded, Serve, Serving

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from twinbus.server.workers.words import Request, Start, Word

log: Final = logging.getLogger(__name__)

PAUSE_S: Final = (0.1, 5.0)
"""How long to wait before one that has ended is started again: at first, and at most."""
LONG_LIFE_S: Final = 10.0
"""One that has served for so long has ended for another reason than the last time."""
LOOKS: Final = 10
"""In the time after which a silent one is killed. Looks are counted, not seconds: if it is the supervisor that was
stopped for a while, or the machine, the others have been silent for one look."""
START_SILENCE_S: Final = 60.0
"""While it opens its stores a process may not get to giving signs of life."""
LAST_BREATH_S: Final = 1.0
"""How long a process may take to end after its socket has."""
STOP_S: Final = 12.0
"""How long it has to stop: its connections have five seconds for it, its stores three."""


class Step(Enum):
    """How far a worker has got."""

    DOWN = "down"
    STARTED = "started"
    TOLD = "told"
    """It knows what to serve, and hears of every change from here on."""
    LOADED = "loaded"
    ADMITTED = "admitted"
    """Clients may come to it: no change is made without it from here on."""
    SERVING = "serving"


NEXT: Final[dict[tuple[Step, type], Step]] = {
    (Step.STARTED, Hello): Step.TOLD,
    (Step.TOLD, Loaded): Step.LOADED,
    (Step.ADMITTED, Serving): Step.SERVING,
}
"""What a worker's word brings it to; anything else is no step."""


class Child:
    """One worker."""

    def __init__(
        self,
        number: int,
        *,
        timeout_s: float,
        descriptors: Sequence[int],
        make_start: Callable[[], Start],
        answer: Callable[[Request], Awaitable[object]],
        on_step: Callable[[Child], None],
        on_buried: Callable[[Buried], None],
    ) -> None:
        """Not started. `descriptors` are what it inherits beside its control socket."""
        self.number = number
        self.step = Step.DOWN
        self.failure: str | None = None
        """Why it could not start."""
        self.troubles: dict[int, str] = {}
        """Of its stores, by their numbers."""
        self.control: Control
        """In this life."""
        self._timeout_s = timeout_s
        self._descriptors = descriptors
        self._make_start = make_start
        self._answer = answer
        self._on_step = on_step
        self._on_buried = on_buried
        self._process: asyncio.subprocess.Process | None = None
        self._serving_since_s: float | None = None
        self._was_heard = False
        self._stopping = asyncio.Event()

    @property
    def pid(self) -> int | None:
        """Of the process there is now."""
        return self._process.pid if self._process is not None else None

    @property
    def is_loading(self) -> bool:
        """It has a copy of the catalogue, or is on the way to one; clients do not come to it."""
        return self.step in (Step.TOLD, Step.LOADED)

    @property
    def is_up(self) -> bool:
        """Clients may come to it."""
        return self.step in (Step.ADMITTED, Step.SERVING)

    async def run(self) -> None:
        """Live, again and again, until `stop`."""
        pause_s, longest_s = PAUSE_S
        while not self._stopping.is_set():
            served_s = await self._live()
            if self._stopping.is_set():
                return
            if served_s >= LONG_LIFE_S:
                pause_s = PAUSE_S[0]
            log.warning("worker %d is started again in %g s", self.number, pause_s)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), pause_s)
            pause_s = min(2 * pause_s, longest_s)

    def serve(self) -> None:
        """Let clients come to it."""
        self.control.say(Serve())
        self._go_to(Step.ADMITTED)

    def kill(self, reason: str) -> None:
        """It is of no use any more."""
        if self._process is not None and self._process.returncode is None:
            log.error("worker %d is killed: %s", self.number, reason, extra={"pid": self._process.pid})
            self._process.kill()
            if not self.is_up:
                self.failure = f"worker {self.number} was killed: {reason}"
            self._go_to(Step.DOWN)

    async def stop(self) -> None:
        """End it well, as by SIGTERM; in the end, end it."""
        self._stopping.set()
        process = self._process
        if process is None or process.returncode is not None:
            return
        process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(STOP_S):
                await process.wait()
        except TimeoutError:
            self.kill(f"it has not stopped within {STOP_S:g} s")
            await process.wait()

    # --- one life -----------------------------------------------------------------------------------------------------

    async def _live(self) -> float:
        """From its start to its end; for how long it served."""
        loop = asyncio.get_running_loop()
        self.control = Control(FROM_WORKER, hear=self._hear, answer=self._answer, lost=self._lost)
        try:
            process = self._process = await self._start_process()
        except OSError as error:
            self.failure = f"worker {self.number} cannot be started: {error}"
            log.error("%s", self.failure)  # noqa: TRY400  # it says all there is
            self._on_step(self)
            return 0.0
        self._go_to(Step.STARTED)
        self._serving_since_s = None
        watch = loop.create_task(self._watch())
        code = await process.wait()
        served_s = self._served_s()
        watch.cancel()
        self.control.close()
        self._go_to(Step.DOWN)
        if not self._stopping.is_set():
            log.error("worker %d has ended", self.number, extra={"pid": process.pid, "code": code})
        return served_s

    def _served_s(self) -> float:
        since_s = self._serving_since_s
        return asyncio.get_running_loop().time() - since_s if since_s is not None else 0.0

    async def _start_process(self) -> asyncio.subprocess.Process:
        ours, theirs = socket.socketpair()
        with theirs:
            process = await asyncio.create_subprocess_exec(
                *python(),
                "-m",
                "twinbus.server.workers.worker",
                str(self.number),
                str(theirs.fileno()),
                stdin=asyncio.subprocess.DEVNULL,
                pass_fds=[theirs.fileno(), *self._descriptors],
            )
        await self.control.open(over(ours))
        return process

    async def _watch(self) -> None:
        silent = 0
        while True:
            await asyncio.sleep(self._timeout_s / LOOKS)
            silent = 0 if self._was_heard else silent + 1
            self._was_heard = False
            allowed_s = self._timeout_s if self.step is Step.SERVING else max(self._timeout_s, START_SILENCE_S)
            if silent * self._timeout_s >= allowed_s * LOOKS:
                self.kill(f"it has given no sign of life for {allowed_s:g} s")

    def _hear(self, word: Word) -> None:
        self._was_heard = True
        step = NEXT.get((self.step, type(word)))
        if step is not None:
            self._go_to(step)
        elif isinstance(word, Beat):
            self.troubles = word.troubles
        elif isinstance(word, Buried):
            self._on_buried(word)
        elif isinstance(word, Failed):
            self.failure = word.reason
            log.error("worker %d cannot start: %s", self.number, word.reason)

    def _go_to(self, step: Step) -> None:
        if step is self.step:
            return
        self.step = step
        if step is Step.TOLD:
            self.control.say(self._make_start())
        elif step is Step.SERVING:
            self._serving_since_s = asyncio.get_running_loop().time()
            log.info("worker %d serves", self.number, extra={"pid": self.pid})
        self._on_step(self)

    def _lost(self) -> None:
        """It has closed its socket: it has ended, as a rule, and the machine will say so."""
        process = self._process
        self._go_to(Step.DOWN)

        def look() -> None:
            if process is self._process and not self._stopping.is_set():
                self.kill("it has left its supervisor")

        asyncio.get_running_loop().call_later(LAST_BREATH_S, look)
