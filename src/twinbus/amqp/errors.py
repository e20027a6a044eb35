"""Exceptions in this package, and the error conditions in the specification.

Mistakes by our own program are raised to the caller (`LocalError`, `EncodeError`). Mistakes by the peer are a
`Violation`, to which the connection responds with the appropriate close, end or detach. `DecodeError` belongs to both
groups: it is raised to callers of the codec, and is a violation if a frame contained the invalid bytes.
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
    """Base class of all exceptions that this package raises."""


class LocalError(AmqpError):
    """The program asked the engine for a step that is not allowed in the current state."""


class FrameTooLarge(LocalError):
    """The frame to be sent is larger than the peer's maximum frame size."""


class EncodeError(AmqpError):
    """A value has no AMQP encoding: its type is unknown, or the value is out of the range of its type."""


class Violation(AmqpError):
    """The peer broke a protocol rule. The connection is closed with `condition` unless a subclass says otherwise."""

    def __init__(self, condition: Symbol, description: str) -> None:
        """Create a violation; `description` is sent to the peer and written to the log."""
        super().__init__(f"{condition}: {description}")
        self.condition = condition
        self.description = description


class DecodeError(Violation):
    """The bytes are not a valid AMQP value, or the value exceeds a limit."""

    def __init__(self, description: str, condition: Symbol = DECODE_ERROR) -> None:
        """Create a decode error; `description` says what is wrong with the bytes."""
        super().__init__(condition, description)


class SessionViolation(Violation):
    """Violation that ends the session but keeps the connection open."""


class LinkViolation(Violation):
    """Violation that detaches the link but keeps the session."""
