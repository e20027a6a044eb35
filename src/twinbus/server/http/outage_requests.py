"""Outages on purpose, over HTTP: `/$outage`.

    PUT    /$outage?path=orders&seconds=60&kind=refuse     switch one on; path=* is the whole namespace
    GET    /$outage                                        those that are on
    DELETE /$outage?path=orders                            switch it off; without a path, all

Owns: these requests. What is done about them is in `outage_node`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import msgspec
from starlette.responses import Response

from twinbus.model.errors import InvalidArgument
from twinbus.model.outage import OutageKind
from twinbus.server.http.namespace_requests import JSON_MEDIA_TYPE
from twinbus.server.http.routes import Route, route

if TYPE_CHECKING:
    from twinbus.server.http.call import Call
    from twinbus.server.outage_node import OutageSwitch

_SECONDS_PATTERN: Final = re.compile(r"[0-9]{1,9}(\.[0-9]{1,3})?")


class OutageEndpoints:
    """The outages of one namespace, over HTTP."""

    def __init__(self, outage_switch: OutageSwitch) -> None:
        """Whether a caller may is asked before, by whoever looks at `routes`."""
        self._outage_switch = outage_switch
        self.routes: tuple[Route, ...] = (route(r"\$outage", PUT=self._begin, GET=self._list, DELETE=self._end),)

    async def _begin(self, call: Call) -> Response:
        asked = call.request.query_params
        path, seconds = asked.get("path"), asked.get("seconds", "")
        if not path:
            raise InvalidArgument("path is missing: it is the path of an entity, or * for the whole namespace")
        if not _SECONDS_PATTERN.fullmatch(seconds):
            raise InvalidArgument(f"seconds is {seconds!r:.40}; it is how long the outage lasts")
        kind = asked.get("kind", OutageKind.REFUSE.value)
        return _json_response(await self._outage_switch.begin(path.strip("/"), kind, float(seconds)), status=201)

    async def _list(self, _: Call) -> Response:
        return _json_response({"outages": self._outage_switch.list_outages()})

    async def _end(self, call: Call) -> Response:
        path = call.request.query_params.get("path")
        return _json_response({"outages": await self._outage_switch.end(path.strip("/") if path is not None else None)})


def _json_response(content: dict[str, object], status: int = 200) -> Response:
    return Response(msgspec.json.encode(content), status_code=status, media_type=JSON_MEDIA_TYPE)
