"""Rates of messages by entity, and operations in total, from the usage counters of this process.

Owns the samples: every few seconds, the increments of all counters since the last sample. Links count as messages pass
anyway, for metering; a sample reads the counters and adds nothing to the path of a message. Counters are in memory, so
the totals start at 0 in each process.
"""

from __future__ import annotations

import asyncio
import contextlib
from functools import lru_cache
from operator import add, sub
from typing import TYPE_CHECKING, Final

from twinbus.model import path
from twinbus.model.usage import COUNTS
from twinbus.server.api.time_slices import in_slices

if TYPE_CHECKING:
    from twinbus.broker.clock import Clock
    from twinbus.server.usage.counter import UsageCounter
    from twinbus.server.usage.meter import UsageMeter

SAMPLE_INTERVAL_S: Final = 5.0
IDLE_INTERVAL_S: Final = 30.0
"""The interval while nobody reads the rates. The meter keeps an unused counter for a minute, so none is missed."""
READER_TIMEOUT_S: Final = 60.0
"""How long after a read the rates are sampled at the short interval."""
OPERATIONS: Final = tuple(name for name in COUNTS if name != "connections")
"""The operations that are counted, in the order of `UsageCounter.counts`."""
_SENDS, _RECEIVES, _SETTLEMENTS = (OPERATIONS.index(name) for name in ("sends", "receives", "settlements"))
NO_RATES: Final = (0.0, 0.0, 0.0)
MAX_KNOWN_PATHS: Final = 20_000


class UsageRates:
    """The rates of this process's clients."""

    def __init__(self, meter: UsageMeter, clock: Clock) -> None:
        """Create rates of 0; the counters are read from now on."""
        self._by_entity: dict[str, tuple[float, float, float]] = {}
        self.totals = [0] * len(OPERATIONS)
        self._meter = meter
        self._clock = clock
        self._last_counts: dict[UsageCounter, tuple[int, ...]] = {}
        self._increments: dict[str, list[int]] = {}
        """Messages sent, received and settled in the running interval, by the path in the counter."""
        self._interval_started_s = clock.monotonic_s()
        self._lock = asyncio.Lock()
        self._last_read_s = float("-inf")
        self._is_read = asyncio.Event()
        """Set by a read, which ends the long interval."""

    def by_entity(self) -> dict[str, tuple[float, float, float]]:
        """Return the messages sent, received and settled per second in the last interval, by canonical path."""
        self._last_read_s = self._clock.monotonic_s()
        self._is_read.set()
        return self._by_entity

    async def run(self) -> None:
        """Sample at every interval, until cancelled."""
        while True:
            if self._clock.monotonic_s() - self._last_read_s < READER_TIMEOUT_S:
                await asyncio.sleep(SAMPLE_INTERVAL_S)
            else:
                self._is_read.clear()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._is_read.wait(), IDLE_INTERVAL_S)
            await self.end_interval()

    async def end_interval(self) -> None:
        """Compute the rates of the interval that ends now."""
        await self.refresh_totals()
        now_s = self._clock.monotonic_s()
        seconds = max(now_s - self._interval_started_s, 0.001)
        self._interval_started_s = now_s
        increments, self._increments = self._increments, {}
        rates: dict[str, tuple[float, float, float]] = {}
        for counted_path, (sends, receives, settlements) in increments.items():
            key = _entity_key(counted_path) if counted_path else ""
            before = rates.get(key, NO_RATES)
            rates[key] = (
                before[0] + sends / seconds,
                before[1] + receives / seconds,
                before[2] + settlements / seconds,
            )
        self._by_entity = rates

    async def refresh_totals(self) -> None:
        """Add the increments of all counters since the last call."""
        async with self._lock:
            last, current = self._last_counts, {}
            async for counters in in_slices(self._meter.counters()):
                for counter in counters:
                    counts = current[counter] = counter.counts()
                    before = last.get(counter)
                    if before != counts:
                        self._add(counter.entity, counts, before or (0,) * len(counts))
            self._last_counts = current

    def _add(self, counted_path: str, counts: tuple[int, ...], before: tuple[int, ...]) -> None:
        grown = tuple(map(sub, counts, before))
        self.totals = list(map(add, self.totals, grown))
        moved = self._increments.setdefault(counted_path, [0, 0, 0])
        moved[0] += grown[_SENDS]
        moved[1] += grown[_RECEIVES]
        moved[2] += grown[_SETTLEMENTS]


@lru_cache(maxsize=MAX_KNOWN_PATHS)
def _entity_key(counted_path: str) -> str:
    """Return the canonical path of an entity. Parsing the path takes longer than everything else in a sample."""
    return path.canonical_key(path.parse_address(counted_path).entity)
