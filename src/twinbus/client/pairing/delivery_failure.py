"""Whose fault it is that a parked or spooled message was not accepted: its own, or its destination's.

Only a message with a fault of its own is put aside for good (Q19): the syphon dead-letters it, the spool moves it to
`refused/`. All other messages wait, however long it takes: for a primary that is down, an entity that is full or
disabled, a key that is valid again. Messages for an entity that does not exist wait for a time that can be set.

Owns: this rule, for everyone who sends a message again.
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
"""How long messages wait for an entity that does not exist, unless somebody says otherwise."""
CONNECTION_ERRORS: Final = (ConnectionFailed, ConnectionLost, ObjectClosed, FactoryFaulted)
"""There is no connection to the primary, or this end of it was closed."""
NOT_FOUND_ERRORS: Final = (EntityNotFound, EntityDeleted)
MESSAGE_ERRORS: Final = (MessageTooLarge, InvalidArgument, MalformedMessage, NotAllowed, InvalidOperation, PartlyStored)
"""Errors that the same message meets again, whenever it is sent: too large, a bad argument, no session id where the
entity requires one. `PartlyStored` is a batch's: its messages are then judged one by one."""


class FailureCause(Enum):
    """What is at fault."""

    MESSAGE = "the message"
    """It will never be accepted."""
    ENTITY_NOT_FOUND = "the entity does not exist"
    ENTITY_REFUSES = "the entity or the key"
    """Disabled, or unauthorised: somebody has to act, and then the message is accepted."""
    OUTAGE = "an outage"
    """Unavailable, busy or full: it passes."""


def failure_cause_of(error: ServiceBusError) -> FailureCause:
    """Return what is at fault if a message was not accepted."""
    if isinstance(error, CONNECTION_ERRORS):
        return FailureCause.OUTAGE
    if isinstance(error, NOT_FOUND_ERRORS):
        return FailureCause.ENTITY_NOT_FOUND
    if error.failure_class is not FailureClass.CALLER or isinstance(error, QuotaExceeded):
        return FailureCause.OUTAGE
    return FailureCause.MESSAGE if isinstance(error, MESSAGE_ERRORS) else FailureCause.ENTITY_REFUSES


class RejectionPolicy:
    """How long messages for one entity wait, by the errors that it answers with."""

    def __init__(self, not_found_grace_s: float) -> None:
        """Messages wait for a missing entity for `not_found_grace_s`."""
        self._not_found_grace_s = not_found_grace_s
        self._not_found_since_s: float | None = None

    def note_accepted(self) -> None:
        """Note that the entity is there."""
        self._not_found_since_s = None

    def is_permanent(self, error: ServiceBusError, now_s: float) -> bool:
        """Tell whether a message that met this error is put aside for good; else it waits.

        Only the time for which the entity is missing without a break counts.
        """
        blame = failure_cause_of(error)
        if blame is not FailureCause.ENTITY_NOT_FOUND:
            self._not_found_since_s = None
            return blame is FailureCause.MESSAGE
        if self._not_found_since_s is None:
            self._not_found_since_s = now_s
        return now_s - self._not_found_since_s >= self._not_found_grace_s


def is_destination_refusal(error: ServiceBusError) -> bool:
    """Tell whether somebody has to act before messages are accepted: it is worth an alarm."""
    return failure_cause_of(error) in (FailureCause.ENTITY_REFUSES, FailureCause.ENTITY_NOT_FOUND)
