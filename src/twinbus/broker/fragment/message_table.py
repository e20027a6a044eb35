"""What a fragment has on disk: its messages, how many, and under which numbers.

Owns: the keys of its messages, the rows that go with them, and the marks: numbers and counters, which are written with
every batch that changes them. What the marks of the last synced batch say is what there is for anyone to see (`shown`);
the rest of this class speaks of what was written, synced or not. Knows nothing of who has a message or gets it.
"""

from __future__ import annotations

from collections import deque
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

from twinbus.broker import store_keys
from twinbus.broker.message_record import (
    DEFERRED_STATE,
    HAS_DUE_TIME,
    HAS_EXTRA_ROWS,
    HAS_SHARED_BODY,
    SCHEDULED_STATE,
    due_time_of,
    session_id_of,
    shared_body_of,
    without_body,
)
from twinbus.broker.ports.fragment import SEQUENCE_FRAGMENT_SHIFT
from twinbus.broker.store_keys import fragment_of_prefix, pack_sequence, pack_session_id
from twinbus.store.protocol import Table

if TYPE_CHECKING:
    from twinbus.broker.commit_log import CommitLog
    from twinbus.broker.fragment.locks import Lock
    from twinbus.broker.fragment.shared_bodies import SharedBodies
    from twinbus.broker.fragment.time_index import TimeIndex
    from twinbus.store.protocol import Batch

COUNTERS_STRUCT: Final = Struct(">B16Q")
_VERSION: Final = 3
_COUNTERS_V2_STRUCT: Final = Struct(">B15Q")
"""Of an earlier version: session states were not counted."""


class MessageCounters(NamedTuple):
    """Numbers that a restart starts from."""

    next_sequence: int = 1
    """The next sequence number."""
    low_watermark: int = 1
    """Below it there are no active messages."""
    last_enqueued_ms: int = 0
    """When the last message was enqueued: no later one is earlier."""
    active_count: int = 0
    active_bytes: int = 0
    deferred_count: int = 0
    deferred_bytes: int = 0
    scheduled_count: int = 0
    scheduled_bytes: int = 0
    expiry_low_ms: int = 0
    expiry_low_sequence: int = 0
    due_low_ms: int = 0
    due_low_sequence: int = 0
    id_generation: int = 0
    """Of the ids that duplicates are known by."""
    id_generation_started_ms: int = 0
    """When it began."""
    session_state_bytes: int = 0
    """Of session states, with their keys."""

    @property
    def size(self) -> int:
        """Bytes that count against the entity's quota: all messages and session states."""
        return self.active_bytes + self.deferred_bytes + self.scheduled_bytes + self.session_state_bytes


def unpack_counters(value: bytes) -> MessageCounters:
    """The marks in a row, also in one that an earlier version has written."""
    return MessageCounters(*(COUNTERS_STRUCT if value[0] == _VERSION else _COUNTERS_V2_STRUCT).unpack(value)[1:])


