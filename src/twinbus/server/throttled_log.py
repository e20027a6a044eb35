"""Log records that clients can cause, at a bounded rate.

    refused = ThrottledLog(log, interval_s=10.0)
    refused.warning("the connection of %s was refused", address)

Owns: the interval between two records, and the number of records left out in between, which the next record carries as
`suppressed`. Knows nothing of what is logged.
"""

from __future__ import annotations

import time
from math import inf
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable

THROTTLE_INTERVAL_S: Final = 10.0


class ThrottledLog:
    """At most one record per interval."""

    def __init__(
        self,
        log: logging.Logger,
        *,
        interval_s: float = THROTTLE_INTERVAL_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """The first record is always written."""
        self._log = log
        self._interval_s = interval_s
        self._clock = clock
        self._written_s = -inf
        self._suppressed = 0

    def warning(self, text: str, *arguments: object) -> None:
        """Log a warning, unless the last one was written less than an interval ago."""
        now_s = self._clock()
        if now_s - self._written_s < self._interval_s:
            self._suppressed += 1
            return
        extra = {"suppressed": self._suppressed} if self._suppressed else None
        self._written_s, self._suppressed = now_s, 0
        self._log.warning(text, *arguments, extra=extra)
