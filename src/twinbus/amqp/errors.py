"""What can go wrong, and what it is called on the wire.

Two families. What *we* did wrong is raised to the caller (`LocalError`, `EncodeError`). What the *peer* did wrong is
a `Violation`: raised inside the engine, turned by the connection into the right close, end or detach, and never let
out. `DecodeError` is both: raised to whoever asks for a value to be decoded, a violation where a frame held it.
"""

from __future__ import annotations

from typing import Final

from twinbus.amqp.types import Symbol

# amqp-error, connection-error, session-error, link-error, transaction-error: sections 2.8.15 to 2.8.18 and 4.5.8.
INTERNAL_ERROR: Final = Symbol("amqp:internal-error")
NOT_FOUND: Final = Symbol("amqp:not-found")
UNAUTHORIZED_ACCESS: Final = Symbol("amqp:unauthorized-access")
DECODE_ERROR: Final = Symbol("amqp:decode-error")
RESOURCE_LIMIT_EXCEEDED: Final = Symbol("amqp:resource-limit-exceeded")
NOT_ALLOWED: Final = Symbol("amqp:not-allowed")
INVALID_FIELD: Final = Symbol("amqp:invalid-field")
NOT_IMPLEMENTED: Final = Symbol("amqp:not-implemented")
RESOURCE_LOCKED: Final = Symbol("amqp:resource-locked")
PRECONDITION_FAILED: Final = Symbol("amqp:precondition-failed")
RESOURCE_DELETED: Final = Symbol("amqp:resource-deleted")
ILLEGAL_STATE: Final = Symbol("amqp:illegal-state")
FRAME_SIZE_TOO_SMALL: Final = Symbol("amqp:frame-size-too-small")
CONNECTION_FORCED: Final = Symbol("amqp:connection:forced")
FRAMING_ERROR: Final = Symbol("amqp:connection:framing-error")
WINDOW_VIOLATION: Final = Symbol("amqp:session:window-violation")
ERRANT_LINK: Final = Symbol("amqp:session:errant-link")
HANDLE_IN_USE: Final = Symbol("amqp:session:handle-in-use")
UNATTACHED_HANDLE: Final = Symbol("amqp:session:unattached-handle")
DETACH_FORCED: Final = Symbol("amqp:link:detach-forced")
TRANSFER_LIMIT_EXCEEDED: Final = Symbol("amqp:link:transfer-limit-exceeded")
MESSAGE_SIZE_EXCEEDED: Final = Symbol("amqp:link:message-size-exceeded")
LINK_STOLEN: Final = Symbol("amqp:link:stolen")
TRANSACTION_UNKNOWN_ID: Final = Symbol("amqp:transaction:unknown-id")
TRANSACTION_ROLLBACK: Final = Symbol("amqp:transaction:rollback")
TRANSACTION_TIMEOUT: Final = Symbol("amqp:transaction:timeout")


class AmqpError(Exception):
    """Anything this package raises."""


class LocalError(AmqpError):
    """The program that uses the engine asked for a step that is not allowed now."""


class FrameTooLarge(LocalError):
    """What was to be sent does not fit a frame of the size that the peer takes."""


class EncodeError(AmqpError):
    """A value has no AMQP encoding: an unknown type, or a number out of its type's range."""


class Violation(AmqpError):
    """The peer broke a rule. The connection is closed with `condition`; the subclasses end something smaller."""

    def __init__(self, condition: Symbol, description: str) -> None:
        """`description` is what the peer and the log are told."""
        super().__init__(f"{condition}: {description}")
        self.condition = condition
        self.description = description


class DecodeError(Violation):
    """Bytes that are no AMQP value, or one beyond a limit."""

    def __init__(self, description: str, condition: Symbol = DECODE_ERROR) -> None:
        """Say what was wrong with the bytes."""
        super().__init__(condition, description)


class SessionViolation(Violation):
    """Ends the session, not the connection."""


class LinkViolation(Violation):
    """Detaches the link, not more."""
