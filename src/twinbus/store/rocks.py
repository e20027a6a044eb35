"""Store on an embedded RocksDB database.

    RocksStore.open(directory, name="store 0", post_call=loop.call_soon_threadsafe, on_result=opened)

Calls to RocksDB hold the GIL, wait for the disk, or both, so each store makes all its calls on its own thread. The
thread takes the pending calls, runs them, syncs once for all of them (`flush_wal` releases the GIL), and returns the
results to the owner in one `post_call`.

Owns the thread, the group commit, and the handling of failures. Must not know keys, which belong to the broker, or
RocksDB itself, which belongs to `rocks_database`.
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
"""Maximum number of calls that share one sync."""
GROUP_BYTES: Final = 67_108_864
"""Approximate limit on bytes read and written by a group of calls, which bounds its duration and use of memory."""
STALL_FIRST_PAUSE_S: Final = 0.001
STALL_LONGEST_PAUSE_S: Final = 0.050
STALL_WARNING_S: Final = 1.0
RELEASE_TIMEOUT_S: Final = 5.0
"""Time that a closing store waits for RocksDB's background work to finish."""

T = TypeVar("T")
PostCall: TypeAlias = "Callable[[Callable[[], None]], object]"
"""Function that schedules a call on the thread of the store's owner."""
Call: TypeAlias = "tuple[Callable[[RocksDatabase], Any] | None, OnResult[Any]]"
"""Function for the store's thread to run (None to close the store), and the callback for its result."""
Results: TypeAlias = "list[tuple[OnResult[Any], Any]]"
"""Callbacks with their results."""


