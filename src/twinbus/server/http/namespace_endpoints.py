"""Endpoints for the namespace as a whole.

Owns: the namespace's info, its health, the event loop's pauses, and rehearsed outages.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, cast

import msgspec
from starlette.responses import Response

from twinbus.model.atom import descriptions
from twinbus.model.errors import InvalidArgument
from twinbus.model.info import NamespaceInfo
from twinbus.model.outage import OutageKind
from twinbus.server.http import atom_responses, error_responses
from twinbus.server.http.atom_responses import AtomEntry
from twinbus.server.http.routes import Route, route

if TYPE_CHECKING:
    from twinbus.server.amqp.outage_node import OutageSwitch
    from twinbus.server.catalogue.administration import Administration
    from twinbus.server.http.call import Call
    from twinbus.server.runtime.loop_pauses import PauseMeter

JSON_MEDIA_TYPE = "application/json"


class NamespaceEndpoints:
    """Endpoints for the info and health of a namespace, and for pauses of the event loop."""

    def __init__(self, administration: Administration, pause_meter: PauseMeter | None) -> None:
        """Create the endpoints; `pause_meter` is None if pauses are not measured."""
        self._administration = administration
        self._pause_meter = pause_meter

    def routes(self) -> tuple[Route, ...]:
        """Return the routes. Health needs no token, because load balancers have no keys."""
        return (
            route("health", None, GET=self._health, HEAD=self._health),
            route(r"\$namespaceinfo", GET=self._info),
            route(r"\$pauses", DELETE=self._reset_pauses),
        )

    async def _info(self, call: Call) -> Response:
        name, created_ms = self._administration.namespace, self._administration.created_ms
        # The limits for messages and entities are those of the Standard tier, which NamespaceInfo has by default.
        content = descriptions.write_namespace(NamespaceInfo(name=name, created_ms=created_ms, modified_ms=created_ms))
        path = "$namespaceinfo"
        entry = AtomEntry(path=path, title=name, content=content, created_ms=created_ms, updated_ms=created_ms)
        return atom_responses.entry_response(call, entry, author=name)

    async def _health(self, call: Call) -> Response:
        """Respond 200 if a store is available (with `?for=send`, if a store accepts messages), 503 otherwise.

        Without `?for=send`, a full disk does not cause 503, because a load balancer would cut off the receivers, whose
        settlements free space.
        """
        purpose = call.request.query_params.get("for")
        if purpose not in (None, "send"):
            raise InvalidArgument(f"for is {purpose!r:.40}; it can be send, or left out")
        health = self._administration.health()
        stores = cast("list[dict[str, object]]", health["stores"])
        wanted = "is_available" if purpose is None else "takes_messages"
        serves = not stores or any(store[wanted] for store in stores)
        if self._pause_meter is not None:
            health = {**health, "pauses": self._pause_meter.summary()}
        return Response(msgspec.json.encode(health), status_code=200 if serves else 503, media_type=JSON_MEDIA_TYPE)

    async def _reset_pauses(self, _: Call) -> Response:
        """Return the pauses measured so far, and reset the meter."""
        if self._pause_meter is None:
            raise error_responses.ResourceNotFound("pauses are not measured: start with twinbus serve --measure-pauses")
        content = msgspec.json.encode(self._pause_meter.summary())
        self._pause_meter.reset()
        return Response(content, media_type=JSON_MEDIA_TYPE)


_SECONDS_PATTERN: Final = re.compile(r"[0-9]{1,9}(\.[0-9]{1,3})?")


class OutageEndpoints:
    """Endpoints for the rehearsed outages of a namespace."""

    def __init__(self, outage_switch: OutageSwitch) -> None:
        """Create the endpoints. The caller's token is checked before a handler in `routes` is called."""
        self._outage_switch = outage_switch
        self.routes: tuple[Route, ...] = (route(r"\$outage", PUT=self._begin, GET=self._list, DELETE=self._end),)

    async def _begin(self, call: Call) -> Response:
        query = call.request.query_params
        path, seconds = query.get("path"), query.get("seconds", "")
        if not path:
            raise InvalidArgument("path is missing: it is the path of an entity, or * for the whole namespace")
        if not _SECONDS_PATTERN.fullmatch(seconds):
            raise InvalidArgument(f"seconds is {seconds!r:.40}: give the duration of the outage in seconds")
        kind = query.get("kind", OutageKind.REFUSE.value)
        return _json_response(await self._outage_switch.begin(path.strip("/"), kind, float(seconds)), status=201)

    async def _list(self, _: Call) -> Response:
        return _json_response({"outages": self._outage_switch.list_outages()})

    async def _end(self, call: Call) -> Response:
        path = call.request.query_params.get("path")
        return _json_response({"outages": await self._outage_switch.end(path.strip("/") if path is not None else None)})


def _json_response(content: dict[str, object], status: int = 200) -> Response:
    return Response(msgspec.json.encode(content), status_code=status, media_type=JSON_MEDIA_TYPE)
