"""The schedule: messages that become active at a later time.

Owns: scheduling, activating and cancelling messages. A scheduled message can be cancelled by its sequence number; when
it is due, it becomes active with a new sequence number, like any message that arrives at that time.
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
        """Create the schedule for `fragment`."""
        self._fragment = fragment
        self._changing: set[int] = set()
        """Messages that are being cancelled, deleted or activated; no other operation may change them."""

    def reset(self) -> None:
        """Discard the state in memory."""
        self._changing.clear()

    def reserve_sequences(self, count: int) -> list[int]:
        """Reserve sequence numbers for messages that `put` stores later, or that are never stored."""
        first = self._fragment.message_table.next_sequence
        self._fragment.message_table.next_sequence = first + count
        return list(range(first, first + count))

    def put(self, sequences: list[int], records: list[bytes]) -> None:
        """Store scheduled messages under reserved sequence numbers, in the batch of this turn."""
        fragment = self._fragment
        for sequence, record in zip(sequences, records, strict=True):
            fragment.message_table.schedule(sequence, record)
        fragment.commit_log.add(fragment, sum([len(record) for record in records]), do_nothing, ignore)

    def activate(self, entries: TimeEntries) -> None:
        """Activate scheduled messages that the time index reports as due."""
        fragment = self._fragment
        incarnation, committed_end, due_index = (
            fragment.incarnation,
            fragment.message_table.committed.next_sequence,
            fragment.message_table.due_index,
        )
        ready = [entry for entry in entries if entry[1] < committed_end][: fragment.activation_batch_size]
        awaits_commit = len(ready) < len(entries)
        ready_set = set(ready)
        low_watermark = next((entry for entry in entries if entry not in ready_set), entries[-1])

        def on_read(values: list[bytes | None] | StoreError) -> None:
            if incarnation != fragment.incarnation:
                return
            if isinstance(values, StoreError):
                fragment.commit_log.fail(str(values))
                return
            messages: list[tuple[int, int, bytes]] = []
            skipped = []
            for (when_ms, sequence), record in zip(ready, values, strict=True):
                if record is None:
                    due_index.remove(when_ms, sequence)
                elif sequence in self._changing:
                    skipped.append((when_ms, sequence))
                else:
                    messages.append((when_ms, sequence, record))
            # The rows of messages being cancelled must be scanned again if the store fails.
            new_low_watermark = min([low_watermark, *skipped])
            sequences = [sequence for _, sequence, _ in messages]
            self._changing.update(sequences)

            def on_applied() -> None:
                self._changing.difference_update(sequences)
                due_index.mark_processed(new_low_watermark, awaits_commit=awaits_commit or bool(skipped))

            if skipped and len(skipped) == len(ready):
                on_applied()
                return
            size = sum([len(record) for _, _, record in messages])
            fragment.run_in_order(lambda: self._store_active(messages, on_applied), ignore, size)

        keys = [fragment.message_table.scheduled_prefix + pack_sequence(sequence) for _, sequence in ready]
        fragment.commit_log.get(keys, on_read)

    def _store_active(self, messages: list[tuple[int, int, bytes]], on_applied: OnApplied) -> None:
        """Unschedule messages and enqueue them as if they had just arrived."""
        fragment, message_table = self._fragment, self._fragment.message_table
        now_ms = max(fragment.clock.wall_ms(), message_table.last_enqueued_ms)
        message_table.last_enqueued_ms = now_ms

        def unschedule() -> None:
            for when_ms, sequence, record in messages:
                message_table.unschedule(sequence, when_ms, len(record), session_id_of(record))

        records = [_as_active(record, now_ms, fragment.clock.wall_ms()) for _, _, record in messages]
        fragment.activate_scheduled(records, unschedule, on_applied)

    def is_changing(self, sequence: int) -> bool:
        """Return whether a message is being cancelled, deleted or activated."""
        return sequence in self._changing

    def delete(self, messages: list[tuple[int, bytes]]) -> None:
        """Delete the index rows of scheduled messages, but keep the records, in the batch of this turn."""
        fragment, message_table = self._fragment, self._fragment.message_table
        sequences = [sequence for sequence, _ in messages]
        self._changing.update(sequences)
        for sequence, record in messages:
            message_table.remove_scheduled_index(sequence, due_time_of(record), len(record), session_id_of(record))
        fragment.commit_log.add(fragment, 0, lambda: self._changing.difference_update(sequences), ignore)

    def check_scheduled(self, sequences: list[int], on_done: OnDone) -> None:
        """Call `on_done` with MessageNotFound if one of these messages is not scheduled, otherwise with None."""
        self._check_not_changing(sequences)
        scheduled: set[int] = set()

        def visit(index: int, record: bytes | None) -> None:
            if record is not None:
                scheduled.add(sequences[index])

        def looked_up(error: ServiceBusError | None) -> None:
            missing = next((sequence for sequence in sequences if sequence not in scheduled), None)
            on_done(error if error is not None or missing is None else not_scheduled_error(missing))

        prefix = self._fragment.message_table.scheduled_prefix
        look_up_records(self._fragment, [prefix + pack_sequence(sequence) for sequence in sequences], visit, looked_up)

    def _check_not_changing(self, sequences: list[int]) -> None:
        fragment = self._fragment
        fragment.commit_log.check_available()
        fragment.check_loaded()
        for sequence in sequences:
            if sequence in self._changing or sequence >= fragment.message_table.committed.next_sequence:
                raise not_scheduled_error(sequence)

    def cancel(self, sequences: list[int], on_done: OnDone) -> None:
        """Cancel scheduled messages: all of them, or none if any message is not scheduled (MessageNotFound)."""
        fragment = self._fragment
        self._check_not_changing(sequences)
        self._changing.update(sequences)
        scheduled: dict[int, tuple[int, int, bytes | None]] = {}
        message_table, incarnation = fragment.message_table, fragment.incarnation

        def visit(index: int, record: bytes | None) -> None:
            if record is not None:
                scheduled[sequences[index]] = (due_time_of(record), len(record), session_id_of(record))

        def looked_up(error: ServiceBusError | None) -> None:
            missing = next((sequence for sequence in sequences if sequence not in scheduled), None)
            if error is None and missing is None:
                for sequence, (due_ms, size, session) in scheduled.items():
                    message_table.unschedule(sequence, due_ms, size, session)
                fragment.commit_log.add(fragment, 0, lambda: self._changing.difference_update(sequences), on_done)
                return
            if incarnation == fragment.incarnation:
                self._changing.difference_update(sequences)
                for sequence, (due_ms, _, _) in scheduled.items():  # these messages may have become due meanwhile
                    message_table.due_index.revisit(due_ms, sequence)
            on_done(error if error is not None or missing is None else not_scheduled_error(missing))

        look_up_records(
            fragment,
            [message_table.scheduled_prefix + pack_sequence(sequence) for sequence in sequences],
            visit,
            looked_up,
        )


def _as_active(record: bytes, enqueued_ms: int, wall_ms: int) -> bytes:
    fields = parse_record(record)
    expiry_ms = expiry_time(fields.header, wall_ms)
    return make_record(fields._replace(state=ACTIVE_STATE, enqueued_ms=enqueued_ms, due_ms=expiry_ms))


def as_scheduled(record: bytes, now_ms: int) -> bytes:
    """Return the record as a scheduled message, due now if it has no scheduled time."""
    fields = parse_record(record)
    if fields.state == SCHEDULED_STATE:
        return record
    return make_record(fields._replace(state=SCHEDULED_STATE, due_ms=now_ms))


def not_scheduled_error(sequence: int) -> MessageNotFound:
    """Return the error for a sequence number that is not scheduled."""
    return MessageNotFound(
        f"Failed to find the scheduled message {sequence}: it was already enqueued or cancelled, or never scheduled."
    )
