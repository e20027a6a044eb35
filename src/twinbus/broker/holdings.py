"""What a fragment has on disk: its messages, how many, and under which numbers.

Owns: the keys of its messages, the rows that go with them, and the marks: numbers and counters, which are written with
every batch that changes them. What the marks of the last synced batch say is what there is for anyone to see (`shown`);
the rest of this class speaks of what was written, synced or not. Knows nothing of who has a message or gets it.
"""

from __future__ import annotations

from collections import deque
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

from twinbus.broker import keys
from twinbus.broker.keys import fragment_in, pack_sequence, pack_session
from twinbus.broker.ports.numbers import FRAGMENT_SHIFT
from twinbus.broker.record import (
    DEFERRED_STATE,
    HAS_ALARM,
    IS_SHARED,
    IS_SPECIAL,
    SCHEDULED_STATE,
    alarm_of,
    session_of,
    shared_of,
    shortened,
)
from twinbus.store.protocol import Table

if TYPE_CHECKING:
    from twinbus.broker.agenda import Agenda
    from twinbus.broker.bodies import Bodies
    from twinbus.broker.journal import Journal
    from twinbus.broker.locks import Lock
    from twinbus.store.protocol import Batch

MARKS: Final = Struct(">B16Q")
_VERSION: Final = 3
_MARKS_2: Final = Struct(">B15Q")
"""Of an earlier version: session states were not counted."""


class Marks(NamedTuple):
    """Numbers that a restart starts from."""

    next: int = 1
    """The next sequence number."""
    low: int = 1
    """Below it there are no active messages."""
    latest_ms: int = 0
    """When the last message was enqueued: no later one is earlier."""
    active_count: int = 0
    active_bytes: int = 0
    deferred_count: int = 0
    deferred_bytes: int = 0
    scheduled_count: int = 0
    scheduled_bytes: int = 0
    expiry_low_ms: int = 0
    expiry_low: int = 0
    due_low_ms: int = 0
    due_low: int = 0
    generation: int = 0
    """Of the ids that duplicates are known by."""
    generation_ms: int = 0
    """When it began."""
    state_bytes: int = 0
    """Of session states, with their keys."""

    @property
    def size(self) -> int:
        """Bytes that count against the entity's quota: all messages and session states."""
        return self.active_bytes + self.deferred_bytes + self.scheduled_bytes + self.state_bytes


def unpack_marks(value: bytes) -> Marks:
    """The marks in a row, also in one that an earlier version has written."""
    return Marks(*(MARKS if value[0] == _VERSION else _MARKS_2).unpack(value)[1:])


