"""Requests about the namespace as a whole: what it is, and how it is.

Owns: its description, its health, and the pauses of its loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import msgspec
from starlette.responses import Response

from twinbus.model.atom import namespace
from twinbus.model.errors import InvalidArgument
from twinbus.model.info import NamespaceInfo
from twinbus.server.http import entries, faults
from twinbus.server.http.entries import AtomEntry
from twinbus.server.http.routes import Route, route

if TYPE_CHECKING:
    from twinbus.server.administration import Administration
    from twinbus.server.http.call import Call
    from twinbus.server.pauses import PauseMeter

JSON_MEDIA_TYPE = "application/json"


class NamespaceEndpoints:
    """One namespace, over HTTP."""

    def __init__(self, administration: Administration, pause_meter: PauseMeter | None) -> None:
        """`pauses` may be measured."""
        self._administration = administration
        self._pause_meter = pause_meter

    def routes(self) -> tuple[Route, ...]:
        """Health is for load balancers, which have no keys."""
        return (
            route("health", None, GET=self._health, HEAD=self._health),
            route(r"\$namespaceinfo", GET=self._info),
            route(r"\$pauses", DELETE=self._reset_pauses),
        )

    async def _info(self, call: Call) -> Response:
        name, created_ms = self._administration.namespace, self._administration.created_ms
        # The limits of messages and entities are those of the Standard tier, which NamespaceInfo has by default.
        content = namespace.write_namespace(NamespaceInfo(name=name, created_ms=created_ms, modified_ms=created_ms))
        path = "$namespaceinfo"
        entry = AtomEntry(path=path, title=name, content=content, created_ms=created_ms, updated_ms=created_ms)
        return entries.entry_response(call, entry, author=name)

    async def _health(self, call: Call) -> Response:
        """200 while a store works, 503 otherwise; with `?for=send`, 200 while a store takes messages.

        A full disk alone does not make it 503: a load balancer would cut off the receivers, whose settling frees space.
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
        """What was found so far; from now on it is measured anew."""
        if self._pause_meter is None:
            raise faults.ResourceNotFound("pauses are not measured: twinbus serve --measure-pauses does")
        content = msgspec.json.encode(self._pause_meter.summary())
        self._pause_meter.reset()
        return Response(content, media_type=JSON_MEDIA_TYPE)
