"""The upgrade from HTTP to AMQP: an HTTP connection becomes a WebSocket with an AMQP peer.

    upgrade = WebSocketUpgrade(gateway.make_client_connection, gateway.make_connection)
    listener = await listen(app, websocket_upgrade=upgrade)

Owns: the AMQP peers of upgraded connections. The HTTP listener counted these connections when it accepted them.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import re
from typing import TYPE_CHECKING, Final

from twinbus.amqp.aio import Peer
from twinbus.amqp.listener import AcceptedPeers
from twinbus.model.errors import InvalidArgument
from twinbus.server.http.error_responses import MethodNotAllowed, UpgradeRequired
from twinbus.server.websocket.socket import WebSocket

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from twinbus.amqp.aio import Handler
    from twinbus.amqp.connection import Connection
    from twinbus.amqp.listener import ConnectionSlot

WEBSOCKET_PATH: Final = re.compile(r"/\$servicebus/websocket/?", re.IGNORECASE)
SUBPROTOCOL: Final = "AMQPWSB10"
_GUID: Final = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_KEY_BYTES: Final = 16
_WEBSOCKET_VERSION: Final = "13"
_RESPONSE: Final = (
    "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    f"Sec-WebSocket-Protocol: {SUBPROTOCOL}\r\nSec-WebSocket-Accept: {{}}\r\n\r\n"
)


def handshake_response(method: str, http_version: str, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return the response to a WebSocket handshake. `headers` have names in lower case.

    Raise MethodNotAllowed, UpgradeRequired or InvalidArgument if the request is not a valid handshake.
    """
    fields: dict[str, list[str]] = {}
    for name, value in headers:
        fields.setdefault(name.decode("latin-1"), []).append(value.decode("latin-1"))
    if method != "GET":
        raise MethodNotAllowed(method, ("GET",))
    if "websocket" not in _header_tokens(fields, "upgrade") or "upgrade" not in _header_tokens(fields, "connection"):
        raise UpgradeRequired("this address is a WebSocket: send Connection: Upgrade and Upgrade: websocket")
    if fields.get("sec-websocket-version") != [_WEBSOCKET_VERSION]:
        raise UpgradeRequired(f"Sec-WebSocket-Version must be {_WEBSOCKET_VERSION}")
    if http_version != "1.1" or "transfer-encoding" in fields or fields.get("content-length", ["0"]) != ["0"]:
        raise InvalidArgument("a WebSocket handshake must use HTTP/1.1 and have no body")
    offered = [token.strip() for value in fields.get("sec-websocket-protocol", []) for token in value.split(",")]
    if SUBPROTOCOL not in offered:
        raise InvalidArgument(f"Sec-WebSocket-Protocol must offer {SUBPROTOCOL}, the only supported protocol")
    return _RESPONSE.format(_accept_key(fields.get("sec-websocket-key", []))).encode()


def _header_tokens(headers: dict[str, list[str]], name: str) -> set[str]:
    return {token.strip().lower() for value in headers.get(name, []) for token in value.split(",")}


def _accept_key(keys: list[str]) -> str:
    try:
        (key,) = keys
        is_key = len(base64.b64decode(key, validate=True)) == _KEY_BYTES
    except (ValueError, binascii.Error):
        is_key = False
    if not is_key:
        raise InvalidArgument("Sec-WebSocket-Key must occur once and be 16 bytes in base64")
    return base64.b64encode(hashlib.sha1(key.encode() + _GUID, usedforsecurity=False).digest()).decode()


class WebSocketUpgrade(AcceptedPeers):
    """The AMQP peers for the WebSockets on one HTTP listener."""

    def __init__(self, make_handler: Callable[[Peer], Handler], make_connection: Callable[[float], Connection]) -> None:
        """Create an upgrade without peers; `amqp.aio.listen` has the same parameters."""
        super().__init__()
        self._make_handler = make_handler
        self._make_connection = make_connection

    def matches_path(self, path: str) -> bool:
        """Return whether `path` is the WebSocket path."""
        return WEBSOCKET_PATH.fullmatch(path) is not None

    def make_response(self, method: str, http_version: str, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
        """Return the response that accepts a handshake, or raise the error that refuses it."""
        return handshake_response(method, http_version, headers)

    def upgrade(
        self, transport: asyncio.Transport, response: bytes, early_data: bytes, slot: ConnectionSlot | None
    ) -> None:
        """Turn a connection into a WebSocket; `early_data` is data that the client sent right after the handshake."""
        connection = self._make_connection(asyncio.get_running_loop().time())
        socket = WebSocket(transport, Peer(self._make_handler, connection, self, slot))
        transport.set_protocol(socket)
        transport.write(response)
        socket.open()
        if early_data:
            socket.data_received(early_data)
