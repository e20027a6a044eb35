"""Listeners of a server, and the peers that they accepted over TCP or WebSockets.

Owns the accepting socket, the set of connected peers and their maximum number, and closes the peers at shutdown. Part
of the asyncio adapter.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from twinbus.amqp.codec.performatives import Error
from twinbus.amqp.errors import CONNECTION_FORCED

if TYPE_CHECKING:
    import ssl
    from collections.abc import Awaitable, Callable, Sequence

    from twinbus.amqp.aio import Peer

log: Final = logging.getLogger(__name__)


class BoundSocket(Protocol):
    """Subset of a socket that listeners need."""

    def getsockname(self) -> Any:  # noqa: ANN401  # same type as in `socket`
        """Return the local address."""


class AcceptingServer(Protocol):
    """Server that accepts connections: an asyncio server, or an equivalent."""

    @property
    def sockets(self) -> Sequence[BoundSocket]:
        """Listening sockets."""

    def close(self) -> None:
        """Stop accepting connections."""

    async def wait_closed(self) -> None:
        """Wait until the listening sockets are closed."""


class ConnectionSlot(Protocol):
    """Slot of an accepted connection in the process-wide connection limit."""

    def authenticated(self) -> None:
        """Note that the client has authenticated."""

    def busy(self) -> None:
        """Note that bytes of a handshake or request have arrived."""

    def idle(self) -> None:
        """Note that a request was answered and the next request has not arrived."""

    def release(self) -> None:
        """Free the slot: the socket is closed."""


MakeProtocol: TypeAlias = "Callable[[ConnectionSlot | None], asyncio.BaseProtocol]"
"""Function that creates the protocol of a connection. The slot is None if connections are not counted when accepted."""
StartAccepting: TypeAlias = "Callable[[MakeProtocol, ssl.SSLContext | None, float], Awaitable[AcceptingServer]]"
"""Function that starts accepting connections; its arguments are the protocol factory, TLS, and the TLS handshake
timeout."""


class AcceptedPeers:
    """Peers connected to one listener."""

    def __init__(self, max_connections: int | None = None) -> None:
        """Create an empty set of peers. If `max_connections` is None, the accepting server limits the connections."""
        self.peers: set[Peer] = set()
        self.max_connections = max_connections
        self.is_closed = False

    @property
    def is_full(self) -> bool:
        """True if no further peer is admitted now."""
        return self.is_closed or (self.max_connections is not None and len(self.peers) >= self.max_connections)

    def admit(self, peer: Peer) -> bool:
        """Add a peer whose socket (and TLS) is established, and return whether it was admitted."""
        if self.is_closed:  # the listener was closed during the peer's TLS handshake
            return False
        if self.is_full:
            log.warning("refused a connection: the limit of %d connections is reached", self.max_connections)
            return False
        self.peers.add(peer)
        return True

    async def close(self, *, grace_s: float = 5.0) -> None:
        """Admit no more peers and close all connections; abort connections whose peer does not respond in `grace_s`."""
        self.is_closed = True
        for peer in list(self.peers):
            peer.close(Error(condition=CONNECTION_FORCED, description="the server is stopping"))
        if self.peers:
            await asyncio.wait([peer.lost for peer in self.peers], timeout=grace_s)
        for peer in list(self.peers):
            peer.transport.abort()


class Listener(AcceptedPeers):
    """Listening socket and its connected peers. Created by `aio.listen`."""

    _server: AcceptingServer

    @property
    def port(self) -> int:
        """Port of the listening socket."""
        return int(self._server.sockets[0].getsockname()[1])

    async def close(self, *, grace_s: float = 5.0) -> None:
        """Stop accepting and close all connections; abort connections whose peer does not respond within `grace_s`."""
        self._server.close()
        await super().close(grace_s=grace_s)
        await self._server.wait_closed()
