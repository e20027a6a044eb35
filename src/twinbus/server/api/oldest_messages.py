"""The enqueued times of the oldest active messages of this process's fragments.

Owns the times read so far. A time stays valid until a message leaves the fragment, since later messages are younger.
Only then is the oldest message read again, one read for each fragment.
"""

from __future__ import annotations

import asyncio
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
        """By entity id and fragment number: how many messages had left at the last read, and the time that was read."""

    def known(self, part: PartInspection) -> int | None:
        """Return the time that was read last; it may belong to a message that has left the fragment since."""
        return self._read.get((part.entity_id, part.number), (0, None))[1]

    async def read(self, parts: Iterable[PartInspection], max_reads: int) -> None:
        """Read the times that are not valid any more, up to `max_reads` of them."""
        reads: list[asyncio.Future[None]] = []
        for part in parts:
            departures = part.departures()
            if departures < 0:
                self._read.pop((part.entity_id, part.number), None)
                continue
            read_at, found_ms = self._read.get((part.entity_id, part.number), (-1, None))
            if read_at != departures or found_ms is None:
                if len(reads) >= max_reads:
                    break
                reads.append(self._start_read(part, departures))
        if reads:
            await asyncio.wait(reads, timeout=READ_TIMEOUT_S)

    def forget_deleted(self, entity_count: int) -> None:
        """Drop all times if most of them belong to deleted entities."""
        if len(self._read) > 2 * FRAGMENT_COUNT * (entity_count + 1):
            self._read.clear()

    def _start_read(self, part: PartInspection, departures: int) -> asyncio.Future[None]:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def on_result(enqueued_ms: int | None) -> None:
            self._read[part.entity_id, part.number] = (departures, enqueued_ms)
            if not done.done():
                done.set_result(None)

        part.find_oldest_active(on_result)
        return done
