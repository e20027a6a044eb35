"""How often an entity that accepts nothing is probed.

Owns: the pause before the next probe. A probe with a message is charged, and so are its failures: the pause doubles, up
to LONGEST_S. An attach is not charged: while an attach is refused, nothing else is tried, and one pump of the process
tries it more often than the others, which hear from it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from twinbus.client.pairing.wakeups import Wakeups

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
    """The pauses of one pump that waits for one entity."""

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
