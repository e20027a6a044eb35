"""`$cbs`: where a client puts the tokens that give its connection rights.

Owns: put-token. What a token proves is in `sas`; what the connection may do then, in `access`.
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
    """The `$cbs` of one connection."""

    def __init__(
        self,
        grants: ConnectionGrants,
        keys: KeySource,
        clock: Clock,
        on_granted: Callable[[], None],
        on_login_failed: Callable[[LoginFailed], None],
    ) -> None:
        """`on_granted` is called for every token that was taken, `on_failed` for every one that is wrong."""
        self._on_login_failed = on_login_failed
        self._grants = grants
        self._keys = keys
        self._clock = clock
        self._on_granted = on_granted

    def handle(self, request: Request, on_reply: OnReply) -> None:
        """Take a token."""
        operation = request.required_text("operation")
        if operation != "put-token":
            raise NotImplementedHere(f"$cbs knows put-token, not {operation!r:.60}")
        audience = request.required_text("name")
        if not isinstance(request.body, str):
            raise InvalidArgument("put-token has no token: its body is a string")
        # Clients say "jwt" of tokens of either kind, so the text decides: everything but a signature is refused there.
        grant = sas.verify(str(request.body), audience, self._keys, self._clock.wall_ms() / 1000)
        self._grants.add(sas.scope_of(audience), grant)
        self._on_granted()
        on_reply(Response({"status-code": Int(_STATUS_ACCEPTED), "status-description": "Accepted"}))

    def error_response(self, error: ServiceBusError) -> Response:
        """The status says what kind of failure it was."""
        if isinstance(error, LoginFailed):
            self._on_login_failed(error)
        status = error.status if isinstance(error, Unauthorized | NotImplementedHere) else 400
        return Response({"status-code": Int(status), "status-description": str(error)})
