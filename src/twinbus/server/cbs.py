"""`$cbs`: where a client puts the tokens that give its connection rights.

Owns: put-token. What a token proves is in `sas`; what the connection may do then, in `access`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twinbus.amqp.types import Int
from twinbus.model.errors import InvalidArgument, NotImplementedHere, Unauthorized
from twinbus.server import sas
from twinbus.server.requests import Response
from twinbus.server.sas import LoginFailed

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinbus.broker.clock import Clock
    from twinbus.model.errors import ServiceBusError
    from twinbus.server.access import Access
    from twinbus.server.requests import Reply, Request
    from twinbus.server.sas import Keys

_ACCEPTED = 202


class Cbs:
    """The `$cbs` of one connection."""

    def __init__(
        self,
        access: Access,
        keys: Keys,
        clock: Clock,
        on_granted: Callable[[], None],
        on_failed: Callable[[LoginFailed], None],
    ) -> None:
        """`on_granted` is called for every token that was taken, `on_failed` for every one that is wrong."""
        self._on_failed = on_failed
        self._access = access
        self._keys = keys
        self._clock = clock
        self._on_granted = on_granted

    def handle(self, request: Request, reply: Reply) -> None:
        """Take a token."""
        operation = request.text("operation")
        if operation != "put-token":
            raise NotImplementedHere(f"$cbs knows put-token, not {operation!r:.60}")
        audience = request.text("name")
        if not isinstance(request.body, str):
            raise InvalidArgument("put-token has no token: its body is a string")
        # Clients say "jwt" of tokens of either kind, so the text decides: everything but a signature is refused there.
        grant = sas.verify(str(request.body), audience, self._keys, self._clock.wall_ms() / 1000)
        self._access.give(sas.scope_of(audience), grant)
        self._on_granted()
        reply(Response({"status-code": Int(_ACCEPTED), "status-description": "Accepted"}))

    def refuse(self, error: ServiceBusError) -> Response:
        """The status says what kind of failure it was."""
        if isinstance(error, LoginFailed):
            self._on_failed(error)
        status = error.status if isinstance(error, Unauthorized | NotImplementedHere) else 400
        return Response({"status-code": Int(status), "status-description": str(error)})
