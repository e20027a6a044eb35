"""The wall clock of the client. Timeouts use the event loop's monotonic clock instead."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """A wall clock."""

    def wall_ms(self) -> int:
        """Return the milliseconds since 1970."""


class SystemClock:
    """The wall clock of this machine."""

    def wall_ms(self) -> int:
        """Return the milliseconds since 1970."""
        return time.time_ns() // 1_000_000
