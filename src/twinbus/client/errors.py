"""What can go wrong on the client's side, and what a namespace's answers mean.

Owns: the errors that only a client knows, and the way from an AMQP condition back to the class in `model.errors`.
"""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Any, Final

from twinbus.model import errors as model
from twinbus.model.errors import CallerError, ServiceBusError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from twinbus.amqp.performatives import Error


class ConnectionFailed(ServiceBusError):
    """The namespace could not be reached: nothing was sent."""


class ConnectionLost(ServiceBusError):
    """The connection, or the link, ended before the answer came: what was asked for may have happened."""

    may_have_happened = True


class TimedOut(model.OperationTimeout):
    """No answer within the operation's time. `may_have_happened` says whether the request had left."""

    def __init__(self, message: str, *, may_have_happened: bool = True, was_sent: bool | None = None) -> None:
        """`was_sent` is the older name of `may_have_happened`."""
        super().__init__(message, may_have_happened=may_have_happened if was_sent is None else was_sent)

    @property
    def was_sent(self) -> bool:
        """The older name of `may_have_happened`."""
        return self.may_have_happened


class ObjectClosed(CallerError):
    """A factory, a client, a sender or a receiver is used after it was closed."""


class FactoryFaulted(CallerError):
    """The factory has faulted; its `fault` says why. Make a new one."""


class MessageNotHeld(CallerError):
    """The message is under no lock that this receiver could settle: it was settled, peeked, or received and deleted."""


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
"""In the info of an error of twinbus: the fragment of a partitioned entity that it is about."""
_INFO_ERROR_NAME: Final = "twinbus:error"
"""... its name, where the condition is shared."""
_INFO_STORED: Final = "twinbus:stored"
"""... the positions of those messages of a batch that are stored, where others are not."""
_INFO_UNSURE: Final = "twinbus:unsure"
"""... and of those that may be stored, too."""
_INFO_MAY_HAVE_HAPPENED: Final = "twinbus:may-have-happened"
"""... and whether the operation may have been carried out, where the server knows more than the error's class says."""
_WAIT_SECONDS_PATTERN: Final = re.compile(r"\bwait (\d+) seconds?\b", re.IGNORECASE)
"""How Azure names a pause: "Error code : 50002. Please wait 4 seconds and try again."."""
_MIN_PAUSE_S: Final = 0.1


class EntityNotFound(model.EntityNotFound, model.EntityDeleted):
    """There is no such entity, or not any more: a namespace has one answer for both."""

    def __init__(self, text: str) -> None:
        """In the namespace's own words."""
        CallerError.__init__(self, text)


def error_for_condition(condition: str | None, description: str | None) -> ServiceBusError:
    """What a namespace's answer is here."""
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
    """Return the error of a busy server, with the pause that it asks for: in a `Retry-After` header, or in its text."""
    busy = model.ServerBusy(text)
    named = _WAIT_SECONDS_PATTERN.search(text)
    seconds = retry_after if retry_after is not None and retry_after.isdecimal() else named and named[1]
    if seconds:
        busy.retry_after_s = max(float(seconds), _MIN_PAUSE_S)
    return busy


class UnknownAnswer(ServiceBusError):
    """An error condition that this version does not know; its text begins with it."""

    may_have_happened = True


def error_from_peer(error: Error | None) -> ServiceBusError:
    """The same, of an AMQP error."""
    if error is None:
        return error_for_condition(None, None)
    return with_error_info(error_for_condition(str(error.condition), error.description), error.info or {})


def with_error_info(error: ServiceBusError, info: Mapping[Any, object]) -> ServiceBusError:
    """The same, with what twinbus says beside the condition."""
    fragment = info.get(_INFO_FRAGMENT)
    if isinstance(error, model.PartlyStored):
        error.stored = _positions(info.get(_INFO_STORED)) or ()
        error.unsure = _positions(info.get(_INFO_UNSURE))
    if isinstance(error, model.InternalFault) and info.get(_INFO_ERROR_NAME) == model.DiskFull.__name__:
        error = model.DiskFull(str(error))
    if isinstance(fragment, int):
        if isinstance(error, model.InternalFault):  # the condition that both have
            error = model.FragmentUnavailable(str(error))
        error.fragment = int(fragment)
    known = info.get(_INFO_MAY_HAVE_HAPPENED)
    if isinstance(known, bool):
        error.may_have_happened = known
    return error


def _positions(value: object) -> list[int] | None:
    return [int(place) for place in value if isinstance(place, int)] if isinstance(value, list) else None


def may_have_happened(error: BaseException) -> bool:
    """Whether an operation may have been carried out although it failed with this error: its outcome is uncertain.

    The response was lost, or a store failed meanwhile: nobody knows then what is on disk, and a store that does not
    answer in time may do so later. An operation that was cancelled may have been carried out, too, and so may one that
    `asyncio.timeout` or `asyncio.wait_for` has cancelled.
    """
    if isinstance(error, ServiceBusError):
        return error.may_have_happened
    return isinstance(error, asyncio.CancelledError | TimeoutError)
