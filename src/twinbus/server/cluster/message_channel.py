"""Words over a local socket: many in one write.

Owns: the frames. A frame is its length, four bytes, and a pair in MessagePack: a number, which is 0 for what has no
answer, and a word. What words mean is known to who sends and who gets them.
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
"""What is received together, and then sent together, to one fragment is less than that."""
SOCKET_BUFFER_BYTES: Final = 4_194_304
"""What the system keeps between the two: more at once is fewer turns of each."""
REQUEST_DECODER: Final = msgspec.msgpack.Decoder(tuple[int, Request])
REPLY_DECODER: Final = msgspec.msgpack.Decoder(tuple[int, Reply])


def _to_builtin(value: object) -> object:
    """Values that came in a message are of AMQP's types, which are numbers and strings."""
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
        """`on_word` hears of each word that comes, `on_lost` when no more will."""
        self._decode = decoder.decode
        self._on_message = on_message
        self._on_lost = on_lost
        self._transport: asyncio.Transport | None = None
        self._is_connected = False
        self._loop = asyncio.get_running_loop()
        self._output: list[bytes] = []
        self._input = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It is there."""
        self._transport = cast("asyncio.Transport", transport)
        connection = transport.get_extra_info("socket")
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            connection.setsockopt(socket.SOL_SOCKET, option, SOCKET_BUFFER_BYTES)
        self._transport.set_write_buffer_limits(high=MAX_FRAME_BYTES)
        self._is_connected = True
        self._flush()

    def send(self, request_id: int, message: Request | Reply) -> None:
        """Say something: at the end of this turn, with all else that is said in it."""
        content = _encode((request_id, message))
        if not self._output:
            self._loop.call_soon(self._flush)
        self._output.append(_LENGTH.pack(len(content)))
        self._output.append(content)

    def _flush(self) -> None:
        if not self._is_connected:
            return  # what is said to one that comes is said when it is there
        out, self._output = self._output, []
        if out and self._transport is not None and not self._transport.is_closing():
            self._transport.writelines(out)

    def data_received(self, data: bytes) -> None:
        """Some bytes came: perhaps several words, and part of one."""
        buffer: bytes | bytearray = data
        if self._input:
            self._input += data
            buffer = self._input
        at = self._read_frames(buffer)
        if buffer is data:
            self._input += data[at:]
        elif at:  # else it is part of a word yet: of a long one there are many
            del self._input[:at]

    def _read_frames(self, buffer: bytes | bytearray) -> int:
        """Tell the words that are whole; where the rest begins."""
        whole = memoryview(buffer)
        at, end = 0, len(buffer)
        while end - at >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(buffer, at)
            if length > MAX_FRAME_BYTES:
                self.close()
                return end
            start = at + _LENGTH.size
            if end - start < length:
                break
            number, word = self._decode(whole[start : start + length])
            at = start + length
            self._on_message(number, word)
        return at

    def connection_lost(self, _error: Exception | None) -> None:
        """The other process has gone, or it was closed."""
        self._transport = None
        self._on_lost()

    def close(self) -> None:
        """Say no more. What was said is lost with what was not yet sent: the other process is not there any more."""
        if self._transport is not None:
            self._transport.abort()
