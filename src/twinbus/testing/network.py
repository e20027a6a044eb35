"""A network in memory, and what can be wrong with it.

    network.hang("contoso.servicebus.test")                         # a partition: nothing arrives
    network.hang("contoso.servicebus.test", peer="app-1")           # ... between two hosts only
    network.hang("contoso.servicebus.test", direction=Direction.FROM)       # requests arrive, answers do not
    network.restore("contoso.servicebus.test")

A fault is of a host, of one port of it, or of the route between it and a `peer`. A host serves, or connects (`on_host`
in `hosts` says from where). Faults of a client's host concern all its connections.

Owns: who listens where, and which connections there are. Bytes are the business of `transport`, faults of `faults`.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import socket
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from itertools import count
from typing import TYPE_CHECKING, Final

from twinbus.testing.faults import Direction, Fault, FaultKey, FaultKind, Faults
from twinbus.testing.transport import MemorySocket, MemoryTransport, Pipe

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    from twinbus.testing.faults import Route
    from twinbus.testing.transport import SocketAddress

    ProtocolFactory: TypeAlias = Callable[[], asyncio.Protocol]
    AddressInfo: TypeAlias = tuple[int, int, int, str, SocketAddress]
    from collections.abc import Iterator
    from contextvars import Context

_CURRENT_HOST: Final[ContextVar[str | None]] = ContextVar("twinbus_testing_host", default=None)


@contextmanager
def on_host(name: str | None) -> Iterator[None]:
    """Run the block on a host of that name; None: on no host."""
    token = _CURRENT_HOST.set(name)
    try:
        yield
    finally:
        _CURRENT_HOST.reset(token)


def current_host() -> str | None:
    """The host that the caller runs on."""
    return _CURRENT_HOST.get()


def host_of_context(context: Context) -> str | None:
    """The host that callbacks of a context run on."""
    return context.get(_CURRENT_HOST)


LOOPBACK: Final = "127.0.0.1"
_LOOPBACK_NAMES: Final = ("", "localhost", "0.0.0.0", "::", "::1")  # noqa: S104  # compared with, not listened on
_DEFAULT_CLIENT_ADDRESS: Final = "192.0.2.1"
"""Where connections come from that are made on no host: an address of the documentation's."""
_FIRST_FREE_PORT: Final = 49_152


