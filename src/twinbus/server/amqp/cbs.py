"""`$cbs`: the node to which a client sends the tokens that authorize its connection.

Owns: put-token. `auth.sas` verifies a token; `auth.grants` holds the resulting rights of the connection.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twinbus.amqp.types import Int
from twinbus.model.errors import InvalidArgument, NotImplementedHere, Unauthorized
from twinbus.server.amqp.request_link import Response
from twinbus.server.auth import sas
from twinbus.server.auth.sas import LoginFailed

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinbus.broker.clock import Clock
    from twinbus.model.errors import ServiceBusError
    from twinbus.server.amqp.request_link import OnReply, Request
    from twinbus.server.auth.grants import ConnectionGrants
    from twinbus.server.auth.sas import KeySource

_STATUS_ACCEPTED = 202


class CbsNode:
    """The node `$cbs`, for one connection."""

    def __init__(
        self,
        grants: ConnectionGrants,
        keys: KeySource,
        clock: Clock,
        on_granted: Callable[[], None],
        on_login_failed: Callable[[LoginFailed], None],
    ) -> None:
        """Create the node. `on_granted` is called for each accepted token, `on_login_failed` for each invalid token."""
        self._on_login_failed = on_login_failed
        self._grants = grants
        self._keys = keys
        self._clock = clock
        self._on_granted = on_granted

    def handle(self, request: Request, on_reply: OnReply) -> None:
        """Accept a token. Raise a ServiceBusError if the request or the token is invalid."""
        operation = request.required_text("operation")
        if operation != "put-token":
            raise NotImplementedHere(f"$cbs does not support {operation!r:.60}, only put-token")
        audience = request.required_text("name")
        if not isinstance(request.body, str):
            raise InvalidArgument("put-token has no token: send it as a string in the body")
        # Clients declare both kinds of tokens as "jwt", so only the text counts: `verify` accepts signatures only.
        grant = sas.verify(str(request.body), audience, self._keys, self._clock.wall_ms() / 1000)
        self._grants.add(sas.scope_of(audience), grant)
        self._on_granted()
        on_reply(Response({"status-code": Int(_STATUS_ACCEPTED), "status-description": "Accepted"}))

    def error_response(self, error: ServiceBusError) -> Response:
        """Return the response to a request that failed."""
        if isinstance(error, LoginFailed):
            self._on_login_failed(error)
        status = error.status if isinstance(error, Unauthorized | NotImplementedHere) else 400
        return Response({"status-code": Int(status), "status-description": str(error)})
