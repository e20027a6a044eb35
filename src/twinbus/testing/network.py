"""A network in memory, and what can be wrong with it.

    network.hang("contoso.servicebus.test")         # as a partition, or a process that is stopped
    network.restore("contoso.servicebus.test")

A fault is of a host, or of one port of it, and concerns all who talk to it.

Owns: who listens where, which connections there are, and the faults. Bytes are the business of `transport`.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import socket
from dataclasses import dataclass
from enum import Enum
from itertools import count
from typing import TYPE_CHECKING, Final

from twinbus.testing.transport import MemorySocket, MemoryTransport, Pipe

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    from twinbus.testing.transport import Place

    Factory: TypeAlias = Callable[[], asyncio.Protocol]
    AddressInfo: TypeAlias = tuple[int, int, int, str, Place]

HERE: Final = "127.0.0.1"
_THIS_HOST: Final = ("", "localhost", "0.0.0.0", "::", "::1")  # noqa: S104  # compared with, not listened on
_CLIENT: Final = "192.0.2.1"
"""Where all connections come from: an address of the documentation's."""
_FREE_PORTS: Final = 49_152


class FaultKind(Enum):
    """What is wrong with a host."""

    NOTHING = "nothing"
    REFUSED = "refused"
    """Nobody listens there, and who was connected is not any more."""
    HANGING = "hanging"
    """Nothing arrives, in either direction, and nobody says so."""


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong, and how long anything takes."""

    kind: FaultKind = FaultKind.NOTHING
    delay_s: float = 0.0


_NO_FAULT: Final = Fault()


class Network:
    """All hosts of one loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        """Nobody is there."""
        self.loop = loop
        self._addresses = dict.fromkeys(_THIS_HOST, HERE)
        self._servers: dict[Place, MemoryServer] = {}
        self._faults: dict[tuple[str, int | None], Fault] = {}
        self._connections: dict[MemoryConnection, None] = {}
        self._stranded: list[asyncio.Future[None]] = []
        """Those who wait for a host that hangs."""
        self._ports = count(_FREE_PORTS)

    # --- the loop calls these -----------------------------------------------------------------------------------------

    def listen(self, factory: Factory, host: str | None, port: int) -> MemoryServer:
        """Listen; port 0 is any free one. A host that is not known is from now on. OSError if the port is taken."""
        address = self.add_host(host or "")
        port = port or next(self._ports)
        if (address, port) in self._servers:
            raise OSError(errno.EADDRINUSE, f"{host}:{port} is in use")
        server = self._servers[address, port] = MemoryServer(self, factory, (address, port))
        return server

    async def connect(self, factory: Factory, host: str | None, port: int) -> tuple[MemoryTransport, asyncio.Protocol]:
        """Connect, as soon as there is somebody; ConnectionRefusedError if there is not."""
        place = self._addresses.get(host or "", host or ""), port
        await self._reach(place)
        server = self._servers.get(place)
        if server is None or self.fault_at(place).kind is FaultKind.REFUSED:
            raise ConnectionRefusedError(errno.ECONNREFUSED, f"nobody listens on {host}:{port}")
        connection = MemoryConnection(self.loop, self, server, (_CLIENT, next(self._ports)), factory())
        self._connections[connection] = None
        connection.open()
        return connection.client, connection.protocol

    def look_up(self, host: str | bytes | None, port: str | int | None) -> list[AddressInfo]:
        """As `getaddrinfo` answers. gaierror for a host that is not known."""
        name = host.decode() if isinstance(host, bytes) else host or ""
        address = self._addresses.get(name, name)
        if address not in self._addresses.values():
            raise socket.gaierror(socket.EAI_NONAME, f"there is no {name} on the network in memory")
        return [(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (address, int(port or 0)))]

    # --- hosts and their faults ---------------------------------------------------------------------------------------

    def add_host(self, name: str) -> str:
        """The address of a host, which is known from now on."""
        if name not in self._addresses:
            self._addresses[name] = name if _is_address(name) else f"10.0.0.{len(self._addresses)}"
        return self._addresses[name]

    def refuse(self, host: str, port: int | None = None) -> None:
        """Cut all connections, and refuse new ones."""
        self._set(host, port, Fault(FaultKind.REFUSED))
        self.cut(host, port)

    def hang(self, host: str, port: int | None = None) -> None:
        """Hold what is on its way, and what is sent, in both directions; new connections are never there."""
        self._set(host, port, Fault(FaultKind.HANGING))

    def slow(self, host: str, delay_s: float, port: int | None = None) -> None:
        """Let everything that is sent from now on take `delay_s` longer, in either direction."""
        self._set(host, port, Fault(delay_s=delay_s))

    def restore(self, host: str, port: int | None = None) -> None:
        """All is well again: what was held arrives. Without a port also what was wrong with single ports."""
        address = self.add_host(host)
        for key in [key for key in self._faults if key[0] == address and port in (None, key[1])]:
            del self._faults[key]
        self._move()

    def cut(self, host: str, port: int | None = None) -> None:
        """Cut the connections that are there now, with all that is on its way."""
        address = self.add_host(host)
        for connection in list(self._connections):
            if connection.place[0] == address and port in (None, connection.place[1]):
                connection.cut()

    def switch_off(self, host: str) -> None:
        """Whoever serves there is gone without a word, as a process that was killed."""
        address = self.add_host(host)
        for server in [one for place, one in self._servers.items() if place[0] == address]:
            server.close()
        self.cut(host)

    def fault_at(self, place: Place) -> Fault:
        """What is wrong with a port: what was said of it, or of its host."""
        address, port = place
        return self._faults.get((address, port)) or self._faults.get((address, None)) or _NO_FAULT

    # --- inside -------------------------------------------------------------------------------------------------------

    def _set(self, host: str, port: int | None, fault: Fault) -> None:
        self._faults[self.add_host(host), port] = fault
        self._move()

    def _move(self) -> None:
        for connection in list(self._connections):
            connection.move()
        stranded, self._stranded = self._stranded, []
        for future in stranded:
            if not future.done():
                future.set_result(None)

    async def _reach(self, place: Place) -> None:
        """There and back takes its time; for a host that hangs, as long as it does."""
        while self.fault_at(place).kind is FaultKind.HANGING:
            future: asyncio.Future[None] = self.loop.create_future()
            self._stranded.append(future)
            await future
        await asyncio.sleep(2 * self.fault_at(place).delay_s)

    def forget(self, connection: MemoryConnection) -> None:
        """Both its ends are gone."""
        self._connections.pop(connection, None)

    def forget_server(self, server: MemoryServer) -> None:
        """It does not listen any more."""
        if self._servers.get(server.place) is server:
            del self._servers[server.place]


