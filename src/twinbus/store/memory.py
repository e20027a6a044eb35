"""In-memory store for simulations, with a disk that can lose power. Uses no threads, clocks or files.

    disk = MemoryDisk()
    store = MemoryStore(disk, name="store 0", post_call=simulation.post)
    store.commit(batch, on_done)
    while store.has_work:
        store.step()        # in turn: runs the pending calls, syncs written batches, posts the results
    disk.crash(random)      # between any two steps

Only `step` makes progress, so the seed of a simulation decides when a crash happens: for example between a write and
its sync, or between the sync and the delivery of the result.

Owns the contents of a memory disk, and the steps of a store. Must not know what the records mean.
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
"""Function that accepts a call for the simulation to make later, in the order in which calls were posted."""


class MemoryTable:
    """Table of a memory store: a dict and its sorted keys."""

    def __init__(self) -> None:
        """Create an empty table."""
        self.values: dict[bytes, bytes] = {}
        self.keys: list[bytes] = []

    def copy(self) -> MemoryTable:
        """Return an independent copy."""
        duplicate = MemoryTable()
        duplicate.values = self.values.copy()
        duplicate.keys = self.keys.copy()
        return duplicate

    def put(self, key: bytes, value: bytes) -> None:
        """Write or overwrite a record."""
        if key not in self.values:
            insort(self.keys, key)
        self.values[key] = value

    def delete(self, key: bytes) -> None:
        """Delete a record if it exists."""
        if self.values.pop(key, None) is not None:
            del self.keys[bisect_left(self.keys, key)]

    def delete_range(self, start: bytes, end: bytes) -> None:
        """Delete all records from `start` to `end` (exclusive)."""
        span = slice(bisect_left(self.keys, start), bisect_left(self.keys, end))
        for key in self.keys[span]:
            del self.values[key]
        del self.keys[span]

    def scan(self, start: bytes, end: bytes, limit: int, max_bytes: int) -> list[Row]:
        """Return the records from `start` to `end` (exclusive), in key order, within the limits."""
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
    """Simulated disk, which keeps all synced batches and, after a crash, a random part of the unsynced batches."""

    def __init__(self) -> None:
        """Create an empty disk."""
        self.synced = {table: MemoryTable() for table in Table}
        self.visible = {table: MemoryTable() for table in Table}
        """Synced contents plus written batches that are not synced yet."""
        self.unsynced: list[ChangeBatch] = []
        self.checkpoints: dict[Path, MemoryDisk] = {}
        self.store: MemoryStore | None = None
        """Store that has the disk open, or None."""
        self.crashes = 0

    def write(self, batch: ChangeBatch) -> None:
        """Write a batch without syncing it."""
        self.unsynced.append(batch)
        _apply(batch, self.visible)

    def sync(self) -> None:
        """Sync all written batches."""
        for batch in self.unsynced:
            _apply(batch, self.synced)
        self.unsynced.clear()

    def crash(self, random: Random) -> None:
        """Simulate a power failure: the disk's store never responds again, not even with results already posted."""
        self.lose_unsynced(random)
        self.store = None
        self.crashes += 1

    def lose_unsynced(self, random: Random) -> None:
        """Drop the unsynced batches, except for a random number of the oldest batches.

        Only whole batches survive: in RocksDB's log, a torn batch fails its checksum and is dropped with all later
        batches.
        """
        del self.unsynced[random.randint(0, len(self.unsynced)) :]
        self.sync()
        self.visible = {table: records.copy() for table, records in self.synced.items()}

    def copy_synced(self) -> MemoryDisk:
        """Return an independent disk with the synced contents."""
        duplicate = MemoryDisk()
        duplicate.synced = {table: records.copy() for table, records in self.synced.items()}
        duplicate.visible = {table: records.copy() for table, records in self.synced.items()}
        return duplicate


class StoreStep(Enum):
    """Next step of a memory store."""

    RUN = auto()
    """Run pending calls, up to the next checkpoint or close, which runs alone."""
    SYNC = auto()
    DELIVER = auto()


