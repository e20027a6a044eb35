"""What is out: messages that are in a fragment and that nobody else may have now.

Owns: which they are, from being locked, or taken for any other reason, until they are gone from the disk or free again.
Knows nothing of why.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from twinbus.broker.fragment.locks import Lock

_HEAP_SLACK: Final = 1_000


class InFlight:
    """The messages of a fragment that are out."""

    __slots__ = ("_heap", "_highest", "locks")

    def __init__(self) -> None:
        """None is."""
        self.locks: dict[int, Lock | None] = {}
        """By sequence number: as what it is out; None for one that is being deleted."""
        self._heap: list[int] = []
        self._highest = 0

    def __len__(self) -> int:
        return len(self.locks)

    def __contains__(self, sequence: int) -> bool:
        return sequence in self.locks

    def add(self, locks: list[Lock]) -> None:
        """These are out now; in the order of their sequence numbers."""
        out = self.locks
        self._compact()
        for lock in locks:
            out[lock.sequence] = lock
        self._push([lock.sequence for lock in locks])

    def add_deleting(self, sequences: list[int]) -> None:
        """These are being deleted; in order."""
        self._compact()
        self.locks.update(dict.fromkeys(sequences))
        self._push(sequences)

    def mark_deleting(self, sequence: int) -> None:
        """This one is being deleted."""
        self.locks[sequence] = None

    def remove(self, sequence: int) -> None:
        """This one is free again, or gone."""
        self.locks.pop(sequence, None)

    def lowest(self, default: int) -> int:
        """The lowest sequence number of those that are out, or another one if that is lower."""
        heap, out = self._heap, self.locks
        while heap and heap[0] not in out:
            heapq.heappop(heap)
        return min(heap[0], default) if heap else default

    def clear(self) -> None:
        """Nothing is out."""
        self.locks.clear()
        self._heap.clear()
        self._highest = 0

    def _compact(self) -> None:
        if len(self._heap) > 2 * len(self.locks) + _HEAP_SLACK:  # one held for long keeps all that pass it
            self._heap = sorted(self.locks)

    def _push(self, sequences: list[int]) -> None:
        if not sequences:
            return
        if sequences[0] > self._highest:  # higher than all before: at its end the heap stays one
            self._heap += sequences
            self._highest = sequences[-1]
        else:
            for sequence in sequences:
                heapq.heappush(self._heap, sequence)
            self._highest = max(self._highest, sequences[-1])
