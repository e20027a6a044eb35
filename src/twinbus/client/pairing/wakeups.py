"""Wake-ups: pumps that wait for an entity of the primary hear at once when it answers anybody of this process.

Owns: who waits for which entity, and who probes it often. A pump that hears nothing probes by itself, so a missed
wake-up costs seconds, not messages.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

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
