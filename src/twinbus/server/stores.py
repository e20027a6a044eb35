"""The stores of a server: opened at its start, opened again when one fails, closed at its end.

Owns: the life of each store, and the watch over the space on its disk. What is done while one is away is the broker's
affair: its journal says that it is unavailable.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from typing import TYPE_CHECKING, Final

from twinbus.server.disk import DiskWatch, sync_time_s
from twinbus.server.settings import StartError
from twinbus.store.protocol import StoreError
from twinbus.store.rocks import RocksStore
from twinbus.store.tuning import Tuning

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence
    from pathlib import Path

    from twinbus.broker.journal import Journal
    from twinbus.broker.namespace import Namespace
    from twinbus.store.protocol import Store

log: Final = logging.getLogger(__name__)

RETRY_S: Final = (0.5, 30.0)
"""How long to wait before a failed store is opened again: at first, and at most."""
DISK_LOOK_S: Final = 1.0
CLOSE_S: Final = 3.0
"""How long stores have to close when the server stops."""
QUICK_SYNC_S: Final = 0.25
"""A store is opened again when its disk syncs within this: RocksDB syncs several times while it opens a database, and
holds the GIL meanwhile, so that nothing else would go on."""


class Stores:
    """All stores of a server, by their numbers."""

    def __init__(self, namespace: Namespace, directories: Sequence[Path], *, min_free_bytes: int, sync: bool) -> None:
        """Nothing is opened yet."""
        self._namespace = namespace
        self._directories = directories
        self._sync = sync
        self._watch = DiskWatch(directories, min_free_bytes)
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closing = False

    async def open(self) -> None:
        """Open all of them, side by side; StartError says which could not be."""
        opened = await asyncio.gather(*[self._open(number) for number in range(len(self._directories))])
        for store in opened:
            if isinstance(store, StoreError):
                raise StartError(f"a store cannot be opened: {store}")
            self._namespace.add_store(store)
        self._start(self._look_at_disks())

    def reopen(self, journal: Journal) -> None:
        """A store failed: close it, and open it anew as soon as that works."""
        if not self._is_closing:
            self._start(self._reopen(journal))

    async def close(self) -> None:
        """Write what waits, and close."""
        self._is_closing = True
        for task in self._tasks:
            task.cancel()
        for journal in self._namespace.journals:
            journal.flush()
        closing = [self._loop.create_task(self._close(journal.store)) for journal in self._namespace.journals]
        _, hanging = await asyncio.wait(closing, timeout=CLOSE_S) if closing else (set(), set())
        if hanging:  # what was accepted is on disk; nothing else is to be saved
            log.warning("%d stores did not close within %g s: the server stops without them", len(hanging), CLOSE_S)

    def _start(self, work: Coroutine[None, None, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _open(self, number: int) -> RocksStore | StoreError:
        answer: asyncio.Future[RocksStore | StoreError] = self._loop.create_future()
        RocksStore.open(
            self._directories[number],
            name=str(number),
            post=self._loop.call_soon_threadsafe,
            done=answer.set_result,
            tuning=Tuning(sync=self._sync),
        )
        return await answer

    async def _reopen(self, journal: Journal) -> None:
        number = self._namespace.journals.index(journal)
        log.warning("store %d is closed, to be opened again: %s", number, journal.failure)
        await self._close(journal.store)
        pause_s, longest_s = RETRY_S
        while True:
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, longest_s)
            reason = await self._look_at(self._directories[number])
            if reason is not None:
                log.warning("store %d is not opened again yet: %s", number, reason)
                continue
            store = await self._open(number)
            if not isinstance(store, StoreError):
                break
            log.warning("store %d cannot be opened again yet: %s", number, store)
        log.info("store %d is open again", number)
        journal.resume(store)

    async def _look_at(self, directory: Path) -> str | None:
        """Why a store should not be opened again now. On a thread that the end of the process does not wait for."""
        answer: asyncio.Future[str | None] = self._loop.create_future()

        def tell(reason: str | None) -> None:
            if not answer.done():  # nobody waits any more
                answer.set_result(reason)

        def look() -> None:
            reason = _why_not(directory)
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(tell, reason)

        threading.Thread(target=look, name=f"probe of {directory.name}", daemon=True).start()
        return await answer

    async def _close(self, store: Store) -> None:
        answer: asyncio.Future[StoreError | None] = self._loop.create_future()
        store.close(answer.set_result)
        error = await answer
        if error is not None:
            log.warning("store could not be closed well: %s", error)

    async def _look_at_disks(self) -> None:
        while True:
            full = self._watch.check()
            for number, journal in enumerate(self._namespace.journals):
                journal.refusal = "its disk is nearly full (--min-free)" if number in full else None
            await asyncio.sleep(DISK_LOOK_S)


def _why_not(directory: Path) -> str | None:
    """What is wrong with a store's disk; nothing if it syncs quickly."""
    try:
        took_s = sync_time_s(directory)
    except OSError as error:
        return f"its disk does not work: {error.strerror}"
    return f"its disk took {took_s:.1f} s for a sync" if took_s > QUICK_SYNC_S else None
