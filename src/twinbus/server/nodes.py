"""The nodes of a namespace itself, as one connection sees them: `$cbs`, `$outage`, `$pairing`.

Owns: which there are, and who may attach to one: anybody to `$cbs`, to the others whoever has shown a key or a token.
What may be asked of a node is for that to say, with each request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twinbus.amqp.receiver import Receiver
from twinbus.amqp.sender import Sender
from twinbus.model import path
from twinbus.model.errors import Unauthorized
from twinbus.server import outage_node, pairing
from twinbus.server.cbs import Cbs
from twinbus.server.outage_node import OutageNode
from twinbus.server.pairing_node import PairingNode
from twinbus.server.requests import ReplyLink, RequestLink, find_reply_link

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinbus.amqp.link import Link
    from twinbus.broker.clock import Clock
    from twinbus.server.access import Access
    from twinbus.server.outage_node import OutageSwitch
    from twinbus.server.pairing import PairingDesk
    from twinbus.server.requests import Node
    from twinbus.server.sas import Keys, LoginFailed


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
    ) -> None:
        """`on_granted` is called for every token that was taken, `on_failed` for every one that is wrong."""
        self._access = access
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
        return RequestLink(link, name, self._make[name](), find_reply_link, self._clock)
