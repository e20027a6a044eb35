"""Pauses: how long the loop could not make a call that was due.

    meter = PauseMeter(asyncio.get_running_loop())
    meter.start()
    meter.told()                 # {"longest_ms": 31.0, "longest_own_ms": 12.3, "over_50_ms": 0, ...}

A call is due every few milliseconds, and asks for the next one; how late it comes is a pause, whatever the reason: a
turn of the loop that takes long, a thread of a store that keeps the GIL, or another program that has the processor. The
last of these is known to Linux: how long a thread could have run and did not. A pause without that is the server's own,
or its host's: what that did is for who asks to find out, by when the longest pauses were.

Owns: the calls and what they have found since it was last asked to forget. Who is told is not its affair.
"""

from __future__ import annotations

import os
import time
from bisect import bisect_left
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

PROBE_INTERVAL_S: Final = 0.002
"""A pause is found that much too short, at most."""
LONG_PAUSE_MS: Final = 50.0
HISTOGRAM_BOUNDS_MS: Final = (2, 5, 10, 20, 50, 100, 200, 500, 1_000)
"""Of the histogram. Timers of the loop are exact to about a millisecond."""
SCHEDSTAT_FILE: Final = "/proc/thread-self/schedstat"
"""Nanoseconds on a processor, nanoseconds of waiting for one, and how often."""
MAX_KEPT_PAUSES: Final = 1_000
"""Pauses that are told one by one."""
MIN_KEPT_PAUSE_MS: Final = 20.0
"""... if they are as long as this."""


class ClockReading(NamedTuple):
    """Seconds, since some moment each."""

    now_s: float
    cpu_s: float = 0.0
    """The loop's own thread."""
    run_queue_s: float = 0.0
    """... for a processor."""


class ThreadClock:
    """Those of the thread that makes this."""

    def __init__(self) -> None:
        """Where Linux does not tell it, nothing is waited for."""
        try:
            self._schedstat = os.open(SCHEDSTAT_FILE, os.O_RDONLY)
        except OSError:
            self._schedstat = -1

    def __call__(self) -> ClockReading:
        """What they show."""
        waited_ns = int(os.pread(self._schedstat, 100, 0).split()[1]) if self._schedstat >= 0 else 0
        return ClockReading(time.perf_counter(), time.thread_time(), waited_ns / 1e9)


class PauseMeter:
    """Looks how late the loop is."""

    def __init__(self, loop: asyncio.AbstractEventLoop, read_clocks: Callable[[], ClockReading] | None = None) -> None:
        """Not started. Made on the loop's thread."""
        self._loop = loop
        self._read_clocks = read_clocks or ThreadClock()
        self._handle: asyncio.TimerHandle | None = None
        self._last_reading = self._read_clocks()
        """When the call that is due next was asked for."""
        self.reset()

    def start(self) -> None:
        """Measure from now on."""
        self.reset()
        self._last_reading = self._read_clocks()
        self._handle = self._loop.call_later(PROBE_INTERVAL_S, self._probe)

    def stop(self) -> None:
        """Make no more calls."""
        if self._handle is not None:
            self._handle.cancel()

    def reset(self) -> None:
        """Begin anew: what was found belongs to a phase that is over."""
        self._since_s = self._read_clocks().now_s
        self._longest_s = self._longest_own_s = self._longest_own_cpu_s = 0.0
        self._long_count = self._long_own_count = 0
        self._histogram = [0] * (len(HISTOGRAM_BOUNDS_MS) + 1)
        self._long_pauses: list[tuple[float, float, float, float]] = []

    def summary(self) -> dict[str, object]:
        """What was found, for JSON.

        `pauses` are the long ones: from when to when on the monotonic clock, and how long the loop waited and worked.
        """
        bounds = [f"<= {bound}" for bound in HISTOGRAM_BOUNDS_MS] + [f"> {HISTOGRAM_BOUNDS_MS[-1]}"]
        return {
            "measured_s": round(self._read_clocks().now_s - self._since_s, 3),
            "longest_ms": _ms(self._longest_s),
            "longest_own_ms": _ms(self._longest_own_s),
            "worked_in_that_ms": _ms(self._longest_own_cpu_s),
            f"over_{LONG_PAUSE_MS:.0f}_ms": self._long_count,
            f"own_over_{LONG_PAUSE_MS:.0f}_ms": self._long_own_count,
            "counts_by_ms": dict(zip(bounds, self._histogram, strict=True)),
            "pauses": [list(pause) for pause in self._long_pauses],
        }

    def _probe(self) -> None:
        seen, clocks = self._last_reading, self._read_clocks()
        late_s = max(0.0, clocks.now_s - seen.now_s - PROBE_INTERVAL_S)
        waited_s = clocks.run_queue_s - seen.run_queue_s
        own_s = max(0.0, late_s - waited_s)
        self._histogram[bisect_left(HISTOGRAM_BOUNDS_MS, 1000 * late_s)] += 1
        self._long_count += 1000 * late_s > LONG_PAUSE_MS
        self._long_own_count += 1000 * own_s > LONG_PAUSE_MS
        self._longest_s = max(self._longest_s, late_s)
        if own_s > self._longest_own_s:
            self._longest_own_s, self._longest_own_cpu_s = own_s, clocks.cpu_s - seen.cpu_s
        if 1000 * late_s >= MIN_KEPT_PAUSE_MS and len(self._long_pauses) < MAX_KEPT_PAUSES:
            self._long_pauses.append((clocks.now_s - late_s, clocks.now_s, waited_s, clocks.cpu_s - seen.cpu_s))
        self._last_reading = clocks
        self._handle = self._loop.call_later(PROBE_INTERVAL_S, self._probe)


def _ms(seconds: float) -> float:
    return round(1000 * seconds, 1)
