"""A store on RocksDB, embedded in the process.

    RocksStore.open(directory, name="store 0", post=loop.call_soon_threadsafe, done=opened)

RocksDB's calls hold the GIL, or wait for the disk, or both, so all of a store's calls run on a thread of its own. It
takes what waits, writes it, syncs once for all of it (`flush_wal` releases the GIL), and hands the answers back in one
call of `post`.

Owns: the thread, the group commit, and the end of a store that fails. Knows nothing of keys (the broker's) nor of
RocksDB itself (`database`'s).
"""

from __future__ import annotations

import logging
import threading
import time
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from twinbus.store.change_batch import ChangeBatch
from twinbus.store.protocol import StoreClosed, StoreError, StoreFailed, Table
from twinbus.store.rocks_database import RocksDatabase, WriteStalled
from twinbus.store.rocks_tuning import DEFAULT_TUNING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from twinbus.store.protocol import Batch, OnResult, Row
    from twinbus.store.rocks_tuning import RocksTuning

log: Final = logging.getLogger(__name__)

GROUP_CALLS: Final = 1_000
"""As many calls share one sync."""
GROUP_BYTES: Final = 67_108_864
"""Written and read by one group, about: bounds its time, and the memory its answers hold."""
STALL_FIRST_PAUSE_S: Final = 0.001
STALL_LONGEST_PAUSE_S: Final = 0.050
STALL_WARNING_S: Final = 1.0
RELEASE_TIMEOUT_S: Final = 5.0
"""How long a closing store waits for RocksDB's background work to end."""

T = TypeVar("T")
PostCall: TypeAlias = "Callable[[Callable[[], None]], object]"
"""Has a call made on the thread of the store's owner."""
Call: TypeAlias = "tuple[Callable[[RocksDatabase], Any] | None, OnResult[Any]]"
"""What the store's thread shall do, and who is told the result. None: close."""
Results: TypeAlias = "list[tuple[OnResult[Any], Any]]"
"""Who is told, and what."""


