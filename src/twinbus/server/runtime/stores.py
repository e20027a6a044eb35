"""The stores of a process: opened at its start, opened again when one fails, closed at its end.

Owns: the life of each store that is this process's own, and the watch over the space on its disk. What is done while
one is away is the broker's affair: its journal says that it is unavailable.
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
"""How long to wait before a failed store is opened again: at first, and at most."""
CLOSE_TIMEOUT_S: Final = 3.0
"""How long stores have to close when the server stops."""


class StoreBackend(Protocol):
    """Where the stores lie."""

    @property
    def directories(self) -> Sequence[Path]:
        """That of each store, by its number."""

    @property
    def check_interval_s(self) -> float:
        """How often to look how much room there is."""

    def open(self, store_number: int, on_done: OnResult[Store]) -> None:
        """Open a store; `done` gets it, or why it cannot be opened."""

    def free_bytes(self, directory: Path) -> int:
        """How much can still be written there. OSError if it is not there."""

    async def find_disk_problem(self, store_number: int) -> str | None:
        """What is wrong with the disk of a store that is to be opened again; nothing if it works well."""


class StoreManager:
    """All stores of a server, by their numbers."""

    def __init__(
        self,
        namespace: Namespace,
        backend: StoreBackend,
        *,
        min_free_bytes: int,
        owner_of: Callable[[int], PeerClient | None] = lambda _: None,
    ) -> None:
        """Nothing is opened yet. `owner_of` says which other process has a store, if one has."""
        self._namespace = namespace
        self._backend = backend
        self._owner_of = owner_of
        self._own_commit_logs: dict[int, CommitLog] = {}
        """By the numbers of their stores."""
        own = {
            number: backend.directories[number]
            for number in range(len(backend.directories))
            if owner_of(number) is None
        }
        self._space_monitor = DiskSpaceMonitor(own, min_free_bytes, backend.free_bytes)
        self._out_of_space: set[int] = set()
        """Stores that are closed because a write found no space."""
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closing = False

    async def open(self) -> None:
        """Open all of them, side by side; StartError says which could not be."""
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
        """Those of this process, by their numbers."""
        return self._own_commit_logs

    def reopen(self, commit_log: CommitLog) -> None:
        """A store failed: close it, and open it anew as soon as that works."""
        if not self._is_closing:
            self._update_out_of_space(commit_log, commit_log.last_failure)
            self._start_task(self._reopen_store(commit_log))

    async def close(self) -> None:
        """Write what waits, and close."""
        self._is_closing = True
        for task in self._tasks:
            task.cancel()
        for journal in self._own_commit_logs.values():
            journal.flush()
        closing = [
            self._loop.create_task(self._close_store(journal.store)) for journal in self._own_commit_logs.values()
        ]
        _, hanging = await asyncio.wait(closing, timeout=CLOSE_TIMEOUT_S) if closing else (set(), set())
        if hanging:  # what was accepted is on disk; nothing else is to be saved
            log.warning(
                "%d stores did not close within %g s: the server stops without them", len(hanging), CLOSE_TIMEOUT_S
            )
            for task in hanging:
                task.cancel()
            await asyncio.wait(hanging)

    def _start_task(self, coroutine: Coroutine[None, None, None]) -> None:
        task = self._loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _open_store(self, store_number: int) -> Store | StoreError:
        answer: asyncio.Future[Store | StoreError] = self._loop.create_future()
        self._backend.open(store_number, _set_unless_done(answer))
        return await answer

    async def _reopen_store(self, commit_log: CommitLog) -> None:
        number = self._namespace.stores.index(commit_log)
        log.warning("store %d is closed, to be opened again: %s", number, commit_log.last_failure)
        await self._close_store(commit_log.store)
        pause_s, longest_s = RETRY_DELAYS_S
        while True:
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, longest_s)
            reason = await self._backend.find_disk_problem(number)
            if reason is not None:
                self._update_out_of_space(commit_log, reason)
                log.warning("store %d is not opened again yet: %s", number, reason)
                continue
            store = await self._open_store(number)
            if not isinstance(store, StoreError):
                break
            self._update_out_of_space(commit_log, str(store))
            log.warning("store %d cannot be opened again yet: %s", number, store)
        log.info("store %d is open again", number)
        self._out_of_space.discard(number)
        commit_log.reopen(store)
        self._space_monitor.check()  # space may have been freed while the store was closed
        commit_log.disk_full_reason = self._refusal_reason(number)

    async def _close_store(self, store: Store) -> None:
        answer: asyncio.Future[StoreError | None] = self._loop.create_future()
        store.close(_set_unless_done(answer))
        error = await answer
        if error is not None:
            log.warning("store could not be closed well: %s", error)

    def _update_out_of_space(self, commit_log: CommitLog, failure: str) -> None:
        """Tell clients that the disk is full, as long as that is why the store failed or cannot be opened again."""
        number = self._namespace.stores.index(commit_log)
        if is_out_of_space(failure):
            self._out_of_space.add(number)
        else:
            self._out_of_space.discard(number)
        commit_log.disk_full_reason = self._refusal_reason(number)

    def _refusal_reason(self, store_number: int) -> str | None:
        """Why a store takes no messages. Low space is no reason while the store does not work at all."""
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
            for number, journal in self._own_commit_logs.items():
                journal.disk_full_reason = self._refusal_reason(number)
            await asyncio.sleep(self._backend.check_interval_s)


def _set_unless_done(future: asyncio.Future[T]) -> Callable[[T], None]:
    """What sets the result of a future, unless nobody waits for it any more."""

    def set_result(result: T) -> None:
        if not future.done():
            future.set_result(result)

    return set_result
