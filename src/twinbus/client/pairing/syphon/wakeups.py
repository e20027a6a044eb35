"""Wakeups: notifications to waiting pumps when an entity of the primary responds to any part of this process.

Owns: the pumps that wait for each entity, and how often they probe it. A pump that gets no notification probes the
entity itself, so a missed wakeup costs seconds, not messages.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

from twinbus.model.path import canonical_key


def fragment_wakeup_key(path: str, fragment: int) -> str:
    """Return the wakeup key of a fragment.

    Each fragment has its own key, because a response from one fragment does not show that other fragments respond.
    """
    return f"{path}#{fragment}"


class Wakeups:
    """The waiting pumps of one process."""

    def __init__(self) -> None:
        """Create an empty set of waiting pumps."""
        self.has_waiters = False
        """Whether a pump waits. This is a plain attribute because it is read for every message that is sent."""
        self._waiting: dict[asyncio.Future[None], str | None] = {}
        """The key of the entity that each future waits for, or None for any entity."""
        self._probe_leaders: dict[str, object] = {}

    def notify(self, path: str) -> None:
        """Wake the pumps that wait for an entity, which accepted a message or a ping or was marked healthy."""
        key = canonical_key(path)
        for future, awaited in self._waiting.items():
            if (awaited is None or awaited == key) and not future.done():
                future.set_result(None)

    def is_probe_leader(self, path: str, pump: object) -> bool:
        """Return whether this pump is the one that probes the entity often.

        The other pumps that wait for the entity are notified when the entity responds.
        """
        return self._probe_leaders.setdefault(canonical_key(path), pump) is pump

    def resign_probe_leader(self, path: str, pump: object) -> None:
        """Let another pump become the probe leader of the entity, if this pump is the leader."""
        if self._probe_leaders.get(canonical_key(path)) is pump:
            del self._probe_leaders[canonical_key(path)]

    async def wait(self, path: str | None, timeout_s: float) -> None:
        """Wait until the entity responds (any entity if `path` is None), but no longer than `timeout_s`."""
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


# --- probes of an entity that accepts no messages ---------------------------------------------------------------------

FIRST_PAUSE_S: Final = 0.5
MIN_PAUSE_S: Final = 0.5
"""The minimum pause after a failed probe, however often other parts of the process reach the entity."""
MAX_PAUSE_S: Final = 5.0
"""The maximum pause after a failed probe. A probe with a message consists of billed operations: the send, and for a
deferred message also the receive and the deferral."""
MIN_ATTACH_PAUSE_S: Final = 0.1
MAX_ATTACH_PAUSE_S: Final = 1.0
ATTACH_PAUSE_SHARE: Final = 0.05
"""The pause between two attaches as a share of the time since the first attach, between MIN_ATTACH_PAUSE_S and
MAX_ATTACH_PAUSE_S."""


class ProbeBackoff:
    """The pauses of one pump that waits for one entity.

    A probe with a message is billed even if the probe fails, so the pause doubles up to MAX_PAUSE_S. An attach is not
    billed. While attaches are refused, no message is sent, and one pump of the process (the probe leader) attaches more
    often than the other pumps, which are notified when the leader's attach succeeds.
    """

    def __init__(self, wakeups: Wakeups, wakeup_key: str) -> None:
        """Create a back-off that starts with the shortest pause."""
        self._wakeups = wakeups
        self._wakeup_key = wakeup_key
        self._loop = asyncio.get_running_loop()
        self._started_s = self._loop.time()
        self._last_failure_s = -MIN_PAUSE_S
        self._pause_s = FIRST_PAUSE_S
        self._min_pause_s = MIN_PAUSE_S

    async def wait(self) -> None:
        """Wait until the next probe is due, or the entity has responded to another part of this process."""
        await self._wakeups.wait(self._wakeup_key, self._pause_s)
        await asyncio.sleep(max(0.0, self._last_failure_s + self._min_pause_s - self._loop.time()))

    def note_success(self) -> None:
        """Note that the entity responded to a probe."""
        self._pause_s = FIRST_PAUSE_S

    def note_failure(self, *, is_charged: bool) -> None:
        """Note a failed probe; `is_charged` is False if only an attach was refused, which is not billed."""
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
        """Stop probing, and resign as probe leader."""
        self._wakeups.resign_probe_leader(self._wakeup_key, self)
