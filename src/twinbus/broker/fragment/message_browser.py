"""Browsing: reading the messages in a fragment without receiving them.

Owns: peeking (`MessageBrowser`), which reads active, deferred and scheduled messages by sequence number, locked or not;
and browse links (`BrowseCursor`), which read active messages as a log. A cursor never reads past a message that is
being deleted for a receiver and may still be restored, so that no message appears behind the cursor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from twinbus.broker.fragment.dispatcher import MAX_SCAN_SPAN
from twinbus.broker.fragment.record_lookup import look_up_records
from twinbus.broker.message_record import DEFERRED_STATE, SCHEDULED_STATE, enqueued_time_of, render_unlocked
from twinbus.broker.ports.fragment import BrowseCursorPort, MessageBrowserPort
from twinbus.broker.ports.read_limiter import ReadLimiter
from twinbus.broker.store_keys import pack_sequence, pack_session_id, sequence_of_key
from twinbus.model.errors import RangeSeen, ServiceBusError, StoreUnavailable
from twinbus.store.protocol import StoreError, Table

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinbus.broker.fragment.fragment import Fragment
    from twinbus.broker.fragment.redelivery import RedeliveryTracker
    from twinbus.broker.ports.consumer import BrowseReader, Delivery, GatewayBrowseReader
    from twinbus.store.protocol import Row

READ_BATCH_SIZE: Final = 500
READ_BATCH_BYTES: Final = 1_048_576


class BrowseCursor(BrowseCursorPort):
    """The position of one browse link in a fragment."""

    def __init__(
        self,
        fragment: Fragment,
        reader: BrowseReader,
        first_sequence: int,
        last_sequence: int,
        *,
        ends_at_last: bool = False,
        read_limiter: ReadLimiter | None = None,
    ) -> None:
        """Create a cursor from `first_sequence` to `last_sequence`, both included.

        If `ends_at_last`, the reader is detached with RangeSeen at the end. `read_limiter` limits the reads by all
        browsers in the process.
        """
        self.reader = reader
        self._read_limiter = read_limiter or ReadLimiter()
        self._fragment = fragment
        self._next_sequence = first_sequence
        self._end_sequence = last_sequence + 1
        self._ends_at_last = ends_at_last
        self._is_reading = False
        self._on_drained: Callable[[], None] | None = None
        fragment.browse_cursors[self] = None

    def close(self) -> None:
        """Stop reading."""
        self._fragment.browse_cursors.pop(self, None)
        self._read_limiter.release(self)

    def drain(self, on_drained: Callable[[], None]) -> None:
        """Deliver all existing messages; `on_drained` is called after the last message."""
        self._on_drained = on_drained
        self.advance()

    def reset(self) -> None:
        """Cancel a running read, because the store failed."""
        self._is_reading = False
        self._read_limiter.release(self)

    def advance(self) -> None:
        """Read and deliver the next messages, if there are any and the reader has credit."""
        fragment = self._fragment
        if self._is_reading or not fragment.can_deliver or self not in fragment.browse_cursors:
            return
        message_table, incarnation = fragment.message_table, fragment.incarnation
        start = max(self._next_sequence, message_table.low_watermark)
        if self._ends_at_last and start >= self._end_sequence:
            self.close()
            self.reader.force_detach(
                RangeSeen(f"all messages up to sequence number {self._end_sequence - 1} were delivered")
            )
            return
        end = min(self._end_sequence, message_table.committed.next_sequence, start + MAX_SCAN_SPAN)
        if start >= end or not self.reader.wants_messages:
            self._end_drain()
            return
        end = min(end, fragment.first_uncertain_sequence(start))
        if start == end:
            return  # continues when the message is deleted or restored
        limit = min(self.reader.available_credit, READ_BATCH_SIZE)
        if limit <= 0 or not self._read_limiter.acquire(self):
            return  # the reader or the limiter calls `advance` again
        self._is_reading = True

        def on_read(rows: list[Row] | StoreError) -> None:
            if incarnation == fragment.incarnation:
                self._is_reading = False
                self._read_limiter.release(self)
                self._deliver_rows(rows, end)
            else:
                self._read_limiter.release(self)

        prefix = message_table.active_prefix
        fragment.scan(
            prefix + pack_sequence(start), prefix + pack_sequence(end), on_read, limit=limit, max_bytes=READ_BATCH_BYTES
        )

    def _deliver_rows(self, rows: list[Row] | StoreError, end_sequence: int) -> None:
        """Deliver rows that were read up to `end_sequence`, and continue."""
        fragment = self._fragment
        if isinstance(rows, StoreError):
            fragment.commit_log.fail(str(rows))
            return
        if self not in fragment.browse_cursors:
            return
        uncertain = fragment.first_uncertain_sequence(self._next_sequence)
        if uncertain < end_sequence:  # a receiver got the message after this read began
            rows, end_sequence = [row for row in rows if sequence_of_key(row[0]) < uncertain], uncertain
        if fragment.redelivery.has_possible_redeliveries:
            rows = [(key, fragment.redelivery.as_delivered(sequence_of_key(key), record)) for key, record in rows]
        delivered_count = self.reader.deliver_browsed([_make_delivery(key, record) for key, record in rows])
        if not rows:
            self._next_sequence = end_sequence
        elif delivered_count:
            self._next_sequence = sequence_of_key(rows[delivered_count - 1][0]) + 1
        self.advance()

    def _end_drain(self) -> None:
        if self._on_drained is not None:
            on_drained, self._on_drained = self._on_drained, None
            on_drained()


def _make_delivery(key: bytes, record: bytes) -> Delivery:
    sequence = sequence_of_key(key)
    return render_unlocked(record, sequence), pack_sequence(sequence)


MAX_SESSION_PEEK: Final = 100
"""The maximum number of messages from a session in one peek."""
DEFERRED_STATE_VALUE: Final = bytes((DEFERRED_STATE,))
SCHEDULED_STATE_VALUE: Final = bytes((SCHEDULED_STATE,))


class MessageBrowser(MessageBrowserPort):
    """The browser of one fragment, which reads messages without receiving them."""

    def __init__(self, fragment: Fragment) -> None:
        """Create the browser for `fragment`."""
        self._fragment = fragment

    def peek(
        self,
        from_sequence: int,
        count: int,
        max_bytes: int,
        on_result: Callable[[list[bytes] | ServiceBusError], None],
        *,
        deferred_only: bool = False,
    ) -> None:
        """Read messages from a sequence number on.

        With `deferred_only`, first wait until pending deferrals are on disk, and then read only deferred messages.
        """
        self._check_available()
        if not deferred_only:
            self._peek(from_sequence, count, max_bytes, on_result, deferred_only=False)
            return

        def peek_deferred() -> None:
            try:
                self._check_available()
                self._peek(from_sequence, count, max_bytes, on_result, deferred_only=True)
            except ServiceBusError as error:
                on_result(error)

        self._fragment.settlement.after_deferrals(peek_deferred)

    def find_sequence_range(self, on_result: Callable[[tuple[int, int] | ServiceBusError], None]) -> None:
        """Pass the range of sequence numbers that may have active messages to `on_result`."""
        message_table = self._fragment.message_table
        on_result((message_table.low_watermark, message_table.committed.next_sequence))

    @property
    def last_enqueued_ms(self) -> int:
        """The enqueued time of the last message."""
        return self._fragment.message_table.last_enqueued_ms

    def browse(
        self,
        reader: GatewayBrowseReader,
        first_sequence: int,
        last_sequence: int,
        *,
        ends_at_last: bool,
        read_limiter: ReadLimiter,
    ) -> BrowseCursor:
        """Start a cursor that delivers active messages to a reader."""
        return BrowseCursor(
            self._fragment, reader, first_sequence, last_sequence, ends_at_last=ends_at_last, read_limiter=read_limiter
        )

    def _check_available(self) -> None:
        self._fragment.commit_log.check_available()
        self._fragment.check_loaded()

    def _peek(
        self,
        from_sequence: int,
        count: int,
        max_bytes: int,
        on_result: Callable[[list[bytes] | ServiceBusError], None],
        *,
        deferred_only: bool,
    ) -> None:
        fragment = self._fragment
        message_table, committed = fragment.message_table, fragment.message_table.committed
        messages: list[bytes] = []
        watched_read = fragment.commit_log.watch_read(lambda error: on_result(error if error is not None else messages))
        start = min(max(from_sequence, message_table.first_sequence), committed.next_sequence)
        ranges = [(message_table.deferred_prefix, start)]
        if not deferred_only:
            ranges = [
                (message_table.active_prefix, min(max(start, message_table.low_watermark), committed.next_sequence))
            ]
            ranges += [(message_table.deferred_prefix, start)] if committed.deferred_count else []
            ranges += [(message_table.scheduled_prefix, start)] if committed.scheduled_count else []
        all_rows: list[Row] = []
        pending_count = len(ranges)
        last_sequences: list[int] = []

        def on_rows(rows: list[Row] | StoreError) -> None:
            nonlocal pending_count
            if isinstance(rows, StoreError):
                watched_read.finish(StoreUnavailable(f"the store is unavailable: {rows}"))
                return
            pending_count -= 1
            all_rows.extend(rows)
            if rows and (len(rows) == count or sum([len(record) for _, record in rows]) > max_bytes):
                last_sequences.append(sequence_of_key(rows[-1][0]))  # more messages in this state may follow
            if not pending_count:
                last_sequence = min(last_sequences, default=committed.next_sequence)
                messages.extend(_merge_rows(all_rows, last_sequence, count, max_bytes, fragment.redelivery))
                watched_read.finish(None)

        for prefix, first in ranges:
            fragment.scan(
                prefix + pack_sequence(first),
                prefix + pack_sequence(committed.next_sequence),
                on_rows,
                limit=count,
                max_bytes=max_bytes,
            )

    def find_by_enqueued_time(self, enqueued_ms: int, on_result: Callable[[int | ServiceBusError], None]) -> None:
        """Find the sequence number of the first message that was enqueued at or after a time.

        If there is no such message, the result is the next sequence number.
        """
        fragment = self._fragment
        fragment.commit_log.check_available()
        fragment.check_loaded()
        message_table, committed = fragment.message_table, fragment.message_table.committed
        ranges = [(message_table.active_prefix, min(message_table.low_watermark, committed.next_sequence))]
        ranges += [(message_table.deferred_prefix, message_table.first_sequence)] if committed.deferred_count else []
        ranges += [(message_table.scheduled_prefix, message_table.first_sequence)] if committed.scheduled_count else []
        results: list[int | ServiceBusError] = []

        def on_found(result: int | ServiceBusError) -> None:
            results.append(result)
            if len(results) == len(ranges):
                error = next((answer for answer in results if isinstance(answer, ServiceBusError)), None)
                on_result(error or min(answer for answer in results if isinstance(answer, int)))

        for prefix, low in ranges:
            self._search_enqueued_time(
                prefix, (low, committed.next_sequence), committed.next_sequence, enqueued_ms, on_found
            )

    def _search_enqueued_time(
        self,
        key_prefix: bytes,
        sequence_range: tuple[int, int],
        best_sequence: int,
        enqueued_ms: int,
        on_result: Callable[[int | ServiceBusError], None],
    ) -> None:
        """Search messages in one state by bisection: the result is in `sequence_range`, or is `best_sequence`.

        Bisection works because enqueued times never decrease.
        """
        low, high = sequence_range
        if low >= high:
            on_result(best_sequence)
            return
        fragment, middle = self._fragment, (low + high) // 2
        incarnation = fragment.incarnation
        watched_read = fragment.commit_log.watch_read(lambda error: on_result(error) if error is not None else None)

        def on_read(rows: list[Row] | StoreError) -> None:
            if incarnation != fragment.incarnation or isinstance(rows, StoreError):
                watched_read.finish(StoreUnavailable("the store failed before the message was found"))
            elif watched_read.is_pending:
                watched_read.finish(None)
                if not rows:
                    self._search_enqueued_time(key_prefix, (low, middle), best_sequence, enqueued_ms, on_result)
                elif enqueued_time_of(rows[0][1]) >= enqueued_ms:
                    self._search_enqueued_time(
                        key_prefix, (low, middle), sequence_of_key(rows[0][0]), enqueued_ms, on_result
                    )
                else:
                    self._search_enqueued_time(
                        key_prefix, (sequence_of_key(rows[0][0]) + 1, high), best_sequence, enqueued_ms, on_result
                    )

        fragment.commit_log.scan(
            key_prefix + pack_sequence(middle), key_prefix + pack_sequence(high), on_read, limit=1, max_bytes=1
        )

    def peek_session(
        self,
        session_id: bytes,
        from_sequence: int,
        count: int,
        max_bytes: int,
        on_result: Callable[[list[bytes] | ServiceBusError], None],
    ) -> None:
        """Read messages of one session from a sequence number on, at most MAX_SESSION_PEEK."""
        fragment = self._fragment
        fragment.commit_log.check_available()
        fragment.check_loaded()
        message_table, committed = fragment.message_table, fragment.message_table.committed
        start, limit = (
            min(max(from_sequence, message_table.first_sequence), committed.next_sequence),
            min(count, MAX_SESSION_PEEK),
        )
        ranges = (
            (message_table.session_prefix, min(max(start, message_table.low_watermark), committed.next_sequence)),
            (message_table.inactive_prefix, start),
        )
        index_rows: list[Row] = []
        pending_count = len(ranges)
        watched_read = fragment.commit_log.watch_read(
            lambda error: (
                on_result(error) if error is not None else self._read_listed(index_rows, limit, max_bytes, on_result)
            )
        )

        def on_rows(rows: list[Row] | StoreError) -> None:
            nonlocal pending_count
            if isinstance(rows, StoreError):
                watched_read.finish(StoreUnavailable(f"the store is unavailable: {rows}"))
                return
            pending_count -= 1
            index_rows.extend(rows)
            if not pending_count:
                watched_read.finish(None)

        for prefix, first in ranges:
            session_prefix = prefix + pack_session_id(session_id)
            fragment.commit_log.scan(
                session_prefix + pack_sequence(first),
                session_prefix + pack_sequence(committed.next_sequence),
                on_rows,
                limit=limit,
                max_bytes=limit,
                table=Table.INDEX,
            )

    def _read_listed(
        self,
        index_rows: list[Row],
        limit: int,
        max_bytes: int,
        on_result: Callable[[list[bytes] | ServiceBusError], None],
    ) -> None:
        """Read the first messages listed in session index rows, whose values are message states."""
        message_table = self._fragment.message_table
        prefixes = {
            b"": message_table.active_prefix,
            DEFERRED_STATE_VALUE: message_table.deferred_prefix,
            SCHEDULED_STATE_VALUE: message_table.scheduled_prefix,
        }
        rows = sorted([(sequence_of_key(key), state) for key, state in index_rows])[:limit]
        messages: list[bytes] = []
        size, redelivery = 0, self._fragment.redelivery

        def visit(index: int, record: bytes | None) -> None:
            nonlocal size
            if record is not None and size <= max_bytes:
                size += len(record)
                sequence = rows[index][0]
                messages.append(render_unlocked(redelivery.as_delivered(sequence, record), sequence))

        keys = [prefixes[state] + pack_sequence(sequence) for sequence, state in rows]
        look_up_records(self._fragment, keys, visit, lambda error: on_result(error if error is not None else messages))


def _merge_rows(
    rows: list[Row], last_sequence: int, count: int, max_bytes: int, redelivery: RedeliveryTracker
) -> list[bytes]:
    """Return up to `count` messages in ascending order of sequence number; ignore rows above `last_sequence`.

    The reads of active, deferred and scheduled messages may stop at different sequence numbers. Up to `last_sequence`,
    the lowest of these numbers, no message is missing.
    """
    messages: list[bytes] = []
    size = 0
    for sequence, record in sorted({sequence_of_key(key): record for key, record in rows}.items()):
        if sequence > last_sequence or len(messages) == count or size > max_bytes:
            break
        size += len(record)
        messages.append(render_unlocked(redelivery.as_delivered(sequence, record), sequence))
    return messages
