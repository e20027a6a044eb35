"""A store and a disk of the simulation that report commits and syncs to the checker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from twinbus.store.change_batch import ChangeBatch
from twinbus.store.memory import MemoryDisk, MemoryStore

if TYPE_CHECKING:
    from tests.simulation.broker.checker import BrokerChecker
    from twinbus.store.memory import PostCall
    from twinbus.store.protocol import Batch, OnResult, StoreError


class SimulatedDisk(MemoryDisk):
    def __init__(self) -> None:
        super().__init__()
        self.checker: BrokerChecker

    def sync(self) -> None:
        batches = list(self.unsynced)
        super().sync()
        for batch in batches:
            self.checker.commit_synced(batch)


class SimulatedStore(MemoryStore):
    def __init__(self, disk: SimulatedDisk, *, name: str, post_call: PostCall) -> None:
        super().__init__(disk, name=name, post_call=post_call)
        self._checker = disk.checker
        self.is_hanging = False

    def commit(self, batch: Batch, on_done: OnResult[None]) -> None:
        assert isinstance(batch, ChangeBatch)
        checker = self._checker
        commit = checker.commit_submitted(batch)

        def on_committed(error: StoreError | None) -> None:
            if error is None:
                checker.commit_visible(commit)
            on_done(error)
            if error is None:
                checker.check_shown(commit)

        super().commit(batch, on_committed)

    def hang(self, *, since: float | None = None) -> None:
        super().hang(since=since)
        self.is_hanging = True

    def resume(self) -> None:
        super().resume()
        self.is_hanging = False
