"""The peers of a server, whichever way they came.

Owns: what accepts them, who is there, how many may be, and that all of them are let go at the end. A part of the
adapter to asyncio.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from twinbus.amqp.errors import CONNECTION_FORCED
from twinbus.amqp.performatives import Error

if TYPE_CHECKING:
    import ssl
    from collections.abc import Awaitable, Callable, Sequence

    from twinbus.amqp.aio import Peer

log: Final = logging.getLogger(__name__)


class BoundSocket(Protocol):
    """A socket, as far as listeners need it."""

    def getsockname(self) -> Any:  # noqa: ANN401  # as `socket` has it
        """Where it is."""


class AcceptingServer(Protocol):
    """What accepts connections: a server of asyncio, or another."""

    @property
    def sockets(self) -> Sequence[BoundSocket]:
        """Where."""

    def close(self) -> None:
        """Accept no more."""

    async def wait_closed(self) -> None:
        """It has let go of its sockets."""


class ConnectionSlot(Protocol):
    """The place of an accepted connection among all connections of its process."""

    def authenticated(self) -> None:
        """The client has proved who it is."""

    def busy(self) -> None:
        """Bytes of a handshake or of a request have arrived."""

    def idle(self) -> None:
        """A request was answered, and the next has not arrived."""

    def release(self) -> None:
        """The socket is closed."""


MakeProtocol: TypeAlias = "Callable[[ConnectionSlot | None], asyncio.BaseProtocol]"
"""Makes what serves a connection; None where connections are not counted at accept."""
StartAccepting: TypeAlias = "Callable[[MakeProtocol, ssl.SSLContext | None, float], Awaitable[AcceptingServer]]"
"""Starts accepting: what a connection is given to, TLS, and how many seconds that may take to be agreed on."""


class AcceptedPeers:
    """Those of one listening socket."""

    def __init__(self, max_connections: int | None = None) -> None:
        """Nobody yet. Without a maximum, they are counted where they are accepted."""
        self.peers: set[Peer] = set()
        self.max_connections = max_connections
        self.is_closed = False

    @property
    def is_full(self) -> bool:
        """Nobody else is let in now."""
        return self.is_closed or (self.max_connections is not None and len(self.peers) >= self.max_connections)

    def admit(self, peer: Peer) -> bool:
        """Count a peer in. Not before its socket (and TLS) is there: one that never comes so far is never lost."""
        if self.is_closed:  # while it was in its TLS handshake
            return False
        if self.is_full:
            log.warning("%d connections, the limit: one more was refused", self.max_connections)
            return False
        self.peers.add(peer)
        return True

    async def close(self, *, grace_s: float = 5.0) -> None:
        """Let nobody else in, close every connection in good order, and drop those that do not answer in time."""
        self.is_closed = True
        for peer in list(self.peers):
            peer.close(Error(condition=CONNECTION_FORCED, description="the server is stopping"))
        if self.peers:
            await asyncio.wait([peer.lost for peer in self.peers], timeout=grace_s)
        for peer in list(self.peers):
            peer.transport.abort()


class Listener(AcceptedPeers):
    """A listening socket and the peers that came through it. Made by `aio.listen`."""

    _server: AcceptingServer

    @property
    def port(self) -> int:
        """The port it listens on."""
        return int(self._server.sockets[0].getsockname()[1])

    async def close(self, *, grace_s: float = 5.0) -> None:
        """Accept no more, close every connection in good order, and drop those that do not answer in time."""
        self._server.close()
        await super().close(grace_s=grace_s)
        await self._server.wait_closed()
