"""Limit on concurrent reads by browsers in this process.

Each read may return a megabyte, even if its reader no longer wants it, and a client may have thousands of browse links.
Browsers beyond the limit wait and read in the order of their requests. Owns this order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from twinbus.broker.fragment.message_browser import BrowseCursor

MAX_CONCURRENT_READS: Final = 16


class ReadLimiter:
    """Running reads, and the browsers that wait for their turn."""

    def __init__(self, max_concurrent: int = MAX_CONCURRENT_READS) -> None:
        """Create a limiter that allows `max_concurrent` reads at a time."""
        self._max_concurrent = max_concurrent
        self._running: set[BrowseCursor] = set()
        self._waiting: dict[BrowseCursor, None] = {}
        self._is_waking = False

    @property
    def running_count(self) -> int:
        """Number of reads in progress."""
        return len(self._running)

    def acquire(self, cursor: BrowseCursor) -> bool:
        """Return whether a browser may read now; if not, the browser's `advance` is called when it may read."""
        if len(self._running) >= self._max_concurrent:
            self._waiting[cursor] = None
            return False
        self._waiting.pop(cursor, None)
        self._running.add(cursor)
        return True

    def release(self, cursor: BrowseCursor) -> None:
        """End a browser's read or its wait, and let waiting browsers read."""
        self._waiting.pop(cursor, None)
        if cursor not in self._running:
            return
        self._running.discard(cursor)
        if self._is_waking:  # called by a browser that the loop below woke and that has finished its read at once
            return
        self._is_waking = True
        try:
            while self._waiting and len(self._running) < self._max_concurrent:
                waiting_cursor = next(iter(self._waiting))
                del self._waiting[waiting_cursor]
                waiting_cursor.advance()
        finally:
            self._is_waking = False