class RocksStore:
    """Database with its own thread. Created by `open`, and used only from its owner's thread."""

    def __init__(self, directory: Path, *, name: str, post_call: PostCall) -> None:
        """Create a store that is not open; use `open`."""
        self.name = name
        self.directory = directory
        self.commits = 0
        """Number of batches written."""
        self.syncs = 0
        self.bytes_written = 0
        self.pending_commits = 0
        """Number of commits whose result is pending."""
        self.busy_since: float | None = None
        """Time on the monotonic clock when the running group of calls started, or None. If this time is long ago, a
        sync hangs."""
        self.failure: StoreFailed | None = None
        self._post_call = post_call
        self._calls: SimpleQueue[Call] = SimpleQueue()
        self._is_closing = False
        self._late_results: Results | None = []
        """Results of calls that were made after `close` but before the result of `close` was delivered. None once that
        result was delivered, when the thread has exited."""
        # Only the store's thread uses the following attributes.
        self._has_unsynced = False
        self._group_bytes = 0

    # --- on the owner's thread ----------------------------------------------------------------------------------------

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
        """Open or create a database; `on_result` gets the store, or StoreFailed if the database cannot be opened."""
        store = cls(directory, name=name, post_call=post_call)
        threading.Thread(target=store._run, args=(on_result, tuning), name=name, daemon=True).start()

    def batch(self) -> ChangeBatch:
        """Return an empty batch."""
        return ChangeBatch()

    def commit(self, batch: Batch, on_done: OnResult[None]) -> None:
        """Apply a batch; `on_done` is called when the changes are on disk."""
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
        self._enqueue(partial(self._scan, start, end, limit, max_bytes, table), on_result)

    def checkpoint(self, directory: Path, on_done: OnResult[None]) -> None:
        """Create a copy that can be opened. An error does not make the store fail, because no data is lost."""
        self._enqueue(partial(self._checkpoint, directory), on_done)

    def close(self, on_done: OnResult[None]) -> None:
        """Finish all earlier calls and release the files, even if the store has failed. Can be called repeatedly."""
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
        """Deliver a result after all results that are still pending."""
        if self._late_results is None:
            self._post_call(partial(on_result, result))
        else:
            self._late_results.append((on_result, result))

    def _on_committed(self, on_done: OnResult[None], error: StoreError | None) -> None:
        self.pending_commits -= 1
        on_done(error)

    def _deliver_last(self, results: Results) -> None:
        late_results, self._late_results = self._late_results or [], None
        deliver_results(results + late_results)

    # --- on the store's thread ----------------------------------------------------------------------------------------

    def _run(self, on_opened: OnResult[RocksStore], tuning: RocksTuning) -> None:
        try:
            database = RocksDatabase(self.directory, tuning)
        except Exception as error:  # noqa: BLE001  (RocksDB raises plain Exception)
            self._post_to_owner(partial(on_opened, self._fail(f"{self.directory} cannot be opened: {error}")))
            return
        owner_is_running = self._post_to_owner(partial(on_opened, self))
        while owner_is_running:
            first = self._calls.get()
            self.busy_since = time.monotonic()
            results, on_closed = self._run_group(database, first)
            if on_closed is not None:
                results.append((on_closed, self._close(database)))
                self.busy_since = None
                self._post_to_owner(partial(self._deliver_last, results))
                return
            self.busy_since = None
            owner_is_running = self._post_to_owner(partial(deliver_results, results))
        database.release(RELEASE_TIMEOUT_S)

    def _post_to_owner(self, call: Callable[[], None]) -> bool:
        try:
            self._post_call(call)
        except RuntimeError:  # the owner's loop is closed
            return False
        return True

    def _run_group(self, database: RocksDatabase, call: Call) -> tuple[Results, OnResult[None] | None]:
        """Run this call and the pending calls after it, up to `close`, and sync once for all of them."""
        callbacks: list[OnResult[Any]] = []
        results: list[Any] = []
        on_closed = None
        remaining = min(self._calls.qsize(), GROUP_CALLS - 1)
        self._group_bytes = 0
        try:
            while True:
                run, on_result = call
                if run is None:
                    on_closed = on_result
                    break
                callbacks.append(on_result)
                results.append(self.failure or run(database))
                if not remaining or self._group_bytes >= GROUP_BYTES:
                    break
                remaining -= 1
                call = self._calls.get_nowait()
            self._sync(database)
        except Exception as error:  # noqa: BLE001  (RocksDB raises plain Exception)
            # None of these writes is certain to be on disk, and a read may have returned a write that is not on disk.
            results = [self._fail(str(error))] * len(callbacks)
        return list(zip(callbacks, results, strict=True)), on_closed

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
        except Exception as error:  # noqa: BLE001  (RocksDB raises plain Exception)
            return StoreError(f"{self.name}: cannot create a checkpoint in {directory}: {error}")
        return None

    def _fail(self, reason: str) -> StoreFailed:
        self.failure = StoreFailed(f"{self.name}: {reason}")
        log.error("%s. The store refuses all calls until it is reopened", self.failure)
        return self.failure

    def _close(self, database: RocksDatabase) -> StoreFailed | None:
        """Release the database. No data can be lost here: everything is synced, or the store has failed."""
        try:
            if self.failure is None:
                database.flush()  # makes the next opening fast
        except Exception as error:  # noqa: BLE001  (RocksDB raises plain Exception)
            log.warning("%s: the final flush before closing failed: %s", self.name, error)
        if database.release(RELEASE_TIMEOUT_S):
            return None
        return StoreFailed(f"{self.name}: {self.directory} stays locked, because RocksDB's background work hangs")


class WriteStall:
    """A write that waits for RocksDB's compaction, which is no failure. The store's thread waits without the GIL."""

    def __init__(self, name: str) -> None:
        """Create a stall for the store `name`; the first `wait` starts it."""
        self._name = name
        self._began: float | None = None
        self._is_logged = False
        self._pause_s = STALL_FIRST_PAUSE_S

    def wait(self) -> None:
        """Sleep before the next attempt. Each pause is twice as long as the previous one, up to a limit."""
        now = time.monotonic()
        if self._began is None:
            self._began = now
        if now - self._began > STALL_WARNING_S and not self._is_logged:
            log.warning("%s: a write has waited %.1f s for RocksDB's compaction", self._name, now - self._began)
            self._is_logged = True
        time.sleep(self._pause_s)
        self._pause_s = min(2 * self._pause_s, STALL_LONGEST_PAUSE_S)


def deliver_results(results: Results) -> None:
    """Call all callbacks with their results, even if some of them raise."""
    errors = []
    for on_result, result in results:
        try:
            on_result(result)
        except Exception as error:  # noqa: BLE001  (raised below)
            errors.append(error)
    if errors:
        raise ExceptionGroup("callbacks for results of a store raised exceptions", errors)
