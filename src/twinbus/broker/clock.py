"""The clock interface of the broker, and timers on its two clocks.

Locks and timeouts use the monotonic clock; times to live and schedules use the wall clock. If the wall clock jumps, no
lock expires, and wall-clock timers fire within a second. Nothing in this module waits: the event loop calls `due_in_s`
and `run_due`.
"""

from __future__ import annotations

import heapq
from itertools import count
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

WALL_CLOCK_CHECK_S: Final = 1.0
"""The longest time between two readings of the wall clock, which may be set forward."""

MAX_CALLS_PER_TURN: Final = 100
"""The maximum number of wall-clock timers that fire in one turn."""


class Clock(Protocol):
    """The source of time for the broker."""

    def monotonic_s(self) -> float:
        """Return the seconds since an arbitrary start; the value never decreases."""

    def wall_ms(self) -> int:
        """Return the milliseconds since 1970-01-01 UTC."""


class Timer:
    """A scheduled call that can be cancelled."""

    __slots__ = ("call",)

    def __init__(self, call: Callable[[], None]) -> None:
        """Create a timer for `call`; use `Timers.call_at` or `WallTimers.call_at` to schedule one."""
        self.call: Callable[[], None] | None = call

    def cancel(self) -> None:
        """Cancel the call and drop the reference to it."""
        self.call = None


class Timers:
    """Calls scheduled on the monotonic clock."""

    def __init__(self, clock: Clock) -> None:
        """Create an empty set of timers; a broker has one instance."""
        self.on_earlier_deadline: Callable[[], None] | None = None
        """The callback for a new timer that is due before all others, or None."""
        self._clock = clock
        self._heap: list[tuple[float, int, Timer]] = []
        self._insertion_order = count()

    def call_at(self, when_s: float, call: Callable[[], None]) -> Timer:
        """Schedule a call for the monotonic time `when_s`."""
        timer = Timer(call)
        entry = (when_s, next(self._insertion_order), timer)
        heapq.heappush(self._heap, entry)
        if self._heap[0] is entry and self.on_earlier_deadline is not None:
            self.on_earlier_deadline()
        return timer

    def due_in_s(self) -> float | None:
        """Return the seconds until the next timer is due, or None if there are no timers."""
        return max(0.0, self._heap[0][0] - self._clock.monotonic_s()) if self._heap else None

    def run_due(self) -> None:
        """Run the calls that are due."""
        now = self._clock.monotonic_s()
        while self._heap and self._heap[0][0] <= now:
            call = heapq.heappop(self._heap)[2].call
            if call is not None:
                call()


class WallTimers:
    """Calls scheduled on the wall clock."""

    def __init__(self, clock: Clock, timers: Timers) -> None:
        """Create an empty set of timers that checks the wall clock through `timers`."""
        self._clock = clock
        self._timers = timers
        self._heap: list[tuple[int, int, Timer]] = []
        self._insertion_order = count()
        self._check_timer: Timer | None = None
        self._check_s = 0.0

    def call_at(self, when_ms: int, call: Callable[[], None]) -> Timer:
        """Schedule a call for when the wall clock reaches `when_ms`."""
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
        check_s = now_s + min(wait_s, WALL_CLOCK_CHECK_S)
        if self._check_timer is not None:
            if self._check_s <= check_s:
                return
            self._check_timer.cancel()
        self._check_s = check_s
        self._check_timer = self._timers.call_at(check_s, self._run_due)

    def _run_due(self) -> None:
        self._check_timer = None
        now_ms = self._clock.wall_ms()
        due: list[Timer] = []
        while self._heap and self._heap[0][0] <= now_ms and len(due) < MAX_CALLS_PER_TURN:
            due.append(heapq.heappop(self._heap)[2])  # timers added by these calls wait for the next turn
        for timer in due:
            if timer.call is not None:
                timer.call()
        self._schedule_check()


class TimeServices:
    """The clock of a broker and the timers on it."""

    def __init__(self, clock: Clock) -> None:
        """Create empty timers on `clock`; a broker has one instance."""
        self.clock = clock
        self.timers = Timers(clock)
        self.wall_timers = WallTimers(clock, self.timers)
