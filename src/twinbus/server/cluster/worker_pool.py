"""All workers of a namespace, as the supervisor has them.

Owns: when clients may come to them, and that a change of the catalogue is known to each of them before whoever asked
for it is told. One that does not say in time that it knows it counts as down: it is killed, and gets the whole
catalogue when it is back.
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
"""As in `child`: if it is the supervisor that was stopped for a while, the others are not to blame."""
APPLY_TIMEOUT_S: Final = 60.0
"""An answer that has not come by then is of nobody who still lives."""


class WorkerPool:
    """All workers, by their numbers."""

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
        """None is started yet."""
        self.version = 0
        """Of the catalogue; of each start anew."""
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
        """Hears which processes there are."""
        self.on_down: Callable[[int], None] = ignore
        """Hears of each that is down, by its number."""
        self._timeout_s = timeout_s
        """How long a worker may take to make a change: one that lives may be slow, and is not ended for that."""
        self._tasks: list[asyncio.Task[None]] = []
        self._all_serving: asyncio.Future[None] | None = None

    async def start(self, stop: asyncio.Event) -> None:
        """Start all, and wait until all serve. StartError if one cannot, Stopped if `stop` is set before."""
        loop = asyncio.get_running_loop()
        self._all_serving = loop.create_future()
        self._tasks = [loop.create_task(child.run()) for child in self.processes]
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
        """End all."""
        await asyncio.gather(*[child.stop() for child in self.processes])
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def unavailable_reason(self, store: int) -> str | None:
        """Why a store does not work now."""
        if not self._tasks:  # nothing is known yet
            return None
        child = self.processes[store % len(self.processes)]
        return child.unavailable_stores.get(store) if child.is_up else "its process is not there"

    async def publish(self, change: AnyChange) -> None:
        """Have a change made by all that live."""
        self.version += 1
        word = Apply(self.version, change)
        asked: dict[WorkerProcess, tuple[ControlConnection, asyncio.Future[None]]] = {}
        for child in self.processes:
            if child.is_up:
                asking = child.connection.request(word, type(None), APPLY_TIMEOUT_S)
                asked[child] = (child.connection, asyncio.ensure_future(asking))
            elif child.is_loading:
                child.connection.notify(word)
        await _wait_confirmed([answer for _, answer in asked.values()], self._timeout_s)
        for child, (control, answer) in asked.items():
            is_same = child.connection is control  # else it has died meanwhile, and the next has all of the catalogue
            if not answer.done():
                answer.cancel()
                child.kill(f"it has not made a change of the catalogue within {self._timeout_s:g} s")
            elif answer.exception() is not None and child.is_up and is_same:
                child.kill(f"it could not make a change of the catalogue: {answer.exception()}")

    async def idle_seconds(self) -> list[dict[int, float]] | None:
        """For how long each entity was not used, as each worker tells it; None while one of them is down."""
        if not all(child.is_up for child in self.processes):
            return None
        asked = [
            child.connection.request(GetIdleSeconds(), dict[int, float], IDLE_TIMEOUT_S) for child in self.processes
        ]
        try:
            return await asyncio.gather(*asked)
        except ServiceBusError:
            return None

    def _on_state(self, process: WorkerProcess) -> None:
        self.on_pids([one.pid for one in self.processes if one.pid is not None])
        if process.state is WorkerState.DOWN:
            self.on_down(process.number)
        assert self._all_serving is not None
        steps = [one.state for one in self.processes]
        if self._all_serving.done():
            if process.state is WorkerState.LOADED:
                process.serve()
        elif process.state is WorkerState.DOWN:
            reason = process.failure or f"worker {process.number} has ended before it served: its log says why"
            self._all_serving.set_exception(StartError(reason))
        elif all(step is WorkerState.SERVING for step in steps):
            self._all_serving.set_result(None)
        elif all(step is WorkerState.LOADED for step in steps):  # no client finds a part of the namespace
            for one in self.processes:
                one.serve()


def _log_failure(task: asyncio.Task[None]) -> None:
    """A worker is not looked after any more."""
    if not task.cancelled() and task.exception() is not None:
        log.critical("the supervisor has failed: restart the server", exc_info=task.exception())


async def _wait_confirmed(confirmations: Iterable[asyncio.Future[None]], timeout_s: float) -> None:
    pending = set(confirmations)
    for _ in range(CHECKS_PER_TIMEOUT):
        if not pending:
            return
        _, pending = await asyncio.wait(pending, timeout=timeout_s / CHECKS_PER_TIMEOUT)
