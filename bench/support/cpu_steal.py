"""Periods in which the host of this virtual machine took a processor away (steal time).

    with watch_steal() as host:
        ...
        host.stolen_s(start_s, end_s)       # how long some processor did not run in this period

A watcher process runs on each processor and sleeps for a millisecond at a time, with a real-time priority (needs root).
If it wakes up late even so, its processor was not available: nothing on it ran, and processes that waited for something
on it were delayed, too. Linux's own steal time does not count a processor that was idle when the host took it, and is
updated only at the next tick.

Owns the watcher processes and their records. Times are of CLOCK_MONOTONIC.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

LATE_THRESHOLD_S: Final = 0.003
"""Delay of a watcher that is normal."""
_WATCHER: Final = f"""
import os, sys, time
os.sched_setaffinity(0, {{int(sys.argv[1])}})
try:
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
except PermissionError:
    print("without a priority")
print("ready", flush=True)
seen = time.monotonic()
while os.getppid() != 1:
    time.sleep(0.001)
    now = time.monotonic()
    if now - seen > {LATE_THRESHOLD_S}:
        print(seen, now, flush=True)
    seen = now
"""


class StealMonitor:
    """The records of the watchers."""

    def __init__(self, files: list[Path]) -> None:
        """Create a monitor. `files` are the output files of the watchers."""
        self._files = files

    @property
    def has_priority(self) -> bool:
        """Whether the watchers have a real-time priority. Without it, other processes may have delayed them."""
        return not any("without" in file.read_text() for file in self._files)

    def steal_periods(self, start_s: float, end_s: float) -> list[tuple[float, float]]:
        """Return the periods in which some processor was not available, in order and without overlaps."""
        found = sorted(
            (max(start_s, since), min(end_s, until))
            for file in self._files
            for since, until in _read(file)
            if since < end_s and until > start_s
        )
        merged: list[tuple[float, float]] = []
        for since, until in found:
            if merged and since <= merged[-1][1]:
                merged[-1] = (merged[-1][0], max(merged[-1][1], until))
            else:
                merged.append((since, until))
        return merged

    def stolen_s(self, start_s: float, end_s: float) -> float:
        """Return how long some processor was not available."""
        return sum(until - since for since, until in self.steal_periods(start_s, end_s))


def _read(file: Path) -> Iterator[tuple[float, float]]:
    for line in file.read_text().splitlines():
        since, _, until = line.partition(" ")
        if until and since[0].isdigit():
            yield float(since), float(until)


@contextlib.contextmanager
def watch_steal() -> Iterator[StealMonitor]:
    """Watch all processors that this process may use."""
    with tempfile.TemporaryDirectory() as directory, contextlib.ExitStack() as stack:
        files = []
        for processor in sorted(os.sched_getaffinity(0)):
            file = Path(directory, str(processor))
            files.append(file)
            with file.open("wb") as output:
                command = [sys.executable, "-c", _WATCHER, str(processor)]
                stack.callback(_end, subprocess.Popen(command, stdout=output))
        yield StealMonitor(files)


def _end(watcher: subprocess.Popen[bytes]) -> None:
    watcher.kill()
    watcher.wait()
