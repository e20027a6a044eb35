"""The queues of a run, one for each thing a queue can do beside keeping messages, and one that does it all.

Owns: what each queue is told to be, and how often its messages make use of that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tests.campaigns.clients import PARTITIONED

LOCK_S: Final = 5
"""As short as can be: what a client that hung up had received is there again within a run."""
SESSIONS: Final = 6
"""Of each queue that has any: few, so that each has many messages."""
SHORT_DELAY_RANGE_MS: Final = (200, 1_500)
"""How long messages live that are to expire, and how long those wait that are scheduled for soon."""
LONG_MS: Final = 3_600_000
"""Longer than any run."""
RESEND_MARGIN_S: Final = 8.0
"""A message is not sent again when it could be taken in only just within the queue's window."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueKind:
    """One queue. The chances are those that a message is such a one."""

    name: str
    has_sessions: bool = False
    duplicate_window_s: int = 0
    """0: duplicates are not looked for."""
    dead_letters_expired: bool = False
    expires_soon: float = 0.0
    expires_late: float = 0.0
    scheduled: float = 0.0
    deferred: float = 0.0
    """... that a received message is set aside."""

    @property
    def settings(self) -> dict[str, str]:
        """As an administrator writes them."""
        window_s = self.duplicate_window_s or 600
        return {
            "LockDuration": f"PT{LOCK_S}S",
            "RequiresSession": str(self.has_sessions).lower(),
            "RequiresDuplicateDetection": str(bool(self.duplicate_window_s)).lower(),
            "DuplicateDetectionHistoryTimeWindow": f"PT{window_s}S",
            "DeadLetteringOnMessageExpiration": str(self.dead_letters_expired).lower(),
            "EnablePartitioning": str(self.name.startswith(PARTITIONED)).lower(),
        }

    @property
    def resend_s(self) -> float:
        """For so long after its first send a message can be sent again."""
        return self.duplicate_window_s - RESEND_MARGIN_S


QUEUE_KINDS: Final = {
    kind.name: kind
    for kind in (
        QueueKind(name="sessions", has_sessions=True),
        QueueKind(name="duplicates", duplicate_window_s=600),
        QueueKind(name="duplicates-briefly", duplicate_window_s=20),
        QueueKind(name="schedule", scheduled=0.6),
        QueueKind(name="burying", dead_letters_expired=True, expires_soon=0.5, expires_late=0.2),
        QueueKind(name="vanishing", expires_soon=0.5, expires_late=0.2),
        QueueKind(name="deferring", deferred=0.4),
        QueueKind(
            name="everything",
            has_sessions=True,
            duplicate_window_s=600,
            dead_letters_expired=True,
            expires_soon=0.1,
            expires_late=0.1,
            scheduled=0.15,
            deferred=0.15,
        ),
        QueueKind(name=f"{PARTITIONED}duplicates", duplicate_window_s=600, deferred=0.2),
        QueueKind(
            name=f"{PARTITIONED}everything",
            has_sessions=True,
            duplicate_window_s=600,
            dead_letters_expired=True,
            expires_soon=0.1,
            expires_late=0.1,
            scheduled=0.15,
            deferred=0.15,
        ),
    )
}
