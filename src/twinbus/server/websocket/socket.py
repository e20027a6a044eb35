"""A WebSocket: a protocol for the TCP connection below it, and a transport for the AMQP peer above it.

Frames are handled in slices, and the clock is checked between slices. A read full of pings or empty frames may contain
no data for the peer, so the peer's own time slice would never end (`amqp.peer_input` explains time slices). Frames that
exceed the client's time slice are held (at most about one read), and reading is paused until the held frames are
handled.

Owns: pongs, the closing handshake with its timeout, and flow control. Reading is paused while frames are held and while
the peer has paused reading. The socket notifies the peer when the connection's write buffer is full, so a client that
does not read is throttled as on any other socket.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Final

from twinbus.amqp.aio import CLOSE_GRACE_S
from twinbus.amqp.peer_input import TimeSlice, held_input_queue_of
from twinbus.server.websocket.frames import CloseCode, FrameReader, Opcode, ProtocolViolation, close_frame, frame_header

if TYPE_CHECKING:
    from twinbus.amqp.aio import Peer

MAX_SENT_MESSAGE_BYTES: Final = 1_048_576
"""The largest message sent, because some clients close the connection if they receive more than 4 MB at once."""
MAX_FRAMES_PER_SLICE: Final = 512
"""How many frames are handled before the clock is checked: about half a millisecond."""


class WebSocket(asyncio.Protocol, asyncio.Transport):
    """The WebSocket of one client."""

    def __init__(self, transport: asyncio.Transport, peer: Peer) -> None:
        """Create a WebSocket that passes payload to `peer` and sends the peer's output."""
        super().__init__()
        self._transport = transport
        self._peer = peer
        self._frames = FrameReader()
        self._is_closing = False
        self._close_timer: asyncio.TimerHandle | None = None
        loop = asyncio.get_running_loop()
        self._turn = TimeSlice(time.monotonic, loop.call_soon, self._update_reading)
        self._backlog = held_input_queue_of(loop)
        self._is_in_backlog = False
        self._is_paused = False
        self._peer_has_paused = False

    def open(self) -> None:
        """Connect the peer after the handshake."""
        self._peer.connection_made(self)

    # --- called by asyncio --------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Handle the received frames within the client's time slice."""
        turn = self._turn
        turn.begin()
        if self._frames.has_pending_input:
            self._frames.append_pending(data)  # asyncio had read this data before reading was paused
            self._peer.connection.silence_limit.note_progress(asyncio.get_running_loop().time())
        else:
            self._handle_frames(data)
            while self._can_continue and not turn.is_used_up(self._peer.time_slice_s):
                self._handle_frames(b"")
        turn.end()
        self._update_reading()

    def pause_writing(self) -> None:
        """Tell the peer to pause, because the client does not read fast enough."""
        self._peer.pause_writing()

    def resume_writing(self) -> None:
        """Tell the peer to resume, because the write buffer has drained."""
        self._peer.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the peer that the connection is closed."""
        self._is_closing = True
        if self._close_timer is not None:
            self._close_timer.cancel()
        self._peer.connection_lost(exc)

    # --- called by the peer -------------------------------------------------------------------------------------------

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send data as binary messages of up to `MAX_SENT_MESSAGE_BYTES`."""
        if self._is_closing:
            return
        size = len(data)
        if size <= MAX_SENT_MESSAGE_BYTES:
            self._transport.writelines((frame_header(Opcode.BINARY, size), data))
            return
        view = memoryview(data)
        for start in range(0, size, MAX_SENT_MESSAGE_BYTES):
            piece = view[start : start + MAX_SENT_MESSAGE_BYTES]
            self._transport.writelines((frame_header(Opcode.BINARY, len(piece)), piece))

    def close(self) -> None:
        """Send a close frame; the connection is closed when the client replies, or after a timeout."""
        self._close(CloseCode.NORMAL)

    def abort(self) -> None:
        """Close the connection at once."""
        self._is_closing = True
        self._transport.abort()

    def is_closing(self) -> bool:
        """Return whether nothing more can be sent."""
        return self._is_closing or self._transport.is_closing()

    def pause_reading(self) -> None:
        """Stop reading from the client."""
        self._peer_has_paused = True
        self._update_reading()

    def resume_reading(self) -> None:
        """Read from the client again, once the held frames are handled."""
        self._peer_has_paused = False
        self._update_reading()

    # --- called by the queue of held input ----------------------------------------------------------------------------

    def read_slice(self) -> bool:
        """Handle some of the held frames; return whether more can be handled now."""
        if self._can_continue:
            self._handle_frames(b"")
        has_more = self._is_in_backlog = self._can_continue
        self._update_reading()
        return has_more

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Set the limits for the connection's write buffer; the WebSocket has no buffer of its own."""
        self._transport.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        """Return the number of bytes in the connection's write buffer."""
        return self._transport.get_write_buffer_size()

    def get_extra_info(self, name: str, default: Any = None) -> Any:  # noqa: ANN401  # asyncio's signature
        """Return information about the connection, such as addresses and certificates."""
        return self._transport.get_extra_info(name, default)

    # --- private ------------------------------------------------------------------------------------------------------

    def _handle_frames(self, data: bytes) -> None:
        """Pass the payload of the next frames to the peer, and reply to pings and close frames."""
        frames = self._frames
        try:
            payload = frames.receive(data, MAX_FRAMES_PER_SLICE)
        except ProtocolViolation as violation:
            self._close(violation.code, violation.reason)
            self._transport.close()
            return
        if payload and not self._is_closing:
            self._peer.data_received(payload)
        if frames.ping is not None:
            ping, frames.ping = frames.ping, None
            if not self._is_closing:
                self._transport.write(frame_header(Opcode.PONG, len(ping)) + ping)
        if frames.close_code is not None:
            self._close(frames.close_code)
            self._transport.close()

    @property
    def _can_continue(self) -> bool:
        """Whether frames are held and the peer accepts their payload."""
        return self._frames.has_pending_input and not self._peer_has_paused and not self._transport.is_closing()

    def _update_reading(self) -> None:
        """Pause or resume reading, and queue this socket if it holds frames."""
        if self._transport.is_closing():
            return
        if self._can_continue and not self._is_in_backlog:
            self._is_in_backlog = True
            self._backlog.add(self)
        pause = self._frames.has_pending_input or self._peer_has_paused or self._turn.is_over
        if pause and not self._is_paused:
            self._transport.pause_reading()
        elif self._is_paused and not pause:
            self._transport.resume_reading()
        self._is_paused = pause

    def _close(self, code: int, reason: str = "") -> None:
        if self.is_closing():
            return
        self._is_closing = True
        self._transport.write(close_frame(code, reason))
        self.resume_reading()  # so that the client's close frame is received
        self._close_timer = asyncio.get_running_loop().call_later(CLOSE_GRACE_S, self._transport.abort)
