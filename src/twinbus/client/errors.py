"""Errors of the client, and the translation of error responses into exceptions.

Owns the exceptions that only a client raises, and the mapping from AMQP conditions to the classes in `model.errors`.
"""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Any, Final

from twinbus.model import errors as model
from twinbus.model.errors import CallerError, ServiceBusError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from twinbus.amqp.codec.performatives import Error


class ConnectionFailed(ServiceBusError):
    """The namespace could not be reached, so nothing was sent."""


class ConnectionLost(ServiceBusError):
    """The connection or the link ended before the response arrived, so the operation may have been carried out."""

    may_have_happened = True


class TimedOut(model.OperationTimeout):
    """No response within the operation timeout. `may_have_happened` is True if the request was sent."""

    def __init__(self, message: str, *, may_have_happened: bool = True, was_sent: bool | None = None) -> None:
        """Create the error. `was_sent` is the older name of `may_have_happened`."""
        super().__init__(message, may_have_happened=may_have_happened if was_sent is None else was_sent)

    @property
    def was_sent(self) -> bool:
        """The older name of `may_have_happened`."""
        return self.may_have_happened


class ObjectClosed(CallerError):
    """A factory, client, sender or receiver was used after it was closed."""


class FactoryFaulted(CallerError):
    """The factory has faulted; its `fault` is the cause. Create a new factory."""


class MessageNotHeld(CallerError):
    """The message has no lock, because it was settled already, peeked, or received in receive-and-delete mode."""


_ERROR_BY_CONDITION: Final[dict[str, type[ServiceBusError]]] = {
    kind.condition: kind
    for kind in (
        model.InternalFault,
        model.NotAllowed,
        model.QuotaExceeded,
        model.PartlyStored,
        model.ServerBusy,
        model.OperationTimeout,
        model.EntityAlreadyExists,
        model.Unauthorized,
        model.InvalidArgument,
        model.ArgumentOutOfRange,
        model.MalformedMessage,
        model.NotImplementedHere,
        model.MessageTooLarge,
        model.MessageLockLost,
        model.SessionLockLost,
        model.SessionCannotBeLocked,
        model.MessageNotFound,
        model.EntityDisabled,
        model.EntityClaimed,
        model.LinkStolen,
        model.RangeSeen,
        model.TransactionUnknown,
        model.TransactionRolledBack,
        model.TransactionTimeout,
    )
}
_CONNECTION_LOST_CONDITIONS: Final = frozenset({"amqp:connection:forced", "amqp:link:detach-forced"})
_INFO_FRAGMENT: Final = "twinbus:fragment"
"""Key in an error's info map: the failed fragment of a partitioned entity."""
_INFO_ERROR_NAME: Final = "twinbus:error"
"""Key in the info map: the class name of the error, for classes that share an AMQP condition."""
_INFO_STORED: Final = "twinbus:stored"
"""Key in the info map: the positions of the stored messages in a partly stored batch."""
_INFO_UNSURE: Final = "twinbus:unsure"
"""Key in the info map: the positions of messages in the batch that may be stored."""
_INFO_MAY_HAVE_HAPPENED: Final = "twinbus:may-have-happened"
"""Key in the info map: whether the operation may have been carried out, if the default of the error's class is
wrong."""
_WAIT_SECONDS_PATTERN: Final = re.compile(r"\bwait (\d+) seconds?\b", re.IGNORECASE)
"""Pattern of the delay in Azure's texts: "Error code : 50002. Please wait 4 seconds and try again."."""
_MIN_PAUSE_S: Final = 0.1


class EntityNotFound(model.EntityNotFound, model.EntityDeleted):
    """The entity does not exist or was deleted. A namespace reports both cases with the same condition."""

    def __init__(self, text: str) -> None:
        """Create the error with the description that the namespace sent."""
        CallerError.__init__(self, text)


def error_for_condition(condition: str | None, description: str | None) -> ServiceBusError:
    """Return the exception for an AMQP condition and its description."""
    text = description or condition or "the peer gave no reason"
    if condition is None or condition in _CONNECTION_LOST_CONDITIONS:
        return ConnectionLost(text)
    if condition == "amqp:not-found":
        return EntityNotFound(text)
    kind = _ERROR_BY_CONDITION.get(condition)
    if kind is model.ServerBusy:
        return server_busy(text)
    return kind(text) if kind is not None else UnknownAnswer(f"{condition}: {text}")


def server_busy(text: str, retry_after: str | None = None) -> model.ServerBusy:
    """Return ServerBusy with the delay from the `Retry-After` header, or else from the server's text."""
    busy = model.ServerBusy(text)
    match = _WAIT_SECONDS_PATTERN.search(text)
    seconds = retry_after if retry_after is not None and retry_after.isdecimal() else match and match[1]
    if seconds:
        busy.retry_after_s = max(float(seconds), _MIN_PAUSE_S)
    return busy


class UnknownAnswer(ServiceBusError):
    """The namespace sent an error condition, or a response, that this version does not understand."""

    may_have_happened = True


def error_from_peer(error: Error | None) -> ServiceBusError:
    """Return the exception for an AMQP error, or ConnectionLost if the peer sent none."""
    if error is None:
        return error_for_condition(None, None)
    return with_error_info(error_for_condition(str(error.condition), error.description), error.info or {})


def with_error_info(error: ServiceBusError, info: Mapping[Any, object]) -> ServiceBusError:
    """Set the fields of the exception from twinbus's info map; return it, or a more specific exception."""
    fragment = info.get(_INFO_FRAGMENT)
    if isinstance(error, model.PartlyStored):
        error.stored = _positions(info.get(_INFO_STORED)) or ()
        error.unsure = _positions(info.get(_INFO_UNSURE))
    if isinstance(error, model.InternalFault) and info.get(_INFO_ERROR_NAME) == model.DiskFull.__name__:
        error = model.DiskFull(str(error))
    if isinstance(fragment, int):
        if isinstance(error, model.InternalFault):  # FragmentUnavailable has the same AMQP condition
            error = model.FragmentUnavailable(str(error))
        error.fragment = int(fragment)
    reported = info.get(_INFO_MAY_HAVE_HAPPENED)
    if isinstance(reported, bool):
        error.may_have_happened = reported
    return error


def _positions(value: object) -> list[int] | None:
    return [int(position) for position in value if isinstance(position, int)] if isinstance(value, list) else None


def may_have_happened(error: BaseException) -> bool:
    """Return whether an operation that failed with this error may have been carried out nevertheless.

    True if the response was lost, if a store failed or did not respond in time, or if the operation was cancelled (also
    by `asyncio.timeout` or `asyncio.wait_for`).
    """
    if isinstance(error, ServiceBusError):
        return error.may_have_happened
    return isinstance(error, asyncio.CancelledError | TimeoutError)