class Holdings:
    """The records of one fragment."""

    def __init__(self, prefix: bytes, journal: Journal) -> None:
        """None yet."""
        self.prefix = prefix
        self.first = first = (fragment_in(prefix) << FRAGMENT_SHIFT) + 1
        """The lowest sequence number that a message of it can have."""
        self.active = prefix + keys.ACTIVE
        """How the keys of active messages start, and so on."""
        self.deferred = prefix + keys.DEFERRED
        self.scheduled = prefix + keys.SCHEDULED
        self.sessions = prefix + keys.SESSION
        self.aside = prefix + keys.ASIDE
        self.marks_key = prefix + keys.MARKS
        self.shown = Marks(first, first)
        """What is synced."""
        self.next = first
        self.low = first
        self.latest_ms = 0
        self.active_count = 0
        self.active_bytes = 0
        self.deferred_count = 0
        self.deferred_bytes = 0
        self.scheduled_count = 0
        self.scheduled_bytes = 0
        self.generation = 0
        self.generation_ms = 0
        self.state_bytes = 0
        self.expiry: Agenda
        self.due: Agenda
        self.counts_states = True
        """False until session states are counted whose marks an earlier version has written."""
        self.bodies: Bodies | None = None
        """Where its messages' bodies may lie, if it is a subscription's."""
        self._journal = journal
        self._written: deque[Marks] = deque()

    @property
    def size(self) -> int:
        """What it will hold once all that was taken in is synced."""
        return self.active_bytes + self.deferred_bytes + self.scheduled_bytes + self.state_bytes

    # --- marks --------------------------------------------------------------------------------------------------------

    def write_marks(self, batch: Batch) -> None:
        """Add them to a batch."""
        expiry, due = self.expiry.low, self.due.low
        marks = Marks(
            self.next,
            self.low,
            self.latest_ms,
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
            self.generation,
            self.generation_ms,
            self.state_bytes,
        )
        self._written.append(marks)
        batch.put(self.marks_key, MARKS.pack(_VERSION, *marks), Table.INDEX)

    def show_marks(self) -> None:
        """The oldest batch that was not synced is."""
        self.shown = self._written.popleft()

    def read_marks(self, value: bytes | None) -> None:
        """What the disk holds is what there is."""
        marks = unpack_marks(value) if value is not None else Marks(self.first, self.first)
        self.counts_states = value is None or value[0] == _VERSION
        self.shown = marks
        self._written.clear()
        self.next, self.low, self.latest_ms = marks.next, marks.low, marks.latest_ms
        self.active_count, self.active_bytes = marks.active_count, marks.active_bytes
        self.deferred_count, self.deferred_bytes = marks.deferred_count, marks.deferred_bytes
        self.scheduled_count, self.scheduled_bytes = marks.scheduled_count, marks.scheduled_bytes
        self.generation, self.generation_ms = marks.generation, marks.generation_ms
        self.state_bytes = marks.state_bytes

    def add_counted_states(self, size: int) -> None:
        """States that an earlier version has written are counted now."""
        self.counts_states = True
        self.state_bytes = size
        self.shown = self.shown._replace(state_bytes=size)

    def start_agendas(self) -> None:
        """Watch for what is due: the marks were read."""
        marks = self.shown
        self.expiry.start((marks.expiry_low_ms, marks.expiry_low), is_empty=not marks.active_count)
        self.due.start((marks.due_low_ms, marks.due_low), is_empty=not marks.scheduled_count)

    def stop_agendas(self) -> None:
        """Nothing is due."""
        self.expiry.stop()
        self.due.stop()

    # --- messages: each of these puts its changes into the batch of this turn -----------------------------------------

    def add(self, record: bytes) -> int:
        """An active message, under the next number."""
        sequence = self.next
        self.next = sequence + 1
        self.put_again(sequence, record)
        return sequence

    def put_again(self, sequence: int, record: bytes) -> None:
        """An active message under a number that it had before."""
        stored = shortened(record) if record[1] & IS_SHARED else record
        self._journal.batch.put(self.active + pack_sequence(sequence), stored)
        self.active_count += 1
        self.active_bytes += len(record)
        if record[1] & IS_SPECIAL:
            self.add_rows(sequence, record)

    def add_rows(self, sequence: int, record: bytes) -> None:
        """What goes with an active message."""
        if record[1] & HAS_ALARM:
            self.expiry.add(alarm_of(record), sequence)
        session = session_of(record)
        if session is not None:
            self._journal.batch.put(self.session_key(session, sequence), b"", Table.INDEX)

    def session_key(self, session: bytes, sequence: int) -> bytes:
        """The row that says that a message is of a session."""
        return self.sessions + pack_session(session) + pack_sequence(sequence)

    def rewrite(self, lock: Lock, record: bytes) -> None:
        """A message that is out becomes another, under its number. What it is out as knows its new size."""
        growth = len(record) - lock.size
        if lock.is_deferred:
            self._journal.batch.put(self.deferred + pack_sequence(lock.sequence), record)
            self.deferred_bytes += growth
        else:
            if lock.shared and not record[1] & IS_SHARED:
                self._release(lock.shared)
                lock.shared = 0
            stored = shortened(record) if lock.shared else record
            self._journal.batch.put(self.active + pack_sequence(lock.sequence), stored)
            self.active_bytes += growth
        lock.size = len(record)

    def remove(self, lock: Lock) -> None:
        """A message that is out is deleted."""
        if lock.is_deferred:
            self._journal.batch.delete(self.deferred + pack_sequence(lock.sequence))
            self.count_undeferred(lock.sequence, lock.size, lock.session)
            return
        self.remove_active(lock.sequence, lock.size)
        if lock.alarm_ms:
            self.expiry.remove(lock.alarm_ms, lock.sequence)
        if lock.session is not None:
            self._journal.batch.delete(self.session_key(lock.session, lock.sequence), Table.INDEX)
        if lock.shared:
            self._release(lock.shared)

    def _release(self, number: int) -> None:
        assert self.bodies is not None
        self.bodies.release(number)

    def remove_active(self, sequence: int, size: int) -> None:
        """An active message is deleted; not the rows that go with it."""
        self._journal.batch.delete(self.active + pack_sequence(sequence))
        self.active_count -= 1
        self.active_bytes -= size

    def remove_rows(self, sequence: int, record: bytes) -> None:
        """What goes with an active message is deleted."""
        if record[1] & HAS_ALARM:
            self.expiry.remove(alarm_of(record), sequence)
        session = session_of(record)
        if session is not None:
            self._journal.batch.delete(self.session_key(session, sequence), Table.INDEX)
        if record[1] & IS_SHARED:
            self._release(shared_of(record))

    def defer(self, lock: Lock, record: bytes) -> None:
        """An active message that is out goes to the deferred ones, under its number."""
        self.remove(lock)
        self._journal.batch.put(self.deferred + pack_sequence(lock.sequence), record)
        self.deferred_count += 1
        self.deferred_bytes += len(record)
        self._put_aside(lock.session, lock.sequence, DEFERRED_STATE)

    def count_undeferred(self, sequence: int, size: int, session: bytes | None) -> None:
        """A deferred message is deleted, all but its record."""
        self.deferred_count -= 1
        self.deferred_bytes -= size
        self._take_from_aside(session, sequence)

    def _put_aside(self, session: bytes | None, sequence: int, state: int) -> None:
        if session is not None:
            key = self.aside + pack_session(session) + pack_sequence(sequence)
            self._journal.batch.put(key, bytes((state,)), Table.INDEX)

    def _take_from_aside(self, session: bytes | None, sequence: int) -> None:
        if session is not None:
            self._journal.batch.delete(self.aside + pack_session(session) + pack_sequence(sequence), Table.INDEX)

    def schedule(self, sequence: int, record: bytes) -> None:
        """A message for later, under a number of its own; it gets another one when it is due."""
        self._journal.batch.put(self.scheduled + pack_sequence(sequence), record)
        self.scheduled_count += 1
        self.scheduled_bytes += len(record)
        self.due.add(alarm_of(record), sequence)
        self._put_aside(session_of(record), sequence, SCHEDULED_STATE)

    def unschedule(self, sequence: int, due_ms: int, size: int, session: bytes | None) -> None:
        """A scheduled message is deleted: it is active now, or cancelled."""
        self._journal.batch.delete(self.scheduled + pack_sequence(sequence))
        self.count_unscheduled(sequence, due_ms, size, session)

    def count_unscheduled(self, sequence: int, due_ms: int, size: int, session: bytes | None) -> None:
        """... all but its record."""
        self.scheduled_count -= 1
        self.scheduled_bytes -= size
        self.due.remove(due_ms, sequence)
        self._take_from_aside(session, sequence)
