"""When this program itself did not run: then nobody else is to blame for an answer that it saw late.

Owns: one task that looks at the clock.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:
    from types import TracebackType

EVERY_S: Final = 0.01
LATE_S: Final = 0.03
LOOKED_AT_S: Final = 0.2


class Lag:
    """Stretches of time in which the loop had no turn."""

    def __init__(self) -> None:
        self.stretches: list[tuple[float, float]] = []
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
            await asyncio.sleep(EVERY_S)
            if time.monotonic() - before_s > EVERY_S + LATE_S:
                self.stretches.append((before_s + EVERY_S, time.monotonic()))

    def without(self, since_s: float, until_s: float) -> float:
        """How much of that time it ran. What is short is told as it is: nobody minds."""
        if until_s - since_s < LOOKED_AT_S:
            return until_s - since_s
        missing = sum(max(0.0, min(until_s, end) - max(since_s, start)) for start, end in self.stretches)
        return until_s - since_s - missing

    @property
    def longest_s(self) -> float:
        return max((end - start for start, end in self.stretches), default=0.0)
