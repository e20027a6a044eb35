"""A store for simulations, with a disk that can lose power. No thread, no clock, no file.

    disk = MemoryDisk()
    store = MemoryStore(disk, name="store 0", post=simulation.post)
    store.commit(batch, done)
    while store.pending:
        store.step()        # runs what was asked; then syncs it; then posts the answers
    disk.crash(random)      # between any two steps

Nothing happens but by `step`, so a simulation decides by its seed where a crash falls: between a write and its sync, or
between the sync and its answer.

Owns: what such a disk holds, and in which steps a store works. Knows nothing of what the records mean.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from enum import Enum, auto
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from twinbus.store.change_batch import ChangeBatch
from twinbus.store.protocol import StoreClosed, StoreError, StoreFailed, Table

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path
    from random import Random

    from twinbus.store.protocol import Batch, OnResult, Row

T = TypeVar("T")
PostCall: TypeAlias = "Callable[[Callable[[], None]], object]"
"""Takes a call that the simulation makes later; in the order in which it got them."""


class MemoryTable:
    """One table: a dict, and its keys in order."""

    def __init__(self) -> None:
        """Empty."""
        self.values: dict[bytes, bytes] = {}
        self.keys: list[bytes] = []

    def copy(self) -> MemoryTable:
        """One that changes on its own."""
        twin = MemoryTable()
        twin.values = self.values.copy()
        twin.keys = self.keys.copy()
        return twin

    def put(self, key: bytes, value: bytes) -> None:
        """Write a record, or overwrite it."""
        if key not in self.values:
            insort(self.keys, key)
        self.values[key] = value

    def delete(self, key: bytes) -> None:
        """Remove a record; it need not be there."""
        if self.values.pop(key, None) is not None:
            del self.keys[bisect_left(self.keys, key)]

    def delete_range(self, start: bytes, end: bytes) -> None:
        """Remove every record from `start` up to and without `end`."""
        doomed = slice(bisect_left(self.keys, start), bisect_left(self.keys, end))
        for key in self.keys[doomed]:
            del self.values[key]
        del self.keys[doomed]

    def scan(self, start: bytes, end: bytes, limit: int, max_bytes: int) -> list[Row]:
        """Records from `start` up to and without `end`, in order."""
        first = bisect_left(self.keys, start)
        last = min(bisect_left(self.keys, end), first + max(limit, 0))
        rows: list[Row] = []
        size = 0
        for key in self.keys[first:last]:
            if size > max_bytes:
                break
            rows.append((key, self.values[key]))
            size += len(self.values[key])
        return rows


class MemoryDisk:
    """What survives a store: all that was synced, and of the rest what chance leaves."""

    def __init__(self) -> None:
        """Empty."""
        self.synced = {table: MemoryTable() for table in Table}
        self.visible = {table: MemoryTable() for table in Table}
        """The same with what is written and not synced yet."""
        self.unsynced: list[ChangeBatch] = []
        self.checkpoints: dict[Path, MemoryDisk] = {}
        self.store: MemoryStore | None = None
        """The store that has it open."""
        self.crashes = 0

    def write(self, batch: ChangeBatch) -> None:
        """Show a batch, until it is synced or lost."""
        self.unsynced.append(batch)
        _apply(batch, self.visible)

    def sync(self) -> None:
        """Make sure of all that was written."""
        for batch in self.unsynced:
            _apply(batch, self.synced)
        self.unsynced.clear()

    def crash(self, random: Random) -> None:
        """Lose power. Its store is dead: it answers nothing any more, not even what was posted already."""
        self.lose_unsynced(random)
        self.store = None
        self.crashes += 1

    def lose_unsynced(self, random: Random) -> None:
        """Forget what is not synced but for the first few batches, perhaps none and perhaps all.

        Whole ones: a batch that is torn in RocksDB's log does not fit its checksum, and is dropped with all after it.
        """
        del self.unsynced[random.randint(0, len(self.unsynced)) :]
        self.sync()
        self.visible = {table: records.copy() for table, records in self.synced.items()}

    def copy_synced(self) -> MemoryDisk:
        """A disk of its own."""
        twin = MemoryDisk()
        twin.synced = {table: records.copy() for table, records in self.synced.items()}
        twin.visible = {table: records.copy() for table, records in self.synced.items()}
        return twin


class StoreStep(Enum):
    """What a store does next."""

    RUN = auto()
    """Write and read what was asked, up to the next checkpoint or close, which is run alone."""
    SYNC = auto()
    DELIVER = auto()


class MemoryStore:
    """A store on a MemoryDisk, moved by `step`."""

    name: str

    def __init__(self, disk: MemoryDisk, *, name: str, post_call: PostCall) -> None:
        """Open at once. Raises StoreFailed if another store has the disk open."""
        if disk.store is not None:
            raise StoreFailed(f"{name}: the disk is in use by {disk.store.name}")
        disk.store = self
        self.name = name
        self.disk = disk
        self.commits = 0
        """Batches written."""
        self.syncs = 0
        self.bytes_written = 0
        self.pending_commits = 0
        """Commits that are not answered yet."""
        self.busy_since: float | None = None
        """When its disk began to hang, as `hang` was told."""
        self.failure: StoreFailed | None = None
        self._post_call = post_call
        self._calls: deque[tuple[Callable[[], Any], OnResult[Any], bool]] = deque()
        """What to run, who is told, and whether it is run alone."""
        self._results: list[tuple[OnResult[Any], Any]] = []
        self._step = StoreStep.RUN
        self._is_hanging = False
        self._is_closed = False
        self._crashes_at_open = disk.crashes
        self._sync_error: tuple[str, Random] | None = None

    # --- what every store has -----------------------------------------------------------------------------------------

    def batch(self) -> ChangeBatch:
        """An empty batch."""
        return ChangeBatch()

    def commit(self, batch: Batch, on_done: OnResult[None]) -> None:
        """Make the changes of a batch. Answered when they are on disk."""
        assert isinstance(batch, ChangeBatch)
        self.pending_commits += 1
        self._enqueue(partial(self._write, batch), partial(self._on_committed, on_done))

    def get(self, keys: Sequence[bytes], on_result: OnResult[list[bytes | None]], table: Table = Table.LOG) -> None:
        """The values of some keys; None for each that is not there."""
        self._enqueue(partial(self._get, list(keys), table), on_result)

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
        self._enqueue(lambda: self.disk.visible[table].scan(start, end, limit, max_bytes), on_result)

    def checkpoint(self, directory: Path, on_done: OnResult[None]) -> None:
        """Make a copy: it is in the disk's `checkpoints`, by the name of the directory."""
        self._enqueue(partial(self._checkpoint, directory), on_done, alone=True)

    def close(self, on_done: OnResult[None]) -> None:
        """Answer what was asked before, and let go of the disk; also if the store failed. May be asked again."""
        self._calls.append((self._close, on_done, True))

    # --- what the simulation does -------------------------------------------------------------------------------------

    @property
    def has_work(self) -> bool:
        """A step would do something."""
        is_idle = self._step is StoreStep.RUN and not self._calls
        return not (is_idle or self._is_hanging or self._has_lost_power)

    @property
    def next_step(self) -> StoreStep:
        """What a step would do, where one is pending."""
        return self._step

    def step(self) -> None:
        """Do the next thing, if one is pending."""
        if self.has_work:
            self._step = self._steps[self._step](self)

    def fail_next_sync(self, error: str, random: Random) -> None:
        """Let the next sync fail. Chance decides what of the unsynced batches the disk holds nevertheless."""
        self._sync_error = (error, random)

    def hang(self, *, since: float | None = None) -> None:
        """Do nothing more before `resume`."""
        self._is_hanging = True
        self.busy_since = since

    def resume(self) -> None:
        """Go on."""
        self._is_hanging = False
        self.busy_since = None

    # --- steps --------------------------------------------------------------------------------------------------------

    def _run(self) -> StoreStep:
        """Run what was asked until now, with answers to come."""
        while self._calls:
            run, done, alone = self._calls[0]
            if alone and self._results:
                break
            self._calls.popleft()
            self._results.append((done, run()))
            if alone:
                break
        return StoreStep.SYNC if self.disk.unsynced and self.failure is None else StoreStep.DELIVER

    def _sync(self) -> StoreStep:
        if self._sync_error is None:
            self.disk.sync()
            self.syncs += 1
        else:
            reason, random = self._sync_error
            self.disk.lose_unsynced(random)
            self.failure = StoreFailed(f"{self.name}: {reason}")
            self._results = [(done, self.failure) for done, _ in self._results]
        return StoreStep.DELIVER

    def _deliver(self) -> StoreStep:
        answers, self._results = self._results, []
        for done, answer in answers:
            self._post_call(partial(self._deliver_one, done, answer))
        return StoreStep.RUN

    _steps = {StoreStep.RUN: _run, StoreStep.SYNC: _sync, StoreStep.DELIVER: _deliver}  # noqa: RUF012  (never changed)

    # --- calls --------------------------------------------------------------------------------------------------------

    def _enqueue(self, run: Callable[[], T | StoreError], on_result: OnResult[T], *, alone: bool = False) -> None:
        self._calls.append((partial(self._unless_closed, run), on_result, alone))

    def _unless_closed(self, run: Callable[[], T | StoreError]) -> T | StoreError:
        if self.failure is not None:
            return self.failure
        if self._is_closed:
            return StoreClosed(f"{self.name} is closed")
        return run()

    def _write(self, batch: ChangeBatch) -> None:
        self.disk.write(batch)
        self.commits += 1
        self.bytes_written += batch.size

    def _get(self, keys: list[bytes], table: Table) -> list[bytes | None]:
        values = self.disk.visible[table].values
        return [values.get(key) for key in keys]

    def _checkpoint(self, directory: Path) -> StoreError | None:
        if directory in self.disk.checkpoints:
            return StoreError(f"{self.name}: no checkpoint in {directory}: it exists")
        self.disk.checkpoints[directory] = self.disk.copy_synced()
        return None

    def _close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self.disk.store = None

    def _on_committed(self, on_done: OnResult[None], error: StoreError | None) -> None:
        self.pending_commits -= 1
        on_done(error)

    def _deliver_one(self, on_result: OnResult[T], result: T | StoreError) -> None:
        if not self._has_lost_power:
            on_result(result)

    @property
    def _has_lost_power(self) -> bool:
        """Its disk lost power."""
        return self.disk.crashes != self._crashes_at_open


def _apply(batch: ChangeBatch, tables: dict[Table, MemoryTable]) -> None:
    for key, value, table in batch.changes:
        if isinstance(value, bytes):
            tables[table].put(key, value)
        elif value is None:
            tables[table].delete(key)
        else:
            tables[table].delete_range(key, value[0])