class MemoryConnection:
    """Both ends of one connection, and the way between them."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        network: Network,
        server: MemoryServer,
        client_place: Place,
        protocol: asyncio.Protocol,
    ) -> None:
        """`protocol` is the client's."""
        self.place = server.place
        self.protocol = protocol
        self._loop = loop
        self._network = network
        self._server = server
        self._ends = 2
        there, back = Pipe(loop, self), Pipe(loop, self)
        places = client_place, server.place
        self.client = MemoryTransport(loop, protocol, (back, there), places, self._lost)
        self._served = server.factory()
        self._at_server = MemoryTransport(loop, self._served, (there, back), places[::-1], self._server_lost)
        self._pipes = there, back

    @property
    def is_held(self) -> bool:
        """Nothing arrives now."""
        return self._network.fault_at(self.place).kind is FaultKind.HANGING

    @property
    def delay_s(self) -> float:
        """How long anything takes that is sent now."""
        return self._network.fault_at(self.place).delay_s

    def open(self) -> None:
        """Tell both ends. The server hears of it before anything arrives there."""
        self._server.connections += 1
        self._loop.call_soon(self._served.connection_made, self._at_server)
        self.protocol.connection_made(self.client)

    def move(self) -> None:
        """Something about the way has changed."""
        for pipe in self._pipes:
            pipe.move()

    def cut(self) -> None:
        """Both ends lose it, and what was on its way is lost."""
        for end in (self.client, self._at_server):
            end.lose(ConnectionResetError(errno.ECONNRESET, "the connection was cut"))

    def _server_lost(self) -> None:
        self._server.lost()
        self._lost()

    def _lost(self) -> None:
        self._ends -= 1
        if not self._ends:
            self._network.forget(self)


class MemoryServer(asyncio.AbstractServer):
    """Somebody who listens. Made by the network."""

    def __init__(self, network: Network, factory: Factory, place: Place) -> None:
        """Listens at once."""
        self.factory = factory
        self.place = place
        self.sockets = (MemorySocket(place),)
        self.connections = 0
        self._network = network
        self._is_serving = True
        self._waiting: list[asyncio.Future[None]] = []

    def get_loop(self) -> asyncio.AbstractEventLoop:
        """Whose network it is on."""
        return self._network.loop

    async def start_serving(self) -> None:
        """It does already."""

    async def serve_forever(self) -> None:
        """Until whoever waits is cancelled."""
        try:
            await self._network.loop.create_future()
        finally:
            self.close()

    def is_serving(self) -> bool:
        """It takes connections."""
        return self._is_serving

    def close(self) -> None:
        """Take no more connections; those that are there stay."""
        self._is_serving = False
        self._network.forget_server(self)

    async def wait_closed(self) -> None:
        """Until it is closed, and the last connection gone."""
        if self.connections:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(future)
            await future

    def lost(self) -> None:
        """One connection is gone."""
        self.connections -= 1
        if not self.connections:
            for future in self._waiting:
                if not future.done():
                    future.set_result(None)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
