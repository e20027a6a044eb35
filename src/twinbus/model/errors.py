"""What can go wrong in a namespace, one class per kind.

Each carries its AMQP condition, its HTTP status, whether the same call may succeed later, which of three classes of
failure it is, and whether the operation may have been carried out although it failed (`may_have_happened`). A message
says what was wrong, with what, and what to do. `docs/errors.md` lists them.
"""

from __future__ import annotations

import copy
from enum import Enum
from typing import TYPE_CHECKING, ClassVar, Final, Self

if TYPE_CHECKING:
    from collections.abc import Sequence


class FailureClass(Enum):
    """What a sender should make of a failure."""

    UNAVAILABLE = "unavailable"
    """The entity cannot be reached now: a paired client fails over."""
    THROTTLED = "throttled"
    """There is too much at once: wait, and try again."""
    CALLER = "caller's fault"
    """The same call will fail again."""


ERROR_NAME_HEADER: Final = "x-twinbus-error"
"""The header of an HTTP response that names an error whose status others have, too."""


class ServiceBusError(Exception):
    """Anything a namespace answers other than success."""

    condition: ClassVar[str] = "amqp:internal-error"
    status: ClassVar[int] = 500
    failure_class: ClassVar[FailureClass] = FailureClass.UNAVAILABLE
    fragment: int | None = None
    """Of a partitioned entity: the fragment that is meant, where it is not all of the entity."""
    may_have_happened: bool = False
    """The operation may have been carried out although it failed: its outcome is uncertain. A class has the value that
    holds unless more is known; an instance may have its own."""

    def __init__(self, *args: object, may_have_happened: bool | None = None) -> None:
        """`may_have_happened` (default: that of the class) tells whether the operation may have been carried out."""
        super().__init__(*args)
        if may_have_happened is not None:
            self.may_have_happened = may_have_happened

    def __reduce__(self) -> tuple[object, ...]:
        """Copy and pickle whatever the arguments of a subclass are."""
        return _rebuild, (type(self), self.args, self.__dict__)

    def copy_with(self, *, may_have_happened: bool, text: str | None = None) -> Self:
        """Return a copy that says whether the operation may have been carried out, in other words if `text` has some.

        A copy, because one error can be raised to many callers: all that used a connection get the same when it fails.
        """
        told = copy.copy(self)
        told.may_have_happened = may_have_happened
        if text is not None:
            told.args = (text,)
        return told

    @property
    def is_retriable(self) -> bool:
        """The same call may succeed later."""
        return self.failure_class is not FailureClass.CALLER


def _rebuild(kind: type[ServiceBusError], args: tuple[object, ...], state: dict[str, object]) -> ServiceBusError:
    error = kind.__new__(kind, *args)  # not its __init__: some make their texts themselves
    error.__dict__.update(state)
    return error


class StoreUnavailable(ServiceBusError):
    """The store that holds the entity, or this fragment of it, does not work."""

    status = 503
    may_have_happened = True


class FragmentUnavailable(StoreUnavailable):
    """The fragment that a message's key leads to does not work; others of the entity may, and so may other keys."""


class DiskFull(StoreUnavailable):
    """The disk of the store that holds the entity is full. Stored messages can still be received and settled."""


class InternalFault(ServiceBusError):
    """A fault of the server's own; its log says more."""

    may_have_happened = True


class ServerBusy(ServiceBusError):
    """More is waiting to be written than the server holds in memory."""

    condition = "com.microsoft:server-busy"
    status = 503
    failure_class = FailureClass.THROTTLED
    retry_after_s: float | None = None
    """The pause that the server asks for; None if it names none."""


class OperationTimeout(ServiceBusError):
    """The answer did not come in time; what was asked for may have happened all the same."""

    condition = "com.microsoft:timeout"
    status = 408
    may_have_happened = True


class CallerError(ServiceBusError):
    """The same call will fail again."""

    failure_class = FailureClass.CALLER


