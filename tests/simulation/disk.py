"""A store and a disk of the simulation that tell the ledger what passes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from twinbus.store.changes import Changes
from twinbus.store.memory import MemoryDisk, MemoryStore

if TYPE_CHECKING:
    from tests.simulation.ledger import Ledger
    from twinbus.store.memory import Post
    from twinbus.store.protocol import Answer, Batch, StoreError


class SimulatedDisk(MemoryDisk):
    def __init__(self) -> None:
        super().__init__()
        self.ledger: Ledger

    def sync(self) -> None:
        batches = list(self.unsynced)
        super().sync()
        for batch in batches:
            self.ledger.sync(batch)


class SimulatedStore(MemoryStore):
    def __init__(self, disk: SimulatedDisk, *, name: str, post: Post) -> None:
        super().__init__(disk, name=name, post=post)
        self._ledger = disk.ledger
        self.is_hanging = False

    def commit(self, batch: Batch, done: Answer[None]) -> None:
        assert isinstance(batch, Changes)
        ledger = self._ledger
        commit = ledger.submit(batch)

        def told(error: StoreError | None) -> None:
            if error is None:
                ledger.apply(commit)
            done(error)
            if error is None:
                ledger.check_shown(commit)

        super().commit(batch, told)

    def hang(self, *, since: float | None = None) -> None:
        super().hang(since=since)
        self.is_hanging = True

    def resume(self) -> None:
        super().resume()
        self.is_hanging = False
