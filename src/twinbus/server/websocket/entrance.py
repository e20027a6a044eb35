"""The way from HTTP to AMQP: a connection that was HTTP becomes a WebSocket with an AMQP peer behind it.

    entrance = Entrance(gateway.make_client, gateway.make_connection)
    listener = await listen(app, entrance=entrance)

Owns: the AMQP peers that came in this way. Their connections were counted when they were accepted.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from twinbus.amqp.aio import Peer
from twinbus.amqp.peers import AcceptedPeers
from twinbus.server.websocket import handshake
from twinbus.server.websocket.socket import WebSocket

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from twinbus.amqp.aio import Handler
    from twinbus.amqp.connection import Connection
    from twinbus.amqp.peers import ConnectionSlot


class WebSocketUpgrade(AcceptedPeers):
    """The AMQP peers that came through one HTTP listener."""

    def __init__(self, make_handler: Callable[[Peer], Handler], make_connection: Callable[[float], Connection]) -> None:
        """As for `aio.listen`."""
        super().__init__()
        self._make_handler = make_handler
        self._make_connection = make_connection

    def matches_path(self, path: str) -> bool:
        """A request for this path is meant for us."""
        return handshake.WEBSOCKET_PATH.fullmatch(path) is not None

    def make_response(self, method: str, http_version: str, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
        """The answer to a request, with which it becomes a WebSocket; or the error that refuses it."""
        return handshake.handshake_response(method, http_version, headers)

    def upgrade(
        self, transport: asyncio.Transport, response: bytes, early_data: bytes, slot: ConnectionSlot | None
    ) -> None:
        """The connection is a WebSocket from now on; `early` is what has come of it already."""
        connection = self._make_connection(asyncio.get_running_loop().time())
        socket = WebSocket(transport, Peer(self._make_handler, connection, self, slot))
        transport.set_protocol(socket)
        transport.write(response)
        socket.open()
        if early_data:
            socket.data_received(early_data)
