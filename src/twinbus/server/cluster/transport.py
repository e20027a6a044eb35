"""How the processes of a namespace reach each other.

Owns: the addresses. Peers and their supervisor speak over whatever a transport connects: Unix sockets in a folder that
only their user can enter, on one machine.
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
    """Connects a protocol to the other end."""


class Transport(Protocol):
    """The way from one process to the others, which are known by numbers."""

    async def listen(self, number: int, protocol_factory: ProtocolFactory) -> asyncio.AbstractServer:
        """Let other processes connect to this one, `number`; `make` makes a protocol for each connection. OSError."""

    async def connect(self, number: int, protocol_factory: ProtocolFactory) -> None:
        """Connect a protocol to another process. OSError if that cannot be reached now."""


class UnixTransport:
    """Unix sockets in one folder, named by the numbers of the processes."""

    def __init__(self, folder: Path) -> None:
        """The folder exists, and belongs to the user that all processes run as."""
        self._folder = folder

    async def listen(self, number: int, protocol_factory: ProtocolFactory) -> asyncio.AbstractServer:
        """Make this process's socket; one that an earlier process left behind is replaced."""
        path = self._path(number)
        path.unlink(missing_ok=True)
        return await asyncio.get_running_loop().create_unix_server(protocol_factory, str(path))

    async def connect(self, number: int, protocol_factory: ProtocolFactory) -> None:
        """Connect to another process's socket."""
        await asyncio.get_running_loop().create_unix_connection(protocol_factory, str(self._path(number)))

    def _path(self, number: int) -> Path:
        return self._folder / f"{number}.sock"


def connect_over(sock: socket.socket) -> Connect:
    """Use a Unix socket that is connected already, as a supervisor and its workers have one."""

    async def connect(make: ProtocolFactory) -> object:
        return await asyncio.get_running_loop().create_unix_connection(make, sock=sock)

    return connect
