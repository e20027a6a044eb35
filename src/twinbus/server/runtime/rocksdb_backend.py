"""The disks of this machine, with stores on RocksDB.

Owns: how a store is opened in its directory, and when its disk is well enough for that after a failure. When a store is
opened, and what is done while it is away, is the business of `stores`.
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
"""A store is opened again when its disk syncs within this: RocksDB syncs several times while it opens a database, and
holds the GIL meanwhile, so that nothing else would go on."""


class RocksStoreBackend:
    """Some directories, each for one store."""

    def __init__(
        self, directories: Sequence[Path], *, sync: bool, table_files: int = DEFAULT_TUNING.table_files
    ) -> None:
        """Without `sync` accepted messages can be lost. `table_files` is per store. Made on the running loop."""
        self.directories = directories
        self.check_interval_s = CHECK_INTERVAL_S
        self._tuning = RocksTuning(sync=sync, table_files=table_files)
        self._loop = asyncio.get_running_loop()

    def open(self, store_number: int, on_done: OnResult[Store]) -> None:
        """Open a store, on a thread of its own."""
        RocksStore.open(
            self.directories[store_number],
            name=str(store_number),
            post_call=self._loop.call_soon_threadsafe,
            on_result=on_done,
            tuning=self._tuning,
        )

    def free_bytes(self, directory: Path) -> int:
        """What can still be written there."""
        return disk_space.free_bytes(directory)

    async def find_disk_problem(self, store_number: int) -> str | None:
        """Why a store should not be opened again now. On a thread that the end of the process does not wait for."""
        directory = self.directories[store_number]
        answer: asyncio.Future[str | None] = self._loop.create_future()

        def tell(reason: str | None) -> None:
            if not answer.done():  # nobody waits any more
                answer.set_result(reason)

        def look() -> None:
            reason = _disk_problem(directory)
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(tell, reason)

        threading.Thread(target=look, name=f"probe of {directory.name}", daemon=True).start()
        return await answer


def _disk_problem(directory: Path) -> str | None:
    """What is wrong with a store's disk; nothing if it syncs quickly."""
    try:
        took_s = disk_space.measure_sync_s(directory)
    except OSError as error:
        return f"its disk does not work: {error.strerror}"
    return f"its disk took {took_s:.1f} s for a sync" if took_s > MAX_SYNC_S else None
