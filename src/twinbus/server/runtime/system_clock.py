"""The machine's clocks, and the timers of a broker run by them on the asyncio loop."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from twinbus.broker.clock import Timers


class SystemClock:
    """The real time."""

    @staticmethod
    def monotonic_s() -> float:
        """Seconds since some moment; never goes back."""
        return time.monotonic()

    @staticmethod
    def wall_ms() -> int:
        """Milliseconds since 1970."""
        return time.time_ns() // 1_000_000


class TimerDriver:
    """Runs a broker's timers when they are due."""

    def __init__(self, timers: Timers) -> None:
        """From now on, on the running loop."""
        self._timers = timers
        self._loop = asyncio.get_running_loop()
        self._handle: asyncio.TimerHandle | None = None
        timers.on_earlier_deadline = self._arm
        self._arm()

    def stop(self) -> None:
        """Run nothing more."""
        self._timers.on_earlier_deadline = None
        if self._handle is not None:
            self._handle.cancel()

    def _arm(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
        due_in_s = self._timers.due_in_s()
        self._handle = self._loop.call_later(due_in_s, self._run) if due_in_s is not None else None

    def _run(self) -> None:
        self._handle = None
        try:
            self._timers.run_due()
        finally:
            if self._handle is None:
                self._arm()
