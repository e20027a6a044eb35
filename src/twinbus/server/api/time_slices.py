"""Time slices: long work in short pieces, so that clients are served between the pieces.

Owns the length of a slice. A namespace may have 10,000 entities, and looking at all entities takes longer than a client
should wait for its next message.
"""

from __future__ import annotations

import asyncio
import time
from itertools import islice
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

T = TypeVar("T")
SLICE_S: Final = 0.004
"""How long the work goes on before other work on the event loop gets its turn."""
CHUNK_SIZE: Final = 50
"""How many items are handled before the clock is read again."""


class TimeSlice:
    """The slice of time that the caller has now."""

    def __init__(self) -> None:
        """Begin a slice."""
        self._started_s = time.perf_counter()

    async def pause_if_over(self) -> None:
        """Let other work run if the slice is over, and then begin the next slice."""
        if time.perf_counter() - self._started_s >= SLICE_S:
            await asyncio.sleep(0)
            self._started_s = time.perf_counter()


async def in_slices(items: Iterable[T], chunk_size: int = CHUNK_SIZE) -> AsyncIterator[list[T]]:
    """Yield the items in chunks, and let other work run whenever a slice is over."""
    iterator, time_slice = iter(items), TimeSlice()
    while chunk := list(islice(iterator, chunk_size)):
        yield chunk
        await time_slice.pause_if_over()
