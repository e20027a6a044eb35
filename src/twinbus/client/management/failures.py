"""What the statuses and bodies of failed requests mean.

Owns: the way from HTTP back to the classes of errors.
"""

from __future__ import annotations

from typing import Final

from twinbus.client.errors import EntityNotFound, TimedOut, UnknownAnswer, server_busy
from twinbus.model import errors as model
from twinbus.model.atom import reader
from twinbus.model.errors import InvalidArgument, ServiceBusError

_BY_STATUS: Final[dict[int, type[ServiceBusError]]] = {
    400: model.InvalidArgument,
    401: model.Unauthorized,
    403: model.QuotaExceeded,
    404: EntityNotFound,
    405: model.NotAllowed,
    409: model.EntityAlreadyExists,
    410: EntityNotFound,
    412: EntityNotFound,  # "if it exists" is the only condition that is ever set
    413: model.InvalidArgument,
    429: model.ServerBusy,
    500: model.InternalFault,
    501: model.NotImplementedHere,
    502: model.StoreUnavailable,
    503: model.ServerBusy,
    504: model.StoreUnavailable,
}
_TIMEOUT: Final = 408
_CONFLICT: Final = 409
_FORBIDDEN: Final = 403
_ANOTHER_OPERATION: Final = "SubCode=40901"
"""Azure's words for: somebody else is changing this entity right now."""
_NOT_ALLOWED: Final = "SubCode=40301"
"""Azure's for: such an entity cannot have this."""
_MAX_TEXT: Final = 1_000


def failure(
    status: int,
    body: bytes,
    what: str,
    *,
    is_create: bool,
    name: str | None = None,
    retry_after: str | None = None,
) -> ServiceBusError:
    """Return the error of an answer to `what`, a request that creates something (`is_create`) or does not.

    `name` is the NAME_HEADER of the response, `retry_after` its `Retry-After`.
    """
    detail = detail_of(body)
    text = f"{what}: {detail}" if detail else f"{what}: answered with status {status}, and no reason"
    if status == _TIMEOUT:
        return TimedOut(text)
    kind = model.DiskFull if name == model.DiskFull.__name__ else _BY_STATUS.get(status)
    # A race that was lost: what was asked for is there already, or gone.
    is_race_lost = status == _CONFLICT and (not is_create or _ANOTHER_OPERATION in detail)
    if kind is model.ServerBusy or is_race_lost:
        return server_busy(text, retry_after)
    if status == _FORBIDDEN and _NOT_ALLOWED in detail:
        return model.NotAllowed(text)
    if kind is model.DiskFull:
        return kind(text, may_have_happened=False)  # the catalogue's disk is full: nothing was changed
    if kind is not None:
        return kind(text)
    return _unheard_of(status, text)


def _unheard_of(status: int, text: str) -> ServiceBusError:
    by_hundreds = {4: model.NotAllowed, 5: model.InternalFault}
    return by_hundreds.get(status // 100, UnknownAnswer)(f"status {status}: {text}")


def detail_of(body: bytes) -> str:
    """The reason in an error's body; what is no such body is taken as text."""
    try:
        root = reader.parse(body)
    except InvalidArgument:
        return body.decode(errors="replace").strip()[:_MAX_TEXT]
    found = root.find("{*}Detail")
    return "" if found is None else (found.text or "").strip()[:_MAX_TEXT]
