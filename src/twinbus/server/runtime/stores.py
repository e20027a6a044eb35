"""The stores of a process: opened at startup, reopened after a failure, closed at exit.

Owns: opening, reopening and closing this process's own stores, and monitoring the free space on their disks. While a
store is closed, its commit log is unavailable; the broker handles this case.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from twinbus.server.config.settings import StartError
from twinbus.server.runtime.disk_space import OUT_OF_SPACE_REASON, DiskSpaceMonitor, is_out_of_space
from twinbus.store.protocol import StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence
    from pathlib import Path

    from twinbus.broker.commit_log import CommitLog
    from twinbus.broker.namespace import Namespace
    from twinbus.broker.remote.peer_client import PeerClient
    from twinbus.store.protocol import OnResult, Store

log: Final = logging.getLogger(__name__)
T = TypeVar("T")

RETRY_DELAYS_S: Final = (0.5, 30.0)
"""The first and the longest pause before a failed store is reopened."""
CLOSE_TIMEOUT_S: Final = 3.0
"""How long stores may take to close when the server stops."""


class StoreBackend(Protocol):
    """The disks on which stores are opened."""

    @property
    def directories(self) -> Sequence[Path]:
        """The directory of each store, by store number."""

    @property
    def check_interval_s(self) -> float:
        """How often the free space is checked."""

    def open(self, store_number: int, on_done: OnResult[Store]) -> None:
        """Open a store, and call `on_done` with the store or an error."""

    def free_bytes(self, directory: Path) -> int:
        """Return how many bytes can be written to the disk of `directory`. Raise OSError if `directory` is missing."""

    async def find_disk_problem(self, store_number: int) -> str | None:
        """Return why a store should not be reopened now, or None if its disk works."""


class StoreManager:
    """All stores of a namespace, by store number: this process's stores, and references to other processes' stores."""

    def __init__(
        self,
        namespace: Namespace,
        backend: StoreBackend,
        *,
        min_free_bytes: int,
        owner_of: Callable[[int], PeerClient | None] = lambda _: None,
    ) -> None:
        """Create a manager without opening a store.

        `owner_of` returns the client for the process that owns a store, or None for this process's own stores.
        """
        self._namespace = namespace
        self._backend = backend
        self._owner_of = owner_of
        self._own_commit_logs: dict[int, CommitLog] = {}
        """The commit logs of this process's stores, by store number."""
        own = {
            number: backend.directories[number]
            for number in range(len(backend.directories))
            if owner_of(number) is None
        }
        self._space_monitor = DiskSpaceMonitor(own, min_free_bytes, backend.free_bytes)
        self._out_of_space: set[int] = set()
        """Stores that are closed because a write failed for lack of space."""
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closing = False

    async def open(self) -> None:
        """Open all own stores concurrently. Raise StartError if a store cannot be opened."""
        numbers = range(len(self._backend.directories))
        own = [number for number in numbers if self._owner_of(number) is None]
        opened = dict(zip(own, await asyncio.gather(*[self._open_store(number) for number in own]), strict=True))
        for number in numbers:
            owner = self._owner_of(number)
            if owner is not None:
                self._namespace.add_remote_store(str(number), owner)
                continue
            store = opened[number]
            if isinstance(store, StoreError):
                raise StartError(f"a store cannot be opened: {store}")
            self._own_commit_logs[number] = self._namespace.add_store(store)
        self._start_task(self._monitor_disks())

    @property
    def own_commit_logs(self) -> dict[int, CommitLog]:
        """The commit logs of this process's stores, by store number."""
        return self._own_commit_logs

    def reopen(self, commit_log: CommitLog) -> None:
        """Close a store that failed, and reopen it as soon as its disk works."""
        if not self._is_closing:
            self._update_out_of_space(commit_log, commit_log.last_failure)
            self._start_task(self._reopen_store(commit_log))

    async def close(self) -> None:
        """Flush pending changes and close all own stores."""
        self._is_closing = True
        for task in self._tasks:
            task.cancel()
        for commit_log in self._own_commit_logs.values():
            commit_log.flush()
        closing = [
            self._loop.create_task(self._close_store(commit_log.store)) for commit_log in self._own_commit_logs.values()
        ]
        _, hanging = await asyncio.wait(closing, timeout=CLOSE_TIMEOUT_S) if closing else (set(), set())
        if hanging:  # accepted messages are already on disk
            log.warning("%d stores did not close within %g s: stopping anyway", len(hanging), CLOSE_TIMEOUT_S)
            for task in hanging:
                task.cancel()
            await asyncio.wait(hanging)

    def _start_task(self, coroutine: Coroutine[None, None, None]) -> None:
        task = self._loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _open_store(self, store_number: int) -> Store | StoreError:
        future: asyncio.Future[Store | StoreError] = self._loop.create_future()
        self._backend.open(store_number, _set_unless_done(future))
        return await future

    async def _reopen_store(self, commit_log: CommitLog) -> None:
        number = self._namespace.stores.index(commit_log)
        log.warning("closing store %d to reopen it: %s", number, commit_log.last_failure)
        await self._close_store(commit_log.store)
        pause_s, max_pause_s = RETRY_DELAYS_S
        while True:
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, max_pause_s)
            reason = await self._backend.find_disk_problem(number)
            if reason is not None:
                self._update_out_of_space(commit_log, reason)
                log.warning("store %d is not reopened yet: %s", number, reason)
                continue
            store = await self._open_store(number)
            if not isinstance(store, StoreError):
                break
            self._update_out_of_space(commit_log, str(store))
            log.warning("store %d cannot be reopened yet: %s", number, store)
        log.info("store %d is open again", number)
        self._out_of_space.discard(number)
        commit_log.reopen(store)
        self._space_monitor.check()  # space may have been freed while the store was closed
        commit_log.disk_full_reason = self._refusal_reason(number)

    async def _close_store(self, store: Store) -> None:
        future: asyncio.Future[StoreError | None] = self._loop.create_future()
        store.close(_set_unless_done(future))
        error = await future
        if error is not None:
            log.warning("closing a store failed: %s", error)

    def _update_out_of_space(self, commit_log: CommitLog, failure: str) -> None:
        """Record whether a full disk is the reason why a store failed or cannot be reopened, for clients to see."""
        number = self._namespace.stores.index(commit_log)
        if is_out_of_space(failure):
            self._out_of_space.add(number)
        else:
            self._out_of_space.discard(number)
        commit_log.disk_full_reason = self._refusal_reason(number)

    def _refusal_reason(self, store_number: int) -> str | None:
        """Return why a store refuses messages, or None. Low space does not count while the store is unavailable."""
        if store_number in self._out_of_space:
            return OUT_OF_SPACE_REASON
        return (
            self._space_monitor.refusal_reason(store_number)
            if self._own_commit_logs[store_number].unavailable_reason is None
            else None
        )

    async def _monitor_disks(self) -> None:
        while True:
            self._space_monitor.check()
            for number, commit_log in self._own_commit_logs.items():
                commit_log.disk_full_reason = self._refusal_reason(number)
            await asyncio.sleep(self._backend.check_interval_s)


def _set_unless_done(future: asyncio.Future[T]) -> Callable[[T], None]:
    """Return a function that sets the result of a future, unless the future was cancelled."""

    def set_result(result: T) -> None:
        if not future.done():
            future.set_result(result)

    return set_result
