"""The log of failed logins, over all ways in: SASL, tokens on `$cbs`, tokens over HTTP.

Owns: how such a record looks, and how many there can be: a client that guesses keys must not fill the disk. Beyond
`AT_ONCE` in `WINDOW_S` seconds, failures are only counted; the count is one record at the end of that time. No record
holds a secret, a signature, or a key name that no key has: that may be a secret in the wrong place.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinbus.broker.clock import Clock, Timers
    from twinbus.server.auth.sas import LoginFailed

log: Final = logging.getLogger(__name__)

MAX_RECORDS_PER_WINDOW: Final = 20
WINDOW_S: Final = 10.0
UNKNOWN_KEY: Final = "unknown"


class LoginLog:
    """The failed logins of one process."""

    def __init__(self, clock: Clock, timers: Timers, is_known_key: Callable[[str], bool]) -> None:
        """`knows` returns whether some key has a name."""
        self._clock = clock
        self._timers = timers
        self._is_known_key = is_known_key
        self._count = 0

    def record_failure(self, mechanism: str, client: str, failure: LoginFailed) -> None:
        """Somebody has shown a wrong key or token."""
        if self._count == 0:
            self._timers.call_at(self._clock.monotonic_s() + WINDOW_S, self._end_window)
        self._count += 1
        if self._count <= MAX_RECORDS_PER_WINDOW:
            known = next(filter(self._is_known_key, failure.key_names), UNKNOWN_KEY)
            extra = {"way": mechanism, "client": client, "key_name": known, "reason": failure.reason}
            log.warning("a login failed", extra=extra)

    def _end_window(self) -> None:
        if self._count > MAX_RECORDS_PER_WINDOW:
            log.warning("%d more logins failed within %g s", self._count - MAX_RECORDS_PER_WINDOW, WINDOW_S)
        self._count = 0