class EntityNotFound(CallerError):
    """There is no such entity."""

    condition = "amqp:not-found"
    status = 404

    def __init__(self, path: str) -> None:
        """Said in the words by which the Azure SDKs know it."""
        super().__init__(f"The messaging entity '{path}' could not be found.")


class EntityAlreadyExists(CallerError):
    """The name is taken."""

    condition = "com.microsoft:entity-already-exists"
    status = 409


class EntityDeleted(CallerError):
    """The entity was deleted while it was in use. Who says so uses the words of EntityNotFound, for the SDKs."""

    condition = "amqp:not-found"
    status = 404


class Unauthorized(CallerError):
    """No valid key or token, or one without the right that this needs."""

    condition = "amqp:unauthorized-access"
    status = 401


class NotAllowed(CallerError):
    """The operation does not fit the entity."""

    condition = "amqp:not-allowed"
    status = 400


class InvalidArgument(CallerError):
    """A value that cannot be."""

    condition = "com.microsoft:argument-error"
    status = 400


class ArgumentOutOfRange(InvalidArgument):
    """A value outside its range."""

    condition = "com.microsoft:argument-out-of-range"


class MalformedMessage(CallerError):
    """The bytes of a message do not add up."""

    condition = "amqp:decode-error"
    status = 400


class NotImplementedHere(CallerError):
    """An operation that this server does not know."""

    condition = "amqp:not-implemented"
    status = 501


class MessageTooLarge(CallerError):
    """A message, or its properties, above the limit."""

    condition = "amqp:link:message-size-exceeded"
    status = 403


class QuotaExceeded(CallerError):
    """The entity or the namespace is full."""

    condition = "amqp:resource-limit-exceeded"
    status = 403


class PartlyStored(CallerError):
    """A batch of several keys was stored in part: the text names the messages that are stored."""

    condition = "amqp:precondition-failed"
    status = 412
    may_have_happened = True
    stored: Sequence[int] = ()
    """The positions of these in the batch."""
    unsure: Sequence[int] | None = None
    """The positions of messages that may be stored, too; None: the server did not say."""


class MessageLockLost(CallerError):
    """The lock has expired, was given up, or is of an earlier life of the server."""

    condition = "com.microsoft:message-lock-lost"
    status = 410


class SessionLockLost(CallerError):
    """The session's lock has expired, or was never the caller's."""

    condition = "com.microsoft:session-lock-lost"
    status = 410


class SessionCannotBeLocked(CallerError):
    """Another receiver has the session."""

    condition = "com.microsoft:session-cannot-be-locked"
    status = 410


class MessageNotFound(CallerError):
    """No deferred, scheduled or dead-lettered message has that sequence number."""

    condition = "com.microsoft:message-not-found"
    status = 404


class EntityDisabled(CallerError):
    """The entity's status does not allow this."""

    condition = "com.microsoft:entity-disabled"
    status = 400


class EntityClaimed(CallerError):
    """Someone has an exclusive claim on the entity, or receives from it while a claim is asked for."""

    condition = "amqp:resource-locked"
    status = 409


class LinkStolen(CallerError):
    """A newer claim on the entity displaced this one."""

    condition = "amqp:link:stolen"
    status = 410


class RangeSeen(CallerError):
    """A browse link has shown all that there will ever be of the range it asked for."""

    condition = "twinbus:range-seen"
    status = 410


class InvalidOperation(CallerError):
    """An operation that does not belong into the transaction."""

    condition = "amqp:not-allowed"
    status = 400


class TransactionTooLarge(CallerError):
    """More in one transaction than there may be."""

    condition = "amqp:resource-limit-exceeded"
    status = 403


class TransactionUnknown(CallerError):
    """No transaction of the connection has that id, or it is over."""

    condition = "amqp:transaction:unknown-id"
    status = 404


class TransactionRolledBack(CallerError):
    """The transaction cannot be committed: nothing of it was done."""

    condition = "amqp:transaction:rollback"
    status = 409


class TransactionTimeout(CallerError):
    """The transaction took too long, and was rolled back."""

    condition = "amqp:transaction:timeout"
    status = 408
