"""Reads of browsers that are under way in this process: only so many at a time.

Each read may bring a megabyte, whether its reader can still take it or not, and a client may have thousands of browse
links. Browsers beyond the limit wait, and read in the order in which they came. Owns: that order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from twinbus.broker.fragment.message_browser import BrowseCursor

MAX_CONCURRENT_READS: Final = 16


class ReadLimiter:
    """What is being read, and which browsers wait for that."""

    def __init__(self, max_concurrent: int = MAX_CONCURRENT_READS) -> None:
        """Nothing is being read."""
        self._max_concurrent = max_concurrent
        self._running: set[BrowseCursor] = set()
        self._waiting: dict[BrowseCursor, None] = {}
        self._is_waking = False

    @property
    def running_count(self) -> int:
        """How many are under way."""
        return len(self._running)

    def acquire(self, cursor: BrowseCursor) -> bool:
        """Whether a browser may read now. If not, its `go_on` is called when it may."""
        if len(self._running) >= self._max_concurrent:
            self._waiting[cursor] = None
            return False
        self._waiting.pop(cursor, None)
        self._running.add(cursor)
        return True

    def release(self, cursor: BrowseCursor) -> None:
        """A browser has read, or does not want to any more."""
        self._waiting.pop(cursor, None)
        if cursor not in self._running:
            return
        self._running.discard(cursor)
        if self._is_waking:  # below, a browser has read at once
            return
        self._is_waking = True
        try:
            while self._waiting and len(self._running) < self._max_concurrent:
                following = next(iter(self._waiting))
                del self._waiting[following]
                following.advance()
        finally:
            self._is_waking = False
