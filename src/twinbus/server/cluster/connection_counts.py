"""Connection counts of all workers in shared memory, for balancing new connections between the workers.

    counts = ConnectionCounts(descriptor, workers)      # memory that the supervisor created
    acceptor = Acceptor(sock, admission, counts.balancer_for(port, number))

A new connection wakes all workers. If the first worker always accepted it, a few connections could all end up in one
process while the other processes idle. So a worker with no more connections than any other worker accepts at once. A
worker with more connections first waits some milliseconds for the other workers, and then accepts anyway, because the
other workers may have stopped.

Owns: the shared counts, and how long a worker waits. The `acceptor` module accepts the connections.
"""

from __future__ import annotations

import mmap
import os
from typing import Final

DEFER_S: Final = 0.02
"""How long a worker waits before it accepts, for each worker with fewer connections."""
MAX_DEFERRALS: Final = 3
"""The largest number of workers to wait for."""
ABSENT: Final = 2**32 - 1
"""The count of a worker that is not running: the highest number, so that no worker waits for it."""
_WIDTH: Final = 4


class ConnectionCounts:
    """The number of connections per worker, for each listening port."""

    def __init__(self, descriptor: int, workers: int) -> None:
        """Map the memory that `create_memory` created."""
        self._workers = workers
        self._counts = memoryview(mmap.mmap(descriptor, 0)).cast("I")

    @staticmethod
    def create_memory(workers: int, ports: int) -> int:
        """Create the memory with all workers absent, and return its descriptor, which workers inherit.

        The memory is not a named file, which a cleanup of temporary files could remove.
        """
        descriptor = os.memfd_create("twinbus-connection-counts")
        os.write(descriptor, ABSENT.to_bytes(_WIDTH, "little") * workers * ports)
        return descriptor

    def balancer_for(self, port: int, number: int) -> WorkerAcceptBalancer:
        """Return the balancer of worker `number` on a port."""
        return WorkerAcceptBalancer(self._counts[port * self._workers : (port + 1) * self._workers], number)

    def clear_worker(self, number: int) -> None:
        """Mark a worker that has exited as absent."""
        for index in range(number, len(self._counts), self._workers):
            self._counts[index] = ABSENT


class WorkerAcceptBalancer:
    """The accept balancer of one worker on one port."""

    def __init__(self, row: memoryview, number: int) -> None:
        """Create a balancer for worker `number`; `row` has the counts of all workers on the port."""
        self._row = row
        self._number = number
        self._count = 0
        self._is_open = False

    def start(self) -> None:
        """Publish this worker's count, so that other workers may wait for this worker."""
        self._is_open = True
        self._row[self._number] = self._count

    def stop(self) -> None:
        """Mark this worker as absent, so that other workers no longer wait for this worker."""
        self._is_open = False
        self._row[self._number] = ABSENT

    def delay_s(self) -> float:
        """Return how long to wait for workers with fewer connections before accepting the next connection."""
        fewer = sum(count < self._count for count in self._row)
        return min(fewer, MAX_DEFERRALS) * DEFER_S

    def on_accepted(self) -> bool:
        """Count a new connection, and return whether no other worker has fewer connections now."""
        self._set(self._count + 1)
        return self._count <= min(self._row)

    def on_closed(self) -> None:
        """Subtract a closed connection from the count."""
        self._set(self._count - 1)

    def _set(self, count: int) -> None:
        self._count = count
        if self._is_open:
            self._row[self._number] = count
