"""The message table: the messages of a fragment on disk, their index rows, and their counters.

Owns: the keys of messages and index rows, and the counters, which are written with every batch that changes them. The
counters of the last batch on disk are visible to clients (`committed`); the other attributes include changes that are
not on disk yet. This module must not know consumers.
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
"""The format of an earlier version, which did not count session states."""


class MessageCounters(NamedTuple):
    """The stored counters of a fragment, which are loaded on restart."""

    next_sequence: int = 1
    """The sequence number of the next message."""
    low_watermark: int = 1
    """The sequence number below which there are no active messages."""
    last_enqueued_ms: int = 0
    """The enqueued time of the last message; later messages do not get an earlier time."""
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
    """The current generation of ids for duplicate detection."""
    id_generation_started_ms: int = 0
    """The start of the current generation of ids."""
    session_state_bytes: int = 0
    """The size of session states, with their keys."""

    @property
    def size(self) -> int:
        """The bytes that count against the entity's quota: all messages and session states."""
        return self.active_bytes + self.deferred_bytes + self.scheduled_bytes + self.session_state_bytes


def unpack_counters(value: bytes) -> MessageCounters:
    """Return the counters in a row, which may be in the format of an earlier version."""
    return MessageCounters(*(COUNTERS_STRUCT if value[0] == _VERSION else _COUNTERS_V2_STRUCT).unpack(value)[1:])


