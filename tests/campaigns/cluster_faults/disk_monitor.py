"""Periods in which the machine's own disk was slow: refusals of the server in them are not due to an injected fault.

Owns: one thread that writes and syncs a file in the folder of the stores.
"""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:
    from pathlib import Path

POLL_INTERVAL_S: Final = 0.1
SLOW_THRESHOLD_S: Final = 0.5


class DiskMonitor:
    """Records the periods in which a sync took long."""

    def __init__(self, folder: Path) -> None:
        self.slow_periods: list[tuple[float, float]] = []
        self._path = folder / "probe"
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT)
        try:
            while not self._stop.wait(POLL_INTERVAL_S):
                before_s = time.monotonic()
                os.pwrite(descriptor, b"still there?", 0)
                os.fsync(descriptor)
                if time.monotonic() - before_s > SLOW_THRESHOLD_S:
                    self.slow_periods.append((before_s, time.monotonic()))
        finally:
            os.close(descriptor)

    def was_slow(self, since_s: float, until_s: float) -> bool:
        """Return whether the disk was slow for most of that time."""
        slow_s = sum(max(0.0, min(until_s, end) - max(since_s, start)) for start, end in self.slow_periods)
        return slow_s > (until_s - since_s) / 2

    @property
    def longest_s(self) -> float:
        return max((end - start for start, end in self.slow_periods), default=0.0)
