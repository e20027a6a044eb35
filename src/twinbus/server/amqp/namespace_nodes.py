"""The nodes of the namespace itself, for one connection: `$cbs`, `$outage`, `$pairing`.

Owns: the list of nodes, and the rights to attach to them: any client may attach to `$cbs`, and clients with a valid key
or token may attach to the other nodes. Each node checks the rights for each request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from twinbus.amqp.receiver import Receiver
from twinbus.amqp.sender import Sender
from twinbus.amqp.settings import Limits
from twinbus.model import path
from twinbus.model.errors import Unauthorized
from twinbus.server.amqp import outage_node
from twinbus.server.amqp.cbs import CbsNode
from twinbus.server.amqp.outage_node import OutageNode
from twinbus.server.amqp.pairing_node import PairingNode
from twinbus.server.amqp.request_link import ReplyLink, RequestLimits, RequestLink, find_reply_link
from twinbus.server.paired_clients import report_store

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinbus.amqp.link import Link
    from twinbus.broker.clock import Clock
    from twinbus.server.amqp.outage_node import OutageSwitch
    from twinbus.server.amqp.request_link import Node, RequestQueue
    from twinbus.server.auth.grants import ConnectionGrants
    from twinbus.server.auth.sas import KeySource, LoginFailed
    from twinbus.server.paired_clients.report_store import PairingReports


TOKEN_REQUEST_LIMITS: Final = RequestLimits(max_request_bytes=65_536, decode_limits=Limits(max_items=1_000))
"""The limits for requests to `$cbs`, which need no rights. A token has about 300 bytes, a JWT a few thousand."""


class NamespaceNodes:
    """The nodes of one connection."""

    def __init__(
        self,
        grants: ConnectionGrants,
        keys: KeySource,
        clock: Clock,
        on_granted: Callable[[], None],
        on_login_failed: Callable[[LoginFailed], None],
        outage_switch: OutageSwitch,
        pairing_reports: PairingReports,
        *,
        request_queue: RequestQueue,
    ) -> None:
        """Create the nodes. `request_queue` holds the pending requests of the connection.

        `on_granted` is called for each accepted token, `on_login_failed` for each invalid token.
        """
        self._grants = grants
        self._request_queue = request_queue
        self._clock = clock
        self._factories: dict[str, Callable[[], Node]] = {
            path.CBS: lambda: CbsNode(grants, keys, clock, on_granted, on_login_failed),
            outage_node.NODE_NAME: lambda: OutageNode(outage_switch, grants),
            report_store.NODE_NAME: lambda: PairingNode(pairing_reports, grants),
        }

    def has(self, name: str) -> bool:
        """Return whether a node with this name exists."""
        return name in self._factories

    def bind_link(self, link: Link, name: str) -> RequestLink | ReplyLink:
        """Accept a link to a node. Raise Unauthorized if the node needs a key or a token."""
        if name != path.CBS and self._grants.is_empty:
            raise Unauthorized(f"Unauthorized access. {name} requires a valid key or token.")
        if isinstance(link, Sender):
            return ReplyLink(link, name, self._clock)
        assert isinstance(link, Receiver)
        node, limits = self._factories[name](), TOKEN_REQUEST_LIMITS if name == path.CBS else None
        return RequestLink(link, name, node, find_reply_link, self._clock, self._request_queue, request_limits=limits)
