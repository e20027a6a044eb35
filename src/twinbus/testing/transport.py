"""A connection in memory: two transports, and what is on its way between them.

Bytes arrive in the order in which they were written, in a later turn of the loop. As on a socket, some of what a peer
does not read is taken off its writer's hands (SOCKET_BYTES); beyond that the writer is told to pause.

Owns: both ends of one connection. What is wrong with the way between them (`Way`) is asked each time, and decided
elsewhere.
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
"""What the system takes over of what was written and not read."""
DEFAULT_HIGH_WATER: Final = 65_536
SocketAddress = tuple[str, int]
"""Address and port."""


class LinkConditions(Protocol):
    """What is between two ends."""

    @property
    def is_held(self) -> bool:
        """Nothing arrives now."""

    @property
    def delay_s(self) -> float:
        """How long anything takes that is sent now."""

    @property
    def bytes_until_cut(self) -> int | None:
        """How many bytes still arrive before the connection is cut; None: it is not cut."""

    def on_arrived(self, size: int) -> None:
        """So many bytes have arrived while there was a limit."""


class Pipe:
    """One direction of a connection."""

    reader: MemoryTransport
    writer: MemoryTransport

    def __init__(self, loop: asyncio.AbstractEventLoop, conditions: LinkConditions) -> None:
        """Empty."""
        self.undelivered_bytes = 0
        """Bytes that were written and have not arrived."""
        self._loop = loop
        self._conditions = conditions
        self._pending: deque[tuple[float, bytes | None]] = deque()
        """When each piece is due, if not after one before it; None is the end of all."""
        self._has_ended = False
        self._delivery_call: asyncio.Handle | None = None

    def send(self, data: bytes | None) -> None:
        """Send something, or the end."""
        if self._has_ended:
            return
        self._has_ended = data is None
        self._pending.append((self._loop.time() + self._conditions.delay_s, data))
        self.undelivered_bytes += len(data or b"")
        self.schedule_delivery()

    def schedule_delivery(self) -> None:
        """Have what waits delivered, if nothing is in the way; whoever takes something out of the way calls this."""
        if self._delivery_call is not None or not self._pending or self._is_blocked:
            return
        due_s = self._pending[0][0]
        if due_s <= self._loop.time():
            self._delivery_call = self._loop.call_soon(self._deliver, context=self.reader.context)
        else:
            self._delivery_call = self._loop.call_at(due_s, self._deliver, context=self.reader.context)

    def drop_unbuffered(self) -> None:
        """Lose what the system has not taken over yet."""
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
    """What is asked of a socket for its addresses."""

    family: Final = socket.AF_INET
    type: Final = socket.SOCK_STREAM

    def __init__(self, local: SocketAddress, remote: SocketAddress | None = None) -> None:
        """`there` is the other end."""
        self._local = local
        self._remote = remote

    def getsockname(self) -> SocketAddress:
        """This end."""
        return self._local

    def getpeername(self) -> SocketAddress:
        """The other end. OSError for one that listens."""
        if self._remote is None:
            raise OSError("a socket that listens has no peer")
        return self._remote

    def fileno(self) -> int:
        """The system does not know it."""
        return -1

    def setsockopt(self, *_option: object) -> None:
        """Nothing to set."""


class MemoryTransport(asyncio.Transport):
    """One end of a connection."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        protocol: asyncio.Protocol,
        pipes: tuple[Pipe, Pipe],
        addresses: tuple[SocketAddress, SocketAddress],
        on_lost: Callable[[], None],
        context: Context,
    ) -> None:
        """The pipes are the one that it reads and the one that it writes, the places its own and the other's.

        Its protocol is called in `context`, which says on which host it runs.
        """
        here, there = addresses
        super().__init__({"sockname": here, "peername": there, "socket": MemorySocket(here, there)})
        self.is_paused = False
        """Its protocol does not read."""
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
        """Whose it is."""
        return self._protocol

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """It is somebody else's from now on."""
        assert isinstance(protocol, asyncio.Protocol), "bytes are given to a Protocol, not asked for by a buffer"
        self._protocol = protocol

    def is_closing(self) -> bool:
        """Nothing more is taken."""
        return self._is_closing

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        """Send."""
        if data and not self._is_closing:
            self._outgoing.send(bytes(data))
            self._update_flow_control()

    def can_write_eof(self) -> bool:
        """One direction may end before the other."""
        return True

    def write_eof(self) -> None:
        """Send nothing more, and go on reading."""
        self._outgoing.send(None)

    def close(self) -> None:
        """End it, after what was written."""
        if not self._is_closing:
            self._is_closing = True
            self._outgoing.send(None)
            self.resume_reading()  # what still comes is thrown away
            self._finish_if_written()

    def abort(self) -> None:
        """End it at once."""
        if not self._is_lost:
            self._is_closing = True
            self._outgoing.drop_unbuffered()
            self._outgoing.send(None)
            self.resume_reading()
            self._loop.call_soon(self._finish, None, context=self.context)

    def is_reading(self) -> bool:
        """It takes what comes."""
        return not self.is_paused and not self._is_closing

    def pause_reading(self) -> None:
        """Take nothing more for now."""
        self.is_paused = not self._is_closing

    def resume_reading(self) -> None:
        """Go on."""
        self.is_paused = False
        self._incoming.schedule_delivery()

    def get_write_buffer_size(self) -> int:
        """Bytes that the system has not taken over."""
        return max(0, self._outgoing.undelivered_bytes - SOCKET_BUFFER_BYTES)

    def get_write_buffer_limits(self) -> tuple[int, int]:
        """When to pause, and when to go on."""
        return self._low, self._high

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Set them."""
        self._high = high if high is not None else DEFAULT_HIGH_WATER if low is None else 4 * low
        self._low = low if low is not None else self._high // 4
        self._update_flow_control()

    # --- the connection calls these -----------------------------------------------------------------------------------

    def deliver(self, data: bytes) -> None:
        """Bytes have arrived."""
        if self._is_closing:
            self._incoming.writer.reset()
            return
        try:
            self._protocol.data_received(data)
        except Exception as error:  # noqa: BLE001  # as on a socket: told, and the connection is gone
            told = {
                "message": "data_received failed",
                "exception": error,
                "transport": self,
                "protocol": self._protocol,
            }
            self._loop.call_exception_handler(told)
            self.abort()

    def deliver_eof(self) -> None:
        """The other end sends nothing more."""
        self._has_received_eof = True
        if not self._is_closing and not self._protocol.eof_received():
            self.close()

    @property
    def awaits_delivery(self) -> bool:
        """It wants to know when bytes have arrived at the other end."""
        return self._is_writing_paused or self._is_closing

    def on_delivered(self) -> None:
        """Bytes have arrived at the other end."""
        self._update_flow_control()
        self._finish_if_written()

    def reset(self) -> None:
        """What was sent came to an end that is closed. Its own last word, if that is still on its way, comes first."""
        if self._has_received_eof:
            self.fail(ConnectionResetError("the other end is closed"))

    def fail(self, error: Exception) -> None:
        """The connection is cut."""
        self._is_closing = True  # so that what still comes is thrown away
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
