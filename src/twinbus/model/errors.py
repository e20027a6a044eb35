"""Errors of a namespace, one class per kind.

Each class has an AMQP condition, an HTTP status, a failure class, and two flags: whether the same call may succeed
later (`is_retriable`), and whether the operation may have been carried out although it failed (`may_have_happened`).
Error messages say what failed, with which value, and what to do. `docs/errors.md` lists all errors.
"""

from __future__ import annotations

import copy
from enum import Enum
from typing import TYPE_CHECKING, ClassVar, Final, Self

if TYPE_CHECKING:
    from collections.abc import Sequence


class FailureClass(Enum):
    """Reaction that a failure requires from the sender."""

    UNAVAILABLE = "unavailable"
    """The entity cannot be reached now; a paired client fails over."""
    THROTTLED = "throttled"
    """The server is overloaded; wait and try again."""
    CALLER = "caller's fault"
    """The same call will fail again."""


ERROR_NAME_HEADER: Final = "x-twinbus-error"
"""HTTP response header with the name of an error whose status is shared by other errors."""


class ServiceBusError(Exception):
    """Base class of all errors that a namespace returns."""

    condition: ClassVar[str] = "amqp:internal-error"
    status: ClassVar[int] = 500
    failure_class: ClassVar[FailureClass] = FailureClass.UNAVAILABLE
    fragment: int | None = None
    """Failed fragment in a partitioned entity, or None if the error concerns the whole entity."""
    may_have_happened: bool = False
    """True if the operation may have been carried out although it failed, so that its outcome is uncertain. The class
    attribute is the default; an instance may override it."""

    def __init__(self, *args: object, may_have_happened: bool | None = None) -> None:
        """Create an error. `may_have_happened` overrides the class attribute unless it is None."""
        super().__init__(*args)
        if may_have_happened is not None:
            self.may_have_happened = may_have_happened

    def __reduce__(self) -> tuple[object, ...]:
        """Support copy and pickle, whatever arguments a subclass takes."""
        return _rebuild, (type(self), self.args, self.__dict__)

    def copy_with(self, *, may_have_happened: bool, text: str | None = None) -> Self:
        """Return a copy with another `may_have_happened` and, if `text` is given, another text.

        A copy is needed because one error can be raised to many callers, for example to all users of a failed
        connection.
        """
        error = copy.copy(self)
        error.may_have_happened = may_have_happened
        if text is not None:
            error.args = (text,)
        return error

    @property
    def is_retriable(self) -> bool:
        """True if the same call may succeed later."""
        return self.failure_class is not FailureClass.CALLER


def _rebuild(cls: type[ServiceBusError], args: tuple[object, ...], state: dict[str, object]) -> ServiceBusError:
    error = cls.__new__(cls, *args)  # skip __init__, which in some subclasses takes other arguments
    error.__dict__.update(state)
    return error


class StoreUnavailable(ServiceBusError):
    """The store of the entity, or of the fragment that the operation needs, does not work."""

    status = 503
    may_have_happened = True


class FragmentUnavailable(StoreUnavailable):
    """The fragment for the message's key does not work; other fragments, and so other keys, may work."""


class DiskFull(StoreUnavailable):
    """The disk of the store that holds the entity is full. Stored messages can still be received and settled."""


class InternalFault(ServiceBusError):
    """The server has an internal error, which is in the server's log."""

    may_have_happened = True


class ServerBusy(ServiceBusError):
    """The server has more pending writes than it can hold in memory."""

    condition = "com.microsoft:server-busy"
    status = 503
    failure_class = FailureClass.THROTTLED
    retry_after_s: float | None = None
    """Delay that the server asks for, or None."""


class OperationTimeout(ServiceBusError):
    """The response did not arrive in time; the operation may have been carried out."""

    condition = "com.microsoft:timeout"
    status = 408
    may_have_happened = True


class CallerError(ServiceBusError):
    """Base class of errors that the same call will cause again."""

    failure_class = FailureClass.CALLER


class EntityNotFound(CallerError):
    """The entity does not exist."""

    condition = "amqp:not-found"
    status = 404

    def __init__(self, path: str) -> None:
        """Create the error with the text by which the Azure SDKs recognize it."""
        super().__init__(f"The messaging entity '{path}' could not be found.")


