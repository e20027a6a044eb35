"""Waiting for what the broker answers when it is on disk, or what another process does."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from twinbus.model.errors import ServiceBusError

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinbus.broker.journal import Answered
    from twinbus.broker.remote.calls import Answer, Call
    from twinbus.broker.remote.owner import Owner


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


async def asked(owner: Owner, call: Call) -> Answer:
    """Ask another process, and wait for its answer. Raises the error that it is, if it is one."""
    told: asyncio.Future[Answer | ServiceBusError] = asyncio.get_running_loop().create_future()

    def hear(answer: Answer | ServiceBusError) -> None:
        if not told.done():
            told.set_result(answer)

    owner.ask(call, hear)
    answer = await told
    if isinstance(answer, ServiceBusError):
        raise answer
    return answer
