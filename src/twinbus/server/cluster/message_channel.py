"""Messages over a local socket, many in one write.

Owns: the framing. A frame is a length of four bytes, followed by a pair in MessagePack: a request id, which is 0 for
notices without a reply, and a message. Must not know what the messages mean.
"""

from __future__ import annotations

import asyncio
import socket
from struct import Struct
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from twinbus.broker.ports.peer_protocol import Reply, Request

if TYPE_CHECKING:
    from collections.abc import Callable

_LENGTH: Final = Struct(">I")
MAX_FRAME_BYTES: Final = 268_435_456
"""The largest frame. The messages that one event-loop turn sends to a fragment are always smaller."""
SOCKET_BUFFER_BYTES: Final = 4_194_304
"""The size of the kernel's socket buffers. Larger buffers let both processes handle more messages per turn."""
REQUEST_DECODER: Final = msgspec.msgpack.Decoder(tuple[int, Request])
REPLY_DECODER: Final = msgspec.msgpack.Decoder(tuple[int, Reply])


def _to_builtin(value: object) -> object:
    """Convert values of AMQP types, which subclass int and str, for MessagePack."""
    if isinstance(value, int):
        return int(value)
    if isinstance(value, str):
        return str(value)
    raise TypeError(value)


_encode: Final = msgspec.msgpack.Encoder(enc_hook=_to_builtin).encode


class MessageChannel(asyncio.Protocol):
    """One end of a connection between two processes."""

    def __init__(
        self,
        decoder: msgspec.msgpack.Decoder[Any],
        on_message: Callable[[int, Any], None],
        on_lost: Callable[[], None],
    ) -> None:
        """Create a channel that calls `on_message` with each message received, and `on_lost` when the socket closes."""
        self._decode = decoder.decode
        self._on_message = on_message
        self._on_lost = on_lost
        self._transport: asyncio.Transport | None = None
        self._is_connected = False
        self._loop = asyncio.get_running_loop()
        self._output: list[bytes] = []
        self._input = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Set the buffer sizes, and send the messages that were queued before the connection was made."""
        self._transport = cast("asyncio.Transport", transport)
        connection = transport.get_extra_info("socket")
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            connection.setsockopt(socket.SOL_SOCKET, option, SOCKET_BUFFER_BYTES)
        self._transport.set_write_buffer_limits(high=MAX_FRAME_BYTES)
        self._is_connected = True
        self._flush()

    def send(self, request_id: int, message: Request | Reply) -> None:
        """Send a message at the end of this event-loop turn, in one write with the turn's other messages."""
        content = _encode((request_id, message))
        if not self._output:
            self._loop.call_soon(self._flush)
        self._output.append(_LENGTH.pack(len(content)))
        self._output.append(content)

    def _flush(self) -> None:
        if not self._is_connected:
            return  # `connection_made` sends the queued messages
        out, self._output = self._output, []
        if out and self._transport is not None and not self._transport.is_closing():
            self._transport.writelines(out)

    def data_received(self, data: bytes) -> None:
        """Handle received bytes: any number of whole frames, and perhaps part of another frame."""
        buffer: bytes | bytearray = data
        if self._input:
            self._input += data
            buffer = self._input
        at = self._read_frames(buffer)
        if buffer is data:
            self._input += data[at:]
        elif at:  # else a long frame is still incomplete
            del self._input[:at]

    def _read_frames(self, buffer: bytes | bytearray) -> int:
        """Deliver the messages in all whole frames, and return the position after the last whole frame."""
        view = memoryview(buffer)
        at, end = 0, len(buffer)
        while end - at >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(buffer, at)
            if length > MAX_FRAME_BYTES:
                self.close()
                return end
            start = at + _LENGTH.size
            if end - start < length:
                break
            request_id, message = self._decode(view[start : start + length])
            at = start + length
            self._on_message(request_id, message)
        return at

    def connection_lost(self, _error: Exception | None) -> None:
        """Report that the other process exited or one side closed the socket."""
        self._transport = None
        self._on_lost()

    def close(self) -> None:
        """Close the socket at once, and drop messages that are not yet written."""
        if self._transport is not None:
            self._transport.abort()
