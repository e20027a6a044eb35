"""The schedule: messages for later.

Owns: their way from being scheduled to being active, or cancelled. A scheduled message has a sequence number, by which
it can be cancelled; when it is due it becomes active under a new one, like any message that arrives then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twinbus.broker.keys import pack_sequence
from twinbus.broker.lookup import look_up
from twinbus.broker.record import (
    ACTIVE_STATE,
    SCHEDULED_STATE,
    alarm_of,
    expires_ms,
    make_record,
    session_of,
    take_apart,
)
from twinbus.model.callbacks import do_nothing, ignore
from twinbus.model.errors import MessageNotFound
from twinbus.store.protocol import StoreError

if TYPE_CHECKING:
    from twinbus.broker.agenda import Moments
    from twinbus.broker.fragment import Fragment
    from twinbus.broker.journal import Applied
    from twinbus.broker.ports.callbacks import Answered
    from twinbus.model.errors import ServiceBusError


class Schedule:
    """The scheduled messages of one fragment."""

    def __init__(self, fragment: Fragment) -> None:
        """Made by its fragment."""
        self._fragment = fragment
        self._going: set[int] = set()
        """Those that are being cancelled or made active: nothing else is done to them."""

    def restart(self) -> None:
        """What is in memory is void."""
        self._going.clear()

    def reserve(self, count: int) -> list[int]:
        """Numbers for messages that are stored later (`put`), or never."""
        first = self._fragment.holdings.next
        self._fragment.holdings.next = first + count
        return list(range(first, first + count))

    def put(self, numbers: list[int], records: list[bytes]) -> None:
        """Store messages for later under numbers that were reserved for them, in the batch of this turn."""
        fragment = self._fragment
        for number, record in zip(numbers, records, strict=True):
            fragment.holdings.schedule(number, record)
        fragment.journal.add(fragment, sum([len(record) for record in records]), do_nothing, ignore)

    def activate(self, moments: Moments) -> None:
        """The agenda says that these are due."""
        fragment = self._fragment
        life, seen_next, due = fragment.life, fragment.holdings.shown.next, fragment.holdings.due
        ready = [moment for moment in moments if moment[1] < seen_next][: fragment.activates_at_once]
        is_early = len(ready) < len(moments)
        taken = set(ready)
        low = next((moment for moment in moments if moment not in taken), moments[-1])

        def read(values: list[bytes | None] | StoreError) -> None:
            if life != fragment.life:
                return
            if isinstance(values, StoreError):
                fragment.journal.fail(str(values))
                return
            found: list[tuple[int, int, bytes]] = []
            left = []
            for (when_ms, sequence), record in zip(ready, values, strict=True):
                if record is None:
                    due.remove(when_ms, sequence)
                elif sequence in self._going:
                    left.append((when_ms, sequence))
                else:
                    found.append((when_ms, sequence, record))
            lowest = min([low, *left])  # what is being cancelled is there, should the store fail before that is done
            moved = [sequence for _, sequence, _ in found]
            self._going.update(moved)

            def applied() -> None:
                self._going.difference_update(moved)
                due.done(lowest, is_early=is_early or bool(left))

            if left and len(left) == len(ready):
                applied()
                return
            size = sum([len(record) for _, _, record in found])
            fragment.in_order(lambda: self._make_active(found, applied), ignore, size)

        keys = [fragment.holdings.scheduled + pack_sequence(sequence) for _, sequence in ready]
        fragment.journal.get(keys, read)

    def _make_active(self, found: list[tuple[int, int, bytes]], applied: Applied) -> None:
        """Take messages from those that are for later, and store them as if they had just come."""
        fragment, holdings = self._fragment, self._fragment.holdings
        now_ms = max(fragment.clock.wall_ms(), holdings.latest_ms)
        holdings.latest_ms = now_ms

        def unschedule() -> None:
            for when_ms, sequence, record in found:
                holdings.unschedule(sequence, when_ms, len(record), session_of(record))

        records = [_activated(record, now_ms, fragment.clock.wall_ms()) for _, _, record in found]
        fragment.make_active(records, unschedule, applied)

    def is_going(self, sequence: int) -> bool:
        """Something is being done to it."""
        return sequence in self._going

    def delete(self, items: list[tuple[int, bytes]]) -> None:
        """Delete scheduled messages, all but the records themselves, in the batch of this turn."""
        fragment, holdings = self._fragment, self._fragment.holdings
        numbers = [sequence for sequence, _ in items]
        self._going.update(numbers)
        for sequence, record in items:
            holdings.count_unscheduled(sequence, alarm_of(record), len(record), session_of(record))
        fragment.journal.add(fragment, 0, lambda: self._going.difference_update(numbers), ignore)

    def find(self, sequences: list[int], answer: Answered) -> None:
        """MessageNotFound is told if one of these messages is not scheduled."""
        self._check(sequences)
        found: set[int] = set()

        def visit(place: int, record: bytes | None) -> None:
            if record is not None:
                found.add(sequences[place])

        def looked_up(error: ServiceBusError | None) -> None:
            missing = next((sequence for sequence in sequences if sequence not in found), None)
            answer(error if error is not None or missing is None else not_scheduled(missing))

        scheduled = self._fragment.holdings.scheduled
        look_up(self._fragment, [scheduled + pack_sequence(one) for one in sequences], visit, looked_up)

    def _check(self, sequences: list[int]) -> None:
        fragment = self._fragment
        fragment.journal.check_works()
        fragment.check_loaded()
        for sequence in sequences:
            if sequence in self._going or sequence >= fragment.holdings.shown.next:
                raise not_scheduled(sequence)

    def cancel(self, sequences: list[int], answer: Answered) -> None:
        """Delete scheduled messages: all of them, or none where one is not scheduled (MessageNotFound)."""
        fragment = self._fragment
        self._check(sequences)
        self._going.update(sequences)
        found: dict[int, tuple[int, int, bytes | None]] = {}
        holdings, life = fragment.holdings, fragment.life

        def visit(place: int, record: bytes | None) -> None:
            if record is not None:
                found[sequences[place]] = (alarm_of(record), len(record), session_of(record))

        def looked_up(error: ServiceBusError | None) -> None:
            missing = next((sequence for sequence in sequences if sequence not in found), None)
            if error is None and missing is None:
                for sequence, (due_ms, size, session) in found.items():
                    holdings.unschedule(sequence, due_ms, size, session)
                fragment.journal.add(fragment, 0, lambda: self._going.difference_update(sequences), answer)
                return
            if life == fragment.life:
                self._going.difference_update(sequences)
                for sequence, (due_ms, _, _) in found.items():  # they may have been due meanwhile
                    holdings.due.recall(due_ms, sequence)
            answer(error if error is not None or missing is None else not_scheduled(missing))

        look_up(fragment, [holdings.scheduled + pack_sequence(one) for one in sequences], visit, looked_up)


def _activated(record: bytes, enqueued_ms: int, wall_ms: int) -> bytes:
    parts = take_apart(record)
    alarm_ms = expires_ms(parts.envelope, wall_ms)
    return make_record(parts._replace(state=ACTIVE_STATE, enqueued_ms=enqueued_ms, alarm_ms=alarm_ms))


def for_later(record: bytes, now_ms: int) -> bytes:
    """A message that is to be scheduled, whenever it is due: where that is not later than now, it is now."""
    parts = take_apart(record)
    if parts.state == SCHEDULED_STATE:
        return record
    return make_record(parts._replace(state=SCHEDULED_STATE, alarm_ms=now_ms))


def not_scheduled(sequence: int) -> MessageNotFound:
    """Whoever cancels does not know a scheduled message."""
    return MessageNotFound(
        f"Failed to find the scheduled message {sequence}: it was enqueued or cancelled already, or never scheduled."
    )
