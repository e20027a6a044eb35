"""Removal: deleting messages that nobody has received.

Owns: purging, deleting the oldest, deleting up to a number, deleting by number. Messages that someone has, under a lock
or otherwise, are left alone.

They are read before they go, a bounded number in a turn: it has to be known how many they are, and what else lies
beside them. Neighbours are deleted as one range, so that nothing is left to be searched in vain.
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
    """The way through the messages of one kind, a part of them in each turn."""

    def __init__(
        self,
        fragment: Fragment,
        key_prefix: bytes,
        is_in_flight: Callable[[int], bool],
        remove_messages: Callable[[list[SequencedRecord]], None],
        criteria: RemovalCriteria,
        on_result: OnRemoved,
    ) -> None:
        """`delete` deletes all of a message but its record."""
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
        """From a sequence number on."""
        self._fragment.commit_log.check_available()
        self._fragment.check_loaded()
        self._scan_from(first_sequence)

    def _scan_from(self, first_sequence: int) -> None:
        journal, place, end = (
            self._fragment.commit_log,
            self._key_prefix,
            max(first_sequence, min(self._end_sequence, first_sequence + MAX_SCAN_SPAN)),
        )
        promise = journal.watch_read(lambda error: self._on_result(error) if error is not None else None)

        def read(rows: list[Row] | StoreError) -> None:
            if self._incarnation != self._fragment.incarnation or isinstance(rows, StoreError):
                promise.finish(StoreUnavailable("the store failed before all messages were deleted"))
            elif promise.is_pending:
                promise.finish(None)
                if not rows and end < self._end_sequence:
                    self._scan_from(end)
                else:
                    self._remove_rows(rows)

        journal.scan(
            place + pack_sequence(first_sequence),
            place + pack_sequence(end),
            read,
            limit=SCAN_BATCH_SIZE,
            max_bytes=SCAN_BATCH_BYTES,
        )

    def _remove_rows(self, rows: list[Row]) -> None:
        outcome, wanted = self._result, self._criteria
        chosen: list[SequencedRecord] = []
        for key, record in rows:
            sequence = sequence_of_key(key)
            if outcome.removed_count >= wanted.max_count or not wanted.matches(record):
                continue
            if self._is_in_flight(sequence):
                outcome.skipped_count += 1
            else:
                outcome.removed_count += 1
                chosen.append((sequence, record))
        self._delete_records([sequence for sequence, _ in chosen])
        if chosen:
            self._remove_messages(chosen)
        next_start = sequence_of_key(rows[-1][0]) + 1 if rows and outcome.removed_count < wanted.max_count else None
        self._fragment.commit_log.add(
            self._fragment, 0, do_nothing, lambda error: self._on_committed(error, next_start)
        )

    def _delete_records(self, sequences: list[int]) -> None:
        """Ranges have no gaps: what was not there when it was looked at may have come meanwhile."""
        batch, place = self._fragment.commit_log.batch, self._key_prefix
        first = last = 0
        for sequence in [*sequences, UNLIMITED]:
            if last and sequence == last + 1:
                last = sequence
                continue
            if last > first:
                batch.delete_range(place + pack_sequence(first), place + pack_sequence(last + 1))
            elif last:
                batch.delete(place + pack_sequence(last))
            first = last = sequence

    def _on_committed(self, error: ServiceBusError | None, next_start: int | None) -> None:
        if error is not None:
            self._on_result(error)
        elif next_start is None:
            self._on_result(self._result)
        else:
            self._scan_from(next_start)


class Removal:
    """Deletes messages of one fragment."""

    def __init__(self, fragment: Fragment) -> None:
        """Made by its fragment."""
        self._fragment = fragment
        self._purged_key = fragment.message_table.key_prefix + PURGED_UP_TO

    def remove_active(
        self,
        criteria: RemovalCriteria,
        on_result: OnRemoved,
        on_removed: Callable[[list[SequencedRecord]], None] | None = None,
    ) -> None:
        """Delete active messages, from the oldest on. `marking` may write more with each part of them."""
        fragment = self._fragment

        def delete(items: list[SequencedRecord]) -> None:
            self._delete_active(items)
            if on_removed is not None:
                on_removed(items)

        RemovalScan(
            fragment, fragment.message_table.active_prefix, fragment.in_flight.__contains__, delete, criteria, on_result
        ).start(fragment.message_table.low_watermark)

    def purge(self, criteria: RemovalCriteria, on_result: OnRemoved) -> None:
        """Delete active messages as `remove_active`, and note on disk how far that went. StoreUnavailable.

        A reader of the fragment's log can tell by that mark that messages which it has not read are gone for good.
        Missing numbers do not say so: their messages may have been received.
        """
        self._fragment.check_available()
        self._fragment.check_loaded()

        def found(known: int | ServiceBusError) -> None:
            if isinstance(known, ServiceBusError):
                on_result(known)
                return
            try:
                self.remove_active(criteria, on_result, lambda items: self._write_purge_mark(items, known))
            except ServiceBusError as error:
                on_result(error)

        self.find_purged_up_to(found)

    def _write_purge_mark(self, messages: list[SequencedRecord], purged_up_to: int) -> None:
        """Note the last purged message; the mark never goes back, also if a skipped message is purged later."""
        last = max(purged_up_to, messages[-1][0])
        self._fragment.commit_log.batch.put(self._purged_key, pack_sequence(last), Table.INDEX)

    def find_purged_up_to(self, on_result: Callable[[int | ServiceBusError], None]) -> None:
        """Find the highest number of a message that was purged; 0 if none was."""
        fragment = self._fragment
        life, number = fragment.incarnation, 0

        def told(error: ServiceBusError | None) -> None:
            on_result(number if error is None else error)

        def read(values: list[bytes | None] | StoreError) -> None:
            nonlocal number
            if not promise.is_pending:
                return
            if life != fragment.incarnation or isinstance(values, StoreError):
                promise.finish(StoreUnavailable("the store failed before it told how far the fragment was purged"))
                return
            number = int.from_bytes(values[0] or b"")
            promise.finish(None)

        promise = fragment.commit_log.watch_read(told)
        fragment.commit_log.get([self._purged_key], read, Table.INDEX)

    def remove_deferred(self, criteria: RemovalCriteria, on_result: OnRemoved) -> None:
        """Delete deferred messages, from the oldest on."""
        fragment = self._fragment
        is_out = fragment.deferred_in_flight.__contains__
        RemovalScan(
            fragment, fragment.message_table.deferred_prefix, is_out, self._delete_deferred, criteria, on_result
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
        """All but the records themselves."""
        fragment, holdings = self._fragment, self._fragment.message_table
        numbers = [sequence for sequence, _ in messages]
        fragment.dispatcher.withdraw(set(numbers))
        fragment.in_flight.add_deleting(numbers)
        for sequence, record in messages:
            holdings.active_count -= 1
            holdings.active_bytes -= full_size_of(record)
            if record[1] & HAS_EXTRA_ROWS:
                holdings.remove_index_rows(sequence, record)

        def applied() -> None:
            for sequence in numbers:
                fragment.in_flight.remove(sequence)

        fragment.commit_log.add(fragment, 0, applied, ignore)

    def _delete_deferred(self, messages: list[SequencedRecord]) -> None:
        fragment, holdings = self._fragment, self._fragment.message_table
        for sequence, record in messages:
            holdings.remove_deferred_index(sequence, len(record), session_id_of(record))
            fragment.deferred_in_flight[sequence] = Lock(0, sequence, len(record), NEVER_EXPIRES_S)

        def applied() -> None:
            for sequence, _ in messages:
                fragment.deferred_in_flight.pop(sequence, None)

        fragment.commit_log.add(fragment, 0, applied, ignore)

    # --- by number ----------------------------------------------------------------------------------------------------

    def remove_by_sequence(
        self, sequences: list[int], on_result: Callable[[list[int] | ServiceBusError], None]
    ) -> None:
        """Delete messages by their sequence numbers, whatever their state; `done` hears which were deleted.

        The others are not there, or someone has them.
        """
        fragment, holdings = self._fragment, self._fragment.message_table
        fragment.commit_log.check_available()
        fragment.check_loaded()
        removed: list[int] = []
        asked = [sequence for sequence in sequences if sequence < holdings.committed.next_sequence]
        places = [
            (holdings.active_prefix, fragment.in_flight.__contains__, self._delete_active),
            (holdings.deferred_prefix, fragment.deferred_in_flight.__contains__, self._delete_deferred),
            (holdings.scheduled_prefix, fragment.schedule.is_changing, fragment.schedule.delete),
        ]

        def visit(number: int, record: bytes | None) -> None:
            sequence = asked[number // len(places)]
            place, is_out, delete = places[number % len(places)]
            if record is not None and not is_out(sequence):
                delete([(sequence, record)])
                fragment.commit_log.batch.delete(place + pack_sequence(sequence))
                removed.append(sequence)

        def looked_up(error: ServiceBusError | None) -> None:
            if error is not None:
                on_result(error)
                return
            fragment.commit_log.add(
                fragment, 0, do_nothing, lambda error: on_result(error if error is not None else removed)
            )

        keys = [place + pack_sequence(sequence) for sequence in asked for place, _, _ in places]
        look_up_records(fragment, keys, visit, looked_up)
