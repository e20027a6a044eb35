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

EVERY_S: Final = 0.002
"""A pause is found that much too short, at most."""
LONG_MS: Final = 50.0
BOUNDS_MS: Final = (2, 5, 10, 20, 50, 100, 200, 500, 1_000)
"""Of the histogram. Timers of the loop are exact to about a millisecond."""
SCHEDULING: Final = "/proc/thread-self/schedstat"
"""Nanoseconds on a processor, nanoseconds of waiting for one, and how often."""
KEPT: Final = 1_000
"""Pauses that are told one by one."""
KEPT_MS: Final = 20.0
"""... if they are as long as this."""


class Clocks(NamedTuple):
    """Seconds, since some moment each."""

    now: float
    worked: float = 0.0
    """The loop's own thread."""
    waited: float = 0.0
    """... for a processor."""


class ThreadClocks:
    """Those of the thread that makes this."""

    def __init__(self) -> None:
        """Where Linux does not tell it, nothing is waited for."""
        try:
            self._scheduling = os.open(SCHEDULING, os.O_RDONLY)
        except OSError:
            self._scheduling = -1

    def __call__(self) -> Clocks:
        """What they show."""
        waited_ns = int(os.pread(self._scheduling, 100, 0).split()[1]) if self._scheduling >= 0 else 0
        return Clocks(time.perf_counter(), time.thread_time(), waited_ns / 1e9)


class PauseMeter:
    """Looks how late the loop is."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clocks: Callable[[], Clocks] | None = None) -> None:
        """Not started. Made on the loop's thread."""
        self._loop = loop
        self._clocks = clocks or ThreadClocks()
        self._handle: asyncio.TimerHandle | None = None
        self._seen = self._clocks()
        """When the call that is due next was asked for."""
        self.forget()

    def start(self) -> None:
        """Measure from now on."""
        self.forget()
        self._seen = self._clocks()
        self._handle = self._loop.call_later(EVERY_S, self._look)

    def stop(self) -> None:
        """Make no more calls."""
        if self._handle is not None:
            self._handle.cancel()

    def forget(self) -> None:
        """Begin anew: what was found belongs to a phase that is over."""
        self._since_s = self._clocks().now
        self._longest_s = self._longest_own_s = self._worked_s = 0.0
        self._long_count = self._long_own_count = 0
        self._counts = [0] * (len(BOUNDS_MS) + 1)
        self._kept: list[tuple[float, float, float, float]] = []

    def told(self) -> dict[str, object]:
        """What was found, for JSON.

        `pauses` are the long ones: from when to when on the monotonic clock, and how long the loop waited and worked.
        """
        bounds = [f"<= {bound}" for bound in BOUNDS_MS] + [f"> {BOUNDS_MS[-1]}"]
        return {
            "measured_s": round(self._clocks().now - self._since_s, 3),
            "longest_ms": _ms(self._longest_s),
            "longest_own_ms": _ms(self._longest_own_s),
            "worked_in_that_ms": _ms(self._worked_s),
            f"over_{LONG_MS:.0f}_ms": self._long_count,
            f"own_over_{LONG_MS:.0f}_ms": self._long_own_count,
            "counts_by_ms": dict(zip(bounds, self._counts, strict=True)),
            "pauses": [list(pause) for pause in self._kept],
        }

    def _look(self) -> None:
        seen, clocks = self._seen, self._clocks()
        late_s = max(0.0, clocks.now - seen.now - EVERY_S)
        waited_s = clocks.waited - seen.waited
        own_s = max(0.0, late_s - waited_s)
        self._counts[bisect_left(BOUNDS_MS, 1000 * late_s)] += 1
        self._long_count += 1000 * late_s > LONG_MS
        self._long_own_count += 1000 * own_s > LONG_MS
        self._longest_s = max(self._longest_s, late_s)
        if own_s > self._longest_own_s:
            self._longest_own_s, self._worked_s = own_s, clocks.worked - seen.worked
        if 1000 * late_s >= KEPT_MS and len(self._kept) < KEPT:
            self._kept.append((clocks.now - late_s, clocks.now, waited_s, clocks.worked - seen.worked))
        self._seen = clocks
        self._handle = self._loop.call_later(EVERY_S, self._look)


def _ms(seconds: float) -> float:
    return round(1000 * seconds, 1)
