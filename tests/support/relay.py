"""A TCP relay between a client and a server that can fail as networks do.

    async with Relay(server.host, server.amqp_port) as relay:
        ...                              # clients connect to relay.host, relay.port
        relay.drop(Direction.RESPONSES)  # the server works, but its responses are lost
        await relay.restore()

Owns: its listening socket, the connections through it, and their faults. Knows nothing about the protocol.

No network delivers a byte stream with a hole in it. Therefore a connection that has lost bytes never continues:
`restore` resets it.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from enum import Enum
from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:
    from collections.abc import Awaitable
    from random import Random

CHUNK_BYTES: Final = 65_536
CONNECT_S: Final = 10.0
LINGER_S: Final = 0.2
"""How long the server's end stays open after the client's end was reset: long enough to answer the last request."""
_NO_LINGER: Final = struct.pack("ii", 1, 0)
"""Closing a socket with this option sends RST instead of FIN."""


class Direction(Enum):
    """Direction of bytes."""

    REQUESTS = "from the client to the server"
    RESPONSES = "from the server to the client"


class Endpoint(Enum):
    """An end of a connection."""

    CLIENT = "client"
    SERVER = "server"


BOTH: Final = frozenset(Direction)
_TARGET: Final = {Direction.REQUESTS: Endpoint.SERVER, Direction.RESPONSES: Endpoint.CLIENT}


class _Connection:
    """A client's connection to the relay, and the relay's connection to the server for it."""

    def __init__(self, client: asyncio.StreamWriter) -> None:
        self.writers = {Endpoint.CLIENT: client}
        self.has_hole = False
        """Whether bytes of the connection were dropped."""
        self.is_half_open = False
        """Whether one end was closed without notice to the other."""

    def abort(self) -> None:
        """Close both ends immediately."""
        for writer in self.writers.values():
            writer.transport.abort()

    def reset(self, *ends: Endpoint) -> None:
        """Send RST to the given ends that are still open."""
        for end in ends:
            writer = self.writers.get(end)
            if writer is not None and not writer.transport.is_closing():
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
                writer.transport.abort()


class Relay:
    """A listening port that forwards to one server."""

    def __init__(self, host: str, port: int) -> None:
        """Forward to the server at `host` and `port`. The relay listens on the same address, on a free port."""
        self.host = host
        self.port = 0
        self._server_port = port
        self._listening: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._connections: set[_Connection] = set()
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._delay_s: dict[Direction, float] = {}
        self._dropped: set[Direction] = set()
        self._closed_ends_pass = asyncio.Event()
        """Clear while a direction is dropped: the close of a connection must not pass in that direction either."""
        self._closed_ends_pass.set()
        self._resets_first_bytes = False
        self._resets: tuple[Random, float] | None = None
        self._hides_half_open = False

    async def __aenter__(self) -> Self:
        await self._listen()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.cut()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- faults ------------------------------------------------------------------------------------------------------

    def drop_silently(self) -> None:
        """Hold back all bytes in both directions; connections stay open, and new connections get no response."""
        self._flowing.clear()

    def cut(self) -> None:
        """Close all connections and refuse new ones."""
        self.refuse()
        for connection in list(self._connections):
            connection.abort()

    def reset(self) -> None:
        """Reset all connections; new connections work."""
        for connection in list(self._connections):
            connection.reset(*Endpoint)

    def refuse(self) -> None:
        """Refuse new connections; open connections stay."""
        if self._listening is not None:
            self._listening.close()
            self._listening = None

    def delay(self, delay_s: float, directions: frozenset[Direction] = BOTH) -> None:
        """Delay all bytes in the given directions (default: both)."""
        self._delay_s = dict.fromkeys(directions, delay_s)

    def drop(self, *directions: Direction) -> None:
        """Drop all bytes in the given directions without closing connections; the other direction works."""
        self._dropped = set(directions)
        self._closed_ends_pass.clear()

    def half_open(self, closed: Endpoint) -> None:
        """Close one end of all connections without notice to the other end. New connections work.

        Bytes from the other end are dropped until `restore`; after that they are answered with a reset, as by a
        machine that has restarted.
        """
        self._hides_half_open = True
        for connection in list(self._connections):
            if len(connection.writers) == len(Endpoint):
                connection.is_half_open = True
                connection.reset(closed)

    def reset_after_requests(self, rng: Random, chance: float) -> None:
        """Reset a connection right after forwarding bytes from the client, each time with probability `chance`.

        The client gets RST before the response. The server gets RST either at the same moment or only after it has
        answered, with equal probability.
        """
        self._resets = (rng, chance)

    def reset_first_bytes(self) -> None:
        """Reset new connections as soon as the client sends anything, that is, during the TLS handshake."""
        self._resets_first_bytes = True

    async def restore(self) -> None:
        """End all faults, and forward the bytes that were held back."""
        self._delay_s, self._resets_first_bytes, self._resets, self._hides_half_open = {}, False, None, False
        self._dropped.clear()
        for connection in list(self._connections):
            if connection.has_hole:
                connection.reset(*Endpoint)
        self._closed_ends_pass.set()
        self._flowing.set()
        if self._listening is None:
            await self._listen()

    # --- forwarding --------------------------------------------------------------------------------------------------

    async def _listen(self) -> None:
        self._listening = await asyncio.start_server(self._accept, self.host, self.port, limit=CHUNK_BYTES)
        self.port = self._listening.sockets[0].getsockname()[1]

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = _Connection(writer)
        self._connections.add(connection)
        self._start_task(self._serve(connection, reader))

    def _start_task(self, coroutine: Awaitable[None]) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.ensure_future(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _serve(self, connection: _Connection, requests: asyncio.StreamReader) -> None:
        """Forward a connection in both directions until it ends."""
        try:
            await self._flowing.wait()
            if self._resets_first_bytes:
                await requests.read(CHUNK_BYTES)
                return
            async with asyncio.timeout(CONNECT_S):
                responses, server = await asyncio.open_connection(self.host, self._server_port, limit=CHUNK_BYTES)
            connection.writers[Endpoint.SERVER] = server
            streams = [
                self._start_task(self._forward_all(connection, Direction.REQUESTS, requests)),
                self._start_task(self._forward_all(connection, Direction.RESPONSES, responses)),
            ]
            await asyncio.wait(streams, return_when=asyncio.FIRST_COMPLETED)
            if connection.is_half_open:
                await asyncio.wait(streams)
        except (OSError, TimeoutError):
            pass  # without a server, close the client's connection too
        finally:
            self._connections.discard(connection)
            connection.abort()

    async def _forward_all(self, connection: _Connection, direction: Direction, reader: asyncio.StreamReader) -> None:
        """Forward one direction until either end is closed."""
        with contextlib.suppress(OSError):
            while chunk := await reader.read(CHUNK_BYTES):
                if delay_s := self._delay_s.get(direction, 0.0):
                    await asyncio.sleep(delay_s)
                await self._flowing.wait()
                if not await self._forward_chunk(connection, direction, chunk):
                    return
            await self._flowing.wait()  # a silent network hides the close, too
            if direction in self._dropped:
                await self._closed_ends_pass.wait()

    async def _forward_chunk(self, connection: _Connection, direction: Direction, chunk: bytes) -> bool:
        """Forward or drop bytes; return False if the connection cannot continue."""
        if connection.is_half_open:
            if not self._hides_half_open:
                connection.reset(*Endpoint)
            return self._hides_half_open
        if direction in self._dropped:
            connection.has_hole = True
            return True
        writer = connection.writers[_TARGET[direction]]
        if writer.transport.is_closing():  # closed while the chunk was held back
            return False
        writer.write(chunk)
        await writer.drain()
        if direction is Direction.REQUESTS and self._resets is not None:
            rng, chance = self._resets
            if rng.random() < chance:
                await self._reset_after_request(connection, is_answered=rng.random() < 0.5)
                return False
        return True

    @staticmethod
    async def _reset_after_request(connection: _Connection, *, is_answered: bool) -> None:
        connection.reset(Endpoint.CLIENT)
        if is_answered:
            # A response ends the connection, because the client's end is closed. Otherwise this delay ends it.
            await asyncio.sleep(LINGER_S)
        else:
            connection.reset(Endpoint.SERVER)
