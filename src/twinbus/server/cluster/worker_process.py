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

from twinbus.server.cluster.control_connection import ControlConnection
from twinbus.server.cluster.control_protocol import (
    WORKER_DECODER,
    CleanupFinished,
    Failed,
    Heartbeat,
    Hello,
    Loaded,
    Serve,
    Serving,
)
from twinbus.server.cluster.transport import connect_over
from twinbus.server.runtime.interpreter import python_command

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from twinbus.server.cluster.control_protocol import Message, Request, Start

log: Final = logging.getLogger(__name__)

RESTART_PAUSE_S: Final = (0.1, 5.0)
"""How long to wait before one that has ended is started again: at first, and at most."""
STABLE_AFTER_S: Final = 10.0
"""One that has served for so long has ended for another reason than the last time."""
CHECKS_PER_TIMEOUT: Final = 10
"""In the time after which a silent one is killed. Looks are counted, not seconds: if it is the supervisor that was
stopped for a while, or the machine, the others have been silent for one look."""
START_TIMEOUT_S: Final = 60.0
"""While it opens its stores a process may not get to giving signs of life."""
EXIT_GRACE_S: Final = 1.0
"""How long a process may take to end after its socket has."""
STOP_TIMEOUT_S: Final = 12.0
"""How long it has to stop: its connections have five seconds for it, its stores three."""


class WorkerState(Enum):
    """How far a worker has got."""

    DOWN = "down"
    STARTED = "started"
    LOADING = "told"
    """It knows what to serve, and hears of every change from here on."""
    LOADED = "loaded"
    ADMITTED = "admitted"
    """Clients may come to it: no change is made without it from here on."""
    SERVING = "serving"


TRANSITIONS: Final[dict[tuple[WorkerState, type], WorkerState]] = {
    (WorkerState.STARTED, Hello): WorkerState.LOADING,
    (WorkerState.LOADING, Loaded): WorkerState.LOADED,
    (WorkerState.ADMITTED, Serving): WorkerState.SERVING,
}
"""What a worker's word brings it to; anything else is no step."""


