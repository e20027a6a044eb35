"""A WebSocket: a protocol to the connection it runs over, a transport to the AMQP peer behind it.

Frames are handled in pieces, and the clock is checked between them: a read full of pings or empty frames may give the
peer nothing, so the peer's own turn would never end it (`amqp.turn` says why there are turns). Frames that do not fit
into the client's turn are held, at most about one read of them, and the connection is not read until they are handled.

Owns: pongs, the closing handshake with its time limit, and when the connection is read: not while frames are held, nor
while the peer has paused reading. The connection's room to write is reported to the peer, so a client that does not
read is throttled as on any other socket.
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
"""The largest message sent: some clients close a connection on which more than 4 MB come at once."""
MAX_FRAMES_PER_SLICE: Final = 512
"""Frames that are handled before the clock is checked: about half a millisecond."""


class WebSocket(asyncio.Protocol, asyncio.Transport):
    """One client's."""

    def __init__(self, transport: asyncio.Transport, peer: Peer) -> None:
        """`peer` takes what comes, and writes to this."""
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
        """The handshake is done."""
        self._peer.connection_made(self)

    # --- asyncio calls these ------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Handle the frames that have come, as far as the client's turn goes."""
        turn = self._turn
        turn.begin()
        if self._frames.has_pending_input:
            self._frames.append_pending(data)  # it was on its way when reading was paused
            self._peer.connection.silence_limit.note_progress(asyncio.get_running_loop().time())
        else:
            self._handle_frames(data)
            while self._can_continue and not turn.is_used_up(self._peer.time_slice_s):
                self._handle_frames(b"")
        turn.end()
        self._update_reading()

    def pause_writing(self) -> None:
        """The client does not read as fast as it is sent to."""
        self._peer.pause_writing()

    def resume_writing(self) -> None:
        """It reads again."""
        self._peer.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone, and with it the peer."""
        self._is_closing = True
        if self._close_timer is not None:
            self._close_timer.cancel()
        self._peer.connection_lost(exc)

    # --- the peer calls these -----------------------------------------------------------------------------------------

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send, in as few messages as clients take."""
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
        self._peer_has_paused = True
        self._update_reading()

    def resume_reading(self) -> None:
        """Take input from the client again, once the frames that are held are handled."""
        self._peer_has_paused = False
        self._update_reading()

    # --- the backlog calls this ---------------------------------------------------------------------------------------

    def read_slice(self) -> bool:
        """Handle a piece of the frames that are held; True where there is more that can be handled now."""
        if self._can_continue:
            self._handle_frames(b"")
        has_more = self._is_in_backlog = self._can_continue
        self._update_reading()
        return has_more

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

    def _handle_frames(self, data: bytes) -> None:
        """Pass the payload of the next frames to the peer, and answer pings and closes."""
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
        """Frames are held, and the peer takes their payload."""
        return self._frames.has_pending_input and not self._peer_has_paused and not self._transport.is_closing()

    def _update_reading(self) -> None:
        """Pause or resume reading, and let held frames wait for their turn."""
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
        self.resume_reading()  # else the client's own close would not be seen
        self._close_timer = asyncio.get_running_loop().call_later(CLOSE_GRACE_S, self._transport.abort)
