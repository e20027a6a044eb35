"""Reads of browsers that are under way in this process: only so many at a time.

Each read may bring a megabyte, whether its reader can still take it or not, and a client may have thousands of browse
links. Browsers beyond the limit wait, and read in the order in which they came. Owns: that order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from twinbus.broker.browser import Browser

READS_AT_ONCE: Final = 16


class Reads:
    """What is being read, and which browsers wait for that."""

    def __init__(self, at_once: int = READS_AT_ONCE) -> None:
        """Nothing is being read."""
        self._at_once = at_once
        self._running: set[Browser] = set()
        self._waiting: dict[Browser, None] = {}
        self._is_waking = False

    @property
    def running(self) -> int:
        """How many are under way."""
        return len(self._running)

    def begin(self, browser: Browser) -> bool:
        """Whether a browser may read now. If not, its `go_on` is called when it may."""
        if len(self._running) >= self._at_once:
            self._waiting[browser] = None
            return False
        self._waiting.pop(browser, None)
        self._running.add(browser)
        return True

    def end(self, browser: Browser) -> None:
        """A browser has read, or does not want to any more."""
        self._waiting.pop(browser, None)
        if browser not in self._running:
            return
        self._running.discard(browser)
        if self._is_waking:  # below, a browser has read at once
            return
        self._is_waking = True
        try:
            while self._waiting and len(self._running) < self._at_once:
                following = next(iter(self._waiting))
                del self._waiting[following]
                following.go_on()
        finally:
            self._is_waking = False
