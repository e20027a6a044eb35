"""The read-ahead window: the next messages of a fragment, in memory; the rest stays in the store.

Owns: which messages can be handed out now, and from where to read on. It holds no more than `WINDOW_MESSAGES` and
about `WINDOW_BYTES`, however many wait: ten million need no more memory than ten thousand.

    ── deleted ──┬── out (locked, settling) and returned ──┬── ready ──┬── in the store only ──┬── not synced ──
               low                                                  next_read              synced
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from typing import TYPE_CHECKING, Final

from twinbus.broker.keys import sequence_of_key

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from twinbus.broker.withheld import WithheldValues
    from twinbus.store.protocol import Row

WINDOW_MESSAGES: Final = 2_000
WINDOW_BYTES: Final = 4_194_304
_REFILL_BELOW: Final = WINDOW_MESSAGES // 2


class Window:
    """The messages of a fragment that are next."""

    __slots__ = ("is_reading", "next_read", "ready", "ready_bytes")

    def __init__(self, next_read: int) -> None:
        """`next_read` is the first sequence number that may be there."""
        self.ready: deque[tuple[int, bytes]] = deque()
        """Sequence number and record, in order."""
        self.ready_bytes = 0
        self.next_read = next_read
        self.is_reading = False

    @property
    def lowest_available(self) -> int:
        """Below it there is nothing that is not out."""
        return min(self.ready[0][0], self.next_read) if self.ready else self.next_read

    def extend(self, messages: list[tuple[int, bytes]], size: int) -> None:
        """Messages that were just stored: taken, if there is room and none before them is in the store only."""
        if self.next_read == messages[0][0] and len(self.ready) < WINDOW_MESSAGES and self.ready_bytes < WINDOW_BYTES:
            self.ready.extend(messages)
            self.ready_bytes += size
            self.next_read = messages[-1][0] + 1

    def take(self, count: int) -> list[tuple[int, bytes]]:
        """Hand out the next `count`."""
        popleft = self.ready.popleft
        taken = [popleft() for _ in range(count)]
        self.ready_bytes -= sum([len(record) for _, record in taken])
        return taken

    def withdraw(self, sequences: set[int]) -> None:
        """These are not handed out."""
        kept = [item for item in self.ready if item[0] not in sequences]
        if len(kept) < len(self.ready):
            self.ready = deque(kept)
            self.ready_bytes = sum([len(record) for _, record in kept])

    def requeue(self, sequence: int, record: bytes) -> None:
        """A message that was out is there again, at its place."""
        self.ready_bytes += len(record)
        if self.ready and self.ready[0][0] < sequence:
            insort(self.ready, (sequence, record))
        else:
            self.ready.appendleft((sequence, record))
        while len(self.ready) > 1 and (len(self.ready) > 2 * WINDOW_MESSAGES or self.ready_bytes > 2 * WINDOW_BYTES):
            self.next_read, record = self.ready.pop()  # many came back: the last ones are read again when their turn is
            self.ready_bytes -= len(record)

    def needs_read(self, committed_end: int) -> bool:
        """It is time to read on."""
        return (
            self.next_read < committed_end
            and not self.is_reading
            and len(self.ready) < _REFILL_BELOW
            and self.ready_bytes < WINDOW_BYTES // 2
        )

    def fill(
        self,
        rows: Sequence[Row],
        start: int,
        end: int,
        is_in_flight: Callable[[int], bool],
        withheld_values: WithheldValues | None = None,
    ) -> None:
        """Add the messages that were read from `start` up to `end`, except those that are out or withheld."""
        self.is_reading = False
        if self.next_read != start:
            return  # meanwhile a message below came back: it is read again from there
        if not rows:
            self.next_read = end
        for key, record in rows:
            sequence = sequence_of_key(key)
            self.next_read = sequence + 1
            if not is_in_flight(sequence) and (withheld_values is None or not withheld_values.skips(sequence, record)):
                self.ready.append((sequence, record))
                self.ready_bytes += len(record)

    def withhold(self, withheld_values: WithheldValues) -> None:
        """Take out the messages that are withheld from now on."""
        self.withdraw({sequence for sequence, record in self.ready if withheld_values.skips(sequence, record)})

    def clear(self) -> None:
        """Give back the memory: nobody takes messages now."""
        self.next_read = self.lowest_available
        self.ready.clear()
        self.ready_bytes = 0
