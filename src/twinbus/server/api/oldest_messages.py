"""The enqueued times of the oldest active messages of this process's fragments.

Owns the times read so far. A time stays valid until a message leaves the fragment, since later messages are younger.
Only then is the oldest message read again, one read for each fragment. If more reads are due than a request may make,
those that have waited longest come first, so that every time is read after a few requests.
"""

from __future__ import annotations

import asyncio
from heapq import nsmallest
from operator import itemgetter
from typing import TYPE_CHECKING, Final

from twinbus.model.description import FRAGMENT_COUNT

if TYPE_CHECKING:
    from collections.abc import Iterable

    from twinbus.broker.ports.inspection import PartInspection

READ_TIMEOUT_S: Final = 0.5
"""How long to wait for the reads of one request; the times of slow stores are known at the next request."""


class OldestMessages:
    """The enqueued times that were read last."""

    def __init__(self) -> None:
        """Create an empty table."""
        self._read: dict[tuple[int, int], tuple[int, int | None]] = {}
        """The state of the fragment at the last read, and the time found, by entity id and fragment number."""
        self._started: dict[tuple[int, int], int] = {}
        """The number of the last read, by entity id and fragment number."""
        self._read_count = 0

    def known(self, part: PartInspection) -> int | None:
        """Return the time that was read last; it may belong to a message that has left the fragment since."""
        return self._read.get((part.entity_id, part.number), (0, None))[1]

    async def read(self, parts: Iterable[PartInspection], max_reads: int) -> None:
        """Read the times that are not valid any more, up to `max_reads` of them."""
        due: list[tuple[int, PartInspection, int]] = []
        for part in parts:
            key, departures = (part.entity_id, part.number), part.departures()
            if departures < 0:
                self._read.pop(key, None)
                continue
            read_at, found_ms = self._read.get(key, (-1, None))
            if read_at != departures or found_ms is None:
                due.append((self._started.get(key, 0), part, departures))
        chosen = due if len(due) <= max_reads else nsmallest(max_reads, due, key=itemgetter(0))
        reads = [self._start_read(part, departures) for _, part, departures in chosen]
        if reads:
            await asyncio.wait(reads, timeout=READ_TIMEOUT_S)

    def forget_deleted(self, entity_count: int) -> None:
        """Drop all times if most of them belong to deleted entities."""
        if len(self._started) > 2 * FRAGMENT_COUNT * (entity_count + 1):
            self._read.clear()
            self._started.clear()

    def _start_read(self, part: PartInspection, departures: int) -> asyncio.Future[None]:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._read_count += 1
        self._started[part.entity_id, part.number] = self._read_count

        def on_result(enqueued_ms: int | None) -> None:
            self._read[part.entity_id, part.number] = (departures, enqueued_ms)
            if not done.done():
                done.set_result(None)

        part.find_oldest_active(on_result)
        return done
