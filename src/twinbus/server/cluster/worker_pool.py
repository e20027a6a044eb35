"""All workers of a namespace, in the supervisor.

Owns: the moment from which workers accept clients, and the publication of changes. A catalogue change succeeds only
after every running worker has applied it. A worker that does not confirm a change in time is killed, and gets the whole
catalogue when it restarts.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final

from twinbus.model.callbacks import ignore
from twinbus.model.errors import ServiceBusError
from twinbus.server.cluster.control_protocol import Apply, GetIdleSeconds
from twinbus.server.cluster.worker_process import WorkerProcess, WorkerState
from twinbus.server.config.settings import StartError, StoppedBeforeReady

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from twinbus.server.cluster.control_connection import ControlConnection
    from twinbus.server.cluster.control_protocol import AnyChange, CleanupFinished, Request, Start

log: Final = logging.getLogger(__name__)

IDLE_TIMEOUT_S: Final = 1.0
CHECKS_PER_TIMEOUT: Final = 10
"""How often the supervisor checks whether workers have confirmed a change, within the timeout for the change. Checks
are counted, not seconds, as in `worker_process`, so that a pause of the supervisor counts as one missed check."""
APPLY_TIMEOUT_S: Final = 60.0
"""The timeout for an `Apply` request; workers that do not confirm a change are killed earlier."""


class WorkerPool:
    """All workers, in order of their numbers."""

    def __init__(
        self,
        workers: int,
        *,
        timeout_s: float,
        descriptors: Sequence[int],
        make_start: Callable[[], Start],
        handle_request: Callable[[Request], Awaitable[object]],
        on_cleanup_finished: Callable[[CleanupFinished], None],
    ) -> None:
        """Create the pool without starting any worker."""
        self.version = 0
        """The catalogue's version, counted from 0 at each server startup."""
        self.processes = [
            WorkerProcess(
                number,
                timeout_s=timeout_s,
                descriptors=descriptors,
                make_start=make_start,
                handle_request=handle_request,
                on_state=self._on_state,
                on_cleanup_finished=on_cleanup_finished,
            )
            for number in range(workers)
        ]
        self.on_pids: Callable[[list[int]], None] = ignore
        """Called with the pids of all workers when a worker changes its state."""
        self.on_down: Callable[[int], None] = ignore
        """Called with the number of a worker that is down."""
        self._timeout_s = timeout_s
        """How long a worker may take to apply a change."""
        self._tasks: list[asyncio.Task[None]] = []
        self._all_serving: asyncio.Future[None] | None = None

    async def start(self, stop: asyncio.Event) -> None:
        """Start all workers and wait until all are serving.

        Raise StartError if a worker cannot start, StoppedBeforeReady if `stop` is set first.
        """
        loop = asyncio.get_running_loop()
        self._all_serving = loop.create_future()
        self._tasks = [loop.create_task(process.run()) for process in self.processes]
        for task in self._tasks:
            task.add_done_callback(_log_failure)
        stopping = loop.create_task(stop.wait())
        either: set[asyncio.Future[Any]] = {self._all_serving, stopping}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not self._all_serving.done():
            self._all_serving.cancel()
            raise StoppedBeforeReady
        self._all_serving.result()

    async def stop(self) -> None:
        """Stop all workers and wait until they have exited."""
        await asyncio.gather(*[process.stop() for process in self.processes])
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def unavailable_reason(self, store: int) -> str | None:
        """Return why a store is unavailable, or None if the store is available or no worker was started yet."""
        if not self._tasks:
            return None
        process = self.processes[store % len(self.processes)]
        return process.unavailable_stores.get(store) if process.is_up else "its process is down"

    async def publish(self, change: AnyChange) -> None:
        """Apply a change in all running workers, and kill workers that do not confirm the change in time."""
        self.version += 1
        message = Apply(self.version, change)
        pending: dict[WorkerProcess, tuple[ControlConnection, asyncio.Future[None]]] = {}
        for process in self.processes:
            if process.is_up:
                request = process.connection.request(message, type(None), APPLY_TIMEOUT_S)
                pending[process] = (process.connection, asyncio.ensure_future(request))
            elif process.is_loading:
                process.connection.notify(message)
        await _wait_confirmed([reply for _, reply in pending.values()], self._timeout_s)
        for process, (connection, reply) in pending.items():
            is_same = process.connection is connection  # otherwise the worker was restarted with the whole catalogue
            if not reply.done():
                reply.cancel()
                process.kill(f"it did not apply a change of the catalogue within {self._timeout_s:g} s")
            elif reply.exception() is not None and process.is_up and is_same:
                process.kill(f"it could not apply a change of the catalogue: {reply.exception()}")

    async def idle_seconds(self) -> list[dict[int, float]] | None:
        """Return how long each entity was idle in each worker, by entity id, or None if a worker is down."""
        if not all(process.is_up for process in self.processes):
            return None
        requests = [
            process.connection.request(GetIdleSeconds(), dict[int, float], IDLE_TIMEOUT_S) for process in self.processes
        ]
        try:
            return await asyncio.gather(*requests)
        except ServiceBusError:
            return None

    def _on_state(self, process: WorkerProcess) -> None:
        self.on_pids([worker.pid for worker in self.processes if worker.pid is not None])
        if process.state is WorkerState.DOWN:
            self.on_down(process.number)
        assert self._all_serving is not None
        states = [worker.state for worker in self.processes]
        if self._all_serving.done():
            if process.state is WorkerState.LOADED:
                process.serve()
        elif process.state is WorkerState.DOWN:
            reason = process.failure or f"worker {process.number} exited before it was ready: see its log"
            self._all_serving.set_exception(StartError(reason))
        elif all(state is WorkerState.SERVING for state in states):
            self._all_serving.set_result(None)
        elif all(state is WorkerState.LOADED for state in states):  # clients must not see part of a namespace
            for worker in self.processes:
                worker.serve()


def _log_failure(task: asyncio.Task[None]) -> None:
    """Log the failure of the task that runs a worker. The worker will not be restarted again."""
    if not task.cancelled() and task.exception() is not None:
        log.critical("the supervisor has failed: restart the server", exc_info=task.exception())


async def _wait_confirmed(confirmations: Iterable[asyncio.Future[None]], timeout_s: float) -> None:
    pending = set(confirmations)
    for _ in range(CHECKS_PER_TIMEOUT):
        if not pending:
            return
        _, pending = await asyncio.wait(pending, timeout=timeout_s / CHECKS_PER_TIMEOUT)
