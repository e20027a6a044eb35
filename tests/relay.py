"""A stretch of network between a client and a server that can fail as networks do.

    async with Relay(server.host, server.amqp_port) as relay:
        ...                 # clients connect to relay.host, relay.port
        relay.fall_silent() # nothing comes through, and nobody is told
        relay.mend()

Owns: its listening socket, the connections through it, and what it does to them. Knows nothing of what is said on them.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:
    from collections.abc import Awaitable

CHUNK: Final = 65_536
CONNECT_S: Final = 10.0


class Relay:
    """One port, and the server behind it."""

    def __init__(self, host: str, port: int) -> None:
        """Of the server. The relay listens on the same address, on a port of its own."""
        self.host = host
        self.port = 0
        self._server_port = port
        self._listening: asyncio.Server | None = None
        self._carrying: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._delay_s = 0.0
        self._resets_first_bytes = False

    async def __aenter__(self) -> Self:
        await self._listen()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.cut()
        carrying = list(self._carrying)
        for task in carrying:
            task.cancel()
        await asyncio.gather(*carrying, return_exceptions=True)

    # --- what can be wrong with it ------------------------------------------------------------------------------------

    def fall_silent(self) -> None:
        """Nothing comes through any more, in neither direction; connections stay, and new ones are not answered."""
        self._flowing.clear()

    def cut(self) -> None:
        """All connections are reset, and new ones refused."""
        if self._listening is not None:
            self._listening.close()
            self._listening = None
        for writer in list(self._writers):
            writer.transport.abort()

    def slow_down(self, delay_s: float) -> None:
        """Whatever comes takes so long."""
        self._delay_s = delay_s

    def reset_first_bytes(self) -> None:
        """New connections are reset as soon as something is said on them: in the handshake of TLS."""
        self._resets_first_bytes = True

    async def mend(self) -> None:
        """All is well again. What was held back comes through now."""
        self._delay_s, self._resets_first_bytes = 0.0, False
        self._flowing.set()
        if self._listening is None:
            await self._listen()

    # --- inside -------------------------------------------------------------------------------------------------------

    async def _listen(self) -> None:
        self._listening = await asyncio.start_server(self._accept, self.host, self.port, limit=CHUNK)
        self.port = self._listening.sockets[0].getsockname()[1]

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        self._start(self._serve(reader, writer))

    def _start(self, work: Awaitable[None]) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.ensure_future(work)
        self._carrying.add(task)
        task.add_done_callback(self._carrying.discard)
        return task

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, to its end."""
        behind: asyncio.StreamWriter | None = None
        try:
            await self._flowing.wait()
            if self._resets_first_bytes:
                await reader.read(CHUNK)
                return
            async with asyncio.timeout(CONNECT_S):
                answers, behind = await asyncio.open_connection(self.host, self._server_port, limit=CHUNK)
            self._writers.add(behind)
            there, back = self._start(self._carry(reader, behind)), self._start(self._carry(answers, writer))
            await asyncio.wait([there, back], return_when=asyncio.FIRST_COMPLETED)
        except (OSError, TimeoutError):
            pass  # the server is gone: so is this connection
        finally:
            for end in (writer, behind):
                if end is not None:
                    self._writers.discard(end)
                    end.transport.abort()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One direction, until an end of it is gone."""
        with contextlib.suppress(OSError):
            while chunk := await reader.read(CHUNK):
                if self._delay_s:
                    await asyncio.sleep(self._delay_s)
                await self._flowing.wait()
                if writer.transport.is_closing():  # cut, while this was held back
                    return
                writer.write(chunk)
                await writer.drain()
            await self._flowing.wait()  # an end is not seen through a silent network, either
