"""Periods in which the event loop of this program did not run: late responses in them do not count.

Owns: one task that reads the clock.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:
    from types import TracebackType

POLL_INTERVAL_S: Final = 0.01
LATE_THRESHOLD_S: Final = 0.03
MAX_GAP_S: Final = 0.2


class LoopLag:
    """Records the periods in which the event loop was late."""

    def __init__(self) -> None:
        self.late_periods: list[tuple[float, float]] = []
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.ensure_future(self._watch())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _watch(self) -> None:
        while True:
            before_s = time.monotonic()
            await asyncio.sleep(POLL_INTERVAL_S)
            if time.monotonic() - before_s > POLL_INTERVAL_S + LATE_THRESHOLD_S:
                self.late_periods.append((before_s + POLL_INTERVAL_S, time.monotonic()))

    def elapsed_without_lag(self, since_s: float, until_s: float) -> float:
        """Return how long the loop ran in that time; short times are returned unchanged."""
        if until_s - since_s < MAX_GAP_S:
            return until_s - since_s
        missing = sum(max(0.0, min(until_s, end) - max(since_s, start)) for start, end in self.late_periods)
        return until_s - since_s - missing

    @property
    def longest_s(self) -> float:
        return max((end - start for start, end in self.late_periods), default=0.0)
