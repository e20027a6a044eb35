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

from twinbus.store.changes import Changes
from twinbus.store.protocol import StoreClosed, StoreError, StoreFailed, Table

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path
    from random import Random

    from twinbus.store.protocol import Answer, Batch, Row

T = TypeVar("T")
Post: TypeAlias = "Callable[[Callable[[], None]], object]"
"""Takes a call that the simulation makes later; in the order in which it got them."""


class Records:
    """One table: a dict, and its keys in order."""

    def __init__(self) -> None:
        """Empty."""
        self.values: dict[bytes, bytes] = {}
        self.keys: list[bytes] = []

    def copy(self) -> Records:
        """One that changes on its own."""
        twin = Records()
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
        self.synced = {table: Records() for table in Table}
        self.seen = {table: Records() for table in Table}
        """The same with what is written and not synced yet."""
        self.unsynced: list[Changes] = []
        self.checkpoints: dict[Path, MemoryDisk] = {}
        self.user: MemoryStore | None = None
        """The store that has it open."""
        self.crashes = 0

    def write(self, batch: Changes) -> None:
        """Show a batch, until it is synced or lost."""
        self.unsynced.append(batch)
        _apply(batch, self.seen)

    def sync(self) -> None:
        """Make sure of all that was written."""
        for batch in self.unsynced:
            _apply(batch, self.synced)
        self.unsynced.clear()

    def crash(self, random: Random) -> None:
        """Lose power. Its store is dead: it answers nothing any more, not even what was posted already."""
        self.lose_unsynced(random)
        self.user = None
        self.crashes += 1

    def lose_unsynced(self, random: Random) -> None:
        """Forget what is not synced but for the first few batches, perhaps none and perhaps all.

        Whole ones: a batch that is torn in RocksDB's log does not fit its checksum, and is dropped with all after it.
        """
        del self.unsynced[random.randint(0, len(self.unsynced)) :]
        self.sync()
        self.seen = {table: records.copy() for table, records in self.synced.items()}

    def copy_synced(self) -> MemoryDisk:
        """A disk of its own."""
        twin = MemoryDisk()
        twin.synced = {table: records.copy() for table, records in self.synced.items()}
        twin.seen = {table: records.copy() for table, records in self.synced.items()}
        return twin


class Step(Enum):
    """What a store does next."""

    RUN = auto()
    """Write and read what was asked, up to the next checkpoint or close, which is run alone."""
    SYNC = auto()
    ANSWER = auto()


