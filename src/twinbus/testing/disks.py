"""The disks of a namespace in memory: they outlive its process, and can be full, broken or stuck.

Owns: what is kept of a namespace while nobody serves it, and how its stores work by the turns of a loop: what is asked
in one turn is done in the next, with one sync for all, and answered in the one after that. What a store does is in
`store.memory`.
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
"""Whoever fills them tells the broker at once: a look every second would be most of what happens in an idle hour."""
BROKEN_REASON: Final = "the disk does not work: a test wants it so"


class LoopStore(MemoryStore):
    """A store that a loop moves."""

    def __init__(self, disk: MemoryDisk, name: str, loop: asyncio.AbstractEventLoop) -> None:
        """Open at once. StoreFailed if another store has the disk open."""
        super().__init__(disk, name=name, post_call=loop.call_soon)
        self._call_soon: Callable[[Callable[[], None]], object] = loop.call_soon
        self._is_step_scheduled = False

    def commit(self, batch: Batch, on_done: OnResult[None]) -> None:
        """Make the changes of a batch. Answered when they are on disk."""
        super().commit(batch, on_done)
        self._schedule_step()

    def get(self, keys: Sequence[bytes], on_result: OnResult[list[bytes | None]], table: Table = Table.LOG) -> None:
        """The values of some keys; None for each that is not there."""
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
        """Records from `start` up to and without `end`, in order."""
        super().scan(start, end, on_result, limit=limit, max_bytes=max_bytes, table=table)
        self._schedule_step()

    def checkpoint(self, directory: Path, on_done: OnResult[None]) -> None:
        """Make a copy."""
        super().checkpoint(directory, on_done)
        self._schedule_step()

    def close(self, on_done: OnResult[None]) -> None:
        """Let go of the disk. One that is cut off from it has nothing to let go of."""
        if self._has_lost_power:
            self._call_soon(lambda: on_done(None))
            return
        super().close(on_done)
        self._schedule_step()

    def resume(self) -> None:
        """Go on."""
        super().resume()
        self._schedule_step()

    def clear_sync_failure(self) -> None:
        """Take back that the next sync fails."""
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
    """A catalogue whose file is some bytes of a LoopDisks."""

    def __init__(self, disks: LoopDisks) -> None:
        """Open what was kept, or make a new one."""
        self._disks = disks
        super().__init__(Path("catalogue.db"))

    def close(self) -> None:
        """Keep what there is."""
        self._disks.catalogue_bytes = self._database.serialize()
        super().close()

    def _connect(self) -> sqlite3.Connection:
        database = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        if self._disks.catalogue_bytes:
            database.deserialize(self._disks.catalogue_bytes)
        return database

    def _sync_directory(self) -> None:
        """There is none."""


class LoopDisks:
    """All that a namespace in memory keeps."""

    def __init__(self, count: int, loop: asyncio.AbstractEventLoop) -> None:
        """Empty: `count` disks for one store each, and a catalogue."""
        self.directories = tuple(Path("memory") / str(number) for number in range(count))
        self.check_interval_s = SPACE_CHECK_INTERVAL_S
        self.catalogue_bytes = b""
        self._loop = loop
        self._disks = [MemoryDisk() for _ in range(count)]
        self._is_full = False
        self._broken: set[int] = set()
        self._hanging: set[int] = set()
        self._random = Random(0)  # noqa: S311  # decides what of a failed sync is there: always the same

    # --- the server calls these ---------------------------------------------------------------------------------------

    def open(self, store_number: int, on_done: OnResult[Store]) -> None:
        """Open a store."""
        try:
            store = LoopStore(self._disks[store_number], str(store_number), self._loop)
        except StoreFailed as error:
            self._loop.call_soon(on_done, error)
            return
        self._apply_faults(store_number)
        self._loop.call_soon(on_done, store)

    def free_bytes(self, directory: Path) -> int:  # noqa: ARG002  # they are full together
        """What can still be written."""
        return 0 if self._is_full else FREE_BYTES

    async def find_disk_problem(self, store_number: int) -> str | None:
        """Why a store should not be opened again now."""
        return BROKEN_REASON if store_number in self._broken | self._hanging else None

    def open_catalogue(self) -> MemoryCatalogue:
        """Open the catalogue."""
        return MemoryCatalogue(self)

    # --- tests call these ---------------------------------------------------------------------------------------------

    def fill(self) -> None:
        """Leave no room on any of them."""
        self._is_full = True

    def fail(self, number: int) -> None:
        """Let every sync of a store fail, from the next one on."""
        self._broken.add(number)
        self._apply_faults(number)

    def hang(self, number: int) -> None:
        """Let a store answer nothing."""
        self._hanging.add(number)
        self._apply_faults(number)

    def restore(self) -> None:
        """All of them work well again."""
        self._is_full = False
        self._broken.clear()
        self._hanging.clear()
        for store in self._stores():
            store.clear_sync_failure()
            store.resume()

    def crash(self) -> None:
        """Whoever used them is gone. What was synced stays; what was not is lost, as nobody was told that it was."""
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
