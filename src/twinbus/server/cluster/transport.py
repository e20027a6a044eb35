"""Connections between the processes of a namespace.

Owns: the addresses of processes. All processes run on one machine and connect over Unix sockets in a folder that only
their user can enter.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:
    import socket
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    ProtocolFactory: TypeAlias = Callable[[], asyncio.Protocol]
    Connect: TypeAlias = Callable[[ProtocolFactory], Awaitable[object]]
    """A function that connects a protocol to the other process."""


class Transport(Protocol):
    """A way to connect to the other processes, each of which has a number."""

    async def listen(self, number: int, protocol_factory: ProtocolFactory) -> asyncio.AbstractServer:
        """Accept connections from other processes to this process, `number`, each with a new protocol from the factory.

        Raise OSError if this process cannot listen.
        """

    async def connect(self, number: int, protocol_factory: ProtocolFactory) -> None:
        """Connect a protocol to process `number`. Raise OSError if that process cannot be reached."""


class UnixTransport:
    """Unix sockets in one folder, named by process number."""

    def __init__(self, folder: Path) -> None:
        """Use an existing folder, which belongs to the user that all processes run as."""
        self._folder = folder

    async def listen(self, number: int, protocol_factory: ProtocolFactory) -> asyncio.AbstractServer:
        """Create this process's socket, and replace a socket that an earlier process left behind."""
        path = self._path(number)
        path.unlink(missing_ok=True)
        return await asyncio.get_running_loop().create_unix_server(protocol_factory, str(path))

    async def connect(self, number: int, protocol_factory: ProtocolFactory) -> None:
        """Connect to another process's socket."""
        await asyncio.get_running_loop().create_unix_connection(protocol_factory, str(self._path(number)))

    def _path(self, number: int) -> Path:
        return self._folder / f"{number}.sock"


def connect_over(sock: socket.socket) -> Connect:
    """Return a function that attaches a protocol to a connected Unix socket, such as a worker's control socket."""

    async def connect(protocol_factory: ProtocolFactory) -> object:
        return await asyncio.get_running_loop().create_unix_connection(protocol_factory, sock=sock)

    return connect
