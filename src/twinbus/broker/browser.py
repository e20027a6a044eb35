"""A browser: someone who reads the log of a fragment without taking anything from it.

Owns: how far it has read. It sees every active message of its range once, in the order of sequence numbers, whether
someone has it or not, and goes on with those that arrive. Nothing ever appears below what it has seen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from twinbus.broker.keys import pack_sequence, sequence_of_key
from twinbus.broker.line import MAX_SCAN_SPAN
from twinbus.broker.ports.fragment import BrowseCursorPort
from twinbus.broker.ports.reads import ReadLimiter
from twinbus.broker.record import render_unlocked
from twinbus.model.errors import RangeSeen
from twinbus.store.protocol import StoreError

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinbus.broker.fragment import Fragment
    from twinbus.broker.ports.consumer import BrowseReader, Delivery
    from twinbus.store.protocol import Row

READ_BATCH_SIZE: Final = 500
READ_BATCH_BYTES: Final = 1_048_576


class BrowseCursor(BrowseCursorPort):
    """One way through the log of one fragment."""

    def __init__(
        self,
        fragment: Fragment,
        reader: BrowseReader,
        first_sequence: int,
        last_sequence: int,
        *,
        ends_at_last: bool = False,
        read_limiter: ReadLimiter | None = None,
    ) -> None:
        """From one sequence number to another, both of which are seen. `ends`: it is told when that is over.

        `reads` are those of all browsers of the process.
        """
        self.reader = reader
        self._read_limiter = read_limiter or ReadLimiter()
        self._fragment = fragment
        self._next_sequence = first_sequence
        self._end_sequence = last_sequence + 1
        self._ends_at_last = ends_at_last
        self._is_reading = False
        self._on_drained: Callable[[], None] | None = None
        fragment.browse_cursors[self] = None

    def close(self) -> None:
        """It sees nothing more."""
        self._fragment.browse_cursors.pop(self, None)
        self._read_limiter.release(self)

    def drain(self, on_drained: Callable[[], None]) -> None:
        """Show what there is now; `drained` is called when that was all."""
        self._on_drained = on_drained
        self.advance()

    def reset(self) -> None:
        """The store was lost: what is being read will not come."""
        self._is_reading = False
        self._read_limiter.release(self)

    def advance(self) -> None:
        """There is room, or something to see."""
        fragment = self._fragment
        if self._is_reading or not fragment.can_deliver or self not in fragment.browse_cursors:
            return
        holdings, life = fragment.message_table, fragment.incarnation
        start = max(self._next_sequence, holdings.low_watermark)
        if self._ends_at_last and start >= self._end_sequence:
            self.close()
            self.reader.force_detach(RangeSeen(f"all was seen up to number {self._end_sequence - 1}"))
            return
        end = min(self._end_sequence, holdings.committed.next_sequence, start + MAX_SCAN_SPAN)
        if start >= end or not self.reader.wants_messages:
            self._end_drain()
            return
        room = min(self.reader.available_credit, READ_BATCH_SIZE)
        if room <= 0 or not self._read_limiter.acquire(self):
            return  # it says when there is
        self._is_reading = True

        def read(rows: list[Row] | StoreError) -> None:
            if life == fragment.incarnation:
                self._is_reading = False
                self._read_limiter.release(self)
                self._deliver_rows(rows, end)
            else:
                self._read_limiter.release(self)

        place = holdings.active_prefix
        fragment.scan(
            place + pack_sequence(start), place + pack_sequence(end), read, limit=room, max_bytes=READ_BATCH_BYTES
        )

    def _deliver_rows(self, rows: list[Row] | StoreError, end_sequence: int) -> None:
        """What was read, up to a number."""
        fragment = self._fragment
        if isinstance(rows, StoreError):
            fragment.commit_log.fail(str(rows))
            return
        if self not in fragment.browse_cursors:
            return
        if fragment.redelivery.has_suspects:
            rows = [(key, fragment.redelivery.as_delivered(sequence_of_key(key), record)) for key, record in rows]
        seen = self.reader.deliver_browsed([_make_delivery(key, record) for key, record in rows])
        if not rows:
            self._next_sequence = end_sequence
        elif seen:
            self._next_sequence = sequence_of_key(rows[seen - 1][0]) + 1
        self.advance()

    def _end_drain(self) -> None:
        if self._on_drained is not None:
            drained, self._on_drained = self._on_drained, None
            drained()


def _make_delivery(key: bytes, record: bytes) -> Delivery:
    sequence = sequence_of_key(key)
    return render_unlocked(record, sequence), pack_sequence(sequence)
