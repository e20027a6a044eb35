"""Responses from `$management`, in the form that all operations share."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from twinbus.amqp.types import Int, Symbol
from twinbus.model.errors import DiskFull, ServiceBusError
from twinbus.server.amqp.errors import INFO_ERROR, INFO_FRAGMENT, INFO_MAY_HAVE_HAPPENED
from twinbus.server.amqp.request_link import Response

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from twinbus.server.amqp.request_link import OnReply

_STATUS_OK: Final = 200
_STATUS_NO_CONTENT: Final = 204
_running_tasks: Final[set[asyncio.Task[None]]] = set()
"""References to the running tasks, because the event loop keeps only weak references."""


def success(body: dict[str, object]) -> Response:
    """Return a response with status 200."""
    return Response({"statusCode": Int(_STATUS_OK), "statusDescription": "OK"}, body)


def no_content(body: dict[str, object] | None = None) -> Response:
    """Return a response with status 204, for an empty result."""
    return Response({"statusCode": Int(_STATUS_NO_CONTENT), "statusDescription": "No Content"}, body or {})


def failure(error: ServiceBusError) -> Response:
    """Return a response with the status, condition and text of an error.

    The response also has the name DiskFull, the fragment, and whether the operation may have happened, if these apply.
    """
    properties: dict[str, object] = {
        "statusCode": Int(error.status),
        "statusDescription": str(error),
        "errorCondition": Symbol(error.condition),
    }
    if isinstance(error, DiskFull):
        properties[INFO_ERROR] = DiskFull.__name__
    if error.fragment is not None:
        properties[INFO_FRAGMENT] = error.fragment
    if error.may_have_happened is not type(error).may_have_happened:
        properties[INFO_MAY_HAVE_HAPPENED] = error.may_have_happened
    return Response(properties, {})


def reply_on_done(on_reply: OnReply) -> Callable[[ServiceBusError | None], None]:
    """Return a callback that replies with success, or with the error passed to it."""
    return lambda error: on_reply(success({}) if error is None else failure(error))


def run_and_reply(operation: Coroutine[None, None, dict[str, object]], on_reply: OnReply) -> None:
    """Run a coroutine in a task, and reply with its result or its error."""

    async def run() -> None:
        try:
            on_reply(success(await operation))
        except ServiceBusError as error:
            on_reply(failure(error))

    task = asyncio.get_running_loop().create_task(run())
    _running_tasks.add(task)
    task.add_done_callback(_running_tasks.discard)
