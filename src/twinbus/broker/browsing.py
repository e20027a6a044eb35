"""Browsing: looking at messages without taking them.

Owns: peeking. Whatever is in the fragment is seen in the order of its sequence numbers, active, deferred or scheduled,
whether someone has it or not; nothing changes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from twinbus.broker.browser import Browser
from twinbus.broker.keys import pack_sequence, pack_session, sequence_of
from twinbus.broker.lookup import look_up
from twinbus.broker.ports.fragment import BrowsingPort
from twinbus.broker.record import DEFERRED_STATE, SCHEDULED_STATE, enqueued_of, render_open
from twinbus.model.errors import ServiceBusError, StoreUnavailable
from twinbus.store.protocol import StoreError, Table

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinbus.broker.fragment import Fragment
    from twinbus.broker.ports.consumer import GatewayReader
    from twinbus.broker.ports.reads import Reads
    from twinbus.broker.redelivery import Redelivery
    from twinbus.store.protocol import Row

SESSION_AT_ONCE: Final = 100
"""Messages of one session that are peeked at once."""
DEFERRED_ROW: Final = bytes((DEFERRED_STATE,))
SCHEDULED_ROW: Final = bytes((SCHEDULED_STATE,))


class Browsing(BrowsingPort):
    """Looks into one fragment."""

    def __init__(self, fragment: Fragment) -> None:
        """Made by its fragment."""
        self._fragment = fragment

    def peek(
        self,
        from_sequence: int,
        count: int,
        max_bytes: int,
        done: Callable[[list[bytes] | ServiceBusError], None],
        *,
        deferred_only: bool = False,
    ) -> None:
        """Messages from a sequence number on, as they are. `deferred_only`: also those that are being deferred now."""
        self._check_works()
        if not deferred_only:
            self._peek(from_sequence, count, max_bytes, done, deferred_only=False)
            return

        def look() -> None:
            try:
                self._check_works()
                self._peek(from_sequence, count, max_bytes, done, deferred_only=True)
            except ServiceBusError as error:
                done(error)

        self._fragment.settlement.after_deferrals(look)

    def find_reach(self, done: Callable[[tuple[int, int] | ServiceBusError], None]) -> None:
        """Tell from where to where there are messages."""
        holdings = self._fragment.holdings
        done((holdings.low, holdings.shown.next))

    @property
    def latest_ms(self) -> int:
        """When the last message was enqueued."""
        return self._fragment.holdings.latest_ms

    def browse(self, reader: GatewayReader, first: int, last: int, *, ends: bool, reads: Reads) -> Browser:
        """Show active messages to a reader."""
        return Browser(self._fragment, reader, first, last, ends=ends, reads=reads)

    def _check_works(self) -> None:
        self._fragment.journal.check_works()
        self._fragment.check_loaded()

    def _peek(
        self,
        from_sequence: int,
        count: int,
        max_bytes: int,
        done: Callable[[list[bytes] | ServiceBusError], None],
        *,
        deferred_only: bool,
    ) -> None:
        fragment = self._fragment
        holdings, shown = fragment.holdings, fragment.holdings.shown
        found: list[bytes] = []
        promise = fragment.journal.promise(lambda error: done(error if error is not None else found))
        start = min(max(from_sequence, holdings.first), shown.next)
        places = [(holdings.deferred, start)]
        if not deferred_only:
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
                reached = min(reach, default=shown.next)
                found.extend(_merged(read, reached, count, max_bytes, fragment.redelivery))
                promise.give(None)

        for place, first in places:
            fragment.scan(
                place + pack_sequence(first), place + pack_sequence(shown.next), add, limit=count, max_bytes=max_bytes
            )

    def find_time(self, enqueued_ms: int, done: Callable[[int | ServiceBusError], None]) -> None:
        """The first sequence number of a message that was not enqueued before a time; the next one if there is none."""
        fragment = self._fragment
        fragment.journal.check_works()
        fragment.check_loaded()
        holdings, shown = fragment.holdings, fragment.holdings.shown
        places = [(holdings.active, min(holdings.low, shown.next))]
        places += [(holdings.deferred, holdings.first)] if shown.deferred_count else []
        places += [(holdings.scheduled, holdings.first)] if shown.scheduled_count else []
        answers: list[int | ServiceBusError] = []

        def found(answer: int | ServiceBusError) -> None:
            answers.append(answer)
            if len(answers) == len(places):
                error = next((one for one in answers if isinstance(one, ServiceBusError)), None)
                done(error or min(one for one in answers if isinstance(one, int)))

        for place, low in places:
            self._find_time_in(place, (low, shown.next), shown.next, enqueued_ms, found)

    def _find_time_in(
        self,
        place: bytes,
        span: tuple[int, int],
        best: int,
        enqueued_ms: int,
        done: Callable[[int | ServiceBusError], None],
    ) -> None:
        """... among those of one kind: it is `best`, or in the span.

        Enqueued times never decrease, so half of what is left is ruled out by each look.
        """
        low, high = span
        if low >= high:
            done(best)
            return
        fragment, middle = self._fragment, (low + high) // 2
        life = fragment.life
        promise = fragment.journal.promise(lambda error: done(error) if error is not None else None)

        def read(rows: list[Row] | StoreError) -> None:
            if life != fragment.life or isinstance(rows, StoreError):
                promise.give(StoreUnavailable("the store failed before the place was found"))
            elif promise.is_open:
                promise.give(None)
                if not rows:
                    self._find_time_in(place, (low, middle), best, enqueued_ms, done)
                elif enqueued_of(rows[0][1]) >= enqueued_ms:
                    self._find_time_in(place, (low, middle), sequence_of(rows[0][0]), enqueued_ms, done)
                else:
                    self._find_time_in(place, (sequence_of(rows[0][0]) + 1, high), best, enqueued_ms, done)

        fragment.journal.scan(place + pack_sequence(middle), place + pack_sequence(high), read, limit=1, max_bytes=1)

    def peek_session(
        self,
        session: bytes,
        from_sequence: int,
        count: int,
        max_bytes: int,
        done: Callable[[list[bytes] | ServiceBusError], None],
    ) -> None:
        """The messages of one session, from a sequence number on; no more than SESSION_AT_ONCE."""
        fragment = self._fragment
        fragment.journal.check_works()
        fragment.check_loaded()
        holdings, shown = fragment.holdings, fragment.holdings.shown
        start, limit = min(max(from_sequence, holdings.first), shown.next), min(count, SESSION_AT_ONCE)
        places = ((holdings.sessions, min(max(start, holdings.low), shown.next)), (holdings.aside, start))
        listed: list[Row] = []
        waiting = len(places)
        promise = fragment.journal.promise(
            lambda error: done(error) if error is not None else self._read_each(listed, limit, max_bytes, done)
        )

        def add(rows: list[Row] | StoreError) -> None:
            nonlocal waiting
            if isinstance(rows, StoreError):
                promise.give(StoreUnavailable(f"the store is unavailable: {rows}"))
                return
            waiting -= 1
            listed.extend(rows)
            if not waiting:
                promise.give(None)

        for place, first in places:
            key = place + pack_session(session)
            fragment.journal.scan(
                key + pack_sequence(first),
                key + pack_sequence(shown.next),
                add,
                limit=limit,
                max_bytes=limit,
                table=Table.INDEX,
            )

    def _read_each(
        self, listed: list[Row], limit: int, max_bytes: int, done: Callable[[list[bytes] | ServiceBusError], None]
    ) -> None:
        """Read the first messages that an index lists, each from where its state says that it lies."""
        holdings = self._fragment.holdings
        places = {b"": holdings.active, DEFERRED_ROW: holdings.deferred, SCHEDULED_ROW: holdings.scheduled}
        rows = sorted([(sequence_of(key), state) for key, state in listed])[:limit]
        found: list[bytes] = []
        size, redelivery = 0, self._fragment.redelivery

        def visit(place: int, record: bytes | None) -> None:
            nonlocal size
            if record is not None and size <= max_bytes:
                size += len(record)
                number = rows[place][0]
                found.append(render_open(redelivery.seen(number, record), number))

        keys = [places[state] + pack_sequence(sequence) for sequence, state in rows]
        look_up(self._fragment, keys, visit, lambda error: done(error if error is not None else found))


def _merged(rows: list[Row], reach: int, count: int, max_bytes: int, redelivery: Redelivery) -> list[bytes]:
    """The first of all rows, in the order of their numbers, up to where every place was read."""
    found: list[bytes] = []
    size = 0
    for number, record in sorted({sequence_of(key): record for key, record in rows}.items()):
        if number > reach or len(found) == count or size > max_bytes:
            break
        size += len(record)
        found.append(render_open(redelivery.seen(number, record), number))
    return found