class EntityAlreadyExists(CallerError):
    """An entity with this name already exists."""

    condition = "com.microsoft:entity-already-exists"
    status = 409


class EntityDeleted(CallerError):
    """The entity was deleted while it was in use. The text is that of EntityNotFound, which the Azure SDKs know."""

    condition = "amqp:not-found"
    status = 404


class Unauthorized(CallerError):
    """The request has no valid key or token, or the key lacks the required right."""

    condition = "amqp:unauthorized-access"
    status = 401


class NotAllowed(CallerError):
    """The entity does not support the operation."""

    condition = "amqp:not-allowed"
    status = 400


class InvalidArgument(CallerError):
    """A value is invalid."""

    condition = "com.microsoft:argument-error"
    status = 400


class ArgumentOutOfRange(InvalidArgument):
    """A value is out of range."""

    condition = "com.microsoft:argument-out-of-range"


class MalformedMessage(CallerError):
    """The bytes of a message cannot be decoded."""

    condition = "amqp:decode-error"
    status = 400


class NotImplementedHere(CallerError):
    """The server does not implement the operation."""

    condition = "amqp:not-implemented"
    status = 501


class MessageTooLarge(CallerError):
    """A message or its properties exceed the size limit."""

    condition = "amqp:link:message-size-exceeded"
    status = 403


class QuotaExceeded(CallerError):
    """The entity or the namespace is full."""

    condition = "amqp:resource-limit-exceeded"
    status = 403


class PartlyStored(CallerError):
    """A batch with several partition keys was only partly stored; the text names the stored messages."""

    condition = "amqp:precondition-failed"
    status = 412
    may_have_happened = True
    stored: Sequence[int] = ()
    """Positions of the stored messages in the batch."""
    unsure: Sequence[int] | None = None
    """Positions of messages that may be stored as well, or None if the server did not say."""


class MessageLockLost(CallerError):
    """The lock has expired, was released, or dates from before a restart of the server."""

    condition = "com.microsoft:message-lock-lost"
    status = 410


class SessionLockLost(CallerError):
    """The session's lock has expired, or never belonged to the caller."""

    condition = "com.microsoft:session-lock-lost"
    status = 410


class SessionCannotBeLocked(CallerError):
    """Another receiver holds the session's lock."""

    condition = "com.microsoft:session-cannot-be-locked"
    status = 410


class MessageNotFound(CallerError):
    """No deferred, scheduled or dead-lettered message has the requested sequence number."""

    condition = "com.microsoft:message-not-found"
    status = 404


class EntityDisabled(CallerError):
    """The entity's status does not allow the operation."""

    condition = "com.microsoft:entity-disabled"
    status = 400


class EntityClaimed(CallerError):
    """The entity has an exclusive receiver, or the new receiver is exclusive and the entity has other receivers."""

    condition = "amqp:resource-locked"
    status = 409


class LinkStolen(CallerError):
    """A newer exclusive receiver displaced the caller's receiver."""

    condition = "amqp:link:stolen"
    status = 410


class RangeSeen(CallerError):
    """A browse link has delivered everything in the requested range, and nothing can be added to that range."""

    condition = "twinbus:range-seen"
    status = 410


class InvalidOperation(CallerError):
    """The operation is not allowed in a transaction or in the current state, or a message has two different keys.

    A message that has both a session id and a partition key must have the same value for both.
    """

    condition = "amqp:not-allowed"
    status = 400


class TransactionTooLarge(CallerError):
    """The transaction has more messages than allowed."""

    condition = "amqp:resource-limit-exceeded"
    status = 403


class TransactionUnknown(CallerError):
    """The connection has no open transaction with the given id."""

    condition = "amqp:transaction:unknown-id"
    status = 404


class TransactionRolledBack(CallerError):
    """The transaction cannot be committed; none of its operations took effect."""

    condition = "amqp:transaction:rollback"
    status = 409


class TransactionTimeout(CallerError):
    """The transaction took too long and was rolled back."""

    condition = "amqp:transaction:timeout"
    status = 408
