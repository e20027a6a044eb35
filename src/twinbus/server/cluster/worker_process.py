"""A worker process, in the supervisor: started, watched, and restarted when it exits.

Owns: the worker's current process and its state. A process that sends no heartbeats is killed, because a process that
was only slow would otherwise resume with an outdated catalogue. A new process is started only after the previous
process has exited, so that no store has two owners.
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
"""The first and the longest pause before a worker is restarted."""
STABLE_AFTER_S: Final = 10.0
"""A worker that exits after serving this long is restarted with the shortest pause."""
CHECKS_PER_TIMEOUT: Final = 10
"""How often a worker is checked for heartbeats within its timeout. Checks are counted, not seconds, so that a pause of
the supervisor or the machine counts as one missed check."""
START_TIMEOUT_S: Final = 60.0
"""The heartbeat timeout for a worker that is starting, because opening stores may delay its heartbeats."""
EXIT_GRACE_S: Final = 1.0
"""How long a process may take to exit after its control socket is closed."""
STOP_TIMEOUT_S: Final = 12.0
"""How long a worker may take to stop. Closing its connections may take 5 s, and its stores 3 s."""


class WorkerState(Enum):
    """The state of a worker, from launch until it is serving."""

    DOWN = "down"
    STARTED = "started"
    LOADING = "loading"
    """The worker was sent the catalogue and is loading it; from now on, every change is sent to the worker."""
    LOADED = "loaded"
    ADMITTED = "admitted"
    """The worker may accept clients. From now on, the worker must confirm every change."""
    SERVING = "serving"


TRANSITIONS: Final[dict[tuple[WorkerState, type], WorkerState]] = {
    (WorkerState.STARTED, Hello): WorkerState.LOADING,
    (WorkerState.LOADING, Loaded): WorkerState.LOADED,
    (WorkerState.ADMITTED, Serving): WorkerState.SERVING,
}
"""The next state by current state and message from the worker; other messages do not change the state."""


class WorkerProcess:
    """A worker: the supervisor's view of its process, across restarts."""

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
        """Create a worker without starting it. The process will inherit `descriptors` and its control socket."""
        self.number = number
        self.state = WorkerState.DOWN
        self.failure: str | None = None
        """The reason why the worker could not start, if any."""
        self.unavailable_stores: dict[int, str] = {}
        """The reason for each unavailable store of this worker, by store number."""
        self.connection: ControlConnection
        """The control connection to the current process."""
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
        """The pid of the current process, or None before the first start."""
        return self._process.pid if self._process is not None else None

    @property
    def is_loading(self) -> bool:
        """Whether the worker was sent the catalogue but may not accept clients yet."""
        return self.state in (WorkerState.LOADING, WorkerState.LOADED)

    @property
    def is_up(self) -> bool:
        """Whether the worker may accept clients."""
        return self.state in (WorkerState.ADMITTED, WorkerState.SERVING)

    async def run(self) -> None:
        """Run the process, and restart it whenever it exits, until `stop`."""
        pause_s, max_pause_s = RESTART_PAUSE_S
        while not self._stopping.is_set():
            served_s = await self._run_once()
            if self._stopping.is_set():
                return
            if served_s >= STABLE_AFTER_S:
                pause_s = RESTART_PAUSE_S[0]
            log.warning("restarting worker %d in %g s", self.number, pause_s)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), pause_s)
            pause_s = min(2 * pause_s, max_pause_s)

    def serve(self) -> None:
        """Let the worker accept clients."""
        self.connection.notify(Serve())
        self._set_state(WorkerState.ADMITTED)

    def kill(self, reason: str) -> None:
        """Kill the process if it is still running, and log the reason."""
        if self._process is not None and self._process.returncode is None:
            log.error("killing worker %d: %s", self.number, reason, extra={"pid": self._process.pid})
            self._process.kill()
            if not self.is_up:
                self.failure = f"worker {self.number} was killed: {reason}"
            self._set_state(WorkerState.DOWN)

    async def stop(self) -> None:
        """Stop the process with SIGTERM; if it has not exited in time, kill it."""
        self._stopping.set()
        process = self._process
        if process is None or process.returncode is not None:
            return
        process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await process.wait()
        except TimeoutError:
            self.kill(f"it did not stop within {STOP_TIMEOUT_S:g} s")
            await process.wait()

    # --- one process --------------------------------------------------------------------------------------------------

    async def _run_once(self) -> float:
        """Run one process from start to exit, and return how many seconds it was serving."""
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
            log.error("%s", self.failure)  # noqa: TRY400  # the text includes the cause
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
            log.error("worker %d exited", self.number, extra={"pid": process.pid, "code": code})
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
        missed = 0
        while True:
            await asyncio.sleep(self._timeout_s / CHECKS_PER_TIMEOUT)
            missed = 0 if self._has_received else missed + 1
            self._has_received = False
            allowed_s = self._timeout_s if self.state is WorkerState.SERVING else max(self._timeout_s, START_TIMEOUT_S)
            if missed * self._timeout_s >= allowed_s * CHECKS_PER_TIMEOUT:
                self.kill(f"it sent no heartbeat for {allowed_s:g} s")

    def _receive(self, message: Message) -> None:
        self._has_received = True
        next_state = TRANSITIONS.get((self.state, type(message)))
        if next_state is not None:
            self._set_state(next_state)
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
            log.info("worker %d is serving", self.number, extra={"pid": self.pid})
        self._on_state(self)

    def _on_connection_lost(self) -> None:
        """Handle a closed control socket.

        Usually the process is exiting. If not, kill the process after a grace period.
        """
        process = self._process
        self._set_state(WorkerState.DOWN)

        def kill_if_running() -> None:
            if process is self._process and not self._stopping.is_set():
                self.kill("it closed its control socket without exiting")

        asyncio.get_running_loop().call_later(EXIT_GRACE_S, kill_if_running)
