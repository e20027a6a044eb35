"""The ASGI application behind the HTTP ports: finds the route for a request, checks its token, and calls the handler.

    app = HttpApp(administration, authorise)
    listener = await listen(app, serve=acceptor.serve)

Owns: the order of the routes, and a response for every failure. Knows nothing of sockets, keys or stores: `authorise`
checks tokens, and an `Administration` carries out changes.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from email.utils import formatdate
from typing import TYPE_CHECKING, Final

from starlette.requests import ClientDisconnect, Request

from twinbus.model.errors import ServiceBusError
from twinbus.server.auth.sas import LoginFailed
from twinbus.server.http import error_responses, routes
from twinbus.server.http.call import Call, address_of, mark_authorised
from twinbus.server.http.entity_endpoints import EntityEndpoints, RuleEndpoints
from twinbus.server.http.limits import DEFAULT_LIMITS, HttpLimits
from twinbus.server.http.namespace_endpoints import NamespaceEndpoints

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from starlette.responses import Response
    from starlette.types import Receive, Scope, Send

    from twinbus.server.catalogue.administration import Administration
    from twinbus.server.http.routes import Authorise, Handler, Recheck, Route
    from twinbus.server.runtime.loop_pauses import PauseMeter

log: Final = logging.getLogger(__name__)


class HttpApp:
    """The ASGI application of a namespace."""

    def __init__(
        self,
        administration: Administration,
        authorise: Authorise,
        limits: HttpLimits = DEFAULT_LIMITS,
        pause_meter: PauseMeter | None = None,
        extra_routes: Sequence[Route] = (),
        handle_management: Callable[[Call, Handler], Awaitable[Response]] | None = None,
        on_login_failed: Callable[[str, LoginFailed], None] | None = None,
    ) -> None:
        """Create the application. `authorise` is called before the body of a request is read.

        `extra_routes` come before the management routes. `handle_management` runs the handlers of management requests,
        so that it can meter them. `on_login_failed` is called with the address of a client that presented a wrong
        token.
        """
        self._on_login_failed = on_login_failed
        self._handle_management = handle_management or _call_handler
        self._authorise = authorise
        self._limits = limits
        self._management_routes = (
            *RuleEndpoints(administration).routes(),
            *EntityEndpoints(administration, authorise).routes(),
        )
        self._routes = (
            *extra_routes,
            *NamespaceEndpoints(administration, pause_meter).routes(),
            *self._management_routes,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        try:
            response = await self._respond(Request(scope, receive))
        except ClientDisconnect:  # no client to respond to
            return
        response.headers["date"] = formatdate(usegmt=True)
        await response(scope, receive, send)

    async def _respond(self, request: Request) -> Response:
        try:
            route, handler, names = routes.find_route(
                self._routes, request.method, address_of(request), has_version="api-version" in request.query_params
            )
            call = Call.from_request(request, names, self._limits)
            if route.right is not None:
                call = replace(call, recheck=self._check_token(call, route))
                mark_authorised(request.scope)
            if any(route is management_route for management_route in self._management_routes):
                return await self._handle_management(call, handler)
            return await handler(call)
        except ServiceBusError as error:
            if isinstance(error, LoginFailed) and self._on_login_failed is not None:
                self._on_login_failed(_client_address(request), error)
            return error_responses.error_response(error)
        except ClientDisconnect:
            raise
        except Exception:
            tracking_id = error_responses.new_tracking_id()
            log.exception("%s %r failed. TrackingId:%s", request.method, request.scope["path"], tracking_id)
            return error_responses.make_error_response(
                500, "internal error: find the cause in the server's log by this id", tracking_id
            )

    def _check_token(self, call: Call, route: Route) -> Recheck | None:
        assert route.right is not None
        if route.scope_group is None:
            return self._authorise(call.token, route.right, call.address)
        return self._authorise(call.token, route.right, call.names[route.scope_group], "", call.address)


def _client_address(request: Request) -> str:
    return f"{request.client.host}:{request.client.port}" if request.client is not None else "unknown"


async def _call_handler(call: Call, handler: Handler) -> Response:
    return await handler(call)
