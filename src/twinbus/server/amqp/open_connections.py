"""The open AMQP connections of this process, for the JSON API: properties sent by each client, and its links.

Owns: the list of open connections, and the totals of links that are detached already. Knows nothing of JSON, and adds
nothing to the path of a message: links count messages once per read, and sockets count bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from twinbus.amqp.aio import Peer
    from twinbus.amqp.codec.performatives import Open
    from twinbus.amqp.link import Link
    from twinbus.server.auth.grants import ConnectionGrants

MAX_TEXT_CHARACTERS: Final = 256
"""The maximum length of a name from a client; longer names are cut."""


class OpenConnection:
    """One open connection."""

    def __init__(
        self,
        number: int,
        peer: Peer,
        grants: ConnectionGrants,
        link_handlers: Mapping[Link, object],
        opening: Open,
        since_ms: int,
    ) -> None:
        """Create the entry of a connection; `link_handlers` is a live mapping from its links to their handlers."""
        self.number = number
        self.peer = peer
        self.grants = grants
        self.link_handlers = link_handlers
        self.since_ms = since_ms
        self.container_id = printable(opening.container_id)
        properties = opening.properties or {}
        named = (properties.get("product"), properties.get("version"))
        self.product = printable(" ".join(text for text in named if isinstance(text, str)))
        self.detached_received = 0
        """Messages received on links that are detached."""
        self.detached_sent = 0
        """Messages sent on links that are detached."""

    def add_detached(self, handler: object) -> None:
        """Keep the count of a link that is detached."""
        count = getattr(handler, "message_count", 0)
        if getattr(handler, "is_sender", False):
            self.detached_received += count
        else:
            self.detached_sent += count


class OpenConnections:
    """All open connections of this process."""

    def __init__(self) -> None:
        """Create an empty list."""
        self.by_number: dict[int, OpenConnection] = {}
        self.opened_count = 0
        """Connections opened since the process was started."""

    def add(self, connection: OpenConnection) -> None:
        """Add a connection."""
        self.by_number[connection.number] = connection
        self.opened_count += 1

    def remove(self, number: int) -> None:
        """Remove a connection, if it was opened."""
        self.by_number.pop(number, None)

    def page(self, after: int, limit: int) -> list[OpenConnection]:
        """Return up to `limit` connections with numbers above `after`, in ascending order."""
        numbers = sorted(number for number in self.by_number if number > after)[:limit]
        return [self.by_number[number] for number in numbers]


def printable(text: str) -> str:
    """Return a text from a client without control characters, and cut it if it is too long."""
    cut = text[:MAX_TEXT_CHARACTERS]
    return cut if cut.isprintable() else "".join(one if one.isprintable() else "?" for one in cut)