class MemoryStore:
    """A store on a MemoryDisk, moved by `step`."""

    name: str

    def __init__(self, disk: MemoryDisk, *, name: str, post: Post) -> None:
        """Open at once. Raises StoreFailed if another store has the disk open."""
        if disk.user is not None:
            raise StoreFailed(f"{name}: the disk is in use by {disk.user.name}")
        disk.user = self
        self.name = name
        self.disk = disk
        self.commits = 0
        """Batches written."""
        self.syncs = 0
        self.bytes_written = 0
        self.waiting = 0
        """Commits that are not answered yet."""
        self.busy_since: float | None = None
        """When its disk began to hang, as `hang` was told."""
        self.failure: StoreFailed | None = None
        self._post = post
        self._calls: deque[tuple[Callable[[], Any], Answer[Any], bool]] = deque()
        """What to run, who is told, and whether it is run alone."""
        self._answers: list[tuple[Answer[Any], Any]] = []
        self._step = Step.RUN
        self._is_hanging = False
        self._is_closed = False
        self._crashes_before = disk.crashes
        self._sync_error: tuple[str, Random] | None = None

    # --- what every store has -----------------------------------------------------------------------------------------

    def batch(self) -> Changes:
        """An empty batch."""
        return Changes()

    def commit(self, batch: Batch, done: Answer[None]) -> None:
        """Make the changes of a batch. Answered when they are on disk."""
        assert isinstance(batch, Changes)
        self.waiting += 1
        self._ask(partial(self._write, batch), partial(self._committed, done))

    def get(self, keys: Sequence[bytes], done: Answer[list[bytes | None]], table: Table = Table.LOG) -> None:
        """The values of some keys; None for each that is not there."""
        self._ask(partial(self._get, list(keys), table), done)

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
        self._ask(lambda: self.disk.seen[table].scan(start, end, limit, max_bytes), done)

    def checkpoint(self, directory: Path, done: Answer[None]) -> None:
        """Make a copy: it is in the disk's `checkpoints`, by the name of the directory."""
        self._ask(partial(self._checkpoint, directory), done, alone=True)

    def close(self, done: Answer[None]) -> None:
        """Answer what was asked before, and let go of the disk; also if the store failed. May be asked again."""
        self._calls.append((self._close, done, True))

    # --- what the simulation does -------------------------------------------------------------------------------------

    @property
    def pending(self) -> bool:
        """A step would do something."""
        is_idle = self._step is Step.RUN and not self._calls
        return not (is_idle or self._is_hanging or self._is_dead)

    @property
    def next_step(self) -> Step:
        """What a step would do, where one is pending."""
        return self._step

    def step(self) -> None:
        """Do the next thing, if one is pending."""
        if self.pending:
            self._step = self._steps[self._step](self)

    def fail_next(self, error: str, random: Random) -> None:
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

    def _run(self) -> Step:
        """Run what was asked until now, with answers to come."""
        while self._calls:
            run, done, alone = self._calls[0]
            if alone and self._answers:
                break
            self._calls.popleft()
            self._answers.append((done, run()))
            if alone:
                break
        return Step.SYNC if self.disk.unsynced and self.failure is None else Step.ANSWER

    def _sync(self) -> Step:
        if self._sync_error is None:
            self.disk.sync()
            self.syncs += 1
        else:
            reason, random = self._sync_error
            self.disk.lose_unsynced(random)
            self.failure = StoreFailed(f"{self.name}: {reason}")
            self._answers = [(done, self.failure) for done, _ in self._answers]
        return Step.ANSWER

    def _answer(self) -> Step:
        answers, self._answers = self._answers, []
        for done, answer in answers:
            self._post(partial(self._tell, done, answer))
        return Step.RUN

    _steps = {Step.RUN: _run, Step.SYNC: _sync, Step.ANSWER: _answer}  # noqa: RUF012  (never changed)

    # --- calls --------------------------------------------------------------------------------------------------------

    def _ask(self, run: Callable[[], T | StoreError], done: Answer[T], *, alone: bool = False) -> None:
        self._calls.append((partial(self._unless_over, run), done, alone))

    def _unless_over(self, run: Callable[[], T | StoreError]) -> T | StoreError:
        if self.failure is not None:
            return self.failure
        if self._is_closed:
            return StoreClosed(f"{self.name} is closed")
        return run()

    def _write(self, batch: Changes) -> None:
        self.disk.write(batch)
        self.commits += 1
        self.bytes_written += batch.size

    def _get(self, keys: list[bytes], table: Table) -> list[bytes | None]:
        values = self.disk.seen[table].values
        return [values.get(key) for key in keys]

    def _checkpoint(self, directory: Path) -> StoreError | None:
        if directory in self.disk.checkpoints:
            return StoreError(f"{self.name}: no checkpoint in {directory}: it exists")
        self.disk.checkpoints[directory] = self.disk.copy_synced()
        return None

    def _close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self.disk.user = None

    def _committed(self, done: Answer[None], answer: StoreError | None) -> None:
        self.waiting -= 1
        done(answer)

    def _tell(self, done: Answer[T], answer: T | StoreError) -> None:
        if not self._is_dead:
            done(answer)

    @property
    def _is_dead(self) -> bool:
        """Its disk lost power."""
        return self.disk.crashes != self._crashes_before


def _apply(batch: Changes, tables: dict[Table, Records]) -> None:
    for key, value, table in batch.changes:
        if isinstance(value, bytes):
            tables[table].put(key, value)
        elif value is None:
            tables[table].delete(key)
        else:
            tables[table].delete_range(key, value[0])
