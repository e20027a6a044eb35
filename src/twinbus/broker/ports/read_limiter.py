"""Limit on concurrent reads by browsers, or by searches, in this process.

Each read may return a megabyte, even if its reader no longer wants it, and a client may have thousands of browse links.
Readers beyond the limit wait and read in the order of their requests. Owns this order.
"""

from __future__ import annotations

from typing import Final, Protocol

MAX_CONCURRENT_READS: Final = 16


class LimitedReader(Protocol):
    """A browser or a search whose reads are limited."""

    def advance(self) -> None:
        """Try to read again."""


class ReadLimiter:
    """Running reads, and the readers that wait for their turn."""

    def __init__(self, max_concurrent: int = MAX_CONCURRENT_READS) -> None:
        """Create a limiter that allows `max_concurrent` reads at a time."""
        self._max_concurrent = max_concurrent
        self._running: set[LimitedReader] = set()
        self._waiting: dict[LimitedReader, None] = {}
        self._is_waking = False

    @property
    def running_count(self) -> int:
        """Number of reads in progress."""
        return len(self._running)

    def acquire(self, reader: LimitedReader) -> bool:
        """Return whether a reader may read now; if not, its `advance` is called when the reader may read."""
        if len(self._running) >= self._max_concurrent:
            self._waiting[reader] = None
            return False
        self._waiting.pop(reader, None)
        self._running.add(reader)
        return True

    def release(self, reader: LimitedReader) -> None:
        """Record that a reader has finished its read or no longer waits, and let waiting readers read."""
        self._waiting.pop(reader, None)
        if reader not in self._running:
            return
        self._running.discard(reader)
        if self._is_waking:  # called by a reader that the loop below woke and that has finished its read at once
            return
        self._is_waking = True
        try:
            while self._waiting and len(self._running) < self._max_concurrent:
                waiting_reader = next(iter(self._waiting))
                del self._waiting[waiting_reader]
                waiting_reader.advance()
        finally:
            self._is_waking = False
