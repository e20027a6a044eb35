"""`$outage` over AMQP: the node that starts, ends and lists rehearsed outages.

Owns: the requests to this node, and the description of an outage in AMQP and HTTP responses. `broker.ports.outage`
implements outages; docs/rehearsing.md describes their use.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from twinbus.model.errors import InvalidArgument, NotImplementedHere
from twinbus.model.outage import OutageKind
from twinbus.model.times import datetime_of
from twinbus.server.amqp.management.arguments import Arguments
from twinbus.server.amqp.management.responses import failure, run_and_reply
from twinbus.server.auth.keys import Right

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable, Coroutine

    from twinbus.broker.ports.outage import Outage, Outages
    from twinbus.model.errors import ServiceBusError
    from twinbus.server.amqp.request_link import OnReply, Request, Response
    from twinbus.server.auth.grants import ConnectionGrants

NODE_NAME: Final = "$outage"
log: Final = logging.getLogger(__name__)


class OutageSwitch:
    """The switch for rehearsed outages of a namespace, for the AMQP and HTTP endpoints."""

    def __init__(self, outages: Outages) -> None:
        """Create a switch for `outages` that logs when an outage expires."""
        self._outages = outages
        outages.on_expired = lambda outage: log.warning("an outage is over", extra=_log_fields(outage))

    async def begin(self, path: str, kind: str, seconds: float) -> dict[str, object]:
        """Start an outage. Raise EntityNotFound or InvalidArgument."""
        if kind not in [valid.value for valid in OutageKind]:
            raise InvalidArgument(
                f"kind is {kind!r:.40}; it must be one of {', '.join(valid.value for valid in OutageKind)}"
            )
        return describe_outage(self.begin_local(path, OutageKind(kind), seconds))

    async def end(self, path: str | None) -> list[dict[str, object]]:
        """End the outage of a path, or all outages if `path` is None; return the ended outages."""
        return [describe_outage(outage) for outage in self.end_local(path)]

    def begin_local(
        self, path: str, kind: OutageKind, seconds: float, times_ms: tuple[int, int] | None = None
    ) -> Outage:
        """Start an outage in this process."""
        outage = self._outages.begin(path, kind, seconds, times_ms=times_ms)
        log.warning("an outage was switched on", extra=_log_fields(outage))
        return outage

    def end_local(self, path: str | None) -> list[Outage]:
        """End the outage of a path, or all outages, in this process."""
        ended = self._outages.end(path)
        for outage in ended:
            log.warning("an outage was switched off", extra=_log_fields(outage))
        return ended

    def list_outages(self) -> list[dict[str, object]]:
        """Return descriptions of the current outages."""
        return [describe_outage(outage) for outage in self._outages.all()]


class OutageNode:
    """The node `$outage`, for one connection."""

    def __init__(self, outage_switch: OutageSwitch, grants: ConnectionGrants) -> None:
        """Create the node, whose requests need the `Manage` right on the namespace."""
        self._outage_switch = outage_switch
        self._grants = grants
        self._operations: dict[str, Callable[[Arguments], Coroutine[None, None, dict[str, object]]]] = {
            "twinbus:begin-outage": self._begin,
            "twinbus:end-outage": self._end,
            "twinbus:list-outages": self._list,
        }

    def handle(self, request: Request, on_reply: OnReply) -> None:
        """Execute a request."""
        operation = request.required_text("operation")
        operation_handler = self._operations.get(operation)
        if operation_handler is None:
            raise NotImplementedHere(
                f"{NODE_NAME} does not support {operation!r:.80}, only {', '.join(self._operations)}"
            )
        self._grants.check(Right.MANAGE, NODE_NAME)
        body = request.body if request.body is not None else {}
        run_and_reply(operation_handler(Arguments(body, max_id_characters=0)), on_reply)

    def error_response(self, error: ServiceBusError) -> Response:
        """Return the response to a request that failed: status, condition and text."""
        return failure(error)

    async def _begin(self, arguments: Arguments) -> dict[str, object]:
        kind = arguments.text_or_none("kind") or OutageKind.REFUSE.value
        return await self._outage_switch.begin(
            arguments.text("path"), kind, arguments.whole_number("seconds", minimum=0)
        )

    async def _end(self, arguments: Arguments) -> dict[str, object]:
        return {"outages": await self._outage_switch.end(arguments.text_or_none("path"))}

    async def _list(self, _: Arguments) -> dict[str, object]:
        return {"outages": self._outage_switch.list_outages()}


def describe_outage(outage: Outage) -> dict[str, object]:
    """Return the fields of an outage for a response."""
    since, until = datetime_of(outage.since_ms), datetime_of(outage.until_ms)
    return {"path": outage.path, "kind": outage.kind.value, "since": _iso_time(since), "until": _iso_time(until)}


def _log_fields(outage: Outage) -> dict[str, object]:
    return {"entity": outage.path, "kind": outage.kind.value, "until": describe_outage(outage)["until"]}


def _iso_time(moment: dt.datetime) -> str:
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
