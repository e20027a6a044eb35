"""A connection in memory: two transports, and the bytes in transit between them.

Bytes arrive in the order in which they were written, in a later turn of the event loop. As with a socket, a buffer
(SOCKET_BUFFER_BYTES) holds bytes that the peer has not read; when more bytes are pending, the writer is paused.

Owns both ends of one connection. `LinkConditions`, implemented elsewhere, decides whether and when bytes arrive.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextvars import Context

SOCKET_BUFFER_BYTES: Final = 262_144
"""Bytes that the simulated operating system buffers while the peer does not read."""
DEFAULT_HIGH_WATER: Final = 65_536
SocketAddress = tuple[str, int]
"""Address and port."""


class LinkConditions(Protocol):
    """State of the link between two ends, for one direction."""

    @property
    def is_held(self) -> bool:
        """Whether bytes are held back now."""

    @property
    def delay_s(self) -> float:
        """Delay of bytes that are sent now."""

    @property
    def bytes_until_cut(self) -> int | None:
        """Bytes that still arrive before the connection is cut, or None if it will not be cut."""

    def on_arrived(self, size: int) -> None:
        """Count `size` bytes that arrived while `bytes_until_cut` was set."""


class Pipe:
    """One direction of a connection: pieces of data in transit from its writer to its reader."""

    reader: MemoryTransport
    writer: MemoryTransport

    def __init__(self, loop: asyncio.AbstractEventLoop, conditions: LinkConditions) -> None:
        """Create an empty pipe; the transports set themselves as its reader and writer."""
        self.undelivered_bytes = 0
        """Bytes that were written and have not arrived yet."""
        self._loop = loop
        self._conditions = conditions
        self._pending: deque[tuple[float, bytes | None]] = deque()
        """Pieces in transit, with the time at which each may arrive; None stands for the end of the stream."""
        self._has_ended = False
        self._delivery_call: asyncio.Handle | None = None

    def send(self, data: bytes | None) -> None:
        """Send a piece of data, or the end of the stream (None)."""
        if self._has_ended:
            return
        self._has_ended = data is None
        self._pending.append((self._loop.time() + self._conditions.delay_s, data))
        self.undelivered_bytes += len(data or b"")
        self.schedule_delivery()

    def schedule_delivery(self) -> None:
        """Schedule the delivery of pending data unless it is held back; must be called whenever the hold ends."""
        if self._delivery_call is not None or not self._pending or self._is_blocked:
            return
        due_s = self._pending[0][0]
        if due_s <= self._loop.time():
            self._delivery_call = self._loop.call_soon(self._deliver, context=self.reader.context)
        else:
            self._delivery_call = self._loop.call_at(due_s, self._deliver, context=self.reader.context)

    def drop_unbuffered(self) -> None:
        """Drop the most recent data, until no more than SOCKET_BUFFER_BYTES is left."""
        while self._pending and self.undelivered_bytes > SOCKET_BUFFER_BYTES:
            _, data = self._pending.pop()
            self.undelivered_bytes -= len(data or b"")

    @property
    def _is_blocked(self) -> bool:
        return self._conditions.is_held or self.reader.is_paused

    def _deliver(self) -> None:
        self._delivery_call = None
        if self._is_blocked:
            return
        pieces: list[bytes] = []
        is_end, now_s = False, self._loop.time()
        while self._pending and self._pending[0][0] <= now_s and not is_end:
            _, data = self._pending.popleft()
            if data is None:
                is_end = True
            else:
                pieces.append(data)
        if pieces:
            data = b"".join(pieces)
            self.undelivered_bytes -= len(data)
            room = self._conditions.bytes_until_cut
            self.reader.deliver(data if room is None else data[:room])
            if self.writer.awaits_delivery:
                self._loop.call_soon(self.writer.on_delivered, context=self.writer.context)
            if room is not None:
                self._conditions.on_arrived(len(data))
        if is_end:
            self.reader.deliver_eof()
        self.schedule_delivery()


class MemorySocket:
    """Socket object of an in-memory connection; it only provides the local and remote addresses."""

    family: Final = socket.AF_INET
    type: Final = socket.SOCK_STREAM

    def __init__(self, local: SocketAddress, remote: SocketAddress | None = None) -> None:
        """Create a socket; `remote` is the peer's address, or None for a listening socket."""
        self._local = local
        self._remote = remote

    def getsockname(self) -> SocketAddress:
        """Return the local address."""
        return self._local

    def getpeername(self) -> SocketAddress:
        """Return the peer's address; raise OSError for a listening socket."""
        if self._remote is None:
            raise OSError("a listening socket has no peer")
        return self._remote

    def fileno(self) -> int:
        """Return -1, because the operating system has no such socket."""
        return -1

    def setsockopt(self, *_option: object) -> None:
        """Ignore socket options."""


