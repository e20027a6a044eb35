"""The log of failed logins with SASL, with tokens on `$cbs`, and with tokens over HTTP.

Owns: the form of a record, and the limit on records: a client that guesses keys must not fill the disk. After
`MAX_RECORDS_PER_WINDOW` failures within `WINDOW_S` seconds, further failures are only counted, and the count is logged
at the end of the window. No record contains a secret, a signature, or an unknown key name: such a name may be a secret
that was entered in the wrong field.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinbus.broker.clock import Clock, Timers
    from twinbus.server.auth.sas import LoginFailed

log: Final = logging.getLogger(__name__)

MAX_RECORDS_PER_WINDOW: Final = 20
WINDOW_S: Final = 10.0
UNKNOWN_KEY: Final = "unknown"


MAX_KEPT_RECORDS: Final = 200
"""How many failed logins a process keeps in memory."""


class FailedLoginRecord(NamedTuple):
    """A failed login. It contains no secret."""

    time_ms: int
    mechanism: str
    client: str
    key_name: str
    reason: str


class LoginLog:
    """The failed logins of one process."""

    def __init__(self, clock: Clock, timers: Timers, is_known_key: Callable[[str], bool]) -> None:
        """Create a log without failures; `is_known_key` returns whether a key with the given name exists."""
        self._clock = clock
        self._timers = timers
        self._is_known_key = is_known_key
        self._count = 0
        self.total = 0
        """Failed logins since the process was started."""
        self.last: deque[FailedLoginRecord] = deque(maxlen=MAX_KEPT_RECORDS)
        """The last failed logins, for the JSON API."""

    def record_failure(self, mechanism: str, client: str, failure: LoginFailed) -> None:
        """Log a failed login, or only count it if the window has too many records already."""
        if self._count == 0:
            self._timers.call_at(self._clock.monotonic_s() + WINDOW_S, self._end_window)
        self._count += 1
        self.total += 1
        key_name = next(filter(self._is_known_key, failure.key_names), UNKNOWN_KEY)
        self.last.append(FailedLoginRecord(self._clock.wall_ms(), mechanism, client, key_name, failure.reason))
        if self._count <= MAX_RECORDS_PER_WINDOW:
            extra = {"way": mechanism, "client": client, "key_name": key_name, "reason": failure.reason}
            log.warning("a login failed", extra=extra)

    def _end_window(self) -> None:
        if self._count > MAX_RECORDS_PER_WINDOW:
            log.warning("%d more logins failed within %g s", self._count - MAX_RECORDS_PER_WINDOW, WINDOW_S)
        self._count = 0
