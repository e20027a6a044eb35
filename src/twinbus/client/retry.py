"""What is tried again, how often, and after how long.

Owns: the policy. Whoever runs an operation asks it after each failure; it knows nothing of what the operation is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from twinbus.model.errors import FailureClass

if TYPE_CHECKING:
    from twinbus.model.errors import ServiceBusError

BUSY_PAUSE_S: Final = 10.0
"""How long to wait when a server says that it is busy, and does not say for how long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """Exponential back-off, as long as the operation has time."""

    max_retries: int = 3
    """For what is unavailable. A busy server is asked again until the time is over."""
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
            return self.busy_pause_s if self.waits_for_busy else None
        if error.failure_class is FailureClass.CALLER or failures > self.max_retries:
            return None
        return min(self.first_pause_s * self.factor ** (failures - 1), self.longest_pause_s)


NO_RETRY: Final = RetryPolicy(max_retries=0, waits_for_busy=False)
RECONNECT_ONCE: Final = RetryPolicy(max_retries=1, first_pause_s=0.0, waits_for_busy=False)
"""A paired factory's: one more try at once, and no back-off. What it cannot deliver it parks."""
