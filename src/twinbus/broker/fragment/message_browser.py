"""Browsing: reading the messages of a fragment without receiving them.

Owns: peeking (`MessageBrowser`), which reads active, deferred and scheduled messages by sequence number, locked or not;
and browse links (`BrowseCursor`), which read active messages as a log. A cursor never reads beyond a message that is
being deleted for a receiver and may still come back, so nothing ever appears below what it has read.
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
    """One way through the log of one fragment."""

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
        """From one sequence number to another, both of which are seen. `ends`: it is told when that is over.

        `reads` are those of all browsers of the process.
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
        """It sees nothing more."""
        self._fragment.browse_cursors.pop(self, None)
        self._read_limiter.release(self)

    def drain(self, on_drained: Callable[[], None]) -> None:
        """Show what there is now; `drained` is called when that was all."""
        self._on_drained = on_drained
        self.advance()

    def reset(self) -> None:
        """The store was lost: what is being read will not come."""
        self._is_reading = False
        self._read_limiter.release(self)

    def advance(self) -> None:
        """There is room, or something to see."""
        fragment = self._fragment
        if self._is_reading or not fragment.can_deliver or self not in fragment.browse_cursors:
            return
        holdings, life = fragment.message_table, fragment.incarnation
        start = max(self._next_sequence, holdings.low_watermark)
        if self._ends_at_last and start >= self._end_sequence:
            self.close()
            self.reader.force_detach(RangeSeen(f"all was seen up to number {self._end_sequence - 1}"))
            return
        end = min(self._end_sequence, holdings.committed.next_sequence, start + MAX_SCAN_SPAN)
        if start >= end or not self.reader.wants_messages:
            self._end_drain()
            return
        end = min(end, fragment.first_uncertain_sequence(start))
        if start == end:
            return  # it goes on when it is known whether that message stays
        room = min(self.reader.available_credit, READ_BATCH_SIZE)
        if room <= 0 or not self._read_limiter.acquire(self):
            return  # it says when there is
        self._is_reading = True

        def read(rows: list[Row] | StoreError) -> None:
            if life == fragment.incarnation:
                self._is_reading = False
                self._read_limiter.release(self)
                self._deliver_rows(rows, end)
            else:
                self._read_limiter.release(self)

        place = holdings.active_prefix
        fragment.scan(
            place + pack_sequence(start), place + pack_sequence(end), read, limit=room, max_bytes=READ_BATCH_BYTES
        )

    def _deliver_rows(self, rows: list[Row] | StoreError, end_sequence: int) -> None:
        """What was read, up to a number."""
        fragment = self._fragment
        if isinstance(rows, StoreError):
            fragment.commit_log.fail(str(rows))
            return
        if self not in fragment.browse_cursors:
            return
        uncertain = fragment.first_uncertain_sequence(self._next_sequence)
        if uncertain < end_sequence:  # a receiver got it after this read began
            rows, end_sequence = [row for row in rows if sequence_of_key(row[0]) < uncertain], uncertain
        if fragment.redelivery.has_suspects:
            rows = [(key, fragment.redelivery.as_delivered(sequence_of_key(key), record)) for key, record in rows]
        seen = self.reader.deliver_browsed([_make_delivery(key, record) for key, record in rows])
        if not rows:
            self._next_sequence = end_sequence
        elif seen:
            self._next_sequence = sequence_of_key(rows[seen - 1][0]) + 1
        self.advance()

    def _end_drain(self) -> None:
        if self._on_drained is not None:
            drained, self._on_drained = self._on_drained, None
            drained()


def _make_delivery(key: bytes, record: bytes) -> Delivery:
    sequence = sequence_of_key(key)
    return render_unlocked(record, sequence), pack_sequence(sequence)


MAX_SESSION_PEEK: Final = 100
"""Messages of one session that are peeked at once."""
DEFERRED_STATE_VALUE: Final = bytes((DEFERRED_STATE,))
SCHEDULED_STATE_VALUE: Final = bytes((SCHEDULED_STATE,))


