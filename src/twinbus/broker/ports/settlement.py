"""Ways to settle messages, and the errors of settlement."""

from __future__ import annotations

from enum import Enum

from twinbus.model.errors import MessageLockLost, SessionLockLost


class Disposition(Enum):
    """In which way messages are settled."""

    COMPLETE = "complete"
    ABANDON = "abandon"
    DEFER = "defer"
    DEAD_LETTER = "dead-letter"
    RELEASE = "release"
    RECLAIM = "free"
    """Of a receiver that is gone for good."""


class SomeLocksLost(MessageLockLost):
    """The locks of some messages are lost; the others are settled."""

    def __init__(self, lock_numbers: list[int]) -> None:
        """`numbers` are those of the lost locks."""
        super().__init__(str(lock_lost_error()))
        self.lock_numbers = lock_numbers


def lock_lost_error() -> MessageLockLost:
    """Return the error of a caller that settles or renews without a lock."""
    return MessageLockLost(
        "The lock supplied is invalid. Either the lock expired, or the message has already been removed from the queue."
    )


def session_lock_lost_error(session_id: bytes) -> SessionLockLost:
    """Return the error of a caller that does not hold the session of a message."""
    return SessionLockLost(
        f"The session lock has expired or is not held for session '{session_id.decode(errors='replace')}': "
        "accept the session again."
    )


def dead_letter_properties(reason: str | None, description: str | None) -> dict[str, object]:
    """Return the properties that say why a message was dead-lettered."""
    found = {"DeadLetterReason": reason, "DeadLetterErrorDescription": description}
    return {name: text for name, text in found.items() if text is not None}