class MemoryStore:
    """Store on a MemoryDisk, driven by `step`."""

    name: str

    def __init__(self, disk: MemoryDisk, *, name: str, post_call: PostCall) -> None:
        """Open the store. Raises StoreFailed if another store has the disk open."""
        if disk.store is not None:
            raise StoreFailed(f"{name}: the disk is in use by {disk.store.name}")
        disk.store = self
        self.name = name
        self.disk = disk
        self.commits = 0
        """Number of batches written."""
        self.syncs = 0
        self.bytes_written = 0
        self.pending_commits = 0
        """Number of commits whose result is pending."""
        self.busy_since: float | None = None
        """Time when the disk began to hang, as passed to `hang`, or None."""
        self.failure: StoreFailed | None = None
        self._post_call = post_call
        self._calls: deque[tuple[Callable[[], Any], OnResult[Any], bool]] = deque()
        """Pending calls: the function to run, the callback, and whether the call must run alone."""
        self._results: list[tuple[OnResult[Any], Any]] = []
        self._step = StoreStep.RUN
        self._is_hanging = False
        self._is_closed = False
        self._crashes_at_open = disk.crashes
        self._sync_error: tuple[str, Random] | None = None

    # --- store protocol -----------------------------------------------------------------------------------------------

    def batch(self) -> ChangeBatch:
        """Return an empty batch."""
        return ChangeBatch()

    def commit(self, batch: Batch, on_done: OnResult[None]) -> None:
        """Apply a batch; `on_done` is called when the changes are synced."""
        assert isinstance(batch, ChangeBatch)
        self.pending_commits += 1
        self._enqueue(partial(self._write, batch), partial(self._on_committed, on_done))

    def get(self, keys: Sequence[bytes], on_result: OnResult[list[bytes | None]], table: Table = Table.LOG) -> None:
        """Read the values of some keys, with None for each missing key."""
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
        """Read the records from `start` to `end` (exclusive), in key order, within the limits."""
        self._enqueue(lambda: self.disk.visible[table].scan(start, end, limit, max_bytes), on_result)

    def checkpoint(self, directory: Path, on_done: OnResult[None]) -> None:
        """Copy the synced contents to the disk's `checkpoints`, under the key `directory`."""
        self._enqueue(partial(self._checkpoint, directory), on_done, alone=True)

    def close(self, on_done: OnResult[None]) -> None:
        """Finish all earlier calls and release the disk, even if the store has failed. Can be called repeatedly."""
        self._calls.append((self._close, on_done, True))

    # --- simulation ---------------------------------------------------------------------------------------------------

    @property
    def has_work(self) -> bool:
        """True if a step would make progress."""
        is_idle = self._step is StoreStep.RUN and not self._calls
        return not (is_idle or self._is_hanging or self._has_lost_power)

    @property
    def next_step(self) -> StoreStep:
        """Kind of the next step."""
        return self._step

    def step(self) -> None:
        """Run the next step, if there is any."""
        if self.has_work:
            self._step = self._steps[self._step](self)

    def fail_next_sync(self, error: str, random: Random) -> None:
        """Make the next sync fail with `error`. A random part of the unsynced batches reaches the disk nevertheless."""
        self._sync_error = (error, random)

    def hang(self, *, since: float | None = None) -> None:
        """Stop making progress until `resume`."""
        self._is_hanging = True
        self.busy_since = since

    def resume(self) -> None:
        """Continue after `hang`."""
        self._is_hanging = False
        self.busy_since = None

    # --- steps --------------------------------------------------------------------------------------------------------

    def _run(self) -> StoreStep:
        """Run the pending calls and collect their results."""
        while self._calls:
            run, on_result, alone = self._calls[0]
            if alone and self._results:
                break
            self._calls.popleft()
            self._results.append((on_result, run()))
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
            self._results = [(on_result, self.failure) for on_result, _ in self._results]
        return StoreStep.DELIVER

    def _deliver(self) -> StoreStep:
        results, self._results = self._results, []
        for on_result, result in results:
            self._post_call(partial(self._deliver_one, on_result, result))
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
            return StoreError(f"{self.name}: cannot create a checkpoint in {directory}: it already exists")
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
        """True if the disk lost power after the store was opened."""
        return self.disk.crashes != self._crashes_at_open


def _apply(batch: ChangeBatch, tables: dict[Table, MemoryTable]) -> None:
    for key, value, table in batch.changes:
        if isinstance(value, bytes):
            tables[table].put(key, value)
        elif value is None:
            tables[table].delete(key)
        else:
            tables[table].delete_range(key, value[0])
