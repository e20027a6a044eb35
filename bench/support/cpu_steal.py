"""When the host of this virtual machine kept a processor from it.

    with watching() as host:
        ...
        host.overlap_s(start_s, end_s)      # of a stretch of time: how long some processor did not run

A watcher sits on each processor and asks to be woken every millisecond, before anything else that runs here (with a
real-time priority; needs root). If even so it wakes late, its processor was not there: nothing on it ran, and whoever
waited for what ran on it waited too. Linux's own figure for that (steal) does not count a processor that was idle when
the host took it, and is not told before the next tick.

Owns: the watchers, which are processes of their own, and what they saw. Times are of CLOCK_MONOTONIC.
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
"""What a watcher is late by even where nothing is wrong."""
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
    """What the watchers saw."""

    def __init__(self, files: list[Path]) -> None:
        """`files` is what each of them writes."""
        self._files = files

    @property
    def has_priority(self) -> bool:
        """The watchers come before all others; else they may have waited for these."""
        return not any("without" in file.read_text() for file in self._files)

    def steal_periods(self, start_s: float, end_s: float) -> list[tuple[float, float]]:
        """When some processor was not there, within these bounds; in order, and none overlaps another."""
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
        """How long some processor was not there."""
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