class MessageTable:
    """The messages of one fragment, on disk and in the batch of this turn."""

    def __init__(self, key_prefix: bytes, commit_log: CommitLog) -> None:
        """Create an empty table."""
        self.key_prefix = key_prefix
        self.first_sequence = first = (fragment_of_prefix(key_prefix) << SEQUENCE_FRAGMENT_SHIFT) + 1
        """The lowest possible sequence number of the fragment's messages."""
        self.active_prefix = key_prefix + store_keys.ACTIVE
        """The key prefix for active messages; the prefixes for other kinds of rows follow."""
        self.deferred_prefix = key_prefix + store_keys.DEFERRED
        self.scheduled_prefix = key_prefix + store_keys.SCHEDULED
        self.session_prefix = key_prefix + store_keys.SESSION_MESSAGES
        self.inactive_prefix = key_prefix + store_keys.SESSION_INACTIVE
        self.counters_key = key_prefix + store_keys.COUNTERS
        self.committed = MessageCounters(first, first)
        """The counters of the last batch on disk."""
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
        """Whether `session_state_bytes` is known; False after loading counters of an earlier version."""
        self.shared_bodies: SharedBodies | None = None
        """The shared bodies of the topic, if the fragment belongs to a subscription."""
        self._commit_log = commit_log
        self._uncommitted: deque[MessageCounters] = deque()

    @property
    def size(self) -> int:
        """The size of all messages and session states in bytes, including changes that are not on disk yet."""
        return self.active_bytes + self.deferred_bytes + self.scheduled_bytes + self.session_state_bytes

    # --- counters -----------------------------------------------------------------------------------------------------

    def write_counters(self, batch: Batch) -> None:
        """Add the counters to a batch."""
        expiry_low, due_low = self.expiry_index.low_watermark, self.due_index.low_watermark
        counters = MessageCounters(
            self.next_sequence,
            self.low_watermark,
            self.last_enqueued_ms,
            self.active_count,
            self.active_bytes,
            self.deferred_count,
            self.deferred_bytes,
            self.scheduled_count,
            self.scheduled_bytes,
            expiry_low[0],
            expiry_low[1],
            due_low[0],
            due_low[1],
            self.id_generation,
            self.id_generation_started_ms,
            self.session_state_bytes,
        )
        self._uncommitted.append(counters)
        batch.put(self.counters_key, COUNTERS_STRUCT.pack(_VERSION, *counters), Table.INDEX)

    def publish_counters(self) -> None:
        """Make the counters of the oldest uncommitted batch visible: the batch is on disk."""
        self.committed = self._uncommitted.popleft()

    def load_counters(self, value: bytes | None) -> None:
        """Set the counters from a stored row, or to the counters of an empty fragment (None)."""
        counters = (
            unpack_counters(value) if value is not None else MessageCounters(self.first_sequence, self.first_sequence)
        )
        self.counts_session_states = value is None or value[0] == _VERSION
        self.committed = counters
        self._uncommitted.clear()
        self.next_sequence, self.low_watermark, self.last_enqueued_ms = (
            counters.next_sequence,
            counters.low_watermark,
            counters.last_enqueued_ms,
        )
        self.active_count, self.active_bytes = counters.active_count, counters.active_bytes
        self.deferred_count, self.deferred_bytes = counters.deferred_count, counters.deferred_bytes
        self.scheduled_count, self.scheduled_bytes = counters.scheduled_count, counters.scheduled_bytes
        self.id_generation, self.id_generation_started_ms = counters.id_generation, counters.id_generation_started_ms
        self.session_state_bytes = counters.session_state_bytes

    def set_session_state_bytes(self, size: int) -> None:
        """Set the size of session states, counted after loading counters of an earlier version."""
        self.counts_session_states = True
        self.session_state_bytes = size
        self.committed = self.committed._replace(session_state_bytes=size)

    def start_time_indexes(self) -> None:
        """Start the time indexes with the loaded counters."""
        counters = self.committed
        self.expiry_index.start(
            (counters.expiry_low_ms, counters.expiry_low_sequence), is_empty=not counters.active_count
        )
        self.due_index.start((counters.due_low_ms, counters.due_low_sequence), is_empty=not counters.scheduled_count)

    def stop_time_indexes(self) -> None:
        """Stop the time indexes."""
        self.expiry_index.stop()
        self.due_index.stop()

    # --- messages: each method puts its changes into the batch of this turn -------------------------------------------

    def add(self, record: bytes) -> int:
        """Add an active message; return its sequence number."""
        sequence = self.next_sequence
        self.next_sequence = sequence + 1
        self.put(sequence, record)
        return sequence

    def put(self, sequence: int, record: bytes) -> None:
        """Write an active message under a given sequence number."""
        stored = without_body(record) if record[1] & HAS_SHARED_BODY else record
        self._commit_log.batch.put(self.active_prefix + pack_sequence(sequence), stored)
        self.active_count += 1
        self.active_bytes += len(record)
        if record[1] & HAS_EXTRA_ROWS:
            self.add_index_rows(sequence, record)

    def add_index_rows(self, sequence: int, record: bytes) -> None:
        """Write the index rows of an active message."""
        if record[1] & HAS_DUE_TIME:
            self.expiry_index.add(due_time_of(record), sequence)
        session = session_id_of(record)
        if session is not None:
            self._commit_log.batch.put(self.session_key(session, sequence), b"", Table.INDEX)

    def session_key(self, session_id: bytes, sequence: int) -> bytes:
        """Return the key of the index row for a message in a session."""
        return self.session_prefix + pack_session_id(session_id) + pack_sequence(sequence)

    def rewrite(self, lock: Lock, record: bytes) -> None:
        """Replace the record of an in-flight message, and update the size in its lock."""
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
        """Delete an in-flight message with its index rows."""
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
        """Delete an active message, but not its index rows."""
        self._commit_log.batch.delete(self.active_prefix + pack_sequence(sequence))
        self.active_count -= 1
        self.active_bytes -= size

    def remove_index_rows(self, sequence: int, record: bytes) -> None:
        """Delete the index rows of an active message, and release its shared body."""
        if record[1] & HAS_DUE_TIME:
            self.expiry_index.remove(due_time_of(record), sequence)
        session = session_id_of(record)
        if session is not None:
            self._commit_log.batch.delete(self.session_key(session, sequence), Table.INDEX)
        if record[1] & HAS_SHARED_BODY:
            self._release_body(shared_body_of(record))

    def defer(self, lock: Lock, record: bytes) -> None:
        """Change an active in-flight message to a deferred message with the same sequence number."""
        self.remove(lock)
        self._commit_log.batch.put(self.deferred_prefix + pack_sequence(lock.sequence), record)
        self.deferred_count += 1
        self.deferred_bytes += len(record)
        self._add_set_aside_row(lock.session_id, lock.sequence, DEFERRED_STATE)

    def remove_deferred_index(self, sequence: int, size: int, session_id: bytes | None) -> None:
        """Delete the index row of a deferred message and update the counters, but keep the record."""
        self.deferred_count -= 1
        self.deferred_bytes -= size
        self._remove_set_aside_row(session_id, sequence)

    def _add_set_aside_row(self, session_id: bytes | None, sequence: int, state: int) -> None:
        if session_id is not None:
            key = self.inactive_prefix + pack_session_id(session_id) + pack_sequence(sequence)
            self._commit_log.batch.put(key, bytes((state,)), Table.INDEX)

    def _remove_set_aside_row(self, session_id: bytes | None, sequence: int) -> None:
        if session_id is not None:
            self._commit_log.batch.delete(
                self.inactive_prefix + pack_session_id(session_id) + pack_sequence(sequence), Table.INDEX
            )

    def schedule(self, sequence: int, record: bytes) -> None:
        """Add a scheduled message; the message gets another sequence number when it is due."""
        self._commit_log.batch.put(self.scheduled_prefix + pack_sequence(sequence), record)
        self.scheduled_count += 1
        self.scheduled_bytes += len(record)
        self.due_index.add(due_time_of(record), sequence)
        self._add_set_aside_row(session_id_of(record), sequence, SCHEDULED_STATE)

    def unschedule(self, sequence: int, due_ms: int, size: int, session_id: bytes | None) -> None:
        """Delete a scheduled message that becomes active or was cancelled."""
        self._commit_log.batch.delete(self.scheduled_prefix + pack_sequence(sequence))
        self.remove_scheduled_index(sequence, due_ms, size, session_id)

    def remove_scheduled_index(self, sequence: int, due_ms: int, size: int, session_id: bytes | None) -> None:
        """Delete the index rows of a scheduled message and update the counters, but keep the record."""
        self.scheduled_count -= 1
        self.scheduled_bytes -= size
        self.due_index.remove(due_ms, sequence)
        self._remove_set_aside_row(session_id, sequence)
