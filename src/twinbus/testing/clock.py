"""Clocks for tests: one that is set by hand, and one that goes by a loop's time.

Owns: the two times that a broker reads, and nothing that waits for them. They are set apart from each other, so that a
test can let the wall clock jump, as an operator or NTP does, while the monotonic one goes on.
"""

from __future__ import annotations

import asyncio
import datetime as dt
from typing import Final

WALL_MS: Final = 1_700_000_000_000
"""Some time in 2023."""


class FakeClock:
    """Stands still until it is moved."""

    def __init__(self, *, monotonic_s: float = 1_000.0, wall_ms: int = WALL_MS) -> None:
        """Some time in 2023, on a machine that was started a while before."""
        self._monotonic_s = monotonic_s
        self._wall_ms = wall_ms

    def monotonic_s(self) -> float:
        """Seconds since some moment; never goes back."""
        return self._monotonic_s

    def wall_ms(self) -> int:
        """Milliseconds since 1970."""
        return self._wall_ms

    def advance(self, seconds: float) -> None:
        """Let time pass, on both clocks."""
        assert seconds >= 0, "time does not go back: it is the wall clock that may be set"
        self._monotonic_s += seconds
        self._wall_ms += round(seconds * 1000)

    def set_wall_ms(self, wall_ms: int) -> None:
        """Set the wall clock, back or forth; the other one does not notice."""
        self._wall_ms = wall_ms


class LoopClock:
    """Both clocks of a machine, by the time of a loop: in a FakeTimeLoop they jump with it."""

    def __init__(self, *, wall_ms: int = WALL_MS, loop: asyncio.AbstractEventLoop | None = None) -> None:
        """The wall clock shows `wall_ms` now. Without a loop: the running one."""
        self._loop = loop or asyncio.get_running_loop()
        self._offset_ms = wall_ms - self._loop.time() * 1000

    def monotonic_s(self) -> float:
        """Seconds since some moment; never goes back."""
        return self._loop.time()

    def wall_ms(self) -> int:
        """Milliseconds since 1970."""
        return round(self._offset_ms + self._loop.time() * 1000)

    def now(self) -> dt.datetime:
        """The same, for messages that have a time in them."""
        return dt.datetime.fromtimestamp(self.wall_ms() / 1000, dt.UTC)

    def set_wall_ms(self, wall_ms: int) -> None:
        """Set the wall clock, back or forth; the other one does not notice."""
        self._offset_ms += wall_ms - self.wall_ms()
