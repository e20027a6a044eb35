"""A WebSocket: a protocol to the connection it runs over, a transport to the AMQP peer behind it.

Owns: pongs, and the closing handshake with its time limit. What the connection says about its room to write, the peer
hears, and what the peer says about reading, the connection does: so a client that does not read is throttled as on any
other socket, and nothing is buffered in between.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from twinbus.amqp.aio import LAST_WORDS_S
from twinbus.server.websocket.frames import CloseCode, FrameReader, Opcode, Violation, close_frame, head_of

if TYPE_CHECKING:
    from twinbus.amqp.aio import Peer

MESSAGE_BYTES: Final = 1_048_576
"""The largest message sent: some clients close a connection on which more than 4 MB come at once."""


class WebSocket(asyncio.Protocol, asyncio.Transport):
    """One client's."""

    def __init__(self, transport: asyncio.Transport, peer: Peer) -> None:
        """`peer` takes what comes, and writes to this."""
        super().__init__()
        self._transport = transport
        self._peer = peer
        self._frames = FrameReader()
        self._is_closing = False
        self._last_timer: asyncio.TimerHandle | None = None

    def open(self) -> None:
        """The handshake is done."""
        self._peer.connection_made(self)

    # --- asyncio calls these ------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Give the peer what is its own, and answer the rest."""
        frames = self._frames
        try:
            payload = frames.receive(data)
        except Violation as violation:
            self._close(violation.code, violation.reason)
            self._transport.close()
            return
        if payload and not self._is_closing:
            self._peer.data_received(payload)
        if frames.ping is not None:
            ping, frames.ping = frames.ping, None
            if not self._is_closing:
                self._transport.write(head_of(Opcode.PONG, len(ping)) + ping)
        if frames.close_code is not None:
            self._close(frames.close_code)
            self._transport.close()

    def pause_writing(self) -> None:
        """The client does not read as fast as it is sent to."""
        self._peer.pause_writing()

    def resume_writing(self) -> None:
        """It reads again."""
        self._peer.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone, and with it the peer."""
        self._is_closing = True
        if self._last_timer is not None:
            self._last_timer.cancel()
        self._peer.connection_lost(exc)

    # --- the peer calls these -----------------------------------------------------------------------------------------

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send, in as few messages as clients take."""
        if self._is_closing:
            return
        size = len(data)
        if size <= MESSAGE_BYTES:
            self._transport.writelines((head_of(Opcode.BINARY, size), data))
            return
        view = memoryview(data)
        for start in range(0, size, MESSAGE_BYTES):
            piece = view[start : start + MESSAGE_BYTES]
            self._transport.writelines((head_of(Opcode.BINARY, len(piece)), piece))

    def close(self) -> None:
        """Say goodbye; the connection ends when the client has answered, or has not in time."""
        self._close(CloseCode.NORMAL)

    def abort(self) -> None:
        """End the connection at once."""
        self._is_closing = True
        self._transport.abort()

    def is_closing(self) -> bool:
        """Nothing more is sent."""
        return self._is_closing or self._transport.is_closing()

    def pause_reading(self) -> None:
        """Take nothing more from the client for now."""
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Go on."""
        self._transport.resume_reading()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Of the connection: there is no other buffer."""
        self._transport.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        """Bytes that the connection has not taken yet."""
        return self._transport.get_write_buffer_size()

    def get_extra_info(self, name: str, default: Any = None) -> Any:  # noqa: ANN401  # as asyncio has it
        """Addresses and certificates are the connection's."""
        return self._transport.get_extra_info(name, default)

    # --- inside -------------------------------------------------------------------------------------------------------

    def _close(self, code: int, reason: str = "") -> None:
        if self.is_closing():
            return
        self._is_closing = True
        self._transport.write(close_frame(code, reason))
        self._transport.resume_reading()  # else the client's own close would not be seen
        self._last_timer = asyncio.get_running_loop().call_later(LAST_WORDS_S, self._transport.abort)
