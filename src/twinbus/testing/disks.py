"""Simulated disks of a namespace: they outlive the process of the namespace, and can fill up, fail or hang.

Owns the data of a namespace that is not running, and the timing of its stores: requests from one turn of the event loop
are carried out in the next turn, with one sync, and completed in the turn after that. `store.memory` implements the
operations.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Final

from twinbus.store.catalogue import Catalogue
from twinbus.store.memory import MemoryDisk, MemoryStore
from twinbus.store.protocol import StoreFailed, Table

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Sequence

    from twinbus.store.protocol import Batch, OnResult, Row, Store

FREE_BYTES: Final = 2**50
SPACE_CHECK_INTERVAL_S: Final = 3_600.0
"""Interval of free-space checks. The interval is long, because `Outage` reports a full disk to the broker at once."""
BROKEN_REASON: Final = "the disk fails (simulated by a test)"


class LoopStore(MemoryStore):
    """Memory store that is driven by an event loop."""

    def __init__(self, disk: MemoryDisk, name: str, loop: asyncio.AbstractEventLoop) -> None:
        """Open the store; raise StoreFailed if another store has the disk open."""
        super().__init__(disk, name=name, post_call=loop.call_soon)
        self._call_soon: Callable[[Callable[[], None]], object] = loop.call_soon
        self._is_step_scheduled = False

    def commit(self, batch: Batch, on_done: OnResult[None]) -> None:
        """Commit a batch; call `on_done` when its changes are on disk."""
        super().commit(batch, on_done)
        self._schedule_step()

    def get(self, keys: Sequence[bytes], on_result: OnResult[list[bytes | None]], table: Table = Table.LOG) -> None:
        """Read the values of some keys; the result has None for each missing key."""
        super().get(keys, on_result, table)
        self._schedule_step()

    def scan(
        self,
        start: bytes,
        end: bytes,
        on_result: OnResult[list[Row]],
        *,
        limit: int,
        max_bytes: int = 16_777_216,
        table: Table = Table.LOG,
    ) -> None:
        """Read the records from `start` up to but not including `end`, in order."""
        super().scan(start, end, on_result, limit=limit, max_bytes=max_bytes, table=table)
        self._schedule_step()

    def checkpoint(self, directory: Path, on_done: OnResult[None]) -> None:
        """Write a copy of the store to a directory."""
        super().checkpoint(directory, on_done)
        self._schedule_step()

    def close(self, on_done: OnResult[None]) -> None:
        """Close the store and release the disk; a store that has lost power is released already."""
        if self._has_lost_power:
            self._call_soon(lambda: on_done(None))
            return
        super().close(on_done)
        self._schedule_step()

    def resume(self) -> None:
        """Resume after a hang."""
        super().resume()
        self._schedule_step()

    def clear_sync_failure(self) -> None:
        """Cancel the failure of the next sync."""
        self._sync_error = None

    def _schedule_step(self) -> None:
        if not self._is_step_scheduled:
            self._is_step_scheduled = True
            self._call_soon(self._run_pending)

    def _run_pending(self) -> None:
        self._is_step_scheduled = False
        while self.has_work:
            self.step()


class MemoryCatalogue(Catalogue):
    """Catalogue whose database file is kept in a LoopDisks."""

    def __init__(self, disks: LoopDisks) -> None:
        """Open the saved catalogue, or create an empty one."""
        self._disks = disks
        super().__init__(Path("catalogue.db"))

    def close(self) -> None:
        """Save the database to the LoopDisks and close it."""
        self._disks.catalogue_bytes = self._database.serialize()
        super().close()

    def _connect(self) -> sqlite3.Connection:
        database = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        if self._disks.catalogue_bytes:
            database.deserialize(self._disks.catalogue_bytes)
        return database

    def _sync_directory(self) -> None:
        """Do nothing, because the catalogue has no directory."""


class LoopDisks:
    """Disks and catalogue of a namespace in memory."""

    def __init__(self, count: int, loop: asyncio.AbstractEventLoop) -> None:
        """Create an empty catalogue and `count` empty disks, for one store each."""
        self.directories = tuple(Path("memory") / str(number) for number in range(count))
        self.check_interval_s = SPACE_CHECK_INTERVAL_S
        self.catalogue_bytes = b""
        self._loop = loop
        self._disks = [MemoryDisk() for _ in range(count)]
        self._is_full = False
        self._broken: set[int] = set()
        self._hanging: set[int] = set()
        self._random = Random(0)  # noqa: S311  # decides which writes survive a failed sync; repeatable

    # --- the server calls these ---------------------------------------------------------------------------------------

    def open(self, store_number: int, on_done: OnResult[Store]) -> None:
        """Open a store and pass it, or the error, to `on_done`."""
        try:
            store = LoopStore(self._disks[store_number], str(store_number), self._loop)
        except StoreFailed as error:
            self._loop.call_soon(on_done, error)
            return
        self._apply_faults(store_number)
        self._loop.call_soon(on_done, store)

    def free_bytes(self, directory: Path) -> int:  # noqa: ARG002  # all disks are full or none
        """Return the free space in bytes."""
        return 0 if self._is_full else FREE_BYTES

    async def find_disk_problem(self, store_number: int) -> str | None:
        """Return the reason why a store should not be reopened now, or None."""
        return BROKEN_REASON if store_number in self._broken | self._hanging else None

    def open_catalogue(self) -> MemoryCatalogue:
        """Open the catalogue."""
        return MemoryCatalogue(self)

    # --- tests call these ---------------------------------------------------------------------------------------------

    def fill(self) -> None:
        """Fill all disks."""
        self._is_full = True

    def fail(self, number: int) -> None:
        """Make the next sync of a store fail, and keep the store from being reopened."""
        self._broken.add(number)
        self._apply_faults(number)

    def hang(self, number: int) -> None:
        """Make a store hang, so that it completes no requests."""
        self._hanging.add(number)
        self._apply_faults(number)

    def restore(self) -> None:
        """Clear all faults."""
        self._is_full = False
        self._broken.clear()
        self._hanging.clear()
        for store in self._stores():
            store.clear_sync_failure()
            store.resume()

    def crash(self) -> None:
        """Simulate a crash of the process: synced writes stay, and writes that were not synced may be lost."""
        for disk in self._disks:
            disk.crash(self._random)

    def _apply_faults(self, number: int) -> None:
        for store in self._stores():
            if store.disk is not self._disks[number]:
                continue
            if number in self._broken:
                store.fail_next_sync(BROKEN_REASON, self._random)
            if number in self._hanging:
                store.hang(since=self._loop.time())

    def _stores(self) -> list[LoopStore]:
        return [disk.store for disk in self._disks if isinstance(disk.store, LoopStore)]
