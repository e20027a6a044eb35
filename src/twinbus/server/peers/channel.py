"""Words over a local socket: many in one write.

Owns: the frames. A frame is its length, four bytes, and a pair in MessagePack: a number, which is 0 for what has no
answer, and a word. What words mean is known to who sends and who gets them.
"""

from __future__ import annotations

import asyncio
from struct import Struct
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from twinbus.broker.remote.calls import Answer, Call

if TYPE_CHECKING:
    from collections.abc import Callable

_LENGTH: Final = Struct(">I")
FRAME_MAX_BYTES: Final = 268_435_456
"""What is received together, and then sent together, to one fragment is less than that."""
CALLS: Final = msgspec.msgpack.Decoder(tuple[int, Call])
ANSWERS: Final = msgspec.msgpack.Decoder(tuple[int, Answer])


def _plainly(value: object) -> object:
    """Values that came in a message are of AMQP's types, which are numbers and strings."""
    for kind in (int, str, bytes):
        if isinstance(value, kind):
            return kind(value)
    raise TypeError(value)


_encode: Final = msgspec.msgpack.Encoder(enc_hook=_plainly).encode


class Channel(asyncio.Protocol):
    """One end of a connection between two processes."""

    def __init__(
        self,
        decoder: msgspec.msgpack.Decoder[Any],
        on_word: Callable[[int, Any], None],
        on_lost: Callable[[], None],
    ) -> None:
        """`on_word` hears of each word that comes, `on_lost` when no more will."""
        self._decode = decoder.decode
        self._on_word = on_word
        self._on_lost = on_lost
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self._out: list[bytes] = []
        self._in = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It is there."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=FRAME_MAX_BYTES)

    def send(self, number: int, word: Call | Answer) -> None:
        """Say something: at the end of this turn, with all else that is said in it."""
        content = _encode((number, word))
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out.append(_LENGTH.pack(len(content)))
        self._out.append(content)

    def _flush(self) -> None:
        out, self._out = self._out, []
        if self._transport is not None and not self._transport.is_closing():
            self._transport.writelines(out)

    def data_received(self, data: bytes) -> None:
        """Some bytes came: perhaps several words, and part of one."""
        buffer = self._in
        buffer += data
        at, end = 0, len(buffer)
        while end - at >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(buffer, at)
            if length > FRAME_MAX_BYTES:
                self.close()
                return
            start = at + _LENGTH.size
            if end - start < length:
                break
            number, word = self._decode(memoryview(buffer)[start : start + length])
            at = start + length
            self._on_word(number, word)
        del buffer[:at]

    def connection_lost(self, _error: Exception | None) -> None:
        """The other process has gone, or it was closed."""
        self._transport = None
        self._on_lost()

    def close(self) -> None:
        """Say no more. What was said is lost with what was not yet sent: the other process is not there any more."""
        if self._transport is not None:
            self._transport.abort()
