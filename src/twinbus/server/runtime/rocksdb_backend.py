"""Stores on RocksDB, on the disks of this machine.

Owns: opening a store in its directory, and testing its disk before the store is reopened after a failure. The `stores`
module decides when a store is opened.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import TYPE_CHECKING, Final

from twinbus.server.runtime import disk_space
from twinbus.store.rocks import RocksStore
from twinbus.store.rocks_tuning import DEFAULT_TUNING, RocksTuning

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from twinbus.store.protocol import OnResult, Store

CHECK_INTERVAL_S: Final = 1.0
MAX_SYNC_S: Final = 0.25
"""A store is reopened only if its disk syncs within this time: RocksDB syncs several times while it opens a database,
and holds the GIL all the time, so that a slow disk would block the whole process."""


class RocksStoreBackend:
    """RocksDB stores, each in its own directory."""

    def __init__(
        self, directories: Sequence[Path], *, sync: bool, table_files: int = DEFAULT_TUNING.table_files
    ) -> None:
        """Create a backend on the running event loop.

        Without `sync`, accepted messages can be lost. `table_files` is the limit on open table files per store.
        """
        self.directories = directories
        self.check_interval_s = CHECK_INTERVAL_S
        self._tuning = RocksTuning(sync=sync, table_files=table_files)
        self._loop = asyncio.get_running_loop()

    def open(self, store_number: int, on_done: OnResult[Store]) -> None:
        """Open a store on its own thread, and call `on_done` with the store or an error."""
        RocksStore.open(
            self.directories[store_number],
            name=str(store_number),
            post_call=self._loop.call_soon_threadsafe,
            on_result=on_done,
            tuning=self._tuning,
        )

    def free_bytes(self, directory: Path) -> int:
        """Return how many bytes can still be written to the disk of `directory`."""
        return disk_space.free_bytes(directory)

    async def find_disk_problem(self, store_number: int) -> str | None:
        """Return why a store should not be reopened now, or None if its disk works.

        The test runs on a daemon thread, so that a hanging disk does not keep the process from exiting.
        """
        directory = self.directories[store_number]
        future: asyncio.Future[str | None] = self._loop.create_future()

        def set_result(reason: str | None) -> None:
            if not future.done():  # the future may have been cancelled
                future.set_result(reason)

        def probe() -> None:
            reason = _disk_problem(directory)
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(set_result, reason)

        threading.Thread(target=probe, name=f"probe of {directory.name}", daemon=True).start()
        return await future


def _disk_problem(directory: Path) -> str | None:
    """Return what is wrong with a store's disk, or None if the disk syncs quickly."""
    try:
        took_s = disk_space.measure_sync_s(directory)
    except OSError as error:
        return f"its disk does not work: {error.strerror}"
    return f"its disk took {took_s:.1f} s for a sync" if took_s > MAX_SYNC_S else None