class RocksStore:
    """One database and its thread. Made by `open`; used from the thread of its owner only."""

    def __init__(self, directory: Path, *, name: str, post_call: PostCall) -> None:
        """Not open yet."""
        self.name = name
        self.directory = directory
        self.commits = 0
        """Batches written."""
        self.syncs = 0
        self.bytes_written = 0
        self.pending_commits = 0
        """Commits that are not answered yet."""
        self.busy_since: float | None = None
        """When the group at work began, by the monotonic clock: long ago where a sync hangs."""
        self.failure: StoreFailed | None = None
        self._post_call = post_call
        self._calls: SimpleQueue[Call] = SimpleQueue()
        self._is_closing = False
        self._late_results: Results | None = []
        """Asked after `close` and before its answer. None once that was given: the thread is over."""
        # The following are the store's thread's alone.
        self._has_unsynced = False
        self._group_bytes = 0

    # --- the owner's thread -------------------------------------------------------------------------------------------

    @classmethod
    def open(
        cls,
        directory: Path,
        *,
        name: str,
        post_call: PostCall,
        on_result: OnResult[RocksStore],
        tuning: RocksTuning = DEFAULT_TUNING,
    ) -> None:
        """Open a database, or make one. Answered like everything else, with a StoreFailed if it cannot be."""
        store = cls(directory, name=name, post_call=post_call)
        threading.Thread(target=store._run, args=(on_result, tuning), name=name, daemon=True).start()

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
        self._enqueue(partial(self._scan, start, end, limit, max_bytes, table), on_result)

    def checkpoint(self, directory: Path, on_done: OnResult[None]) -> None:
        """Make a copy that can be opened. Where that fails the store goes on: nothing of its own was lost."""
        self._enqueue(partial(self._checkpoint, directory), on_done)

    def close(self, on_done: OnResult[None]) -> None:
        """Answer what was asked before, and let go of the files; also if the store failed. May be asked again."""
        if self._is_closing:
            self._deliver_late(on_done, None)
        else:
            self._is_closing = True
            self._calls.put((None, on_done))

    def _enqueue(self, run: Callable[[RocksDatabase], T | StoreError], on_result: OnResult[T]) -> None:
        if self._is_closing:
            self._deliver_late(on_result, self.failure or StoreClosed(f"{self.name} is closed"))
        else:
            self._calls.put((run, on_result))

    def _deliver_late(self, on_result: OnResult[T], result: T | StoreError) -> None:
        """After the answers that are still to come."""
        if self._late_results is None:
            self._post_call(partial(on_result, result))
        else:
            self._late_results.append((on_result, result))

    def _on_committed(self, on_done: OnResult[None], error: StoreError | None) -> None:
        self.pending_commits -= 1
        on_done(error)

    def _deliver_last(self, results: Results) -> None:
        late, self._late_results = self._late_results or [], None
        deliver_results(results + late)

    # --- the store's thread -------------------------------------------------------------------------------------------

    def _run(self, on_opened: OnResult[RocksStore], tuning: RocksTuning) -> None:
        try:
            database = RocksDatabase(self.directory, tuning)
        except Exception as error:  # noqa: BLE001  (RocksDB raises no narrower one)
            self._post_to_owner(partial(on_opened, self._fail(f"{self.directory} cannot be opened: {error}")))
            return
        is_heard = self._post_to_owner(partial(on_opened, self))
        while is_heard:
            first = self._calls.get()
            self.busy_since = time.monotonic()
            answers, closed = self._run_group(database, first)
            if closed is not None:
                answers.append((closed, self._close(database)))
                self.busy_since = None
                self._post_to_owner(partial(self._deliver_last, answers))
                return
            self.busy_since = None
            is_heard = self._post_to_owner(partial(deliver_results, answers))
        database.release(RELEASE_TIMEOUT_S)

    def _post_to_owner(self, call: Callable[[], None]) -> bool:
        try:
            self._post_call(call)
        except RuntimeError:  # the owner's loop is closed
            return False
        return True

    def _run_group(self, database: RocksDatabase, call: Call) -> tuple[Results, OnResult[None] | None]:
        """Run this call and those that wait behind it, up to `close`, and sync once for all of them."""
        asked: list[OnResult[Any]] = []
        results: list[Any] = []
        closed = None
        others = min(self._calls.qsize(), GROUP_CALLS - 1)
        self._group_bytes = 0
        try:
            while True:
                run, done = call
                if run is None:
                    closed = done
                    break
                asked.append(done)
                results.append(self.failure or run(database))
                if not others or self._group_bytes >= GROUP_BYTES:
                    break
                others -= 1
                call = self._calls.get_nowait()
            self._sync(database)
        except Exception as error:  # noqa: BLE001  (RocksDB raises no narrower one)
            # Not one of them is sure to be on disk, and a read among them may have seen what is not.
            results = [self._fail(str(error))] * len(asked)
        return list(zip(asked, results, strict=True)), closed

    def _write(self, batch: ChangeBatch, database: RocksDatabase) -> None:
        self._has_unsynced = True
        stall = WriteStall(self.name)
        while True:
            try:
                database.write(batch)
                break
            except WriteStalled:
                stall.wait()
        self.commits += 1
        self.bytes_written += batch.size
        self._group_bytes += batch.size

    def _sync(self, database: RocksDatabase) -> None:
        if self._has_unsynced and self.failure is None:
            database.sync()
            self._has_unsynced = False
            self.syncs += 1

    def _get(self, keys: list[bytes], table: Table, database: RocksDatabase) -> list[bytes | None]:
        values = database.get(keys, table)
        self._group_bytes += sum(len(value) for value in values if value is not None)
        return values

    def _scan(
        self, start: bytes, end: bytes, limit: int, max_bytes: int, table: Table, database: RocksDatabase
    ) -> list[Row]:
        rows, size = database.scan(start, end, limit, max_bytes, table)
        self._group_bytes += size
        return rows

    def _checkpoint(self, directory: Path, database: RocksDatabase) -> StoreError | None:
        self._sync(database)
        try:
            database.checkpoint(directory)
        except Exception as error:  # noqa: BLE001  (RocksDB raises no narrower one)
            return StoreError(f"{self.name}: no checkpoint in {directory}: {error}")
        return None

    def _fail(self, reason: str) -> StoreFailed:
        self.failure = StoreFailed(f"{self.name}: {reason}")
        log.error("%s. The store takes nothing more until it is opened again", self.failure)
        return self.failure

    def _close(self, database: RocksDatabase) -> StoreFailed | None:
        """Let go of the database. All is synced, or the store has failed: nothing can be lost here."""
        try:
            if self.failure is None:
                database.flush()  # for a quick opening
        except Exception as error:  # noqa: BLE001  (RocksDB raises no narrower one)
            log.warning("%s: not flushed at its close: %s", self.name, error)
        if database.release(RELEASE_TIMEOUT_S):
            return None
        return StoreFailed(f"{self.name}: {self.directory} stays locked: RocksDB's background work hangs there")


class WriteStall:
    """The waiting of one write for RocksDB's compaction. Not a failure; on the store's thread, without the GIL."""

    def __init__(self, name: str) -> None:
        """Begins with the first `wait`."""
        self._name = name
        self._began: float | None = None
        self._is_logged = False
        self._pause_s = STALL_FIRST_PAUSE_S

    def wait(self) -> None:
        """Wait a little, each time longer."""
        now = time.monotonic()
        if self._began is None:
            self._began = now
        if now - self._began > STALL_WARNING_S and not self._is_logged:
            log.warning("%s: a write has waited %.1f s for RocksDB's compaction", self._name, now - self._began)
            self._is_logged = True
        time.sleep(self._pause_s)
        self._pause_s = min(2 * self._pause_s, STALL_LONGEST_PAUSE_S)


def deliver_results(results: Results) -> None:
    """Give each its answer, also if another one cannot take his."""
    errors = []
    for done, answer in results:
        try:
            done(answer)
        except Exception as error:  # noqa: BLE001  (raised below)
            errors.append(error)
    if errors:
        raise ExceptionGroup("answers of a store could not be taken", errors)
