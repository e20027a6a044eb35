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

    from twinbus.store.protocol import Answer, Batch, Row, Store

PLENTY_BYTES: Final = 2**50
LOOK_S: Final = 3_600.0
"""Whoever fills them tells the broker at once: a look every second would be most of what happens in an idle hour."""
BROKEN: Final = "the disk does not work: a test wants it so"


class LoopStore(MemoryStore):
    """A store that a loop moves."""

    def __init__(self, disk: MemoryDisk, name: str, loop: asyncio.AbstractEventLoop) -> None:
        """Open at once. StoreFailed if another store has the disk open."""
        super().__init__(disk, name=name, post=loop.call_soon)
        self._soon: Callable[[Callable[[], None]], object] = loop.call_soon
        self._is_due = False

    def commit(self, batch: Batch, done: Answer[None]) -> None:
        """Make the changes of a batch. Answered when they are on disk."""
        super().commit(batch, done)
        self._wake()

    def get(self, keys: Sequence[bytes], done: Answer[list[bytes | None]], table: Table = Table.LOG) -> None:
        """The values of some keys; None for each that is not there."""
        super().get(keys, done, table)
        self._wake()

    def scan(
        self,
        start: bytes,
        end: bytes,
        done: Answer[list[Row]],
        *,
        limit: int,
        max_bytes: int = 16_777_216,
        table: Table = Table.LOG,
    ) -> None:
        """Records from `start` up to and without `end`, in order."""
        super().scan(start, end, done, limit=limit, max_bytes=max_bytes, table=table)
        self._wake()

    def checkpoint(self, directory: Path, done: Answer[None]) -> None:
        """Make a copy."""
        super().checkpoint(directory, done)
        self._wake()

    def close(self, done: Answer[None]) -> None:
        """Let go of the disk. One that is cut off from it has nothing to let go of."""
        if self._is_dead:
            self._soon(lambda: done(None))
            return
        super().close(done)
        self._wake()

    def resume(self) -> None:
        """Go on."""
        super().resume()
        self._wake()

    def mend(self) -> None:
        """Take back that the next sync fails."""
        self._sync_error = None

    def _wake(self) -> None:
        if not self._is_due:
            self._is_due = True
            self._soon(self._work)

    def _work(self) -> None:
        self._is_due = False
        while self.pending:
            self.step()


class MemoryCatalogue(Catalogue):
    """A catalogue whose file is some bytes of a LoopDisks."""

    def __init__(self, disks: LoopDisks) -> None:
        """Open what was kept, or make a new one."""
        self._disks = disks
        super().__init__(Path("catalogue.db"))

    def close(self) -> None:
        """Keep what there is."""
        self._disks.catalogue = self._database.serialize()
        super().close()

    def _connect(self) -> sqlite3.Connection:
        database = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        if self._disks.catalogue:
            database.deserialize(self._disks.catalogue)
        return database

    def _sync_directory(self) -> None:
        """There is none."""


class LoopDisks:
    """All that a namespace in memory keeps."""

    def __init__(self, count: int, loop: asyncio.AbstractEventLoop) -> None:
        """Empty: `count` disks for one store each, and a catalogue."""
        self.directories = tuple(Path("memory") / str(number) for number in range(count))
        self.look_s = LOOK_S
        self.catalogue = b""
        self._loop = loop
        self._disks = [MemoryDisk() for _ in range(count)]
        self._is_full = False
        self._broken: set[int] = set()
        self._stuck: set[int] = set()
        self._random = Random(0)  # noqa: S311  # decides what of a failed sync is there: always the same

    # --- the server calls these ---------------------------------------------------------------------------------------

    def open(self, number: int, done: Answer[Store]) -> None:
        """Open a store."""
        try:
            store = LoopStore(self._disks[number], str(number), self._loop)
        except StoreFailed as error:
            self._loop.call_soon(done, error)
            return
        self._afflict(number)
        self._loop.call_soon(done, store)

    def free_bytes(self, directory: Path) -> int:  # noqa: ARG002  # they are full together
        """What can still be written."""
        return 0 if self._is_full else PLENTY_BYTES

    async def why_not(self, number: int) -> str | None:
        """Why a store should not be opened again now."""
        return BROKEN if number in self._broken | self._stuck else None

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
        self._afflict(number)

    def hang(self, number: int) -> None:
        """Let a store answer nothing."""
        self._stuck.add(number)
        self._afflict(number)

    def restore(self) -> None:
        """All of them work well again."""
        self._is_full = False
        self._broken.clear()
        self._stuck.clear()
        for store in self._stores():
            store.mend()
            store.resume()

    def crash(self) -> None:
        """Whoever used them is gone. What was synced stays; what was not is lost, as nobody was told that it was."""
        for disk in self._disks:
            disk.crash(self._random)

    def _afflict(self, number: int) -> None:
        for store in self._stores():
            if store.disk is not self._disks[number]:
                continue
            if number in self._broken:
                store.fail_next(BROKEN, self._random)
            if number in self._stuck:
                store.hang(since=self._loop.time())

    def _stores(self) -> list[LoopStore]:
        return [disk.user for disk in self._disks if isinstance(disk.user, LoopStore)]
