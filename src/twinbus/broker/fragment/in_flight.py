"""Messages of a fragment that are in flight, and therefore not available to any other receiver.

Owns: the set of in-flight messages. A message is in flight from the time when it is locked, or taken by an operation,
until it is deleted from disk or available again. This module must not know why a message is in flight.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from twinbus.broker.fragment.locks import Lock

_HEAP_SLACK: Final = 1_000


class InFlight:
    """The in-flight messages of a fragment."""

    __slots__ = ("_heap", "_highest", "locks")

    def __init__(self) -> None:
        """Create an empty set."""
        self.locks: dict[int, Lock | None] = {}
        """The locks by sequence number; None for a message that is being deleted."""
        self._heap: list[int] = []
        self._highest = 0

    def __len__(self) -> int:
        return len(self.locks)

    def __contains__(self, sequence: int) -> bool:
        return sequence in self.locks

    def add(self, locks: list[Lock]) -> None:
        """Add locked messages, in the order of their sequence numbers."""
        in_flight = self.locks
        self._compact()
        for lock in locks:
            in_flight[lock.sequence] = lock
        self._push([lock.sequence for lock in locks])

    def add_deleting(self, sequences: list[int]) -> None:
        """Add messages that are being deleted, in the order of their sequence numbers."""
        self._compact()
        self.locks.update(dict.fromkeys(sequences))
        self._push(sequences)

    def mark_deleting(self, sequence: int) -> None:
        """Mark an in-flight message as being deleted."""
        self.locks[sequence] = None

    def remove(self, sequence: int) -> None:
        """Remove a message that is available again, or deleted."""
        self.locks.pop(sequence, None)

    def lowest(self, default: int) -> int:
        """Return the lowest in-flight sequence number, or `default` if that is lower."""
        heap, in_flight = self._heap, self.locks
        while heap and heap[0] not in in_flight:
            heapq.heappop(heap)
        return min(heap[0], default) if heap else default

    def clear(self) -> None:
        """Remove all messages."""
        self.locks.clear()
        self._heap.clear()
        self._highest = 0

    def _compact(self) -> None:
        # Removed messages stay in the heap as long as a lower message is in flight.
        if len(self._heap) > 2 * len(self.locks) + _HEAP_SLACK:
            self._heap = sorted(self.locks)

    def _push(self, sequences: list[int]) -> None:
        if not sequences:
            return
        if sequences[0] > self._highest:  # appending values above the maximum keeps the heap valid
            self._heap += sequences
            self._highest = sequences[-1]
        else:
            for sequence in sequences:
                heapq.heappush(self._heap, sequence)
            self._highest = max(self._highest, sequences[-1])
