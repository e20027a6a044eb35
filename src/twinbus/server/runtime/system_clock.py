"""The system clock, and a driver that runs the broker's timers on the asyncio event loop."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from twinbus.broker.clock import Timers


class SystemClock:
    """The clock of the operating system."""

    @staticmethod
    def monotonic_s() -> float:
        """Return monotonic seconds, counted from an arbitrary moment."""
        return time.monotonic()

    @staticmethod
    def wall_ms() -> int:
        """Return milliseconds since 1970."""
        return time.time_ns() // 1_000_000


class TimerDriver:
    """Runs a broker's timers when they are due."""

    def __init__(self, timers: Timers) -> None:
        """Start running the timers on the current event loop."""
        self._timers = timers
        self._loop = asyncio.get_running_loop()
        self._handle: asyncio.TimerHandle | None = None
        timers.on_earlier_deadline = self._arm
        self._arm()

    def stop(self) -> None:
        """Stop running timers."""
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
