"""Queues of a run: one for each feature, and one with all features.

Owns: the settings of each queue, and how often its messages use them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tests.campaigns.clients import PARTITIONED

LOCK_S: Final = 5
"""Shortest lock, so that messages of disconnected clients are redelivered within a run."""
SESSIONS: Final = 6
"""Sessions of each queue with sessions: few, so that each has many messages."""
SHORT_DELAY_RANGE_MS: Final = (200, 1_500)
"""Time to live of messages that expire in the run, and delay of messages that become due in it."""
LONG_MS: Final = 3_600_000
"""Longer than any run."""
RESEND_MARGIN_S: Final = 8.0
"""A message is not repeated so shortly before the end of the queue's duplicate window."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueKind:
    """One queue, with the probabilities of each kind of message."""

    name: str
    has_sessions: bool = False
    duplicate_window_s: int = 0
    """0: no duplicate detection."""
    dead_letters_expired: bool = False
    expires_soon: float = 0.0
    expires_late: float = 0.0
    scheduled: float = 0.0
    deferred: float = 0.0
    """Probability that a received message is deferred."""

    @property
    def settings(self) -> dict[str, str]:
        """Elements of the queue description."""
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
        """Time after the first send in which a message can be repeated."""
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
