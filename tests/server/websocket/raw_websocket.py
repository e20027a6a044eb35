"""A WebSocket client that sends exactly the bytes of a test, valid or not."""

from __future__ import annotations

import base64
import hashlib
import socket
from typing import TYPE_CHECKING, Self

from twinbus.server.websocket.frames import Opcode, unmask

if TYPE_CHECKING:
    from tests.support.server_process import ServerProcess

TIMEOUT_S = 20.0
KEY = base64.b64encode(bytes(range(16))).decode()
ACCEPT = base64.b64encode(
    hashlib.sha1(KEY.encode() + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11", usedforsecurity=False).digest()
).decode()
HEADERS = {
    "Host": "x",
    "Upgrade": "websocket",
    "Connection": "Upgrade",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": KEY,
    "Sec-WebSocket-Protocol": "AMQPWSB10",
}
PATH = "/$servicebus/websocket"
SASL_HEADER = b"AMQP\x03\x01\x00\x00"


def request(*, method: str = "GET", path: str = PATH, version: str = "1.1", **changes: str | None) -> bytes:
    """Return a handshake request; `Sec_WebSocket_Key=None` omits that header."""
    changed = {name.replace("_", "-"): value for name, value in changes.items()}
    lines = [f"{name}: {value}" for name, value in (HEADERS | changed).items() if value is not None]
    return "\r\n".join([f"{method} {path} HTTP/{version}", *lines, "", ""]).encode()


def frame(opcode: int, payload: bytes = b"", *, fin: bool = True, mask: bytes = b"\x9f\x07\xb7\x41") -> bytes:
    """Return a masked frame, as a client sends it."""
    size = len(payload)
    head = bytes((opcode | (0x80 if fin else 0),))
    if size < 126:
        head += bytes((0x80 | size,))
    elif size < 65_536:
        head += b"\xfe" + size.to_bytes(2, "big")
    else:
        head += b"\xff" + size.to_bytes(8, "big")
    return head + mask + unmask(payload, mask)


class RawWebSocket:
    """A WebSocket connection."""

    def __init__(self, server: ServerProcess, *, receive_buffer: int | None = None) -> None:
        self.socket = socket.socket()
        self.socket.settimeout(TIMEOUT_S)
        if receive_buffer is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.connect((server.host, server.http_port))
        self.received = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send_handshake(self, handshake: bytes) -> str:
        """Send the handshake, and return the head of the response."""
        self.socket.sendall(handshake)
        while b"\r\n\r\n" not in self.received:
            self._receive()
        head, self.received = self.received.split(b"\r\n\r\n", 1)
        return head.decode()

    def open(self) -> RawWebSocket:
        assert self.send_handshake(request()).startswith("HTTP/1.1 101 ")
        return self

    def send(self, *frames: bytes) -> None:
        self.socket.sendall(b"".join(frames))

    def receive_frame(self) -> tuple[int, bytes]:
        """Return the opcode and the payload of the next frame."""
        first, size = self._take(2)
        assert first & 0xF0 == 0x80
        if size >= 126:
            size = int.from_bytes(self._take(2 if size == 126 else 8), "big")
        return first & 0x0F, self._take(size)

    def close_code(self) -> int:
        """Return the code of the next close frame; the server must then close the connection."""
        opcode, payload = self.receive_frame()
        while opcode == Opcode.BINARY:
            opcode, payload = self.receive_frame()
        assert opcode == Opcode.CLOSE
        assert self.is_closed()
        return int.from_bytes(payload[:2], "big")

    def is_closed(self) -> bool:
        try:
            return self.socket.recv(1) == b""
        except ConnectionResetError:
            return True

    def _take(self, size: int) -> bytes:
        while len(self.received) < size:
            self._receive()
        taken, self.received = self.received[:size], self.received[size:]
        return taken

    def _receive(self) -> None:
        chunk = self.socket.recv(65_536)
        assert chunk, "the connection ended"
        self.received += chunk
