"""Wake-ups: pumps that wait for an entity of the primary hear at once when it answers anybody of this process.

Owns: who waits for which entity, and who probes it how often. A pump that hears nothing probes by itself, so a missed
wake-up costs seconds, not messages.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

from twinbus.model.path import key_of


def fragment_key(path: str, fragment: int) -> str:
    """What a fragment of an entity is waited for by: that another one answers says nothing of it."""
    return f"{path}#{fragment}"


class Wakeups:
    """The pumps of one process that wait."""

    def __init__(self) -> None:
        """Nobody waits."""
        self.is_awaited = False
        """Somebody waits: asked with every message that is sent."""
        self._waiting: dict[asyncio.Future[None], str | None] = {}
        """Each with the key of the entity that is waited for; None where any will do."""
        self._leaders: dict[str, object] = {}

    def answered(self, path: str) -> None:
        """An entity has taken a message or a ping, or is known to be healthy."""
        key = key_of(path)
        for future, awaited in self._waiting.items():
            if (awaited is None or awaited == key) and not future.done():
                future.set_result(None)

    def leads(self, path: str, pump: object) -> bool:
        """Tell whether a pump is the one that probes an entity often; the others hear from it when that answers."""
        return self._leaders.setdefault(key_of(path), pump) is pump

    def stop_leading(self, path: str, pump: object) -> None:
        """Let another pump probe the entity often, if this one did."""
        if self._leaders.get(key_of(path)) is pump:
            del self._leaders[key_of(path)]

    async def wait(self, path: str | None, seconds: float) -> None:
        """Until that entity answers, or any where `path` is None; but not longer than so many seconds."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[future] = None if path is None else key_of(path)
        self.is_awaited = True
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await future
        finally:
            del self._waiting[future]
            self.is_awaited = bool(self._waiting)


# --- how often an entity that accepts nothing is probed ---------------------------------------------------------------

FIRST_S: Final = 0.5
LEAST_S: Final = 0.5
"""Between a probe that failed and the next, however often others hear from the entity."""
LONGEST_S: Final = 5.0
"""A probe is charged: the send, and for a deferred message also the receive and the deferral."""
LEAST_FREE_S: Final = 0.1
LONGEST_FREE_S: Final = 1.0
FREE_SHARE: Final = 0.05
"""The pause between two attaches is this share of the time since the first, within these limits."""


class ProbePace:
    """The pauses of one pump that waits for one entity.

    A probe with a message is charged, and so are its failures: the pause doubles, up to LONGEST_S. An attach is not
    charged: while an attach is refused, nothing else is tried, and one pump of the process tries it more often than
    the others, which hear from it.
    """

    def __init__(self, wakeups: Wakeups, path: str) -> None:
        """The entity has accepted messages until now."""
        self._wakeups = wakeups
        self._path = path
        self._loop = asyncio.get_running_loop()
        self._began_s = self._loop.time()
        self._failed_s = -LEAST_S
        self._pause_s = FIRST_S
        self._least_s = LEAST_S

    async def wait(self) -> None:
        """Wait until the next probe is due, or the entity has answered anybody else of this process."""
        await self._wakeups.wait(self._path, self._pause_s)
        await asyncio.sleep(max(0.0, self._failed_s + self._least_s - self._loop.time()))

    def succeeded(self) -> None:
        """The entity has answered a probe."""
        self._pause_s = FIRST_S

    def failed(self, *, is_costly: bool) -> None:
        """A probe has failed; it was an attach, or one that costs more."""
        self._failed_s = self._loop.time()
        if is_costly:
            self._pause_s, self._least_s = min(max(FIRST_S, 2 * self._pause_s), LONGEST_S), LEAST_S
        else:
            self._pause_s, self._least_s = self._free_pause_s(), LEAST_FREE_S

    def _free_pause_s(self) -> float:
        if not self._wakeups.leads(self._path, self):
            return LONGEST_FREE_S
        return min(max(LEAST_FREE_S, (self._failed_s - self._began_s) * FREE_SHARE), LONGEST_FREE_S)

    def end(self) -> None:
        """Probe no more."""
        self._wakeups.stop_leading(self._path, self)