class MemoryTransport(asyncio.Transport):
    """Transport of one end of a connection in memory."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        protocol: asyncio.Protocol,
        pipes: tuple[Pipe, Pipe],
        addresses: tuple[SocketAddress, SocketAddress],
        on_lost: Callable[[], None],
        context: Context,
    ) -> None:
        """Create one end of a connection.

        `pipes` has the pipe to read from and the pipe to write to; `addresses` has the local and the peer's address.
        The protocol is called in `context`, which determines the host that it runs on.
        """
        local, remote = addresses
        super().__init__({"sockname": local, "peername": remote, "socket": MemorySocket(local, remote)})
        self.is_paused = False
        """Whether the protocol has paused reading."""
        self._loop = loop
        self._protocol = protocol
        self._incoming, self._outgoing = pipes
        self._incoming.reader = self._outgoing.writer = self
        self._on_lost = on_lost
        self.context = context
        self._is_closing = False
        self._is_lost = False
        self._has_received_eof = False
        self._is_writing_paused = False
        self._high, self._low = DEFAULT_HIGH_WATER, DEFAULT_HIGH_WATER // 4

    # --- the protocol calls these -------------------------------------------------------------------------------------

    def get_protocol(self) -> asyncio.BaseProtocol:
        """Return the protocol."""
        return self._protocol

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Replace the protocol."""
        assert isinstance(protocol, asyncio.Protocol), "only asyncio.Protocol is supported, not BufferedProtocol"
        self._protocol = protocol

    def is_closing(self) -> bool:
        """Return whether the transport is closing or closed."""
        return self._is_closing

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        """Send data to the peer; ignore it if the transport is closing."""
        if data and not self._is_closing:
            self._outgoing.send(bytes(data))
            self._update_flow_control()

    def can_write_eof(self) -> bool:
        """Return True, because one direction may be closed before the other."""
        return True

    def write_eof(self) -> None:
        """Close the outgoing direction and keep reading."""
        self._outgoing.send(None)

    def close(self) -> None:
        """Close the connection after all written data has been sent."""
        if not self._is_closing:
            self._is_closing = True
            self._outgoing.send(None)
            self.resume_reading()  # incoming data is discarded from now on
            self._finish_if_written()

    def abort(self) -> None:
        """Close the connection at once and drop data beyond the socket's buffer."""
        if not self._is_lost:
            self._is_closing = True
            self._outgoing.drop_unbuffered()
            self._outgoing.send(None)
            self.resume_reading()
            self._loop.call_soon(self._finish, None, context=self.context)

    def is_reading(self) -> bool:
        """Return whether incoming data is passed to the protocol."""
        return not self.is_paused and not self._is_closing

    def pause_reading(self) -> None:
        """Pause the delivery of incoming data."""
        self.is_paused = not self._is_closing

    def resume_reading(self) -> None:
        """Resume the delivery of incoming data."""
        self.is_paused = False
        self._incoming.schedule_delivery()

    def get_write_buffer_size(self) -> int:
        """Return the number of written bytes that exceed the socket's buffer."""
        return max(0, self._outgoing.undelivered_bytes - SOCKET_BUFFER_BYTES)

    def get_write_buffer_limits(self) -> tuple[int, int]:
        """Return the low and high watermarks of the write buffer."""
        return self._low, self._high

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Set the watermarks at which the protocol's writing is paused and resumed."""
        self._high = high if high is not None else DEFAULT_HIGH_WATER if low is None else 4 * low
        self._low = low if low is not None else self._high // 4
        self._update_flow_control()

    # --- the connection calls these -----------------------------------------------------------------------------------

    def deliver(self, data: bytes) -> None:
        """Pass arrived bytes to the protocol, or reset the connection if this end is closing."""
        if self._is_closing:
            self._incoming.writer.reset()
            return
        try:
            self._protocol.data_received(data)
        except Exception as error:  # noqa: BLE001  # asyncio's socket transports also report it and abort
            details = {
                "message": "data_received failed",
                "exception": error,
                "transport": self,
                "protocol": self._protocol,
            }
            self._loop.call_exception_handler(details)
            self.abort()

    def deliver_eof(self) -> None:
        """Pass the end of the stream to the protocol, and close unless the protocol keeps the connection open."""
        self._has_received_eof = True
        if not self._is_closing and not self._protocol.eof_received():
            self.close()

    @property
    def awaits_delivery(self) -> bool:
        """Whether `on_delivered` must be called when bytes arrive at the peer."""
        return self._is_writing_paused or self._is_closing

    def on_delivered(self) -> None:
        """Update flow control after bytes arrived at the peer, and finish a pending close."""
        self._update_flow_control()
        self._finish_if_written()

    def reset(self) -> None:
        """Fail because the peer is closed, unless the peer's end of stream is still in transit."""
        if self._has_received_eof:
            self.fail(ConnectionResetError("the peer has closed the connection"))

    def fail(self, error: Exception) -> None:
        """Fail the connection with an error, as if it had been cut."""
        self._is_closing = True  # data that still arrives is discarded
        self._loop.call_soon(self._finish, error, context=self.context)

    # --- inside -------------------------------------------------------------------------------------------------------

    def _update_flow_control(self) -> None:
        size = self.get_write_buffer_size()
        if not self._is_writing_paused and size > self._high:
            self._is_writing_paused = True
            self._protocol.pause_writing()
        elif self._is_writing_paused and size <= self._low and not self._is_lost:
            self._is_writing_paused = False
            self._protocol.resume_writing()

    def _finish_if_written(self) -> None:
        if self._is_closing and not self.get_write_buffer_size():
            self._loop.call_soon(self._finish, None, context=self.context)

    def _finish(self, error: Exception | None) -> None:
        if not self._is_lost:
            self._is_lost = True
            self._on_lost()
            self._protocol.connection_lost(error)
