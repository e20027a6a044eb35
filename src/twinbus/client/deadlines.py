"""How long each of many answers is waited for: one timer for all that are given as long.

    deadlines.add(future, limit_s)      # without an outcome by then, TimeoutError is its outcome
    deadlines.remove(future, limit_s)   # nobody waits for it any more

Owns: which future ends when. `asyncio.timeout` does the same for one, and costs more than a send. Knows nothing of what
is waited for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio


class Deadlines:
    """Of one link."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        """Nothing is waited for."""
        self._loop = loop
        self._lines: dict[float, _Line] = {}
        """By how long they wait: whoever came first in a line is due first."""

    def add(self, future: asyncio.Future[Any], limit_s: float) -> None:
        """Wait so long for it."""
        line = self._lines.get(limit_s)
        if line is None:
            line = self._lines[limit_s] = _Line(self._loop)
        line.add(future, self._loop.time() + limit_s)

    def remove(self, future: asyncio.Future[Any], limit_s: float) -> None:
        """It is answered, or nobody wants to know."""
        line = self._lines.get(limit_s)
        if line is not None and line.remove(future):
            del self._lines[limit_s]


class _Line:
    """Those that wait equally long, in the order in which they are due."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: dict[asyncio.Future[Any], float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, future: asyncio.Future[Any], due_s: float) -> None:
        self._waiting[future] = due_s
        if self._timer is None:
            self._timer = self._loop.call_at(due_s, self._expire)

    def remove(self, future: asyncio.Future[Any]) -> bool:
        """Whether it was the last."""
        self._waiting.pop(future, None)
        if self._waiting:
            return False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        return True

    def _expire(self) -> None:
        """End those that are due; look again when the next one is. Whoever waits removes them."""
        self._timer = None
        now_s = self._loop.time()
        for future, due_s in self._waiting.items():
            if due_s > now_s:
                self._timer = self._loop.call_at(due_s, self._expire)
                return
            if not future.done():
                future.set_exception(TimeoutError())
