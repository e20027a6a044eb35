"""How many connections each worker has, in memory that all of them share, so that each gets its share of the next.

    tally = Tally(descriptor, workers)      # memory that the supervisor made
    acceptor = Acceptor(sock, admission, tally.share(port, number))

All workers wake up for a new connection, and the first one awake would take it: of a few connections, all could go to
one process while the others idle. So a worker with no more connections than the others accepts at once; one with more
leaves the connection to the others for some milliseconds, and takes it then: one of the others may be stopped.

Owns: the shared numbers, and whose turn it is. Accepting is `acceptor`'s.
"""

from __future__ import annotations

import mmap
import os
from typing import Final

DEFER_S: Final = 0.02
"""How long a connection is left to each of those that have fewer."""
MAX_DEFERRALS: Final = 3
"""... and to how many of them at most."""
ABSENT: Final = 2**32 - 1
"""The number of connections of a process that is not there: nobody leaves anything to it."""
_WIDTH: Final = 4


class ConnectionCounts:
    """How many connections each worker has, on each of some ports."""

    def __init__(self, descriptor: int, workers: int) -> None:
        """Map the memory that `make` has made."""
        self._workers = workers
        self._counts = memoryview(mmap.mmap(descriptor, 0)).cast("I")

    @staticmethod
    def create_memory(workers: int, ports: int) -> int:
        """Make the memory, with all workers absent. A descriptor, to be inherited: a file could be cleaned up."""
        descriptor = os.memfd_create("twinbus-tally")
        os.write(descriptor, ABSENT.to_bytes(_WIDTH, "little") * workers * ports)
        return descriptor

    def balancer_for(self, port: int, number: int) -> WorkerAcceptBalancer:
        """The part of one worker on one port."""
        return WorkerAcceptBalancer(self._counts[port * self._workers : (port + 1) * self._workers], number)

    def clear_worker(self, number: int) -> None:
        """A worker has gone."""
        for place in range(number, len(self._counts), self._workers):
            self._counts[place] = ABSENT


class WorkerAcceptBalancer:
    """One worker's part in the connections of one port: a `Share` of its acceptor."""

    def __init__(self, row: memoryview, number: int) -> None:
        """`row` has the numbers of all workers, `number` is this one's place in it."""
        self._row = row
        self._number = number
        self._count = 0
        self._is_open = False

    def start(self) -> None:
        """Take part."""
        self._is_open = True
        self._row[self._number] = self._count

    def stop(self) -> None:
        """Accept no more."""
        self._is_open = False
        self._row[self._number] = ABSENT

    def delay_s(self) -> float:
        """How long to leave the next connection to workers with fewer connections."""
        fewer = sum(count < self._count for count in self._row)
        return min(fewer, MAX_DEFERRALS) * DEFER_S

    def on_accepted(self) -> bool:
        """Count a connection; whether no other worker has fewer now."""
        self._set(self._count + 1)
        return self._count <= min(self._row)

    def on_closed(self) -> None:
        """Count a connection out."""
        self._set(self._count - 1)

    def _set(self, count: int) -> None:
        self._count = count
        if self._is_open:
            self._row[self._number] = count
