"""The schedule: messages for later.

Owns: their way from being scheduled to being active, or cancelled. A scheduled message has a sequence number, by which
it can be cancelled; when it is due it becomes active under a new one, like any message that arrives then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twinbus.broker.fragment.record_lookup import look_up_records
from twinbus.broker.message_record import (
    ACTIVE_STATE,
    SCHEDULED_STATE,
    due_time_of,
    expiry_time,
    make_record,
    parse_record,
    session_id_of,
)
from twinbus.broker.store_keys import pack_sequence
from twinbus.model.callbacks import do_nothing, ignore
from twinbus.model.errors import MessageNotFound
from twinbus.store.protocol import StoreError

if TYPE_CHECKING:
    from twinbus.broker.commit_log import OnApplied
    from twinbus.broker.fragment.fragment import Fragment
    from twinbus.broker.fragment.time_index import TimeEntries
    from twinbus.broker.ports.callbacks import OnDone
    from twinbus.model.errors import ServiceBusError


class Schedule:
    """The scheduled messages of one fragment."""

    def __init__(self, fragment: Fragment) -> None:
        """Made by its fragment."""
        self._fragment = fragment
        self._changing: set[int] = set()
        """Those that are being cancelled or made active: nothing else is done to them."""

    def reset(self) -> None:
        """What is in memory is void."""
        self._changing.clear()

    def reserve_sequences(self, count: int) -> list[int]:
        """Numbers for messages that are stored later (`put`), or never."""
        first = self._fragment.message_table.next_sequence
        self._fragment.message_table.next_sequence = first + count
        return list(range(first, first + count))

    def put(self, sequences: list[int], records: list[bytes]) -> None:
        """Store messages for later under numbers that were reserved for them, in the batch of this turn."""
        fragment = self._fragment
        for number, record in zip(sequences, records, strict=True):
            fragment.message_table.schedule(number, record)
        fragment.commit_log.add(fragment, sum([len(record) for record in records]), do_nothing, ignore)

    def activate(self, entries: TimeEntries) -> None:
        """The agenda says that these are due."""
        fragment = self._fragment
        life, seen_next, due = (
            fragment.incarnation,
            fragment.message_table.committed.next_sequence,
            fragment.message_table.due_index,
        )
        ready = [moment for moment in entries if moment[1] < seen_next][: fragment.activation_batch_size]
        is_early = len(ready) < len(entries)
        taken = set(ready)
        low = next((moment for moment in entries if moment not in taken), entries[-1])

        def read(values: list[bytes | None] | StoreError) -> None:
            if life != fragment.incarnation:
                return
            if isinstance(values, StoreError):
                fragment.commit_log.fail(str(values))
                return
            found: list[tuple[int, int, bytes]] = []
            left = []
            for (when_ms, sequence), record in zip(ready, values, strict=True):
                if record is None:
                    due.remove(when_ms, sequence)
                elif sequence in self._changing:
                    left.append((when_ms, sequence))
                else:
                    found.append((when_ms, sequence, record))
            lowest = min([low, *left])  # what is being cancelled is there, should the store fail before that is done
            moved = [sequence for _, sequence, _ in found]
            self._changing.update(moved)

            def applied() -> None:
                self._changing.difference_update(moved)
                due.mark_processed(lowest, awaits_commit=is_early or bool(left))

            if left and len(left) == len(ready):
                applied()
                return
            size = sum([len(record) for _, _, record in found])
            fragment.run_in_order(lambda: self._store_active(found, applied), ignore, size)

        keys = [fragment.message_table.scheduled_prefix + pack_sequence(sequence) for _, sequence in ready]
        fragment.commit_log.get(keys, read)

    def _store_active(self, messages: list[tuple[int, int, bytes]], on_applied: OnApplied) -> None:
        """Take messages from those that are for later, and store them as if they had just come."""
        fragment, holdings = self._fragment, self._fragment.message_table
        now_ms = max(fragment.clock.wall_ms(), holdings.last_enqueued_ms)
        holdings.last_enqueued_ms = now_ms

        def unschedule() -> None:
            for when_ms, sequence, record in messages:
                holdings.unschedule(sequence, when_ms, len(record), session_id_of(record))

        records = [_as_active(record, now_ms, fragment.clock.wall_ms()) for _, _, record in messages]
        fragment.activate_scheduled(records, unschedule, on_applied)

    def is_changing(self, sequence: int) -> bool:
        """Something is being done to it."""
        return sequence in self._changing

    def delete(self, messages: list[tuple[int, bytes]]) -> None:
        """Delete scheduled messages, all but the records themselves, in the batch of this turn."""
        fragment, holdings = self._fragment, self._fragment.message_table
        numbers = [sequence for sequence, _ in messages]
        self._changing.update(numbers)
        for sequence, record in messages:
            holdings.remove_scheduled_index(sequence, due_time_of(record), len(record), session_id_of(record))
        fragment.commit_log.add(fragment, 0, lambda: self._changing.difference_update(numbers), ignore)

    def check_scheduled(self, sequences: list[int], on_done: OnDone) -> None:
        """MessageNotFound is told if one of these messages is not scheduled."""
        self._check_not_changing(sequences)
        found: set[int] = set()

        def visit(place: int, record: bytes | None) -> None:
            if record is not None:
                found.add(sequences[place])

        def looked_up(error: ServiceBusError | None) -> None:
            missing = next((sequence for sequence in sequences if sequence not in found), None)
            on_done(error if error is not None or missing is None else not_scheduled_error(missing))

        scheduled = self._fragment.message_table.scheduled_prefix
        look_up_records(self._fragment, [scheduled + pack_sequence(one) for one in sequences], visit, looked_up)

    def _check_not_changing(self, sequences: list[int]) -> None:
        fragment = self._fragment
        fragment.commit_log.check_available()
        fragment.check_loaded()
        for sequence in sequences:
            if sequence in self._changing or sequence >= fragment.message_table.committed.next_sequence:
                raise not_scheduled_error(sequence)

    def cancel(self, sequences: list[int], on_done: OnDone) -> None:
        """Delete scheduled messages: all of them, or none where one is not scheduled (MessageNotFound)."""
        fragment = self._fragment
        self._check_not_changing(sequences)
        self._changing.update(sequences)
        found: dict[int, tuple[int, int, bytes | None]] = {}
        holdings, life = fragment.message_table, fragment.incarnation

        def visit(place: int, record: bytes | None) -> None:
            if record is not None:
                found[sequences[place]] = (due_time_of(record), len(record), session_id_of(record))

        def looked_up(error: ServiceBusError | None) -> None:
            missing = next((sequence for sequence in sequences if sequence not in found), None)
            if error is None and missing is None:
                for sequence, (due_ms, size, session) in found.items():
                    holdings.unschedule(sequence, due_ms, size, session)
                fragment.commit_log.add(fragment, 0, lambda: self._changing.difference_update(sequences), on_done)
                return
            if life == fragment.incarnation:
                self._changing.difference_update(sequences)
                for sequence, (due_ms, _, _) in found.items():  # they may have been due meanwhile
                    holdings.due_index.revisit(due_ms, sequence)
            on_done(error if error is not None or missing is None else not_scheduled_error(missing))

        look_up_records(
            fragment, [holdings.scheduled_prefix + pack_sequence(one) for one in sequences], visit, looked_up
        )


def _as_active(record: bytes, enqueued_ms: int, wall_ms: int) -> bytes:
    parts = parse_record(record)
    alarm_ms = expiry_time(parts.header, wall_ms)
    return make_record(parts._replace(state=ACTIVE_STATE, enqueued_ms=enqueued_ms, due_ms=alarm_ms))


def as_scheduled(record: bytes, now_ms: int) -> bytes:
    """A message that is to be scheduled, whenever it is due: where that is not later than now, it is now."""
    parts = parse_record(record)
    if parts.state == SCHEDULED_STATE:
        return record
    return make_record(parts._replace(state=SCHEDULED_STATE, due_ms=now_ms))


def not_scheduled_error(sequence: int) -> MessageNotFound:
    """Whoever cancels does not know a scheduled message."""
    return MessageNotFound(
        f"Failed to find the scheduled message {sequence}: it was enqueued or cancelled already, or never scheduled."
    )
