"""Removal: deleting messages that nobody has received.

Owns: purging, deleting the oldest, deleting up to a number, deleting by number. Messages that someone has, under a lock
or otherwise, are left alone.

They are read before they go, a bounded number in a turn: it has to be known how many they are, and what else lies
beside them. Neighbours are deleted as one range, so that nothing is left to be searched in vain.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from twinbus.broker.keys import PURGED, pack_sequence, sequence_of
from twinbus.broker.line import SPAN
from twinbus.broker.locks import NEVER_S, Lock
from twinbus.broker.lookup import look_up
from twinbus.broker.ports.removal import FAR, Outcome, Wanted
from twinbus.broker.record import IS_SPECIAL, session_of, weight_of
from twinbus.model.callbacks import do_nothing, ignore
from twinbus.model.errors import ServiceBusError, StoreUnavailable
from twinbus.store.protocol import StoreError, Table

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinbus.broker.fragment import Fragment, Item
    from twinbus.broker.ports.removal import Done
    from twinbus.store.protocol import Row


AT_ONCE: Final = 500
BYTES_AT_ONCE: Final = 1_048_576


class Walk:
    """The way through the messages of one kind, a part of them in each turn."""

    def __init__(
        self,
        fragment: Fragment,
        place: bytes,
        is_out: Callable[[int], bool],
        delete: Callable[[list[Item]], None],
        wanted: Wanted,
        done: Done,
    ) -> None:
        """`delete` deletes all of a message but its record."""
        self._fragment = fragment
        self._place = place
        self._is_out = is_out
        self._delete = delete
        self._wanted = wanted
        self._done = done
        self._outcome = Outcome()
        self._life = fragment.life
        self._end = min(fragment.holdings.shown.next, wanted.up_to + 1)

    def begin(self, start: int) -> None:
        """From a sequence number on."""
        self._fragment.journal.check_works()
        self._fragment.check_loaded()
        self._go_on(start)

    def _go_on(self, start: int) -> None:
        journal, place, end = self._fragment.journal, self._place, max(start, min(self._end, start + SPAN))
        promise = journal.promise(lambda error: self._done(error) if error is not None else None)

        def read(rows: list[Row] | StoreError) -> None:
            if self._life != self._fragment.life or isinstance(rows, StoreError):
                promise.give(StoreUnavailable("the store failed before all messages were deleted"))
            elif promise.is_open:
                promise.give(None)
                if not rows and end < self._end:
                    self._go_on(end)
                else:
                    self._take(rows)

        journal.scan(
            place + pack_sequence(start), place + pack_sequence(end), read, limit=AT_ONCE, max_bytes=BYTES_AT_ONCE
        )

    def _take(self, rows: list[Row]) -> None:
        outcome, wanted = self._outcome, self._wanted
        chosen: list[Item] = []
        for key, record in rows:
            sequence = sequence_of(key)
            if outcome.removed >= wanted.most or not wanted.includes(record):
                continue
            if self._is_out(sequence):
                outcome.skipped += 1
            else:
                outcome.removed += 1
                chosen.append((sequence, record))
        self._delete_records([sequence for sequence, _ in chosen])
        if chosen:
            self._delete(chosen)
        next_start = sequence_of(rows[-1][0]) + 1 if rows and outcome.removed < wanted.most else None
        self._fragment.journal.add(self._fragment, 0, do_nothing, lambda error: self._told(error, next_start))

    def _delete_records(self, sequences: list[int]) -> None:
        """Ranges have no gaps: what was not there when it was looked at may have come meanwhile."""
        batch, place = self._fragment.journal.batch, self._place
        first = last = 0
        for sequence in [*sequences, FAR]:
            if last and sequence == last + 1:
                last = sequence
                continue
            if last > first:
                batch.delete_range(place + pack_sequence(first), place + pack_sequence(last + 1))
            elif last:
                batch.delete(place + pack_sequence(last))
            first = last = sequence

    def _told(self, error: ServiceBusError | None, next_start: int | None) -> None:
        if error is not None:
            self._done(error)
        elif next_start is None:
            self._done(self._outcome)
        else:
            self._go_on(next_start)


class Removal:
    """Deletes messages of one fragment."""

    def __init__(self, fragment: Fragment) -> None:
        """Made by its fragment."""
        self._fragment = fragment
        self._mark_key = fragment.holdings.prefix + PURGED

    def remove_active(self, wanted: Wanted, done: Done, marking: Callable[[list[Item]], None] | None = None) -> None:
        """Delete active messages, from the oldest on. `marking` may write more with each part of them."""
        fragment = self._fragment

        def delete(items: list[Item]) -> None:
            self._delete_active(items)
            if marking is not None:
                marking(items)

        Walk(fragment, fragment.holdings.active, fragment.out.__contains__, delete, wanted, done).begin(
            fragment.holdings.low
        )

    def purge(self, wanted: Wanted, done: Done) -> None:
        """Delete active messages as `remove_active`, and note on disk how far that went. StoreUnavailable.

        A reader of the fragment's log can tell by that mark that messages which it has not read are gone for good.
        Missing numbers do not say so: their messages may have been received.
        """
        self._fragment.check_works()
        self._fragment.check_loaded()

        def found(known: int | ServiceBusError) -> None:
            if isinstance(known, ServiceBusError):
                done(known)
                return
            try:
                self.remove_active(wanted, done, lambda items: self._mark(items, known))
            except ServiceBusError as error:
                done(error)

        self.find_purged(found)

    def _mark(self, items: list[Item], known: int) -> None:
        """Note the last purged message; the mark never goes back, also if a skipped message is purged later."""
        last = max(known, items[-1][0])
        self._fragment.journal.batch.put(self._mark_key, pack_sequence(last), Table.INDEX)

    def find_purged(self, found: Callable[[int | ServiceBusError], None]) -> None:
        """Find the highest number of a message that was purged; 0 if none was."""
        fragment = self._fragment
        life, number = fragment.life, 0

        def told(error: ServiceBusError | None) -> None:
            found(number if error is None else error)

        def read(values: list[bytes | None] | StoreError) -> None:
            nonlocal number
            if not promise.is_open:
                return
            if life != fragment.life or isinstance(values, StoreError):
                promise.give(StoreUnavailable("the store failed before it told how far the fragment was purged"))
                return
            number = int.from_bytes(values[0] or b"")
            promise.give(None)

        promise = fragment.journal.promise(told)
        fragment.journal.get([self._mark_key], read, Table.INDEX)

    def remove_deferred(self, wanted: Wanted, done: Done) -> None:
        """Delete deferred messages, from the oldest on."""
        fragment = self._fragment
        is_out = fragment.deferred_out.__contains__
        Walk(fragment, fragment.holdings.deferred, is_out, self._delete_deferred, wanted, done).begin(
            fragment.holdings.first
        )

    def remove_scheduled(self, wanted: Wanted, done: Done) -> None:
        """Delete scheduled messages, in the order in which they were scheduled."""
        fragment = self._fragment
        schedule = fragment.schedule
        Walk(fragment, fragment.holdings.scheduled, schedule.is_going, schedule.delete, wanted, done).begin(
            fragment.holdings.first
        )

    def _delete_active(self, items: list[Item]) -> None:
        """All but the records themselves."""
        fragment, holdings = self._fragment, self._fragment.holdings
        numbers = [sequence for sequence, _ in items]
        fragment.line.take_away(set(numbers))
        fragment.out.add_leaving(numbers)
        for sequence, record in items:
            holdings.active_count -= 1
            holdings.active_bytes -= weight_of(record)
            if record[1] & IS_SPECIAL:
                holdings.remove_rows(sequence, record)

        def applied() -> None:
            for sequence in numbers:
                fragment.out.remove(sequence)

        fragment.journal.add(fragment, 0, applied, ignore)

    def _delete_deferred(self, items: list[Item]) -> None:
        fragment, holdings = self._fragment, self._fragment.holdings
        for sequence, record in items:
            holdings.count_undeferred(sequence, len(record), session_of(record))
            fragment.deferred_out[sequence] = Lock(0, sequence, len(record), NEVER_S)

        def applied() -> None:
            for sequence, _ in items:
                fragment.deferred_out.pop(sequence, None)

        fragment.journal.add(fragment, 0, applied, ignore)

    # --- by number ----------------------------------------------------------------------------------------------------

    def remove_numbers(self, sequences: list[int], done: Callable[[list[int] | ServiceBusError], None]) -> None:
        """Delete messages by their sequence numbers, whatever their state; `done` hears which were deleted.

        The others are not there, or someone has them.
        """
        fragment, holdings = self._fragment, self._fragment.holdings
        fragment.journal.check_works()
        fragment.check_loaded()
        removed: list[int] = []
        asked = [sequence for sequence in sequences if sequence < holdings.shown.next]
        places = [
            (holdings.active, fragment.out.__contains__, self._delete_active),
            (holdings.deferred, fragment.deferred_out.__contains__, self._delete_deferred),
            (holdings.scheduled, fragment.schedule.is_going, fragment.schedule.delete),
        ]

        def visit(number: int, record: bytes | None) -> None:
            sequence = asked[number // len(places)]
            place, is_out, delete = places[number % len(places)]
            if record is not None and not is_out(sequence):
                delete([(sequence, record)])
                fragment.journal.batch.delete(place + pack_sequence(sequence))
                removed.append(sequence)

        def looked_up(error: ServiceBusError | None) -> None:
            if error is not None:
                done(error)
                return
            fragment.journal.add(fragment, 0, do_nothing, lambda error: done(error if error is not None else removed))

        keys = [place + pack_sequence(sequence) for sequence in asked for place, _, _ in places]
        look_up(fragment, keys, visit, looked_up)
