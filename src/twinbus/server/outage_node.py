"""`$outage` over AMQP: outages are switched on and off, and seen.

Owns: these requests, and how an outage is told, over HTTP too. What an outage does is in `broker.outage`;
docs/rehearsing.md says what it is for.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from twinbus.model.errors import InvalidArgument, NotImplementedHere
from twinbus.model.outage import OutageKind
from twinbus.model.times import moment_of
from twinbus.server.keys import Right
from twinbus.server.operations.arguments import Arguments
from twinbus.server.operations.outcomes import carry_out, failure

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable, Coroutine

    from twinbus.broker.ports.outage import Outage, Outages
    from twinbus.model.errors import ServiceBusError
    from twinbus.server.access import Access
    from twinbus.server.requests import Reply, Request, Response

NODE: Final = "$outage"
log: Final = logging.getLogger(__name__)


class OutageSwitch:
    """The outages of a namespace, as those see them who may manage it. Both ways in use it."""

    def __init__(self, outages: Outages) -> None:
        """Those that end by themselves are logged, too."""
        self._outages = outages
        outages.on_over = lambda outage: log.warning("an outage is over", extra=_note(outage))

    async def begin(self, path: str, kind: str, seconds: float) -> dict[str, object]:
        """Switch one on. EntityNotFound, InvalidArgument."""
        if kind not in [one.value for one in OutageKind]:
            raise InvalidArgument(f"kind is {kind!r:.40}; it is {', '.join(one.value for one in OutageKind)}")
        return told(self.begin_here(path, OutageKind(kind), seconds))

    async def end(self, path: str | None) -> list[dict[str, object]]:
        """Switch off the one of that path, or all; those that were on."""
        return [told(outage) for outage in self.end_here(path)]

    def begin_here(
        self, path: str, kind: OutageKind, seconds: float, times_ms: tuple[int, int] | None = None
    ) -> Outage:
        """Switch one on in this process."""
        outage = self._outages.begin(path, kind, seconds, times_ms=times_ms)
        log.warning("an outage was switched on", extra=_note(outage))
        return outage

    def end_here(self, path: str | None) -> list[Outage]:
        """Switch some off in this process."""
        ended = self._outages.end(path)
        for outage in ended:
            log.warning("an outage was switched off", extra=_note(outage))
        return ended

    def all(self) -> list[dict[str, object]]:
        """Those that are on."""
        return [told(outage) for outage in self._outages.all()]


class OutageNode:
    """The `$outage` of one connection."""

    def __init__(self, switch: OutageSwitch, access: Access) -> None:
        """For whoever may manage the namespace."""
        self._switch = switch
        self._access = access
        self._operations: dict[str, Callable[[Arguments], Coroutine[None, None, dict[str, object]]]] = {
            "twinbus:begin-outage": self._begin,
            "twinbus:end-outage": self._end,
            "twinbus:list-outages": self._list,
        }

    def handle(self, request: Request, reply: Reply) -> None:
        """Do what is asked."""
        operation = request.text("operation")
        act = self._operations.get(operation)
        if act is None:
            raise NotImplementedHere(f"{NODE} does not know {operation!r:.80}; it knows {', '.join(self._operations)}")
        self._access.check(Right.MANAGE, NODE)
        body = request.body if request.body is not None else {}
        carry_out(act(Arguments(body, max_id_characters=0)), reply)

    def refuse(self, error: ServiceBusError) -> Response:
        """Status, condition and text."""
        return failure(error)

    async def _begin(self, arguments: Arguments) -> dict[str, object]:
        kind = arguments.text_or_none("kind") or OutageKind.REFUSE.value
        return await self._switch.begin(arguments.text("path"), kind, arguments.number("seconds", lowest=0))

    async def _end(self, arguments: Arguments) -> dict[str, object]:
        return {"outages": await self._switch.end(arguments.text_or_none("path"))}

    async def _list(self, _: Arguments) -> dict[str, object]:
        return {"outages": self._switch.all()}


def told(outage: Outage) -> dict[str, object]:
    """An outage in words."""
    since, until = moment_of(outage.since_ms), moment_of(outage.until_ms)
    return {"path": outage.path, "kind": outage.kind.value, "since": _instant(since), "until": _instant(until)}


def _note(outage: Outage) -> dict[str, object]:
    return {"entity": outage.path, "kind": outage.kind.value, "until": told(outage)["until"]}


def _instant(moment: dt.datetime) -> str:
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
