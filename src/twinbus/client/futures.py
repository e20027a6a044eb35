"""Futures that nobody waits for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio


def ignore_failure(future: asyncio.Future[Any]) -> None:
    """Take the failure of a future that is done: asyncio would log that nobody did."""
    if not future.cancelled():
        future.exception()
