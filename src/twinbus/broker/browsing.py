"""Browsing: looking at messages without taking them.

Owns: peeking. Whatever is in the fragment is seen in the order of its sequence numbers, active, deferred or scheduled,
whether someone has it or not; nothing changes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twinbus.broker.keys import pack_sequence, pack_session, sequence_of
from twinbus.broker.record import render_open
from twinbus.model.errors import StoreUnavailable
from twinbus.store.protocol import StoreError, Table

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinbus.broker.fragment import Fragment
    from twinbus.broker.journal import Promise
    from twinbus.model.errors import ServiceBusError
    from twinbus.store.protocol import Row


class Browsing:
    """Looks into one fragment."""

    def __init__(self, fragment: Fragment) -> None:
        """Made by its fragment."""
        self._fragment = fragment

    def peek(
        self, from_sequence: int, count: int, max_bytes: int, done: Callable[[list[bytes] | ServiceBusError], None]
    ) -> None:
        """Messages from a sequence number on, as they are."""
        fragment = self._fragment
        fragment.journal.check_works()
        fragment.check_loaded()
        holdings, shown = fragment.holdings, fragment.holdings.shown
        found: list[bytes] = []
        promise = fragment.journal.promise(lambda error: done(error if error is not None else found))
        start = min(max(from_sequence, 1), shown.next)
        places = [(holdings.active, min(max(start, holdings.low), shown.next))]
        places += [(holdings.deferred, start)] if shown.deferred_count else []
        places += [(holdings.scheduled, start)] if shown.scheduled_count else []
        read: list[Row] = []
        waiting = len(places)
        reach: list[int] = []

        def add(rows: list[Row] | StoreError) -> None:
            nonlocal waiting
            if isinstance(rows, StoreError):
                promise.give(StoreUnavailable(f"the store is unavailable: {rows}"))
                return
            waiting -= 1
            read.extend(rows)
            if rows and (len(rows) == count or sum([len(record) for _, record in rows]) > max_bytes):
                reach.append(sequence_of(rows[-1][0]))  # beyond it there may be more in that place
            if not waiting:
                found.extend(_merged(read, min(reach, default=shown.next), count, max_bytes))
                promise.give(None)

        for place, first in places:
            fragment.journal.scan(
                place + pack_sequence(first), place + pack_sequence(shown.next), add, limit=count, max_bytes=max_bytes
            )

    def peek_session(
        self,
        session: bytes,
        from_sequence: int,
        count: int,
        max_bytes: int,
        done: Callable[[list[bytes] | ServiceBusError], None],
    ) -> None:
        """The active messages of one session, from a sequence number on."""
        fragment = self._fragment
        fragment.journal.check_works()
        fragment.check_loaded()
        holdings, shown = fragment.holdings, fragment.holdings.shown
        found: list[bytes] = []
        promise = fragment.journal.promise(lambda error: done(error if error is not None else found))
        place = holdings.sessions + pack_session(session)
        start = min(max(from_sequence, holdings.low), shown.next)

        def listed(rows: list[Row] | StoreError) -> None:
            if isinstance(rows, StoreError):
                promise.give(StoreUnavailable(f"the store is unavailable: {rows}"))
                return
            numbers = [sequence_of(key) for key, _ in rows]
            self._read_each(numbers, max_bytes, found, promise)

        fragment.journal.scan(
            place + pack_sequence(start),
            place + pack_sequence(shown.next),
            listed,
            limit=count,
            max_bytes=count,
            table=Table.INDEX,
        )

    def _read_each(self, numbers: list[int], max_bytes: int, found: list[bytes], promise: Promise) -> None:
        def read(values: list[bytes | None] | StoreError) -> None:
            if isinstance(values, StoreError):
                promise.give(StoreUnavailable(f"the store is unavailable: {values}"))
                return
            size = 0
            for number, record in zip(numbers, values, strict=True):
                if record is not None and size <= max_bytes:
                    size += len(record)
                    found.append(render_open(record, number))
            promise.give(None)

        active = self._fragment.holdings.active
        self._fragment.journal.get([active + pack_sequence(number) for number in numbers], read)


def _merged(rows: list[Row], reach: int, count: int, max_bytes: int) -> list[bytes]:
    """The first of all rows, in the order of their numbers, up to where every place was read."""
    found: list[bytes] = []
    size = 0
    for number, record in sorted({sequence_of(key): record for key, record in rows}.items()):
        if number > reach or len(found) == count or size > max_bytes:
            break
        size += len(record)
        found.append(render_open(record, number))
    return found
