"""Time, as it is handed to the broker: two clocks, and what is due when.

Locks and time-outs go by the monotonic clock, times to live and schedules by the wall clock: when that jumps, no lock
expires, and what is due by the wall is done within a second. Nothing here waits; whoever owns the loop asks `due_in_s`
and calls `run_due`.
"""

from __future__ import annotations

import heapq
from itertools import count
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

WALL_CLOCK_CHECK_S: Final = 1.0
"""How often the wall clock is looked at: it may be set forward."""

MAX_CALLS_PER_TURN: Final = 100
"""Calls that are made in one turn, if many are due by the wall clock."""


class Clock(Protocol):
    """Where the broker reads the time."""

    def monotonic_s(self) -> float:
        """Seconds since some moment; never goes back."""

    def wall_ms(self) -> int:
        """Milliseconds since 1970."""


class Timer:
    """A call to be made, unless it is taken back."""

    __slots__ = ("call",)

    def __init__(self, call: Callable[[], None]) -> None:
        """Made by `Timers.call_at`."""
        self.call: Callable[[], None] | None = call

    def cancel(self) -> None:
        """Do not make the call, and hold on to nothing that it knows."""
        self.call = None


class Timers:
    """Calls to be made at a time of the monotonic clock."""

    def __init__(self, clock: Clock) -> None:
        """One for a whole broker."""
        self.on_earlier_deadline: Callable[[], None] | None = None
        """Is called when something is due before all that was due so far."""
        self._clock = clock
        self._heap: list[tuple[float, int, Timer]] = []
        self._insertion_order = count()

    def call_at(self, when_s: float, call: Callable[[], None]) -> Timer:
        """Make a call when `when_s` is reached."""
        timer = Timer(call)
        entry = (when_s, next(self._insertion_order), timer)
        heapq.heappush(self._heap, entry)
        if self._heap[0] is entry and self.on_earlier_deadline is not None:
            self.on_earlier_deadline()
        return timer

    def due_in_s(self) -> float | None:
        """How long until something is due; None if nothing is."""
        return max(0.0, self._heap[0][0] - self._clock.monotonic_s()) if self._heap else None

    def run_due(self) -> None:
        """Make the calls that are due now."""
        now = self._clock.monotonic_s()
        while self._heap and self._heap[0][0] <= now:
            call = heapq.heappop(self._heap)[2].call
            if call is not None:
                call()


class WallTimers:
    """Calls to be made at a time of the wall clock."""

    def __init__(self, clock: Clock, timers: Timers) -> None:
        """One for a whole broker."""
        self._clock = clock
        self._timers = timers
        self._heap: list[tuple[int, int, Timer]] = []
        self._insertion_order = count()
        self._check_timer: Timer | None = None
        self._check_s = 0.0

    def call_at(self, when_ms: int, call: Callable[[], None]) -> Timer:
        """Make a call when the wall clock shows `when_ms`, or more."""
        timer = Timer(call)
        heapq.heappush(self._heap, (when_ms, next(self._insertion_order), timer))
        self._schedule_check()
        return timer

    def _schedule_check(self) -> None:
        while self._heap and self._heap[0][2].call is None:
            heapq.heappop(self._heap)
        if not self._heap:
            return
        now_s = self._clock.monotonic_s()
        wait_s = max(0, self._heap[0][0] - self._clock.wall_ms()) / 1000
        look_s = now_s + min(wait_s, WALL_CLOCK_CHECK_S)
        if self._check_timer is not None:
            if self._check_s <= look_s:
                return
            self._check_timer.cancel()
        self._check_s = look_s
        self._check_timer = self._timers.call_at(look_s, self._run_due)

    def _run_due(self) -> None:
        self._check_timer = None
        now_ms = self._clock.wall_ms()
        due: list[Timer] = []
        while self._heap and self._heap[0][0] <= now_ms and len(due) < MAX_CALLS_PER_TURN:
            due.append(heapq.heappop(self._heap)[2])  # what these calls set is for the next time
        for timer in due:
            if timer.call is not None:
                timer.call()
        self._schedule_check()


class TimeServices:
    """All that a broker knows of time."""

    def __init__(self, clock: Clock) -> None:
        """One for a whole broker."""
        self.clock = clock
        self.timers = Timers(clock)
        self.wall_timers = WallTimers(clock, self.timers)
