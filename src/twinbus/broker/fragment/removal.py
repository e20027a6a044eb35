"""Removal: deleting messages without receiving them.

Owns: purging, deleting the oldest messages, deleting up to a sequence number, and deleting by sequence number. Messages
that are in flight are skipped.

Messages are read before their deletion, a bounded number per turn, to update the counters and delete their index rows.
Adjacent messages are deleted as one range, so that later scans do not read through deleted records.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from twinbus.broker.fragment.dispatcher import MAX_SCAN_SPAN
from twinbus.broker.fragment.locks import NEVER_EXPIRES_S, Lock
from twinbus.broker.fragment.record_lookup import look_up_records
from twinbus.broker.message_record import HAS_EXTRA_ROWS, full_size_of, session_id_of
from twinbus.broker.ports.fragment import UNLIMITED, RemovalCriteria, RemovalResult
from twinbus.broker.store_keys import PURGED_UP_TO, pack_sequence, sequence_of_key
from twinbus.model.callbacks import do_nothing, ignore
from twinbus.model.errors import ServiceBusError, StoreUnavailable
from twinbus.store.protocol import StoreError, Table

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinbus.broker.fragment.fragment import Fragment, SequencedRecord
    from twinbus.broker.ports.fragment import OnRemoved
    from twinbus.store.protocol import Row


SCAN_BATCH_SIZE: Final = 500
SCAN_BATCH_BYTES: Final = 1_048_576


class RemovalScan:
    """The removal of messages of one kind (active, deferred or scheduled), a batch per turn."""

    def __init__(
        self,
        fragment: Fragment,
        key_prefix: bytes,
        is_in_flight: Callable[[int], bool],
        remove_messages: Callable[[list[SequencedRecord]], None],
        criteria: RemovalCriteria,
        on_result: OnRemoved,
    ) -> None:
        """Create a scan; `remove_messages` deletes the index rows of messages and updates the counters."""
        self._fragment = fragment
        self._key_prefix = key_prefix
        self._is_in_flight = is_in_flight
        self._remove_messages = remove_messages
        self._criteria = criteria
        self._on_result = on_result
        self._result = RemovalResult()
        self._incarnation = fragment.incarnation
        self._end_sequence = min(fragment.message_table.committed.next_sequence, criteria.max_sequence + 1)

    def start(self, first_sequence: int) -> None:
        """Start the removal at a sequence number."""
        self._fragment.commit_log.check_available()
        self._fragment.check_loaded()
        self._scan_from(first_sequence)

    def _scan_from(self, first_sequence: int) -> None:
        commit_log, prefix, end = (
            self._fragment.commit_log,
            self._key_prefix,
            max(first_sequence, min(self._end_sequence, first_sequence + MAX_SCAN_SPAN)),
        )
        watched_read = commit_log.watch_read(lambda error: self._on_result(error) if error is not None else None)

        def on_read(rows: list[Row] | StoreError) -> None:
            if self._incarnation != self._fragment.incarnation or isinstance(rows, StoreError):
                watched_read.finish(StoreUnavailable("the store failed before all messages were deleted"))
            elif watched_read.is_pending:
                watched_read.finish(None)
                if not rows and end < self._end_sequence:
                    self._scan_from(end)
                else:
                    self._remove_rows(rows)

        commit_log.scan(
            prefix + pack_sequence(first_sequence),
            prefix + pack_sequence(end),
            on_read,
            limit=SCAN_BATCH_SIZE,
            max_bytes=SCAN_BATCH_BYTES,
        )

    def _remove_rows(self, rows: list[Row]) -> None:
        result, criteria = self._result, self._criteria
        chosen: list[SequencedRecord] = []
        for key, record in rows:
            sequence = sequence_of_key(key)
            if result.removed_count >= criteria.max_count or not criteria.matches(record):
                continue
            if self._is_in_flight(sequence):
                result.skipped_count += 1
            else:
                result.removed_count += 1
                chosen.append((sequence, record))
        self._delete_records([sequence for sequence, _ in chosen])
        if chosen:
            self._remove_messages(chosen)
        next_start = sequence_of_key(rows[-1][0]) + 1 if rows and result.removed_count < criteria.max_count else None
        self._fragment.commit_log.add(
            self._fragment, 0, do_nothing, lambda error: self._on_committed(error, next_start)
        )

    def _delete_records(self, sequences: list[int]) -> None:
        """Delete records, in ranges without gaps: a message in a gap may have been stored since the scan."""
        batch, prefix = self._fragment.commit_log.batch, self._key_prefix
        first = last = 0
        for sequence in [*sequences, UNLIMITED]:
            if last and sequence == last + 1:
                last = sequence
                continue
            if last > first:
                batch.delete_range(prefix + pack_sequence(first), prefix + pack_sequence(last + 1))
            elif last:
                batch.delete(prefix + pack_sequence(last))
            first = last = sequence

    def _on_committed(self, error: ServiceBusError | None, next_start: int | None) -> None:
        if error is not None:
            self._on_result(error)
        elif next_start is None:
            self._on_result(self._result)
        else:
            self._scan_from(next_start)


class Removal:
    """The removal of messages from one fragment."""

    def __init__(self, fragment: Fragment) -> None:
        """Create the removal for `fragment`."""
        self._fragment = fragment
        self._purged_key = fragment.message_table.key_prefix + PURGED_UP_TO

    def remove_active(
        self,
        criteria: RemovalCriteria,
        on_result: OnRemoved,
        on_removed: Callable[[list[SequencedRecord]], None] | None = None,
    ) -> None:
        """Delete active messages, oldest first; `on_removed` may add changes to each batch."""
        fragment = self._fragment

        def delete(messages: list[SequencedRecord]) -> None:
            self._delete_active(messages)
            if on_removed is not None:
                on_removed(messages)

        RemovalScan(
            fragment, fragment.message_table.active_prefix, fragment.in_flight.__contains__, delete, criteria, on_result
        ).start(fragment.message_table.low_watermark)

    def purge(self, criteria: RemovalCriteria, on_result: OnRemoved) -> None:
        """Delete active messages like `remove_active`, and store the last purged sequence number.

        This number tells a reader of the fragment's log whether messages that the reader has not read were purged.
        Missing sequence numbers alone do not show a purge, because their messages may have been received.
        """
        self._fragment.check_available()
        self._fragment.check_loaded()

        def on_found(purged_up_to: int | ServiceBusError) -> None:
            if isinstance(purged_up_to, ServiceBusError):
                on_result(purged_up_to)
                return
            try:
                self.remove_active(criteria, on_result, lambda messages: self._write_purge_mark(messages, purged_up_to))
            except ServiceBusError as error:
                on_result(error)

        self.find_purged_up_to(on_found)

    def _write_purge_mark(self, messages: list[SequencedRecord], purged_up_to: int) -> None:
        """Store the last purged sequence number, which never decreases, even if a skipped message is purged later."""
        last_sequence = max(purged_up_to, messages[-1][0])
        self._fragment.commit_log.batch.put(self._purged_key, pack_sequence(last_sequence), Table.INDEX)

    def find_purged_up_to(self, on_result: Callable[[int | ServiceBusError], None]) -> None:
        """Find the highest sequence number that was purged, or 0."""
        fragment = self._fragment
        incarnation, sequence = fragment.incarnation, 0

        def on_done(error: ServiceBusError | None) -> None:
            on_result(sequence if error is None else error)

        def on_read(values: list[bytes | None] | StoreError) -> None:
            nonlocal sequence
            if not watched_read.is_pending:
                return
            if incarnation != fragment.incarnation or isinstance(values, StoreError):
                watched_read.finish(StoreUnavailable("the store failed before the last purge was found"))
                return
            sequence = int.from_bytes(values[0] or b"")
            watched_read.finish(None)

        watched_read = fragment.commit_log.watch_read(on_done)
        fragment.commit_log.get([self._purged_key], on_read, Table.INDEX)

    def remove_deferred(self, criteria: RemovalCriteria, on_result: OnRemoved) -> None:
        """Delete deferred messages, oldest first."""
        fragment = self._fragment
        is_in_flight = fragment.deferred_in_flight.__contains__
        RemovalScan(
            fragment, fragment.message_table.deferred_prefix, is_in_flight, self._delete_deferred, criteria, on_result
        ).start(fragment.message_table.first_sequence)

    def remove_scheduled(self, criteria: RemovalCriteria, on_result: OnRemoved) -> None:
        """Delete scheduled messages, in the order in which they were scheduled."""
        fragment = self._fragment
        schedule = fragment.schedule
        RemovalScan(
            fragment,
            fragment.message_table.scheduled_prefix,
            schedule.is_changing,
            schedule.delete,
            criteria,
            on_result,
        ).start(fragment.message_table.first_sequence)

    def _delete_active(self, messages: list[SequencedRecord]) -> None:
        """Delete the index rows of active messages and update the counters, but keep the records."""
        fragment, message_table = self._fragment, self._fragment.message_table
        sequences = [sequence for sequence, _ in messages]
        fragment.dispatcher.withdraw(set(sequences))
        fragment.in_flight.add_deleting(sequences)
        for sequence, record in messages:
            message_table.active_count -= 1
            message_table.active_bytes -= full_size_of(record)
            if record[1] & HAS_EXTRA_ROWS:
                message_table.remove_index_rows(sequence, record)

        def on_applied() -> None:
            for sequence in sequences:
                fragment.in_flight.remove(sequence)

        fragment.commit_log.add(fragment, 0, on_applied, ignore)

    def _delete_deferred(self, messages: list[SequencedRecord]) -> None:
        fragment, message_table = self._fragment, self._fragment.message_table
        for sequence, record in messages:
            message_table.remove_deferred_index(sequence, len(record), session_id_of(record))
            fragment.deferred_in_flight[sequence] = Lock(0, sequence, len(record), NEVER_EXPIRES_S)

        def on_applied() -> None:
            for sequence, _ in messages:
                fragment.deferred_in_flight.pop(sequence, None)

        fragment.commit_log.add(fragment, 0, on_applied, ignore)

    # --- by number ----------------------------------------------------------------------------------------------------

    def remove_by_sequence(
        self, sequences: list[int], on_result: Callable[[list[int] | ServiceBusError], None]
    ) -> None:
        """Delete messages by sequence number, in any state; `on_result` gets the numbers of deleted messages.

        The other messages do not exist, or are in flight.
        """
        fragment, message_table = self._fragment, self._fragment.message_table
        fragment.commit_log.check_available()
        fragment.check_loaded()
        removed: list[int] = []
        existing = [sequence for sequence in sequences if sequence < message_table.committed.next_sequence]
        kinds = [
            (message_table.active_prefix, fragment.in_flight.__contains__, self._delete_active),
            (message_table.deferred_prefix, fragment.deferred_in_flight.__contains__, self._delete_deferred),
            (message_table.scheduled_prefix, fragment.schedule.is_changing, fragment.schedule.delete),
        ]

        def visit(index: int, record: bytes | None) -> None:
            sequence = existing[index // len(kinds)]
            prefix, is_in_flight, delete = kinds[index % len(kinds)]
            if record is not None and not is_in_flight(sequence):
                delete([(sequence, record)])
                fragment.commit_log.batch.delete(prefix + pack_sequence(sequence))
                removed.append(sequence)

        def looked_up(error: ServiceBusError | None) -> None:
            if error is not None:
                on_result(error)
                return
            fragment.commit_log.add(
                fragment, 0, do_nothing, lambda error: on_result(error if error is not None else removed)
            )

        keys = [prefix + pack_sequence(sequence) for sequence in existing for prefix, _, _ in kinds]
        look_up_records(fragment, keys, visit, looked_up)
