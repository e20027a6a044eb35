"""Message dispositions and settlement errors."""

from __future__ import annotations

from enum import Enum

from twinbus.model.errors import MessageLockLost, SessionLockLost


class Disposition(Enum):
    """How messages are settled."""

    COMPLETE = "complete"
    ABANDON = "abandon"
    DEFER = "defer"
    DEAD_LETTER = "dead-letter"
    RELEASE = "release"
    RECLAIM = "free"
    """Requeue the messages locked by a receiver that will not return."""


class SomeLocksLost(MessageLockLost):
    """The locks of some messages are lost; the other messages are settled."""

    def __init__(self, lock_numbers: list[int]) -> None:
        """Create the error; `lock_numbers` name the lost locks."""
        super().__init__(str(lock_lost_error()))
        self.lock_numbers = lock_numbers


def lock_lost_error() -> MessageLockLost:
    """Return the error for settling a message or renewing its lock without holding the lock."""
    return MessageLockLost(
        "The lock supplied is invalid. Either the lock expired, or the message has already been removed from the queue."
    )


def session_lock_lost_error(session_id: bytes) -> SessionLockLost:
    """Return the error for using a session without holding its lock."""
    return SessionLockLost(
        f"The session lock has expired or is not held for session '{session_id.decode(errors='replace')}': "
        "accept the session again."
    )


def dead_letter_properties(reason: str | None, description: str | None) -> dict[str, object]:
    """Return the message properties that hold the reason for dead-lettering."""
    properties = {"DeadLetterReason": reason, "DeadLetterErrorDescription": description}
    return {name: text for name, text in properties.items() if text is not None}
