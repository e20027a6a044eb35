"""Inspections of parts in stores of this process: their figures, locks and sessions.

Owns: reading the figures, locks and sessions from the areas of a part. Totals come from the sequence numbers on disk,
so that the totals survive a crash: a fragment numbers its messages without gaps, and its counters say how many of the
messages still exist.
"""

from __future__ import annotations

from heapq import nsmallest
from math import isinf
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from twinbus.broker.message_record import enqueued_time_of
from twinbus.broker.ports.inspection import HeldLock, HeldSession, PartFigures, PartInspection
from twinbus.broker.store_keys import pack_sequence
from twinbus.model.path import SubQueue
from twinbus.store.protocol import StoreError

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinbus.broker.entities.local_parts import ReceivablePart, TopicPart
    from twinbus.broker.fragment.forwarding import Forwarder
    from twinbus.broker.fragment.fragment import Fragment
    from twinbus.broker.fragment.locks import Lock
    from twinbus.broker.fragment.message_table import MessageCounters
    from twinbus.store.protocol import Row

NO_FIGURES: Final = PartFigures()
_MAX_READ_BYTES: Final = 1
"""The scan for the oldest message ends after the first record, whatever its size."""


class TopicInspection(PartInspection):
    """The inspection of a part of a topic, whose fragment holds only scheduled messages."""

    __slots__ = ("_figures", "_part")

    def __init__(self, part: TopicPart) -> None:
        """Create an inspection."""
        super().__init__(part.entity.entity_id, part.number)
        self._part = part
        self._figures = NO_FIGURES

    def figures(self) -> PartFigures:
        """Return the message counts and sizes: the same object as before, unless a figure has changed."""
        main = self._part.main
        table = main.message_table
        counters = table.committed
        enqueued = counters.next_sequence - table.first_sequence
        figures = PartFigures(
            enqueued=enqueued,
            removed=enqueued - counters.scheduled_count,
            scheduled=counters.scheduled_count,
            size_bytes=self._part.stored_bytes(),
            is_available=main.is_available,
        )
        if figures != self._figures:
            self._figures = figures
        return self._figures


