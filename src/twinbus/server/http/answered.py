"""Waiting for what the broker answers when it is on disk."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinbus.broker.journal import Answered
    from twinbus.model.errors import ServiceBusError


async def answered(start: Callable[[Answered], None]) -> None:
    """Begin something that is answered when it is on disk, and wait for that. Raises the error of the answer."""
    told: asyncio.Future[ServiceBusError | None] = asyncio.get_running_loop().create_future()

    def answer(error: ServiceBusError | None) -> None:
        if not told.done():
            told.set_result(error)

    start(answer)
    error = await told
    if error is not None:
        raise error
