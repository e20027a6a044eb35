"""A time index: rows on disk that say when messages expire or become due.

Owns: the rows of one index (expiry times or due times), each a wall-clock time and a sequence number, and the position
of the next scan. The callback `on_due` processes messages whose time has come.

Rows are scanned in the order of their times, a bounded number at once. A scan never starts below `low_watermark`: all
rows below it are deleted, and scanning deleted rows takes as long as scanning existing rows. Messages that are settled
before their time leave deleted rows above `low_watermark`, too. In the index of expiry times, this applies to most
rows. Such a sparse index therefore does not scan to find the next due time. Instead, it remembers the seconds that have
rows, up to a limit; for later seconds, it scans at regular intervals.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Final, TypeAlias

from twinbus.broker.store_keys import kind_end, pack_time_entry, time_entry_of_key
from twinbus.store.protocol import StoreError, Table

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinbus.broker.clock import Timer, TimeServices
    from twinbus.broker.commit_log import CommitLog
    from twinbus.store.protocol import Row

    TimeEntries: TypeAlias = list[tuple[int, int]]
    """Pairs of a time in milliseconds and a sequence number."""

SCAN_BATCH_SIZE: Final = 500
"""The maximum number of rows in one scan."""
MAX_REMEMBERED_SECONDS: Final = 4_096
"""The maximum number of seconds that a sparse index keeps in memory."""
SPARSE_SCAN_INTERVAL_MS: Final = 10_000
"""The scan interval of a sparse index for seconds that are not in memory."""
NEVER_DUE_MS: Final = 2**62
_NO_ENTRY: Final = (NEVER_DUE_MS, 0)
_ROW_BYTES: Final = 64


class TimeIndex:
    """One time index of a fragment: expiry times of messages, or due times of scheduled messages."""

    def __init__(
        self,
        key_prefix: bytes,
        kind: bytes,
        commit_log: CommitLog,
        time_services: TimeServices,
        on_due: Callable[[TimeEntries], None],
        *,
        is_sparse: bool,
    ) -> None:
        """Create a stopped index; `on_due` processes due entries, and then calls `mark_processed`."""
        self.low_watermark: tuple[int, int] = (0, 0)
        """The time and sequence number below which there are no rows."""
        self._row_prefix = key_prefix + kind
        self._row_end = kind_end(key_prefix, kind)
        self._commit_log = commit_log
        self._clock = time_services.clock
        self._wall_timers = time_services.wall_timers
        self._on_due = on_due
        self._is_sparse = is_sparse
        self._is_processing = False
        self._first_added: tuple[int, int] = _NO_ENTRY
        """The lowest row that was added since the current scan began."""
        self._scan_is_pending = False
        self._timer: Timer | None = None
        self._timer_ms = NEVER_DUE_MS
        self._next_due_ms = NEVER_DUE_MS
        """The next due time in a dense index."""
        self._remembered_seconds: list[int] = []
        self._remembered_set: set[int] = set()
        self._unremembered_from_ms = NEVER_DUE_MS
        """The earliest time at which there may be rows in seconds that are not in memory."""
        self._incarnation = 0

    def start(self, low_watermark: tuple[int, int], *, is_empty: bool) -> None:
        """Start the index with the stored `low_watermark`, at or above which all rows are.

        If `is_empty`, there are no rows, and no scan is scheduled.
        """
        self.stop()
        self.low_watermark = low_watermark
        if not is_empty:
            self._next_due_ms = self._unremembered_from_ms = low_watermark[0]
            self._schedule_scan()

    def stop(self) -> None:
        """Stop the index and discard its state in memory."""
        self._incarnation += 1
        self._is_processing = self._scan_is_pending = False
        self._next_due_ms = self._unremembered_from_ms = self._timer_ms = NEVER_DUE_MS
        self._remembered_seconds.clear()
        self._remembered_set.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # --- rows ---------------------------------------------------------------------------------------------------------

    def add(self, due_ms: int, sequence: int) -> None:
        """Put a row into the batch of this turn."""
        self._commit_log.batch.put(self._row_prefix + pack_time_entry(due_ms, sequence), b"", Table.INDEX)
        self.low_watermark = min(self.low_watermark, (due_ms, sequence))  # the wall clock may have been set back
        self._first_added = min(self._first_added, (due_ms, sequence))
        if self._is_sparse:
            second = due_ms // 1000
            if second not in self._remembered_set:
                self._remember(second)
                self._schedule_scan()
        elif due_ms < self._next_due_ms:
            self._next_due_ms = due_ms
            self._schedule_scan()

    def revisit(self, due_ms: int, sequence: int) -> None:
        """Make sure that an existing row, which an earlier scan may have skipped, is scanned again."""
        self.low_watermark = min(self.low_watermark, (due_ms, sequence))
        self._first_added = min(self._first_added, (due_ms, sequence))
        self._next_due_ms = min(self._next_due_ms, due_ms)
        self._schedule_scan()

    def remove(self, due_ms: int, sequence: int) -> None:
        """Delete a row, in the batch of this turn."""
        self._commit_log.batch.delete(self._row_prefix + pack_time_entry(due_ms, sequence), Table.INDEX)

    def remove_all(self) -> None:
        """Delete all rows by one range deletion."""
        self._commit_log.batch.delete_range(self._row_prefix, self._row_end, Table.INDEX)

    def _remember(self, second: int) -> None:
        heapq.heappush(self._remembered_seconds, second)
        self._remembered_set.add(second)
        if len(self._remembered_seconds) > MAX_REMEMBERED_SECONDS:
            self._remembered_seconds.sort()
            for dropped in self._remembered_seconds[MAX_REMEMBERED_SECONDS // 2 :]:
                self._remembered_set.discard(dropped)
                self._unremembered_from_ms = min(self._unremembered_from_ms, dropped * 1000)
            del self._remembered_seconds[MAX_REMEMBERED_SECONDS // 2 :]

    # --- time ---------------------------------------------------------------------------------------------------------

    def _next_scan_ms(self) -> int:
        if not self._is_sparse:
            return self._next_due_ms
        remembered_ms = (self._remembered_seconds[0] + 1) * 1000 if self._remembered_seconds else NEVER_DUE_MS
        return min(remembered_ms, self._unremembered_from_ms)

    def _schedule_scan(self) -> None:
        due_ms = self._next_scan_ms()
        if self._is_processing or due_ms >= self._timer_ms or due_ms >= NEVER_DUE_MS:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ms = due_ms
        self._timer = self._wall_timers.call_at(due_ms, self._on_timer)

    def _on_timer(self) -> None:
        self._timer, self._timer_ms = None, NEVER_DUE_MS
        self.scan()

    def scan(self) -> None:
        """Scan for due rows, and pass them to `on_due`."""
        if self._is_processing:
            return
        if self._commit_log.unavailable_reason is not None:
            self._scan_is_pending = True  # until the store is available again
            return
        self._commit_log.flush()  # so that the scan finds rows added in this turn
        self._is_processing, self._first_added = True, _NO_ENTRY
        incarnation, now_ms = self._incarnation, self._clock.wall_ms()
        start = self._row_prefix + pack_time_entry(*self.low_watermark)
        end = self._row_prefix + pack_time_entry(now_ms + 1, 0) if self._is_sparse else self._row_end
        if end <= start:
            self._on_scanned([], now_ms)
            return

        def on_rows(rows: list[Row] | StoreError) -> None:
            if incarnation != self._incarnation:
                return
            if isinstance(rows, StoreError):
                self._commit_log.fail(str(rows))
                return
            self._on_scanned([time_entry_of_key(key) for key, _ in rows], now_ms)

        self._commit_log.scan(
            start, end, on_rows, limit=SCAN_BATCH_SIZE, max_bytes=SCAN_BATCH_SIZE * _ROW_BYTES, table=Table.INDEX
        )

    def _on_scanned(self, entries: TimeEntries, now_ms: int) -> None:
        due = [entry for entry in entries if entry[0] <= now_ms]
        if self._is_sparse:
            self._forget_until(now_ms, is_all=len(entries) < SCAN_BATCH_SIZE)
        else:
            later = entries[len(due) :]
            next_ms = later[0][0] if later else (now_ms if due else NEVER_DUE_MS)
            self._next_due_ms = min(next_ms, self._first_added[0])  # the scan missed rows added meanwhile
        if due:
            self._on_due(due)
        else:
            self.mark_processed((now_ms + 1, 0) if self._is_sparse else self.low_watermark)

    def _forget_until(self, now_ms: int, *, is_all: bool) -> None:
        if not is_all:
            self._unremembered_from_ms = min(self._unremembered_from_ms, now_ms)
            return
        while self._remembered_seconds and (self._remembered_seconds[0] + 1) * 1000 <= now_ms:
            self._remembered_set.discard(heapq.heappop(self._remembered_seconds))
        if self._unremembered_from_ms <= now_ms:
            self._unremembered_from_ms = now_ms + SPARSE_SCAN_INTERVAL_MS
        if self._first_added[0] <= now_ms:
            self._unremembered_from_ms = self._first_added[0]  # the scan missed rows added meanwhile

    def mark_processed(self, low_watermark: tuple[int, int], *, awaits_commit: bool = False) -> None:
        """Schedule the next scan, because `on_due` has processed the due entries.

        No rows below `low_watermark` are left, so the next scan starts there. If `awaits_commit`, the next scan waits
        for a commit that makes further entries visible.
        """
        self._is_processing = False
        self.low_watermark = min(max(self.low_watermark, low_watermark), self._first_added)
        if awaits_commit:
            self._scan_is_pending = True
        else:
            self._schedule_scan()

    def resume(self) -> None:
        """Run a postponed scan after a commit, or when the store is available again."""
        if self._scan_is_pending:
            self._scan_is_pending = False
            self.scan()
