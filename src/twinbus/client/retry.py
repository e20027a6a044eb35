"""Retries: which failures are tried again, how often, and after how long.

Owns: the policy, and the pauses of one operation. An operation asks for its next pause after each failure; this module
knows nothing of what the operation is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from twinbus.model.errors import FailureClass, ServerBusy

if TYPE_CHECKING:
    from twinbus.model.errors import ServiceBusError

BUSY_PAUSE_S: Final = 10.0
"""The pause for a busy server that does not name one."""
MAX_SHORT_PAUSES: Final = 3
"""Tries of a busy server that an operation makes in the time that is too short for the whole pause."""
MIN_BUSY_PAUSE_S: Final = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """Exponential back-off, as long as the operation has time."""

    max_retries: int = 3
    """For what is unavailable. A busy server is asked again until the operation's time is over."""
    first_pause_s: float = 0.1
    longest_pause_s: float = 30.0
    factor: float = 4.0
    busy_pause_s: float = BUSY_PAUSE_S
    waits_for_busy: bool = True
    """False: whoever runs the operation does so himself."""

    def __post_init__(self) -> None:
        """Refuse what makes no sense."""
        if self.max_retries < 0 or self.first_pause_s < 0 or self.factor < 1 or self.busy_pause_s < 0:
            raise ValueError(f"{self} cannot be: no number is below zero, and factor not below one")

    def pause_s(self, error: ServiceBusError, failures: int) -> float | None:
        """How long to wait after `failures` failures, of which `error` is the last; None: it is not tried again."""
        if error.failure_class is FailureClass.THROTTLED:
            return self.busy_pause_for(error) if self.waits_for_busy else None
        if error.failure_class is FailureClass.CALLER or failures > self.max_retries:
            return None
        return min(self.first_pause_s * self.factor ** (failures - 1), self.longest_pause_s)

    def busy_pause_for(self, error: ServiceBusError) -> float:
        """Return the pause that the server asks for; the policy's own if it names none."""
        asked_s = error.retry_after_s if isinstance(error, ServerBusy) else None
        return self.busy_pause_s if asked_s is None else asked_s


class Backoff:
    """The pauses of one operation, between its tries."""

    __slots__ = ("_failures", "_policy", "_short_pauses")

    def __init__(self, policy: RetryPolicy) -> None:
        """Nothing has failed yet."""
        self._policy = policy
        self._failures = 0
        self._short_pauses = 0

    def next_pause_s(self, error: ServiceBusError, left_s: float) -> float | None:
        """Return the pause after a failure, with `left_s` left of the operation's time; None: do not try again."""
        self._failures += 1
        pause_s = self._policy.pause_s(error, self._failures)
        if pause_s is None or pause_s < left_s:
            return pause_s
        return self._short_pause_s(left_s) if error.failure_class is FailureClass.THROTTLED else None

    def next_busy_pause_s(self, error: ServiceBusError, left_s: float) -> float | None:
        """Return the same for an error that is treated as that of a busy server, whatever its class."""
        pause_s = self._policy.busy_pause_for(error)
        return pause_s if pause_s < left_s else self._short_pause_s(left_s)

    def _short_pause_s(self, left_s: float) -> float | None:
        """Return a pause for a busy server that asks for more time than is left: half of it, `SHORT_PAUSES` times.

        So the last try is made in the last eighth of the time, and a caller that sends in a loop is held back for most
        of its timeout instead of failing at once.
        """
        short_s = left_s / 2
        if self._short_pauses >= MAX_SHORT_PAUSES or short_s < MIN_BUSY_PAUSE_S:
            return None
        self._short_pauses += 1
        return short_s


NO_RETRY: Final = RetryPolicy(max_retries=0, waits_for_busy=False)
RECONNECT_ONCE: Final = RetryPolicy(max_retries=1, first_pause_s=0.0, waits_for_busy=False)
"""A paired factory's: one more try at once, and no back-off. What it cannot deliver it parks."""
