"""Wake-ups: pumps that wait for an entity of the primary hear at once when it answers anybody of this process.

Owns: who waits for which entity, and who probes it how often. A pump that hears nothing probes by itself, so a missed
wake-up costs seconds, not messages.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

from twinbus.model.path import canonical_key


def fragment_wakeup_key(path: str, fragment: int) -> str:
    """What a fragment of an entity is waited for by: that another one answers says nothing of it."""
    return f"{path}#{fragment}"


class Wakeups:
    """The pumps of one process that wait."""

    def __init__(self) -> None:
        """Nobody waits."""
        self.has_waiters = False
        """Somebody waits: asked with every message that is sent."""
        self._waiting: dict[asyncio.Future[None], str | None] = {}
        """Each with the key of the entity that is waited for; None where any will do."""
        self._probe_leaders: dict[str, object] = {}

    def notify(self, path: str) -> None:
        """An entity has taken a message or a ping, or is known to be healthy."""
        key = canonical_key(path)
        for future, awaited in self._waiting.items():
            if (awaited is None or awaited == key) and not future.done():
                future.set_result(None)

    def is_probe_leader(self, path: str, pump: object) -> bool:
        """Tell whether a pump is the one that probes an entity often; the others hear from it when that answers."""
        return self._probe_leaders.setdefault(canonical_key(path), pump) is pump

    def resign_probe_leader(self, path: str, pump: object) -> None:
        """Let another pump probe the entity often, if this one did."""
        if self._probe_leaders.get(canonical_key(path)) is pump:
            del self._probe_leaders[canonical_key(path)]

    async def wait(self, path: str | None, timeout_s: float) -> None:
        """Until that entity answers, or any where `path` is None; but not longer than so many seconds."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[future] = None if path is None else canonical_key(path)
        self.has_waiters = True
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await future
        finally:
            del self._waiting[future]
            self.has_waiters = bool(self._waiting)


# --- how often an entity that accepts nothing is probed ---------------------------------------------------------------

FIRST_PAUSE_S: Final = 0.5
MIN_PAUSE_S: Final = 0.5
"""Between a probe that failed and the next, however often others hear from the entity."""
MAX_PAUSE_S: Final = 5.0
"""A probe is charged: the send, and for a deferred message also the receive and the deferral."""
MIN_ATTACH_PAUSE_S: Final = 0.1
MAX_ATTACH_PAUSE_S: Final = 1.0
ATTACH_PAUSE_SHARE: Final = 0.05
"""The pause between two attaches is this share of the time since the first, within these limits."""


class ProbeBackoff:
    """The pauses of one pump that waits for one entity.

    A probe with a message is charged, and so are its failures: the pause doubles, up to LONGEST_S. An attach is not
    charged: while an attach is refused, nothing else is tried, and one pump of the process tries it more often than
    the others, which hear from it.
    """

    def __init__(self, wakeups: Wakeups, wakeup_key: str) -> None:
        """The entity has accepted messages until now."""
        self._wakeups = wakeups
        self._wakeup_key = wakeup_key
        self._loop = asyncio.get_running_loop()
        self._started_s = self._loop.time()
        self._last_failure_s = -MIN_PAUSE_S
        self._pause_s = FIRST_PAUSE_S
        self._min_pause_s = MIN_PAUSE_S

    async def wait(self) -> None:
        """Wait until the next probe is due, or the entity has answered anybody else of this process."""
        await self._wakeups.wait(self._wakeup_key, self._pause_s)
        await asyncio.sleep(max(0.0, self._last_failure_s + self._min_pause_s - self._loop.time()))

    def note_success(self) -> None:
        """The entity has answered a probe."""
        self._pause_s = FIRST_PAUSE_S

    def note_failure(self, *, is_charged: bool) -> None:
        """A probe has failed; it was an attach, or one that costs more."""
        self._last_failure_s = self._loop.time()
        if is_charged:
            self._pause_s, self._min_pause_s = min(max(FIRST_PAUSE_S, 2 * self._pause_s), MAX_PAUSE_S), MIN_PAUSE_S
        else:
            self._pause_s, self._min_pause_s = self._attach_pause_s(), MIN_ATTACH_PAUSE_S

    def _attach_pause_s(self) -> float:
        if not self._wakeups.is_probe_leader(self._wakeup_key, self):
            return MAX_ATTACH_PAUSE_S
        return min(
            max(MIN_ATTACH_PAUSE_S, (self._last_failure_s - self._started_s) * ATTACH_PAUSE_SHARE), MAX_ATTACH_PAUSE_S
        )

    def end(self) -> None:
        """Probe no more."""
        self._wakeups.resign_probe_leader(self._wakeup_key, self)
