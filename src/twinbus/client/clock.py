"""Where the client reads the wall clock. What it waits for, it waits for on its loop, whose time never goes back."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """The wall clock."""

    def wall_ms(self) -> int:
        """Milliseconds since 1970."""


class SystemClock:
    """This machine's."""

    def wall_ms(self) -> int:
        """Milliseconds since 1970."""
        return time.time_ns() // 1_000_000
