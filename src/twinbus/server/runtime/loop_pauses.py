"""Pauses of the event loop: how late the loop runs a timer.

    meter = PauseMeter(asyncio.get_running_loop())
    meter.start()
    meter.summary()              # {"longest_ms": 31.0, "longest_own_ms": 12.3, "over_50_ms": 0, ...}

A probe runs every few milliseconds and schedules the next probe; the delay of a probe is a pause, whatever its cause: a
long turn of the event loop, a store's thread that holds the GIL, or another program that uses the processor. Linux
counts time lost to other programs as the time that a thread was ready but not running. A pause minus that time is the
*own* pause of the server or its host; the summary has the times of long pauses, to help find their causes.

Owns: the probes, and the pauses measured since the last reset. Must not know where the summary is shown.
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
"""The time between probes. A pause is underestimated by at most this much."""
LONG_PAUSE_MS: Final = 50.0
HISTOGRAM_BOUNDS_MS: Final = (2, 5, 10, 20, 50, 100, 200, 500, 1_000)
"""The upper bounds of the histogram. Event-loop timers are accurate to about a millisecond."""
SCHEDSTAT_FILE: Final = "/proc/thread-self/schedstat"
"""A file with nanoseconds on a processor, nanoseconds of waiting for a processor, and the number of time slices."""
MAX_KEPT_PAUSES: Final = 1_000
"""The largest number of pauses in the summary's list."""
MIN_KEPT_PAUSE_MS: Final = 20.0
"""The shortest pause in the summary's list."""


class ClockReading(NamedTuple):
    """Readings of three clocks in seconds, each counted from an arbitrary moment."""

    now_s: float
    cpu_s: float = 0.0
    """The processor time used by the event loop's thread."""
    run_queue_s: float = 0.0
    """The time that the event loop's thread was ready but waited for a processor."""


class ThreadClock:
    """Reads the clocks of the thread that creates it."""

    def __init__(self) -> None:
        """Open the scheduler statistics; if Linux does not provide them, waiting times are 0."""
        try:
            self._schedstat = os.open(SCHEDSTAT_FILE, os.O_RDONLY)
        except OSError:
            self._schedstat = -1

    def __call__(self) -> ClockReading:
        """Return the current readings."""
        waited_ns = int(os.pread(self._schedstat, 100, 0).split()[1]) if self._schedstat >= 0 else 0
        return ClockReading(time.perf_counter(), time.thread_time(), waited_ns / 1e9)


class PauseMeter:
    """Measures the pauses of an event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, read_clocks: Callable[[], ClockReading] | None = None) -> None:
        """Create a meter that is not started. Call this on the event loop's thread."""
        self._loop = loop
        self._read_clocks = read_clocks or ThreadClock()
        self._handle: asyncio.TimerHandle | None = None
        self._last_reading = self._read_clocks()
        """The readings at the time when the next probe was scheduled."""
        self.reset()

    def start(self) -> None:
        """Start measuring."""
        self.reset()
        self._last_reading = self._read_clocks()
        self._handle = self._loop.call_later(PROBE_INTERVAL_S, self._probe)

    def stop(self) -> None:
        """Stop measuring."""
        if self._handle is not None:
            self._handle.cancel()

    def reset(self) -> None:
        """Discard all measurements."""
        self._since_s = self._read_clocks().now_s
        self._longest_s = self._longest_own_s = self._longest_own_cpu_s = 0.0
        self._long_count = self._long_own_count = 0
        self._histogram = [0] * (len(HISTOGRAM_BOUNDS_MS) + 1)
        self._long_pauses: list[tuple[float, float, float, float]] = []

    def summary(self) -> dict[str, object]:
        """Return the measurements, for JSON.

        `pauses` lists long pauses: start and end on the monotonic clock, seconds waited for a processor, and seconds
        of processor time.
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
        last, clocks = self._last_reading, self._read_clocks()
        late_s = max(0.0, clocks.now_s - last.now_s - PROBE_INTERVAL_S)
        waited_s = clocks.run_queue_s - last.run_queue_s
        own_s = max(0.0, late_s - waited_s)
        self._histogram[bisect_left(HISTOGRAM_BOUNDS_MS, 1000 * late_s)] += 1
        self._long_count += 1000 * late_s > LONG_PAUSE_MS
        self._long_own_count += 1000 * own_s > LONG_PAUSE_MS
        self._longest_s = max(self._longest_s, late_s)
        if own_s > self._longest_own_s:
            self._longest_own_s, self._longest_own_cpu_s = own_s, clocks.cpu_s - last.cpu_s
        if 1000 * late_s >= MIN_KEPT_PAUSE_MS and len(self._long_pauses) < MAX_KEPT_PAUSES:
            self._long_pauses.append((clocks.now_s - late_s, clocks.now_s, waited_s, clocks.cpu_s - last.cpu_s))
        self._last_reading = clocks
        self._handle = self._loop.call_later(PROBE_INTERVAL_S, self._probe)


def _ms(seconds: float) -> float:
    return round(1000 * seconds, 1)
