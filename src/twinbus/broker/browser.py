"""A browser: someone who reads the log of a fragment without taking anything from it.

Owns: how far it has read. It sees every active message of its range once, in the order of sequence numbers, whether
someone has it or not, and goes on with those that arrive. Nothing ever appears below what it has seen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from twinbus.broker.keys import pack_sequence, sequence_of
from twinbus.broker.line import SPAN
from twinbus.broker.ports.fragment import BrowserPort
from twinbus.broker.ports.reads import Reads
from twinbus.broker.record import render_open
from twinbus.model.errors import RangeSeen
from twinbus.store.protocol import StoreError

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinbus.broker.fragment import Fragment
    from twinbus.broker.ports.consumer import Delivery, Reader
    from twinbus.store.protocol import Row

READ_AT_ONCE: Final = 500
READ_BYTES: Final = 1_048_576


class Browser(BrowserPort):
    """One way through the log of one fragment."""

    def __init__(
        self,
        fragment: Fragment,
        reader: Reader,
        first: int,
        last: int,
        *,
        ends: bool = False,
        reads: Reads | None = None,
    ) -> None:
        """From one sequence number to another, both of which are seen. `ends`: it is told when that is over.

        `reads` are those of all browsers of the process.
        """
        self.reader = reader
        self._reads = reads or Reads()
        self._fragment = fragment
        self._next = first
        self._end = last + 1
        self._ends = ends
        self._is_reading = False
        self._drained: Callable[[], None] | None = None
        fragment.browsers[self] = None

    def leave(self) -> None:
        """It sees nothing more."""
        self._fragment.browsers.pop(self, None)
        self._reads.end(self)

    def drain(self, drained: Callable[[], None]) -> None:
        """Show what there is now; `drained` is called when that was all."""
        self._drained = drained
        self.go_on()

    def restart(self) -> None:
        """The store was lost: what is being read will not come."""
        self._is_reading = False
        self._reads.end(self)

    def go_on(self) -> None:
        """There is room, or something to see."""
        fragment = self._fragment
        if self._is_reading or not fragment.may_hand_out or self not in fragment.browsers:
            return
        holdings, life = fragment.holdings, fragment.life
        start = max(self._next, holdings.low)
        if self._ends and start >= self._end:
            self.leave()
            self.reader.entity_gone(RangeSeen(f"all was seen up to number {self._end - 1}"))
            return
        end = min(self._end, holdings.shown.next, start + SPAN)
        if start >= end or not self.reader.is_hungry:
            self._end_drain()
            return
        room = min(self.reader.room, READ_AT_ONCE)
        if room <= 0 or not self._reads.begin(self):
            return  # it says when there is
        self._is_reading = True

        def read(rows: list[Row] | StoreError) -> None:
            if life == fragment.life:
                self._is_reading = False
                self._reads.end(self)
                self._show(rows, end)
            else:
                self._reads.end(self)

        place = holdings.active
        fragment.scan(place + pack_sequence(start), place + pack_sequence(end), read, limit=room, max_bytes=READ_BYTES)

    def _show(self, rows: list[Row] | StoreError, end: int) -> None:
        """What was read, up to a number."""
        fragment = self._fragment
        if isinstance(rows, StoreError):
            fragment.journal.fail(str(rows))
            return
        if self not in fragment.browsers:
            return
        if fragment.redelivery.suspects:
            rows = [(key, fragment.redelivery.seen(sequence_of(key), record)) for key, record in rows]
        seen = self.reader.show([_delivery(key, record) for key, record in rows])
        if not rows:
            self._next = end
        elif seen:
            self._next = sequence_of(rows[seen - 1][0]) + 1
        self.go_on()

    def _end_drain(self) -> None:
        if self._drained is not None:
            drained, self._drained = self._drained, None
            drained()


def _delivery(key: bytes, record: bytes) -> Delivery:
    sequence = sequence_of(key)
    return render_open(record, sequence), pack_sequence(sequence)
