"""The endpoints of the JSON API and of the metrics.

    GET /$api/v1/overview
    GET /$api/v1/entities?prefix=ord&top=100
    DELETE /$api/v1/connections/0-17
    GET /metrics

Owns the routes, and responses in JSON, also for errors. Tokens are checked here, because a key of one entity may read
that entity only: `access` has the rules.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

import msgspec
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from twinbus.model.errors import EntityNotFound, InvalidArgument, ServiceBusError
from twinbus.model.path import SubQueue, parse_address
from twinbus.model.status import (
    ConnectionPage,
    Disks,
    ErrorBody,
    FailedLogins,
    OutageStatus,
    Pairings,
    RehearsedOutages,
    Stores,
    Workers,
)
from twinbus.server.api import process_calls as calls
from twinbus.server.api.openapi import OPENAPI_DOCUMENT
from twinbus.server.api.pairing_summary import summarise
from twinbus.server.api.parameters import Parameters, parse_connection_id
from twinbus.server.api.pieces_response import PiecesResponse
from twinbus.server.auth.keys import Right
from twinbus.server.http import error_responses
from twinbus.server.http.namespace_endpoints import JSON_MEDIA_TYPE
from twinbus.server.http.routes import Route, route

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from twinbus.model.status import ConnectionStatus
    from twinbus.server.amqp.gateway import Gateway
    from twinbus.server.api.access import Access, Authenticator
    from twinbus.server.api.collector import Collector
    from twinbus.server.api.entity_status import EntityReader
    from twinbus.server.api.metrics_page import MetricsPage
    from twinbus.server.api.overview import OverviewReader
    from twinbus.server.http.call import Call
    from twinbus.server.http.routes import Handler

METRICS_MEDIA_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
MAX_FAILED_LOGINS: Final = 100
log: Final = logging.getLogger(__name__)


class StatusEndpoints:
    """The handlers of the API."""

    def __init__(
        self,
        gateway: Gateway,
        authenticator: Authenticator,
        collector: Collector,
        entities: EntityReader,
        overview: OverviewReader,
        metrics: MetricsPage,
    ) -> None:
        """Create the endpoints."""
        self._gateway = gateway
        self._authenticator = authenticator
        self._collector = collector
        self._entities = entities
        self._overview = overview
        self._metrics = metrics

    def routes(self) -> tuple[Route, ...]:
        """Return the routes. A request for `/metrics` with an api-version is for a queue named `metrics`."""
        listen, manage = self._for_namespace(Right.LISTEN), self._for_namespace(Right.MANAGE)
        get: dict[str, Handler] = {
            "overview": listen(self._get_overview),
            "entities": self._handler(self._list_entities),
            "entities/(?P<path>.+)": self._handler(self._get_entity),
            "locks/(?P<path>.+)": self._handler(self._list_locks),
            "sessions/(?P<path>.+)": self._handler(self._list_sessions),
            "connections": listen(self._list_connections),
            "stores": listen(self._list_stores),
            "workers": listen(self._list_workers),
            "disk": listen(self._list_disks),
            "pairing": listen(self._list_pairings),
            "outages": listen(self._list_outages),
            "failed-logins": manage(self._list_failed_logins),
            "metrics": listen(self._get_metrics),
        }
        return (
            *[route(rf"\$api/v1/{address}", None, GET=handler) for address, handler in get.items()],
            route(
                r"\$api/v1/connections/(?P<id>[^/]+)",
                None,
                GET=listen(self._get_connection),
                DELETE=self._handler(self._close_connection),
            ),
            route(r"\$api/v1/openapi\.json", None, GET=_get_openapi),
            route(r"\$api(/.*)?", None, GET=_handler_of_unknown, DELETE=_handler_of_unknown),
            Route(
                route("metrics").pattern,
                {"GET": listen(self._get_metrics)},
                right=None,
                falls_through=True,
                has_version=False,
            ),
        )

    def _handler(self, respond: Callable[[Call, Access], Awaitable[Response]]) -> Handler:
        """Return a handler that checks the token, and responds to errors in JSON."""

        async def handle(call: Call) -> Response:
            try:
                return await respond(call, self._authenticator.authenticate(call))
            except ServiceBusError as error:
                return _error_response(error)
            except ClientDisconnect:
                raise
            except Exception:
                tracking_id = error_responses.new_tracking_id()
                log.exception("%s %r failed. TrackingId:%s", call.request.method, call.address, tracking_id)
                text = "internal error: find the cause in the server's log by this id"
                return _json_response(ErrorBody(status=500, error=text, tracking_id=tracking_id), 500)

        return handle

    def _for_namespace(self, right: Right) -> Callable[[Callable[[Call], Awaitable[Response]]], Handler]:
        """Return a function that makes handlers for callers with a right on the namespace."""

        def make_handler(respond: Callable[[Call], Awaitable[Response]]) -> Handler:
            async def check_and_respond(call: Call, access: Access) -> Response:
                access.check_namespace(right)
                return await respond(call)

            return self._handler(check_and_respond)

        return make_handler

    # --- entities -----------------------------------------------------------------------------------------------------

    async def _get_overview(self, call: Call) -> Response:
        Parameters(call)
        return _json_response(await self._overview.read())

    async def _list_entities(self, call: Call, access: Access) -> Response:
        parameters = Parameters(call, "prefix", "kind", "top", "after")
        page = await self._entities.page(
            None if access.allows_namespace(Right.LISTEN) else access.may_read,
            access.scopes,
            prefix=parameters.text("prefix"),
            kind=parameters.kind,
            after=parameters.text("after"),
            top=parameters.top,
        )
        return _json_response(page)

    async def _get_entity(self, call: Call, access: Access) -> Response:
        Parameters(call)
        access.check_entity(call.names["path"])
        return _json_response(await self._entities.details(call.names["path"]))

    async def _list_locks(self, call: Call, access: Access) -> Response:
        parameters = Parameters(call, "top", "after")
        address = parse_address(call.names["path"])
        access.check_entity(address.entity)
        after, top = parameters.number("after"), parameters.top
        return _json_response(await self._entities.locks(address.entity, address.sub_queue, after=after, top=top))

    async def _list_sessions(self, call: Call, access: Access) -> Response:
        parameters = Parameters(call, "top", "after")
        address = parse_address(call.names["path"])
        access.check_entity(address.entity)
        if address.sub_queue is not SubQueue.MAIN:
            raise InvalidArgument(f"'{address.path:.300}' has no sessions: give the path of a queue or subscription")
        after, top = parameters.text("after"), parameters.top
        return _json_response(await self._entities.sessions(address.entity, after=after, top=top))

    # --- connections --------------------------------------------------------------------------------------------------

    async def _list_connections(self, call: Call) -> Response:
        parameters = Parameters(call, "top", "after")
        top = parameters.top
        first_worker, after = parameters.after_connection()
        found: list[ConnectionStatus] = []
        for number in self._collector.peers.numbers:
            missing = top + 1 - len(found)
            if number >= first_worker and missing > 0:
                last = after if number == first_worker else 0
                found += await self._collector.call(number, calls.ListConnections(last, missing)) or []
        return _json_response(
            ConnectionPage(connections=found[:top], next=found[top - 1].id if len(found) > top else None)
        )

    async def _get_connection(self, call: Call) -> Response:
        Parameters(call)
        worker, number = parse_connection_id(call.names["id"])
        details = await self._collector.call(worker, calls.GetConnection(number))
        if details is None:
            raise _connection_not_found(call.names["id"])
        return _json_response(details)

    async def _close_connection(self, call: Call, access: Access) -> Response:
        access.check_namespace(Right.MANAGE)
        Parameters(call)
        worker, number = parse_connection_id(call.names["id"])
        if not await self._collector.call(worker, calls.CloseConnection(number, access.key_name)):
            raise _connection_not_found(call.names["id"])
        return Response(status_code=204)

    # --- the server ---------------------------------------------------------------------------------------------------

    async def _list_stores(self, call: Call) -> Response:
        Parameters(call)
        return _json_response(Stores(stores=self._overview.stores()))

    async def _list_workers(self, call: Call) -> Response:
        Parameters(call)
        return _json_response(Workers(workers=self._overview.workers(await self._overview.processes())))

    async def _list_disks(self, call: Call) -> Response:
        Parameters(call)
        processes = await self._overview.processes()
        disks = [disk for process in processes.values() for disk in process.disks]
        return _json_response(Disks(disks=sorted(disks, key=lambda disk: disk.store)))

    async def _list_pairings(self, call: Call) -> Response:
        Parameters(call)
        return _json_response(Pairings(pairings=await summarise(self._gateway.pairing_reports)))

    async def _list_outages(self, call: Call) -> Response:
        Parameters(call)
        outages = self._gateway.outage_switch.list_outages()
        return _json_response(RehearsedOutages(outages=msgspec.convert(outages, list[OutageStatus])))

    async def _list_failed_logins(self, call: Call) -> Response:
        Parameters(call)
        answers = await self._collector.call_all(calls.ListFailedLogins(MAX_FAILED_LOGINS))
        failed = sorted((one for answer in answers.values() for one in answer), key=lambda one: one.time, reverse=True)
        return _json_response(FailedLogins(failed_logins=failed[:MAX_FAILED_LOGINS]))

    async def _get_metrics(self, _: Call) -> Response:
        return PiecesResponse(await self._metrics.render(), METRICS_MEDIA_TYPE)


async def _get_openapi(_: Call) -> Response:
    return Response(OPENAPI_DOCUMENT, media_type=JSON_MEDIA_TYPE)


async def _handler_of_unknown(call: Call) -> Response:
    text = f"there is no resource {call.address!r:.300}: /$api/v1/openapi.json lists the resources"
    return _error_response(error_responses.ResourceNotFound(text))


def _connection_not_found(connection_id: str) -> EntityNotFound:
    error = EntityNotFound(connection_id)
    error.args = (f"there is no connection {connection_id!r}: it is closed, or its process does not answer",)
    return error


def _json_response(content: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(content), status_code=status, media_type=JSON_MEDIA_TYPE)


def _error_response(error: ServiceBusError) -> Response:
    body = ErrorBody(status=error.status, error=str(error), tracking_id=error_responses.new_tracking_id())
    return _json_response(body, error.status)