class WorkerProcess:
    """One worker."""

    def __init__(
        self,
        number: int,
        *,
        timeout_s: float,
        descriptors: Sequence[int],
        make_start: Callable[[], Start],
        handle_request: Callable[[Request], Awaitable[object]],
        on_state: Callable[[WorkerProcess], None],
        on_cleanup_finished: Callable[[CleanupFinished], None],
    ) -> None:
        """Not started. `descriptors` are what it inherits beside its control socket."""
        self.number = number
        self.state = WorkerState.DOWN
        self.failure: str | None = None
        """Why it could not start."""
        self.unavailable_stores: dict[int, str] = {}
        """Of its stores, by their numbers."""
        self.connection: ControlConnection
        """In this life."""
        self._timeout_s = timeout_s
        self._descriptors = descriptors
        self._make_start = make_start
        self._handle_request = handle_request
        self._on_state = on_state
        self._on_cleanup_finished = on_cleanup_finished
        self._process: asyncio.subprocess.Process | None = None
        self._serving_since_s: float | None = None
        self._has_received = False
        self._stopping = asyncio.Event()

    @property
    def pid(self) -> int | None:
        """Of the process there is now."""
        return self._process.pid if self._process is not None else None

    @property
    def is_loading(self) -> bool:
        """It has a copy of the catalogue, or is on the way to one; clients do not come to it."""
        return self.state in (WorkerState.LOADING, WorkerState.LOADED)

    @property
    def is_up(self) -> bool:
        """Clients may come to it."""
        return self.state in (WorkerState.ADMITTED, WorkerState.SERVING)

    async def run(self) -> None:
        """Live, again and again, until `stop`."""
        pause_s, longest_s = RESTART_PAUSE_S
        while not self._stopping.is_set():
            served_s = await self._run_once()
            if self._stopping.is_set():
                return
            if served_s >= STABLE_AFTER_S:
                pause_s = RESTART_PAUSE_S[0]
            log.warning("worker %d is started again in %g s", self.number, pause_s)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), pause_s)
            pause_s = min(2 * pause_s, longest_s)

    def serve(self) -> None:
        """Let clients come to it."""
        self.connection.notify(Serve())
        self._set_state(WorkerState.ADMITTED)

    def kill(self, reason: str) -> None:
        """It is of no use any more."""
        if self._process is not None and self._process.returncode is None:
            log.error("worker %d is killed: %s", self.number, reason, extra={"pid": self._process.pid})
            self._process.kill()
            if not self.is_up:
                self.failure = f"worker {self.number} was killed: {reason}"
            self._set_state(WorkerState.DOWN)

    async def stop(self) -> None:
        """End it well, as by SIGTERM; in the end, end it."""
        self._stopping.set()
        process = self._process
        if process is None or process.returncode is not None:
            return
        process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await process.wait()
        except TimeoutError:
            self.kill(f"it has not stopped within {STOP_TIMEOUT_S:g} s")
            await process.wait()

    # --- one life -----------------------------------------------------------------------------------------------------

    async def _run_once(self) -> float:
        """From its start to its end; for how long it served."""
        loop = asyncio.get_running_loop()
        self.connection = ControlConnection(
            WORKER_DECODER,
            on_notice=self._receive,
            handle_request=self._handle_request,
            on_lost=self._on_connection_lost,
        )
        try:
            process = self._process = await self._start_process()
        except OSError as error:
            self.failure = f"worker {self.number} cannot be started: {error}"
            log.error("%s", self.failure)  # noqa: TRY400  # it says all there is
            self._on_state(self)
            return 0.0
        self._set_state(WorkerState.STARTED)
        self._serving_since_s = None
        watch = loop.create_task(self._watch_heartbeats())
        code = await process.wait()
        served_s = self._served_s()
        watch.cancel()
        self.connection.close()
        self._set_state(WorkerState.DOWN)
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
                *python_command(),
                "-m",
                "twinbus.server.cluster.worker",
                str(self.number),
                str(theirs.fileno()),
                stdin=asyncio.subprocess.DEVNULL,
                pass_fds=[theirs.fileno(), *self._descriptors],
            )
        await self.connection.open(connect_over(ours))
        return process

    async def _watch_heartbeats(self) -> None:
        silent = 0
        while True:
            await asyncio.sleep(self._timeout_s / CHECKS_PER_TIMEOUT)
            silent = 0 if self._has_received else silent + 1
            self._has_received = False
            allowed_s = self._timeout_s if self.state is WorkerState.SERVING else max(self._timeout_s, START_TIMEOUT_S)
            if silent * self._timeout_s >= allowed_s * CHECKS_PER_TIMEOUT:
                self.kill(f"it has given no sign of life for {allowed_s:g} s")

    def _receive(self, message: Message) -> None:
        self._has_received = True
        step = TRANSITIONS.get((self.state, type(message)))
        if step is not None:
            self._set_state(step)
        elif isinstance(message, Heartbeat):
            self.unavailable_stores = message.unavailable_stores
        elif isinstance(message, CleanupFinished):
            self._on_cleanup_finished(message)
        elif isinstance(message, Failed):
            self.failure = message.reason
            log.error("worker %d cannot start: %s", self.number, message.reason)

    def _set_state(self, state: WorkerState) -> None:
        if state is self.state:
            return
        self.state = state
        if state is WorkerState.LOADING:
            self.connection.notify(self._make_start())
        elif state is WorkerState.SERVING:
            self._serving_since_s = asyncio.get_running_loop().time()
            log.info("worker %d serves", self.number, extra={"pid": self.pid})
        self._on_state(self)

    def _on_connection_lost(self) -> None:
        """It has closed its socket: it has ended, as a rule, and the machine will say so."""
        process = self._process
        self._set_state(WorkerState.DOWN)

        def look() -> None:
            if process is self._process and not self._stopping.is_set():
                self.kill("it has left its supervisor")

        asyncio.get_running_loop().call_later(EXIT_GRACE_S, look)
