"""Waiting for what the broker answers when it is on disk, or what another process does."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

from twinbus.model.errors import ServiceBusError

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinbus.broker.ports.callbacks import OnDone

T = TypeVar("T")


async def wait_until_done(start: Callable[[OnDone], None]) -> None:
    """Begin something that is answered when it is on disk, and wait for that. Raises the error of the answer."""
    told: asyncio.Future[ServiceBusError | None] = asyncio.get_running_loop().create_future()

    def answer(error: ServiceBusError | None) -> None:
        if not told.done():
            told.set_result(error)

    start(answer)
    error = await told
    if error is not None:
        raise error


async def wait_for_result(start: Callable[[Callable[[T | ServiceBusError], None]], None]) -> T:
    """Begin something whose outcome is told later, and wait for that. Raises the outcome if it is an error."""
    told: asyncio.Future[T | ServiceBusError] = asyncio.get_running_loop().create_future()

    def hear(outcome: T | ServiceBusError) -> None:
        if not told.done():
            told.set_result(outcome)

    start(hear)
    outcome = await told
    if isinstance(outcome, ServiceBusError):
        raise outcome
    return outcome
