"""Clocks for tests: a clock that is advanced by hand, and a clock that follows the time of an event loop.

Owns the monotonic time and the wall-clock time that a broker reads. The two are independent, so a test can make the
wall clock jump, as an operator or NTP does, while the monotonic clock runs on.
"""

from __future__ import annotations

import asyncio
import datetime as dt
from typing import Final

WALL_MS: Final = 1_700_000_000_000
"""Default wall-clock time: a moment in November 2023."""


class FakeClock:
    """Clock that stands still until a test advances it."""

    def __init__(self, *, monotonic_s: float = 1_000.0, wall_ms: int = WALL_MS) -> None:
        """Create a clock that shows these times."""
        self._monotonic_s = monotonic_s
        self._wall_ms = wall_ms

    def monotonic_s(self) -> float:
        """Return the seconds since an arbitrary moment; they never decrease."""
        return self._monotonic_s

    def wall_ms(self) -> int:
        """Return the milliseconds since 1970."""
        return self._wall_ms

    def advance(self, seconds: float) -> None:
        """Advance the monotonic and the wall-clock time."""
        assert seconds >= 0, "monotonic time cannot go back: use set_wall_ms to set back the wall clock"
        self._monotonic_s += seconds
        self._wall_ms += round(seconds * 1000)

    def set_wall_ms(self, wall_ms: int) -> None:
        """Set the wall clock, forwards or backwards; the monotonic time is not affected."""
        self._wall_ms = wall_ms


class LoopClock:
    """Clock that follows an event loop's time, including the jumps of a FakeTimeLoop."""

    def __init__(self, *, wall_ms: int = WALL_MS, loop: asyncio.AbstractEventLoop | None = None) -> None:
        """Create a clock that shows `wall_ms` now and follows `loop` (default: the running loop)."""
        self._loop = loop or asyncio.get_running_loop()
        self._offset_ms = wall_ms - self._loop.time() * 1000

    def monotonic_s(self) -> float:
        """Return the seconds since an arbitrary moment; they never decrease."""
        return self._loop.time()

    def wall_ms(self) -> int:
        """Return the milliseconds since 1970."""
        return round(self._offset_ms + self._loop.time() * 1000)

    def now(self) -> dt.datetime:
        """Return the wall-clock time as a datetime in UTC."""
        return dt.datetime.fromtimestamp(self.wall_ms() / 1000, dt.UTC)

    def set_wall_ms(self, wall_ms: int) -> None:
        """Set the wall clock, forwards or backwards; the monotonic time is not affected."""
        self._offset_ms += wall_ms - self.wall_ms()
