"""Waiting in a coroutine for a broker operation that reports its result through a callback."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

from twinbus.model.errors import ServiceBusError

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinbus.broker.ports.callbacks import OnDone

T = TypeVar("T")


async def wait_until_done(start: Callable[[OnDone], None]) -> None:
    """Start an operation and wait until it is done. Raise the error that it reports, if any."""
    future: asyncio.Future[ServiceBusError | None] = asyncio.get_running_loop().create_future()

    def on_done(error: ServiceBusError | None) -> None:
        if not future.done():
            future.set_result(error)

    start(on_done)
    error = await future
    if error is not None:
        raise error


async def wait_for_result(start: Callable[[Callable[[T | ServiceBusError], None]], None]) -> T:
    """Start an operation and return its result. Raise the result if it is an error."""
    future: asyncio.Future[T | ServiceBusError] = asyncio.get_running_loop().create_future()

    def on_result(outcome: T | ServiceBusError) -> None:
        if not future.done():
            future.set_result(outcome)

    start(on_result)
    outcome = await future
    if isinstance(outcome, ServiceBusError):
        raise outcome
    return outcome
