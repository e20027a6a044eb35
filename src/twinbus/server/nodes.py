"""The nodes of a namespace itself, as one connection sees them: `$cbs`, `$outage`, `$pairing`.

Owns: which there are, and who may attach to one: anybody to `$cbs`, to the others whoever has shown a key or a token.
What may be asked of a node is for that to say, with each request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from twinbus.amqp.receiver import Receiver
from twinbus.amqp.sender import Sender
from twinbus.amqp.settings import Limits
from twinbus.model import path
from twinbus.model.errors import Unauthorized
from twinbus.server import outage_node, pairing
from twinbus.server.cbs import Cbs
from twinbus.server.outage_node import OutageNode
from twinbus.server.pairing_node import PairingNode
from twinbus.server.requests import ReplyLink, RequestLink, Terms, find_reply_link

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinbus.amqp.link import Link
    from twinbus.broker.clock import Clock
    from twinbus.server.access import Access
    from twinbus.server.outage_node import OutageSwitch
    from twinbus.server.pairing import PairingDesk
    from twinbus.server.request_queue import RequestQueue
    from twinbus.server.requests import Node
    from twinbus.server.sas import Keys, LoginFailed


TOKEN_TERMS: Final = Terms(max_bytes=65_536, limits=Limits(max_items=1_000))
"""Of requests to `$cbs`, which anybody may make: a token has 300 bytes, or some thousand if it is a JWT."""


class Nodes:
    """The nodes of one connection."""

    def __init__(
        self,
        access: Access,
        keys: Keys,
        clock: Clock,
        on_granted: Callable[[], None],
        on_failed: Callable[[LoginFailed], None],
        switch: OutageSwitch,
        pairings: PairingDesk,
        *,
        queue: RequestQueue,
    ) -> None:
        """`on_granted` is called for every token that was taken, `on_failed` for every one that is wrong.

        `queue` has the requests of the connection.
        """
        self._access = access
        self._queue = queue
        self._clock = clock
        self._make: dict[str, Callable[[], Node]] = {
            path.CBS: lambda: Cbs(access, keys, clock, on_granted, on_failed),
            outage_node.NODE: lambda: OutageNode(switch, access),
            pairing.NODE: lambda: PairingNode(pairings, access),
        }

    def has(self, name: str) -> bool:
        """There is one of that name."""
        return name in self._make

    def connect(self, link: Link, name: str) -> RequestLink | ReplyLink:
        """Accept a link to one."""
        if name != path.CBS and self._access.is_empty:
            raise Unauthorized(f"Unauthorized access. {name} is for who has shown a key or a token.")
        if isinstance(link, Sender):
            return ReplyLink(link, name, self._clock)
        assert isinstance(link, Receiver)
        node, terms = self._make[name](), TOKEN_TERMS if name == path.CBS else None
        return RequestLink(link, name, node, find_reply_link, self._clock, self._queue, terms=terms)