class MessageBrowser(MessageBrowserPort):
    """Looks into one fragment."""

    def __init__(self, fragment: Fragment) -> None:
        """Made by its fragment."""
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
        """Messages from a sequence number on, as they are. `deferred_only`: also those that are being deferred now."""
        self._check_available()
        if not deferred_only:
            self._peek(from_sequence, count, max_bytes, on_result, deferred_only=False)
            return

        def look() -> None:
            try:
                self._check_available()
                self._peek(from_sequence, count, max_bytes, on_result, deferred_only=True)
            except ServiceBusError as error:
                on_result(error)

        self._fragment.settlement.after_deferrals(look)

    def find_sequence_range(self, on_result: Callable[[tuple[int, int] | ServiceBusError], None]) -> None:
        """Tell from where to where there are messages."""
        holdings = self._fragment.message_table
        on_result((holdings.low_watermark, holdings.committed.next_sequence))

    @property
    def last_enqueued_ms(self) -> int:
        """When the last message was enqueued."""
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
        """Show active messages to a reader."""
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
        holdings, shown = fragment.message_table, fragment.message_table.committed
        found: list[bytes] = []
        promise = fragment.commit_log.watch_read(lambda error: on_result(error if error is not None else found))
        start = min(max(from_sequence, holdings.first_sequence), shown.next_sequence)
        places = [(holdings.deferred_prefix, start)]
        if not deferred_only:
            places = [(holdings.active_prefix, min(max(start, holdings.low_watermark), shown.next_sequence))]
            places += [(holdings.deferred_prefix, start)] if shown.deferred_count else []
            places += [(holdings.scheduled_prefix, start)] if shown.scheduled_count else []
        read: list[Row] = []
        waiting = len(places)
        reach: list[int] = []

        def add(rows: list[Row] | StoreError) -> None:
            nonlocal waiting
            if isinstance(rows, StoreError):
                promise.finish(StoreUnavailable(f"the store is unavailable: {rows}"))
                return
            waiting -= 1
            read.extend(rows)
            if rows and (len(rows) == count or sum([len(record) for _, record in rows]) > max_bytes):
                reach.append(sequence_of_key(rows[-1][0]))  # beyond it there may be more in that place
            if not waiting:
                reached = min(reach, default=shown.next_sequence)
                found.extend(_merge_rows(read, reached, count, max_bytes, fragment.redelivery))
                promise.finish(None)

        for place, first in places:
            fragment.scan(
                place + pack_sequence(first),
                place + pack_sequence(shown.next_sequence),
                add,
                limit=count,
                max_bytes=max_bytes,
            )

    def find_by_enqueued_time(self, enqueued_ms: int, on_result: Callable[[int | ServiceBusError], None]) -> None:
        """The first sequence number of a message that was not enqueued before a time; the next one if there is none."""
        fragment = self._fragment
        fragment.commit_log.check_available()
        fragment.check_loaded()
        holdings, shown = fragment.message_table, fragment.message_table.committed
        places = [(holdings.active_prefix, min(holdings.low_watermark, shown.next_sequence))]
        places += [(holdings.deferred_prefix, holdings.first_sequence)] if shown.deferred_count else []
        places += [(holdings.scheduled_prefix, holdings.first_sequence)] if shown.scheduled_count else []
        answers: list[int | ServiceBusError] = []

        def found(answer: int | ServiceBusError) -> None:
            answers.append(answer)
            if len(answers) == len(places):
                error = next((one for one in answers if isinstance(one, ServiceBusError)), None)
                on_result(error or min(one for one in answers if isinstance(one, int)))

        for place, low in places:
            self._search_enqueued_time(place, (low, shown.next_sequence), shown.next_sequence, enqueued_ms, found)

    def _search_enqueued_time(
        self,
        key_prefix: bytes,
        sequence_range: tuple[int, int],
        best_sequence: int,
        enqueued_ms: int,
        on_result: Callable[[int | ServiceBusError], None],
    ) -> None:
        """... among those of one kind: it is `best`, or in the span.

        Enqueued times never decrease, so half of what is left is ruled out by each look.
        """
        low, high = sequence_range
        if low >= high:
            on_result(best_sequence)
            return
        fragment, middle = self._fragment, (low + high) // 2
        life = fragment.incarnation
        promise = fragment.commit_log.watch_read(lambda error: on_result(error) if error is not None else None)

        def read(rows: list[Row] | StoreError) -> None:
            if life != fragment.incarnation or isinstance(rows, StoreError):
                promise.finish(StoreUnavailable("the store failed before the place was found"))
            elif promise.is_pending:
                promise.finish(None)
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
            key_prefix + pack_sequence(middle), key_prefix + pack_sequence(high), read, limit=1, max_bytes=1
        )

    def peek_session(
        self,
        session_id: bytes,
        from_sequence: int,
        count: int,
        max_bytes: int,
        on_result: Callable[[list[bytes] | ServiceBusError], None],
    ) -> None:
        """The messages of one session, from a sequence number on; no more than SESSION_AT_ONCE."""
        fragment = self._fragment
        fragment.commit_log.check_available()
        fragment.check_loaded()
        holdings, shown = fragment.message_table, fragment.message_table.committed
        start, limit = (
            min(max(from_sequence, holdings.first_sequence), shown.next_sequence),
            min(count, MAX_SESSION_PEEK),
        )
        places = (
            (holdings.session_prefix, min(max(start, holdings.low_watermark), shown.next_sequence)),
            (holdings.set_aside_prefix, start),
        )
        listed: list[Row] = []
        waiting = len(places)
        promise = fragment.commit_log.watch_read(
            lambda error: (
                on_result(error) if error is not None else self._read_listed(listed, limit, max_bytes, on_result)
            )
        )

        def add(rows: list[Row] | StoreError) -> None:
            nonlocal waiting
            if isinstance(rows, StoreError):
                promise.finish(StoreUnavailable(f"the store is unavailable: {rows}"))
                return
            waiting -= 1
            listed.extend(rows)
            if not waiting:
                promise.finish(None)

        for place, first in places:
            key = place + pack_session_id(session_id)
            fragment.commit_log.scan(
                key + pack_sequence(first),
                key + pack_sequence(shown.next_sequence),
                add,
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
        """Read the first messages that an index lists, each from where its state says that it lies."""
        holdings = self._fragment.message_table
        places = {
            b"": holdings.active_prefix,
            DEFERRED_STATE_VALUE: holdings.deferred_prefix,
            SCHEDULED_STATE_VALUE: holdings.scheduled_prefix,
        }
        rows = sorted([(sequence_of_key(key), state) for key, state in index_rows])[:limit]
        found: list[bytes] = []
        size, redelivery = 0, self._fragment.redelivery

        def visit(place: int, record: bytes | None) -> None:
            nonlocal size
            if record is not None and size <= max_bytes:
                size += len(record)
                number = rows[place][0]
                found.append(render_unlocked(redelivery.as_delivered(number, record), number))

        keys = [places[state] + pack_sequence(sequence) for sequence, state in rows]
        look_up_records(self._fragment, keys, visit, lambda error: on_result(error if error is not None else found))


def _merge_rows(
    rows: list[Row], last_sequence: int, count: int, max_bytes: int, redelivery: RedeliveryTracker
) -> list[bytes]:
    """The first of all rows, in the order of their numbers, up to where every place was read."""
    found: list[bytes] = []
    size = 0
    for number, record in sorted({sequence_of_key(key): record for key, record in rows}.items()):
        if number > last_sequence or len(found) == count or size > max_bytes:
            break
        size += len(record)
        found.append(render_unlocked(redelivery.as_delivered(number, record), number))
    return found