class Network:
    """All hosts of one loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        """Nobody is there."""
        self.loop = loop
        self.latency_s = 0.0
        """How long anything takes on its way, in either direction, where nothing is wrong."""
        self.faults = Faults()
        self._addresses = dict.fromkeys(_LOOPBACK_NAMES, LOOPBACK)
        self._servers: dict[SocketAddress, MemoryServer] = {}
        self._connections: dict[MemoryConnection, None] = {}
        self._blocked_connects: list[asyncio.Future[None]] = []
        """Those who wait for a host that hangs."""
        self._ports = count(_FIRST_FREE_PORT)

    # --- the loop calls these -----------------------------------------------------------------------------------------

    def listen(self, factory: ProtocolFactory, host: str | None, port: int) -> MemoryServer:
        """Listen; port 0 is any free one. A host that is not known is from now on. OSError if the port is taken."""
        address = self.add_host(host or "")
        port = port or next(self._ports)
        if (address, port) in self._servers:
            raise OSError(errno.EADDRINUSE, f"{host}:{port} is in use")
        server = self._servers[address, port] = MemoryServer(self, factory, (address, port))
        return server

    async def connect(
        self, factory: ProtocolFactory, host: str | None, port: int
    ) -> tuple[MemoryTransport, asyncio.Protocol]:
        """Connect, as soon as there is somebody; ConnectionRefusedError if there is not."""
        place = self._addresses.get(host or "", host or ""), port
        name = current_host()
        client = _DEFAULT_CLIENT_ADDRESS if name is None else self.add_host(name)
        await self._wait_until_reachable(client, place)
        server = self._servers.get(place)
        if server is None or self.faults.route(client, place).is_refused:
            raise ConnectionRefusedError(errno.ECONNREFUSED, f"nobody listens on {host}:{port}")
        connection = MemoryConnection(self.loop, self, server, (client, next(self._ports)), factory())
        self._connections[connection] = None
        connection.open()
        return connection.client_transport, connection.protocol

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

    def refuse(self, host: str, port: int | None = None, *, peer: str | None = None) -> None:
        """Cut all connections, and refuse new ones."""
        self._set_fault(host, port, peer, Fault(FaultKind.REFUSED))
        self.cut(host, port, peer=peer)

    def hang(
        self,
        host: str,
        port: int | None = None,
        *,
        peer: str | None = None,
        direction: Direction = Direction.BOTH,
    ) -> None:
        """Hold what is on its way, and what is sent; new connections are never there.

        What is held arrives after `restore`. To lose it, `cut` the connections before.
        """
        self._set_fault(host, port, peer, Fault(FaultKind.HANGING, direction))

    def slow(self, host: str, delay_s: float, port: int | None = None, *, peer: str | None = None) -> None:
        """Let everything that is sent from now on take `delay_s` longer, in either direction."""
        self._set_fault(host, port, peer, Fault(FaultKind.SLOW, delay_s=delay_s))

    def cut_after(
        self,
        host: str,
        size: int,
        port: int | None = None,
        *,
        peer: str | None = None,
        direction: Direction = Direction.TO,
    ) -> None:
        """Cut every connection, new ones too, once `size` more bytes have arrived on it in that direction."""
        if direction is Direction.BOTH:
            raise ValueError("a connection is cut after the bytes of one direction: Direction.TO or Direction.FROM")
        self._set_fault(host, port, peer, Fault(FaultKind.CUT_AFTER, direction, byte_count=size))

    def restore(self, host: str, port: int | None = None, *, peer: str | None = None) -> None:
        """All is well again: what was held arrives. Without a port or a peer also all ports and routes of the host."""
        self.faults.clear(self._fault_key(host, port, peer))
        self._resume_deliveries()

    def cut(self, host: str, port: int | None = None, *, peer: str | None = None) -> None:
        """Cut the connections that are there now, with all that is on its way."""
        for connection in self._connections_of(host, port, peer):
            connection.cut()

    def unplug(self, host: str) -> None:
        """Let a host vanish, as a machine without power: its peers are not told, and get no answer any more."""
        for connection in self._connections_of(host, None, None):
            connection.mark_vanished()
        self._close_servers(host)

    def switch_off(self, host: str) -> None:
        """End whoever serves there, and cut all connections of the host, as when a process is killed."""
        self._close_servers(host)
        self.cut(host)

    def _connections_of(self, host: str, port: int | None, peer: str | None) -> list[MemoryConnection]:
        key = self._fault_key(host, port, peer)
        found = []
        for connection in self._connections:
            client, (server, server_port) = connection.client_address, connection.server_address
            for one, other, its_port in ((server, client, server_port), (client, server, None)):
                if one == key.address and key.peer in (None, other) and key.port in (None, its_port):
                    found.append(connection)
                    break
        return found

    # --- inside -------------------------------------------------------------------------------------------------------

    def _fault_key(self, host: str, port: int | None, peer: str | None) -> FaultKey:
        return FaultKey(self.add_host(host), port, None if peer is None else self.add_host(peer))

    def _set_fault(self, host: str, port: int | None, peer: str | None, fault: Fault) -> None:
        self.faults.set(self._fault_key(host, port, peer), fault)
        self._resume_deliveries()

    def _close_servers(self, host: str) -> None:
        address = self.add_host(host)
        for server in [one for place, one in self._servers.items() if place[0] == address]:
            server.close()

    def _resume_deliveries(self) -> None:
        for connection in list(self._connections):
            connection.resume_delivery()
        stranded, self._blocked_connects = self._blocked_connects, []
        for future in stranded:
            if not future.done():
                future.set_result(None)

    async def _wait_until_reachable(self, client: str, server_address: SocketAddress) -> None:
        """There and back takes its time; for a host that hangs, as long as it does."""
        while self.faults.route(client, server_address).is_held:
            future: asyncio.Future[None] = self.loop.create_future()
            self._blocked_connects.append(future)
            await future
        await asyncio.sleep(2 * (self.latency_s + self.faults.route(client, server_address).delay_s))

    def forget(self, connection: MemoryConnection) -> None:
        """Both its ends are gone."""
        self._connections.pop(connection, None)

    def forget_server(self, server: MemoryServer) -> None:
        """It does not listen any more."""
        if self._servers.get(server.address) is server:
            del self._servers[server.address]


class _DirectionConditions:
    """One direction of a connection, as its pipe sees it."""

    def __init__(self, connection: MemoryConnection, *, is_request_direction: bool) -> None:
        """`is_requests`: the direction to the server."""
        self._connection = connection
        self._is_request_direction = is_request_direction
        self._counted_fault: Fault | None = None
        self._bytes_left = 0

    @property
    def is_held(self) -> bool:
        """Nothing arrives now."""
        route = self._connection.route
        held = route.holds_requests if self._is_request_direction else route.holds_responses
        return held or self._connection.has_vanished_end

    @property
    def delay_s(self) -> float:
        """How long anything takes that is sent now."""
        return self._connection.delay_s

    @property
    def bytes_until_cut(self) -> int | None:
        """How many bytes still arrive before the connection is cut; None: it is not cut."""
        route = self._connection.route
        fault = route.cuts_requests if self._is_request_direction else route.cuts_responses
        if fault is not self._counted_fault:
            self._counted_fault, self._bytes_left = fault, 0 if fault is None else fault.byte_count
        return None if fault is None else self._bytes_left

    def on_arrived(self, size: int) -> None:
        """So many bytes have arrived while there was a limit."""
        self._bytes_left -= size
        if self._bytes_left <= 0:
            self._connection.cut()


class MemoryConnection:
    """Both ends of one connection, and the way between them."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        network: Network,
        server: MemoryServer,
        client_socket: SocketAddress,
        protocol: asyncio.Protocol,
    ) -> None:
        """`protocol` is the client's."""
        self.server_address = server.address
        self.client_address = client_socket[0]
        self.protocol = protocol
        self.has_vanished_end = False
        """One end has vanished: nothing ever arrives again."""
        self._loop = loop
        self._network = network
        self._faults = network.faults
        self._server = server
        self._open_ends = 2
        self._faults_version = -1
        self._route: Route
        there, back = (
            Pipe(loop, _DirectionConditions(self, is_request_direction=is_requests)) for is_requests in (True, False)
        )
        places = client_socket, server.address
        self.client_transport = MemoryTransport(
            loop, protocol, (back, there), places, self._on_end_lost, copy_context()
        )
        # Made in the server's context, as by its own loop: what it starts runs on its host.
        context = server.context.copy()
        self._server_protocol = context.run(server.factory)
        self._server_transport = MemoryTransport(
            loop, self._server_protocol, (there, back), places[::-1], self._on_server_end_lost, context
        )
        self._pipes = there, back

    @property
    def route(self) -> Route:
        """What the faults of the network mean for it now."""
        if self._faults_version != self._faults.version:
            self._faults_version = self._faults.version
            self._route = self._faults.route(self.client_address, self.server_address)
        return self._route

    @property
    def delay_s(self) -> float:
        """How long anything takes that is sent now."""
        return self._network.latency_s + self.route.delay_s

    def open(self) -> None:
        """Tell both ends. The server hears of it before anything arrives there."""
        self._server.connection_count += 1
        self._loop.call_soon(
            self._server_protocol.connection_made, self._server_transport, context=self._server_transport.context
        )
        self.protocol.connection_made(self.client_transport)

    def resume_delivery(self) -> None:
        """Something about the way has changed."""
        for pipe in self._pipes:
            pipe.schedule_delivery()

    def cut(self) -> None:
        """Both ends lose it, and what was on its way is lost. A server cannot lose one that has vanished."""
        for end in (self.client_transport, self._server_transport):
            end.fail(ConnectionResetError(errno.ECONNRESET, "the connection was cut"))

    def mark_vanished(self) -> None:
        """One end has vanished: what was on its way is lost, and the other end is not told."""
        self.has_vanished_end = True

    def _on_server_end_lost(self) -> None:
        self._server.on_connection_lost()
        self._on_end_lost()

    def _on_end_lost(self) -> None:
        self._open_ends -= 1
        if not self._open_ends or self.has_vanished_end:
            self._network.forget(self)


class MemoryServer(asyncio.AbstractServer):
    """Somebody who listens. Made by the network."""

    def __init__(self, network: Network, factory: ProtocolFactory, address: SocketAddress) -> None:
        """Listens at once."""
        self.factory = factory
        self.address = address
        self.sockets = (MemorySocket(address),)
        self.context = copy_context()
        """In which its connections are served."""
        self.connection_count = 0
        self._network = network
        self._is_serving = True
        self._close_waiters: list[asyncio.Future[None]] = []

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
        if self.connection_count:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._close_waiters.append(future)
            await future

    def on_connection_lost(self) -> None:
        """One connection is gone."""
        self.connection_count -= 1
        if not self.connection_count:
            for future in self._close_waiters:
                if not future.done():
                    future.set_result(None)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
