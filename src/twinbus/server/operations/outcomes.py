"""What `$management` answers, as all of its operations write it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from twinbus.amqp.types import Int, Symbol
from twinbus.server.requests import Response

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinbus.model.errors import ServiceBusError
    from twinbus.server.requests import Reply

_OK: Final = 200
_NO_CONTENT: Final = 204


def success(body: dict[str, object]) -> Response:
    """It was done."""
    return Response({"statusCode": Int(_OK), "statusDescription": "OK"}, body)


def nothing(body: dict[str, object] | None = None) -> Response:
    """There is nothing."""
    return Response({"statusCode": Int(_NO_CONTENT), "statusDescription": "No Content"}, body or {})


def failure(error: ServiceBusError) -> Response:
    """Status, condition and text."""
    return Response(
        {"statusCode": Int(error.status), "statusDescription": str(error), "errorCondition": Symbol(error.condition)},
        {},
    )


def done(reply: Reply) -> Callable[[ServiceBusError | None], None]:
    """Answers when something is on disk, or is not."""
    return lambda error: reply(success({}) if error is None else failure(error))
