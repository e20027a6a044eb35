"""The cause of a failed redelivery of a parked or spooled message: the message itself, or its destination.

Only a message that can never be accepted is removed: the syphon dead-letters the message, or the spool moves the
message to `refused/`. All other messages wait without a time limit while the primary is down, the entity is full or
disabled, or the key is not authorised. Messages for an entity that does not exist wait for a configurable time.

Owns: this rule, for the syphon and the spool.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final

from twinbus.client.errors import ConnectionFailed, ConnectionLost, FactoryFaulted, ObjectClosed
from twinbus.model.errors import (
    EntityDeleted,
    EntityNotFound,
    FailureClass,
    InvalidArgument,
    InvalidOperation,
    MalformedMessage,
    MessageTooLarge,
    NotAllowed,
    PartlyStored,
    QuotaExceeded,
)

if TYPE_CHECKING:
    from twinbus.model.errors import ServiceBusError

NOT_FOUND_GRACE_S: Final = 3600.0
"""The default time that messages wait for an entity that does not exist."""
CONNECTION_ERRORS: Final = (ConnectionFailed, ConnectionLost, ObjectClosed, FactoryFaulted)
"""Errors that mean that the connection to the primary failed or was lost, or that this client closed it."""
NOT_FOUND_ERRORS: Final = (EntityNotFound, EntityDeleted)
MESSAGE_ERRORS: Final = (MessageTooLarge, InvalidArgument, MalformedMessage, NotAllowed, InvalidOperation, PartlyStored)
"""Errors that a message gets whenever it is sent, for example because it is too large, has an invalid argument, or
lacks a session id that the entity requires. `PartlyStored` is an error of a batch: messages of the batch that were not
stored are sent again, and get their own errors."""


class FailureCause(Enum):
    """The cause of a failed delivery."""

    MESSAGE = "the message"
    """The message will never be accepted."""
    ENTITY_NOT_FOUND = "the entity does not exist"
    ENTITY_REFUSES = "the entity or the key"
    """The entity is disabled, or the key is not authorised, so an operator has to act before the message is
    accepted."""
    OUTAGE = "an outage"
    """The entity is unavailable, busy or full, so a later attempt may succeed."""


def failure_cause_of(error: ServiceBusError) -> FailureCause:
    """Return the cause of a failed delivery."""
    if isinstance(error, CONNECTION_ERRORS):
        return FailureCause.OUTAGE
    if isinstance(error, NOT_FOUND_ERRORS):
        return FailureCause.ENTITY_NOT_FOUND
    if error.failure_class is not FailureClass.CALLER or isinstance(error, QuotaExceeded):
        return FailureCause.OUTAGE
    return FailureCause.MESSAGE if isinstance(error, MESSAGE_ERRORS) else FailureCause.ENTITY_REFUSES


class RejectionPolicy:
    """The rule for how long messages wait for one entity, depending on the entity's errors."""

    def __init__(self, not_found_grace_s: float) -> None:
        """Create a policy that lets messages wait `not_found_grace_s` for a missing entity."""
        self._not_found_grace_s = not_found_grace_s
        self._not_found_since_s: float | None = None

    def note_accepted(self) -> None:
        """Note that the entity exists, because it accepted a message."""
        self._not_found_since_s = None

    def is_permanent(self, error: ServiceBusError, now_s: float) -> bool:
        """Return whether a message with this error is removed. Otherwise, the message waits.

        If the entity does not exist, the message waits until the entity has been missing for `not_found_grace_s`
        without interruption.
        """
        cause = failure_cause_of(error)
        if cause is not FailureCause.ENTITY_NOT_FOUND:
            self._not_found_since_s = None
            return cause is FailureCause.MESSAGE
        if self._not_found_since_s is None:
            self._not_found_since_s = now_s
        return now_s - self._not_found_since_s >= self._not_found_grace_s


def is_destination_refusal(error: ServiceBusError) -> bool:
    """Return whether an operator has to act before the destination accepts messages, which is worth an alarm."""
    return failure_cause_of(error) in (FailureCause.ENTITY_REFUSES, FailureCause.ENTITY_NOT_FOUND)
