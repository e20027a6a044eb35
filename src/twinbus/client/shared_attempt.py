"""An attempt that several wait for: a connection, or a link.

Owns: that there is one at a time. Whoever gives up waiting does not take it from the others.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from twinbus.client.errors import ConnectionFailed, TimedOut

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

T = TypeVar("T")


class SharedAttempt(Generic[T]):
    """At most one attempt is under way; the next one begins when somebody wants it."""

    def __init__(self, what: str, make: Callable[[], Coroutine[Any, Any, T]], limit_s: float) -> None:
        """`what` is attempted, by `make`, for `limit_s` at most, however patient those are who wait."""
        self._what = what
        self._make = make
        self._limit_s = limit_s
        self._task: asyncio.Task[T] | None = None
        self._since_s = 0.0

    @property
    def lasts_s(self) -> float:
        """For how long one has been under way; nothing if none is."""
        return 0.0 if self._task is None else asyncio.get_running_loop().time() - self._since_s

    async def result(self) -> T:
        """What the attempt that is under way brings; one begins if none is."""
        if self._task is None:
            self._task = asyncio.ensure_future(self._run())
            self._since_s = asyncio.get_running_loop().time()
            self._task.add_done_callback(self._done)
        task = self._task
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            waiter = asyncio.current_task()
            if task.cancelled() and (waiter is None or not waiter.cancelling()):  # not we, but it
                raise ConnectionFailed(f"{self._what} was given up") from None
            raise

    def cancel(self) -> None:
        """Give up what is under way; those who wait are told."""
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> T:
        try:
            async with asyncio.timeout(self._limit_s):
                return await self._make()
        except TimeoutError:
            raise TimedOut(f"{self._what} took longer than {self._limit_s:g} s", may_have_happened=False) from None

    def _done(self, task: asyncio.Task[T]) -> None:
        self._task = None
        if not task.cancelled():
            task.exception()  # whoever waits has it; if nobody does any more, it is no news