class MessageTable:
    """The records of one fragment."""

    def __init__(self, key_prefix: bytes, commit_log: CommitLog) -> None:
        """None yet."""
        self.key_prefix = key_prefix
        self.first_sequence = first = (fragment_of_prefix(key_prefix) << SEQUENCE_FRAGMENT_SHIFT) + 1
        """The lowest sequence number that a message of it can have."""
        self.active_prefix = key_prefix + store_keys.ACTIVE
        """How the keys of active messages start, and so on."""
        self.deferred_prefix = key_prefix + store_keys.DEFERRED
        self.scheduled_prefix = key_prefix + store_keys.SCHEDULED
        self.session_prefix = key_prefix + store_keys.SESSION_MESSAGES
        self.set_aside_prefix = key_prefix + store_keys.SESSION_SET_ASIDE
        self.counters_key = key_prefix + store_keys.COUNTERS
        self.committed = MessageCounters(first, first)
        """What is synced."""
        self.next_sequence = first
        self.low_watermark = first
        self.last_enqueued_ms = 0
        self.active_count = 0
        self.active_bytes = 0
        self.deferred_count = 0
        self.deferred_bytes = 0
        self.scheduled_count = 0
        self.scheduled_bytes = 0
        self.id_generation = 0
        self.id_generation_started_ms = 0
        self.session_state_bytes = 0
        self.expiry_index: TimeIndex
        self.due_index: TimeIndex
        self.counts_session_states = True
        """False until session states are counted whose marks an earlier version has written."""
        self.shared_bodies: SharedBodies | None = None
        """Where its messages' bodies may lie, if it is a subscription's."""
        self._commit_log = commit_log
        self._uncommitted: deque[MessageCounters] = deque()

    @property
    def size(self) -> int:
        """What it will hold once all that was taken in is synced."""
        return self.active_bytes + self.deferred_bytes + self.scheduled_bytes + self.session_state_bytes

    # --- marks --------------------------------------------------------------------------------------------------------

    def write_counters(self, batch: Batch) -> None:
        """Add them to a batch."""
        expiry, due = self.expiry_index.low_watermark, self.due_index.low_watermark
        marks = MessageCounters(
            self.next_sequence,
            self.low_watermark,
            self.last_enqueued_ms,
            self.active_count,
            self.active_bytes,
            self.deferred_count,
            self.deferred_bytes,
            self.scheduled_count,
            self.scheduled_bytes,
            expiry[0],
            expiry[1],
            due[0],
            due[1],
            self.id_generation,
            self.id_generation_started_ms,
            self.session_state_bytes,
        )
        self._uncommitted.append(marks)
        batch.put(self.counters_key, COUNTERS_STRUCT.pack(_VERSION, *marks), Table.INDEX)

    def publish_counters(self) -> None:
        """The oldest batch that was not synced is."""
        self.committed = self._uncommitted.popleft()

    def load_counters(self, value: bytes | None) -> None:
        """What the disk holds is what there is."""
        marks = (
            unpack_counters(value) if value is not None else MessageCounters(self.first_sequence, self.first_sequence)
        )
        self.counts_session_states = value is None or value[0] == _VERSION
        self.committed = marks
        self._uncommitted.clear()
        self.next_sequence, self.low_watermark, self.last_enqueued_ms = (
            marks.next_sequence,
            marks.low_watermark,
            marks.last_enqueued_ms,
        )
        self.active_count, self.active_bytes = marks.active_count, marks.active_bytes
        self.deferred_count, self.deferred_bytes = marks.deferred_count, marks.deferred_bytes
        self.scheduled_count, self.scheduled_bytes = marks.scheduled_count, marks.scheduled_bytes
        self.id_generation, self.id_generation_started_ms = marks.id_generation, marks.id_generation_started_ms
        self.session_state_bytes = marks.session_state_bytes

    def set_session_state_bytes(self, size: int) -> None:
        """States that an earlier version has written are counted now."""
        self.counts_session_states = True
        self.session_state_bytes = size
        self.committed = self.committed._replace(session_state_bytes=size)

    def start_time_indexes(self) -> None:
        """Watch for what is due: the marks were read."""
        marks = self.committed
        self.expiry_index.start((marks.expiry_low_ms, marks.expiry_low_sequence), is_empty=not marks.active_count)
        self.due_index.start((marks.due_low_ms, marks.due_low_sequence), is_empty=not marks.scheduled_count)

    def stop_time_indexes(self) -> None:
        """Nothing is due."""
        self.expiry_index.stop()
        self.due_index.stop()

    # --- messages: each of these puts its changes into the batch of this turn -----------------------------------------

    def add(self, record: bytes) -> int:
        """An active message, under the next number."""
        sequence = self.next_sequence
        self.next_sequence = sequence + 1
        self.put(sequence, record)
        return sequence

    def put(self, sequence: int, record: bytes) -> None:
        """An active message under a number that it had before."""
        stored = without_body(record) if record[1] & HAS_SHARED_BODY else record
        self._commit_log.batch.put(self.active_prefix + pack_sequence(sequence), stored)
        self.active_count += 1
        self.active_bytes += len(record)
        if record[1] & HAS_EXTRA_ROWS:
            self.add_index_rows(sequence, record)

    def add_index_rows(self, sequence: int, record: bytes) -> None:
        """What goes with an active message."""
        if record[1] & HAS_DUE_TIME:
            self.expiry_index.add(due_time_of(record), sequence)
        session = session_id_of(record)
        if session is not None:
            self._commit_log.batch.put(self.session_key(session, sequence), b"", Table.INDEX)

    def session_key(self, session_id: bytes, sequence: int) -> bytes:
        """The row that says that a message is of a session."""
        return self.session_prefix + pack_session_id(session_id) + pack_sequence(sequence)

    def rewrite(self, lock: Lock, record: bytes) -> None:
        """A message that is out becomes another, under its number. What it is out as knows its new size."""
        growth = len(record) - lock.size
        if lock.is_deferred:
            self._commit_log.batch.put(self.deferred_prefix + pack_sequence(lock.sequence), record)
            self.deferred_bytes += growth
        else:
            if lock.shared_body and not record[1] & HAS_SHARED_BODY:
                self._release_body(lock.shared_body)
                lock.shared_body = 0
            stored = without_body(record) if lock.shared_body else record
            self._commit_log.batch.put(self.active_prefix + pack_sequence(lock.sequence), stored)
            self.active_bytes += growth
        lock.size = len(record)

    def remove(self, lock: Lock) -> None:
        """A message that is out is deleted."""
        if lock.is_deferred:
            self._commit_log.batch.delete(self.deferred_prefix + pack_sequence(lock.sequence))
            self.remove_deferred_index(lock.sequence, lock.size, lock.session_id)
            return
        self.remove_active(lock.sequence, lock.size)
        if lock.expiry_ms:
            self.expiry_index.remove(lock.expiry_ms, lock.sequence)
        if lock.session_id is not None:
            self._commit_log.batch.delete(self.session_key(lock.session_id, lock.sequence), Table.INDEX)
        if lock.shared_body:
            self._release_body(lock.shared_body)

    def _release_body(self, body_number: int) -> None:
        assert self.shared_bodies is not None
        self.shared_bodies.release(body_number)

    def remove_active(self, sequence: int, size: int) -> None:
        """An active message is deleted; not the rows that go with it."""
        self._commit_log.batch.delete(self.active_prefix + pack_sequence(sequence))
        self.active_count -= 1
        self.active_bytes -= size

    def remove_index_rows(self, sequence: int, record: bytes) -> None:
        """What goes with an active message is deleted."""
        if record[1] & HAS_DUE_TIME:
            self.expiry_index.remove(due_time_of(record), sequence)
        session = session_id_of(record)
        if session is not None:
            self._commit_log.batch.delete(self.session_key(session, sequence), Table.INDEX)
        if record[1] & HAS_SHARED_BODY:
            self._release_body(shared_body_of(record))

    def defer(self, lock: Lock, record: bytes) -> None:
        """An active message that is out goes to the deferred ones, under its number."""
        self.remove(lock)
        self._commit_log.batch.put(self.deferred_prefix + pack_sequence(lock.sequence), record)
        self.deferred_count += 1
        self.deferred_bytes += len(record)
        self._add_set_aside_row(lock.session_id, lock.sequence, DEFERRED_STATE)

    def remove_deferred_index(self, sequence: int, size: int, session_id: bytes | None) -> None:
        """A deferred message is deleted, all but its record."""
        self.deferred_count -= 1
        self.deferred_bytes -= size
        self._remove_set_aside_row(session_id, sequence)

    def _add_set_aside_row(self, session_id: bytes | None, sequence: int, state: int) -> None:
        if session_id is not None:
            key = self.set_aside_prefix + pack_session_id(session_id) + pack_sequence(sequence)
            self._commit_log.batch.put(key, bytes((state,)), Table.INDEX)

    def _remove_set_aside_row(self, session_id: bytes | None, sequence: int) -> None:
        if session_id is not None:
            self._commit_log.batch.delete(
                self.set_aside_prefix + pack_session_id(session_id) + pack_sequence(sequence), Table.INDEX
            )

    def schedule(self, sequence: int, record: bytes) -> None:
        """A message for later, under a number of its own; it gets another one when it is due."""
        self._commit_log.batch.put(self.scheduled_prefix + pack_sequence(sequence), record)
        self.scheduled_count += 1
        self.scheduled_bytes += len(record)
        self.due_index.add(due_time_of(record), sequence)
        self._add_set_aside_row(session_id_of(record), sequence, SCHEDULED_STATE)

    def unschedule(self, sequence: int, due_ms: int, size: int, session_id: bytes | None) -> None:
        """A scheduled message is deleted: it is active now, or cancelled."""
        self._commit_log.batch.delete(self.scheduled_prefix + pack_sequence(sequence))
        self.remove_scheduled_index(sequence, due_ms, size, session_id)

    def remove_scheduled_index(self, sequence: int, due_ms: int, size: int, session_id: bytes | None) -> None:
        """... all but its record."""
        self.scheduled_count -= 1
        self.scheduled_bytes -= size
        self.due_index.remove(due_ms, sequence)
        self._remove_set_aside_row(session_id, sequence)