class ReceivableInspection(PartInspection):
    """The inspection of a part of a queue or subscription.

    Most entities do not change between two inspections, so figures are computed again only if the counters changed.
    Every commit replaces the `MessageCounters` object of a fragment: the same object means the same figures. The
    objects to compare are attributes of the inspection, because following references costs most of the time.
    """

    __slots__ = (
        "_commit_log",
        "_counters",
        "_dead_counters",
        "_dead_letters",
        "_dead_table",
        "_figures",
        "_forwarder",
        "_is_available",
        "_locked",
        "_main",
        "_part",
        "_table",
    )

    def __init__(self, part: ReceivablePart) -> None:
        """Create an inspection."""
        super().__init__(part.entity.entity_id, part.number)
        self._part = part
        self._main = part.main
        self._dead_letters = part.dead_letters
        self._commit_log = part.main.commit_log
        self._table = part.main.message_table
        self._dead_table = part.dead_letters.message_table
        self._figures = NO_FIGURES
        self._locked = 0
        self._is_available = True
        self._counters: MessageCounters | None = None
        """The counters from which the figures were computed."""
        self._dead_counters: MessageCounters | None = None
        self._forwarder: Forwarder | None = None

    def figures(self) -> PartFigures:
        """Return the message counts and sizes: the same object as before, unless a figure has changed."""
        main, part = self._main, self._part
        is_available = main.is_loaded and self._commit_log.unavailable_reason is None  # a property would be slower
        locked = len(main.locks.by_number) + len(self._dead_letters.locks.by_number)
        if (
            self._table.committed is self._counters
            and self._dead_table.committed is self._dead_counters
            and locked == self._locked
            and is_available == self._is_available
            and main.forwarder is self._forwarder
            and part.transfers is None
            and part.transfer_dead_letters is None
        ):
            return self._figures
        self._counters, self._dead_counters = self._table.committed, self._dead_table.committed
        self._locked, self._is_available, self._forwarder = locked, is_available, main.forwarder
        figures = self._compute_figures(self._counters, self._dead_counters, locked)
        if figures != self._figures:
            self._figures = figures
        return self._figures

    def _compute_figures(self, counters: MessageCounters, dead: MessageCounters, locked: int) -> PartFigures:
        part = self._part
        active, deferred, scheduled = counters.active_count, counters.deferred_count, counters.scheduled_count
        enqueued = counters.next_sequence - self._main.message_table.first_sequence
        size = counters.size + dead.size
        transfer = transfer_dead = 0
        if part.transfers is not None:
            transfers = part.transfers.message_table.committed
            transfer, size = transfers.active_count, size + transfers.size
        if part.transfer_dead_letters is not None:
            refused = part.transfer_dead_letters.message_table.committed
            transfer_dead, size = refused.active_count, size + refused.size
        removed = enqueued - active - deferred - scheduled
        if self._main.forwarder is not None:
            transfer, active = transfer + active, 0
        return PartFigures(
            enqueued=enqueued,
            removed=removed,
            dead_lettered_total=dead.next_sequence - self._dead_letters.message_table.first_sequence,
            active=active,
            scheduled=scheduled,
            deferred=deferred + dead.deferred_count,
            dead_lettered=dead.active_count,
            transfer=transfer,
            transfer_dead_lettered=transfer_dead,
            locked=locked,
            size_bytes=size,
            is_available=self._main.is_available,
        )

    def locks(self, sub_queue: SubQueue, after: int, limit: int) -> list[HeldLock]:
        """Return up to `limit` locks with sequence numbers above `after`, in ascending order."""
        if sub_queue is SubQueue.TRANSFER_DEAD_LETTER and self._part.transfer_dead_letters is None:
            return []  # `fragment_of` would create the area
        fragment = self._part.fragment_of(sub_queue)
        later = (lock for lock in fragment.locks.by_number.values() if lock.sequence > after)
        now_s, now_ms = fragment.clock.monotonic_s(), fragment.clock.wall_ms()
        return [
            HeldLock(
                lock.sequence,
                lock.number,
                lock.session_id,
                lock.is_deferred,
                _expiry_ms(lock, now_s, now_ms),
                fragment.policy.lock_duration_ms,
            )
            for lock in nsmallest(limit, later, key=attrgetter("sequence"))
        ]

    def sessions(self, after: bytes, limit: int) -> list[HeldSession]:
        """Return up to `limit` locked sessions with ids above `after`, in ascending order."""
        sessions = self._part.main.sessions
        if sessions is None:
            return []
        accepted = [lock for lock in sessions.session_locks.values() if lock.is_accepted and lock.session_id > after]
        return [
            HeldSession(lock.session_id, lock.locked_until_ms, len(lock.lock_numbers))
            for lock in nsmallest(limit, accepted, key=attrgetter("session_id"))
        ]

    def departures(self) -> int:
        """Return a number that changes whenever an active message leaves; -1 if there are none.

        An arriving message increments both the next sequence number and the number of active messages.
        """
        counters = self._part.main.message_table.committed
        return counters.next_sequence - counters.active_count if counters.active_count else -1

    def find_oldest_active(self, on_result: Callable[[int | None], None]) -> None:
        """Read the enqueued time of the oldest active message; None if there is none or the store does not work."""
        main = self._part.main
        table = main.message_table
        if not table.committed.active_count or not main.is_available:
            on_result(None)
            return
        _read_first_enqueued(main, on_result)


def _read_first_enqueued(fragment: Fragment, on_result: Callable[[int | None], None]) -> None:
    table = fragment.message_table

    def on_rows(rows: list[Row] | StoreError) -> None:
        on_result(enqueued_time_of(rows[0][1]) if not isinstance(rows, StoreError) and rows else None)

    fragment.commit_log.scan(
        table.active_prefix + pack_sequence(table.committed.low_watermark),
        table.active_prefix + pack_sequence(table.committed.next_sequence),
        on_rows,
        limit=1,
        max_bytes=_MAX_READ_BYTES,
    )


def _expiry_ms(lock: Lock, now_s: float, now_ms: int) -> int:
    """Return when a lock expires; the lock of a message in a session ends with the lock of the session."""
    if lock.session_lock is not None:
        return lock.session_lock.locked_until_ms
    if isinf(lock.deadline_s):
        return now_ms
    return now_ms + round((lock.deadline_s - now_s) * 1000)
