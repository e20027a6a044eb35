"""A network in memory, with simulated faults.

    network.hang("contoso.servicebus.test")                         # a partition: no bytes arrive
    network.hang("contoso.servicebus.test", peer="app-1")           # a partition between two hosts only
    network.hang("contoso.servicebus.test", direction=Direction.FROM)       # requests arrive, responses do not
    network.restore("contoso.servicebus.test")

A fault affects a host, one of its ports, or the route between the host and a `peer`. A host may be a server or a client
(`on_host` sets the host that connections come from). A fault of a client's host affects all its connections.

Owns the hosts, servers and connections. `transport` moves the bytes, and `faults` combines the faults.
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
    from collections.abc import Callable, Iterator
    from contextvars import Context
    from typing import TypeAlias

    from twinbus.testing.faults import Route
    from twinbus.testing.transport import SocketAddress

    ProtocolFactory: TypeAlias = Callable[[], asyncio.Protocol]
    AddressInfo: TypeAlias = tuple[int, int, int, str, SocketAddress]

_CURRENT_HOST: Final[ContextVar[str | None]] = ContextVar("twinbus_testing_host", default=None)


@contextmanager
def on_host(name: str | None) -> Iterator[None]:
    """Run the block on the host with this name, or on no host (None)."""
    token = _CURRENT_HOST.set(name)
    try:
        yield
    finally:
        _CURRENT_HOST.reset(token)


def current_host() -> str | None:
    """Return the host that the caller runs on, or None."""
    return _CURRENT_HOST.get()


def host_of_context(context: Context) -> str | None:
    """Return the host that callbacks with this context run on, or None."""
    return context.get(_CURRENT_HOST)


LOOPBACK: Final = "127.0.0.1"
_LOOPBACK_NAMES: Final = ("", "localhost", "0.0.0.0", "::", "::1")  # noqa: S104  # not bound to a real socket
_DEFAULT_CLIENT_ADDRESS: Final = "192.0.2.1"
"""Client address of connections made on no host, from the range reserved for documentation."""
_FIRST_FREE_PORT: Final = 49_152


class Network:
    """Hosts, servers and connections of one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        """Create a network without servers."""
        self.loop = loop
        self.latency_s = 0.0
        """Delay of bytes in each direction without faults."""
        self.faults = Faults()
        self._addresses = dict.fromkeys(_LOOPBACK_NAMES, LOOPBACK)
        self._servers: dict[SocketAddress, MemoryServer] = {}
        self._connections: dict[MemoryConnection, None] = {}
        self._blocked_connects: list[asyncio.Future[None]] = []
        """Pending connection attempts to hanging hosts."""
        self._ports = count(_FIRST_FREE_PORT)

    # --- the loop calls these -----------------------------------------------------------------------------------------

    def listen(self, factory: ProtocolFactory, host: str | None, port: int) -> MemoryServer:
        """Listen on a port (0: any free port), adding the host if it is new; raise OSError if the port is in use."""
        address = self.add_host(host or "")
        port = port or next(self._ports)
        if (address, port) in self._servers:
            raise OSError(errno.EADDRINUSE, f"{host}:{port} is in use")
        server = self._servers[address, port] = MemoryServer(self, factory, (address, port))
        return server

    async def connect(
        self, factory: ProtocolFactory, host: str | None, port: int
    ) -> tuple[MemoryTransport, asyncio.Protocol]:
        """Connect to a server, waiting while its host hangs; raise ConnectionRefusedError if no server listens."""
        server_address = self._addresses.get(host or "", host or ""), port
        name = current_host()
        client = _DEFAULT_CLIENT_ADDRESS if name is None else self.add_host(name)
        await self._wait_until_reachable(client, server_address)
        server = self._servers.get(server_address)
        if server is None or self.faults.route(client, server_address).is_refused:
            raise ConnectionRefusedError(errno.ECONNREFUSED, f"no server listens on {host}:{port}")
        connection = MemoryConnection(self.loop, self, server, (client, next(self._ports)), factory())
        self._connections[connection] = None
        connection.open()
        return connection.client_transport, connection.protocol

    def look_up(self, host: str | bytes | None, port: str | int | None) -> list[AddressInfo]:
        """Return a host's address in the format of `getaddrinfo`; raise gaierror for an unknown host."""
        name = host.decode() if isinstance(host, bytes) else host or ""
        address = self._addresses.get(name, name)
        if address not in self._addresses.values():
            raise socket.gaierror(socket.EAI_NONAME, f"unknown host {name} on the network in memory")
        return [(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (address, int(port or 0)))]

    # --- hosts and their faults ---------------------------------------------------------------------------------------

    def add_host(self, name: str) -> str:
        """Return the address of a host, adding the host if it is new."""
        if name not in self._addresses:
            self._addresses[name] = name if _is_address(name) else f"10.0.0.{len(self._addresses)}"
        return self._addresses[name]

    def refuse(self, host: str, port: int | None = None, *, peer: str | None = None) -> None:
        """Cut all connections of a host and refuse new ones."""
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
        """Hold all bytes in transit and all bytes sent from now on; new connections hang.

        The bytes arrive after `restore`, unless the connections are `cut` first.
        """
        self._set_fault(host, port, peer, Fault(FaultKind.HANGING, direction))

    def slow(self, host: str, delay_s: float, port: int | None = None, *, peer: str | None = None) -> None:
        """Delay all bytes sent from now on by `delay_s` seconds in each direction."""
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
        """Cut each connection, including new ones, after `size` more bytes have arrived in this direction."""
        if direction is Direction.BOTH:
            raise ValueError("cut_after counts the bytes of one direction: use Direction.TO or Direction.FROM")
        self._set_fault(host, port, peer, Fault(FaultKind.CUT_AFTER, direction, byte_count=size))

    def restore(self, host: str, port: int | None = None, *, peer: str | None = None) -> None:
        """Remove faults, so that held bytes arrive; without a port or peer, also the faults of all ports and routes."""
        self.faults.clear(self._fault_key(host, port, peer))
        self._resume_deliveries()

    def cut(self, host: str, port: int | None = None, *, peer: str | None = None) -> None:
        """Cut the current connections of a host; bytes in transit are lost."""
        for connection in self._connections_of(host, port, peer):
            connection.cut()

    def unplug(self, host: str) -> None:
        """Make a host vanish, like a machine that loses power. Its peers see no error and get no more bytes."""
        for connection in self._connections_of(host, None, None):
            connection.mark_vanished()
        self._close_servers(host)

    def switch_off(self, host: str) -> None:
        """Close all servers of a host and cut its connections, as when a process is killed."""
        self._close_servers(host)
        self.cut(host)

    def _connections_of(self, host: str, port: int | None, peer: str | None) -> list[MemoryConnection]:
        key = self._fault_key(host, port, peer)
        connections = []
        for connection in self._connections:
            client, (server, server_port) = connection.client_address, connection.server_address
            for address, other, address_port in ((server, client, server_port), (client, server, None)):
                if address == key.address and key.peer in (None, other) and key.port in (None, address_port):
                    connections.append(connection)
                    break
        return connections

    # --- inside -------------------------------------------------------------------------------------------------------

    def _fault_key(self, host: str, port: int | None, peer: str | None) -> FaultKey:
        return FaultKey(self.add_host(host), port, None if peer is None else self.add_host(peer))

    def _set_fault(self, host: str, port: int | None, peer: str | None, fault: Fault) -> None:
        self.faults.set(self._fault_key(host, port, peer), fault)
        self._resume_deliveries()

    def _close_servers(self, host: str) -> None:
        address = self.add_host(host)
        for server in [listener for server_address, listener in self._servers.items() if server_address[0] == address]:
            server.close()

    def _resume_deliveries(self) -> None:
        for connection in list(self._connections):
            connection.resume_delivery()
        futures, self._blocked_connects = self._blocked_connects, []
        for future in futures:
            if not future.done():
                future.set_result(None)

    async def _wait_until_reachable(self, client: str, server_address: SocketAddress) -> None:
        """Wait for one round trip; if the host hangs, wait first until it is restored."""
        while self.faults.route(client, server_address).is_held:
            future: asyncio.Future[None] = self.loop.create_future()
            self._blocked_connects.append(future)
            await future
        await asyncio.sleep(2 * (self.latency_s + self.faults.route(client, server_address).delay_s))

    def forget(self, connection: MemoryConnection) -> None:
        """Remove a connection whose ends are both closed."""
        self._connections.pop(connection, None)

    def forget_server(self, server: MemoryServer) -> None:
        """Remove a server that no longer listens."""
        if self._servers.get(server.address) is server:
            del self._servers[server.address]


class _DirectionConditions:
    """`LinkConditions` of one direction of a connection."""

    def __init__(self, connection: MemoryConnection, *, is_request_direction: bool) -> None:
        """Create the conditions of one direction; `is_request_direction` means towards the server."""
        self._connection = connection
        self._is_request_direction = is_request_direction
        self._counted_fault: Fault | None = None
        self._bytes_left = 0

    @property
    def is_held(self) -> bool:
        """Whether bytes are held back now."""
        route = self._connection.route
        held = route.holds_requests if self._is_request_direction else route.holds_responses
        return held or self._connection.has_vanished_end

    @property
    def delay_s(self) -> float:
        """Delay of bytes that are sent now."""
        return self._connection.delay_s

    @property
    def bytes_until_cut(self) -> int | None:
        """Bytes that still arrive before the connection is cut, or None if it will not be cut."""
        route = self._connection.route
        fault = route.cuts_requests if self._is_request_direction else route.cuts_responses
        if fault is not self._counted_fault:
            self._counted_fault, self._bytes_left = fault, 0 if fault is None else fault.byte_count
        return None if fault is None else self._bytes_left

    def on_arrived(self, size: int) -> None:
        """Count arrived bytes, and cut the connection when its limit is reached."""
        self._bytes_left -= size
        if self._bytes_left <= 0:
            self._connection.cut()


class MemoryConnection:
    """A connection: the transports of both ends, and the pipes between them."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        network: Network,
        server: MemoryServer,
        client_socket: SocketAddress,
        protocol: asyncio.Protocol,
    ) -> None:
        """Create both ends. `protocol` is the client's protocol; the server's factory makes the server's protocol."""
        self.server_address = server.address
        self.client_address = client_socket[0]
        self.protocol = protocol
        self.has_vanished_end = False
        """Whether one end has vanished, so that no bytes arrive any more."""
        self._loop = loop
        self._network = network
        self._faults = network.faults
        self._server = server
        self._open_ends = 2
        self._faults_version = -1
        self._route: Route
        to_server, to_client = (
            Pipe(loop, _DirectionConditions(self, is_request_direction=is_requests)) for is_requests in (True, False)
        )
        addresses = client_socket, server.address
        self.client_transport = MemoryTransport(
            loop, protocol, (to_client, to_server), addresses, self._on_end_lost, copy_context()
        )
        # Run in the server's context, so that tasks started by the protocol run on the server's host.
        context = server.context.copy()
        self._server_protocol = context.run(server.factory)
        self._server_transport = MemoryTransport(
            loop, self._server_protocol, (to_server, to_client), addresses[::-1], self._on_server_end_lost, context
        )
        self._pipes = to_server, to_client

    @property
    def route(self) -> Route:
        """Combined effect of the network's faults on this connection, cached until the faults change."""
        if self._faults_version != self._faults.version:
            self._faults_version = self._faults.version
            self._route = self._faults.route(self.client_address, self.server_address)
        return self._route

    @property
    def delay_s(self) -> float:
        """Delay of bytes that are sent now, in each direction."""
        return self._network.latency_s + self.route.delay_s

    def open(self) -> None:
        """Call `connection_made` of both protocols; the server's is called before any bytes arrive."""
        self._server.connection_count += 1
        self._loop.call_soon(
            self._server_protocol.connection_made, self._server_transport, context=self._server_transport.context
        )
        self.protocol.connection_made(self.client_transport)

    def resume_delivery(self) -> None:
        """Schedule pending deliveries after faults have changed."""
        for pipe in self._pipes:
            pipe.schedule_delivery()

    def cut(self) -> None:
        """Fail both ends with ConnectionResetError; bytes in transit are lost."""
        for end in (self.client_transport, self._server_transport):
            end.fail(ConnectionResetError(errno.ECONNRESET, "the connection was cut"))

    def mark_vanished(self) -> None:
        """Mark one end as vanished. Bytes in transit are lost, and the other end sees no error."""
        self.has_vanished_end = True

    def _on_server_end_lost(self) -> None:
        self._server.on_connection_lost()
        self._on_end_lost()

    def _on_end_lost(self) -> None:
        self._open_ends -= 1
        if not self._open_ends or self.has_vanished_end:
            self._network.forget(self)


class MemoryServer(asyncio.AbstractServer):
    """Listening server on the network; created by `Network.listen`."""

    def __init__(self, network: Network, factory: ProtocolFactory, address: SocketAddress) -> None:
        """Create a server that listens at once."""
        self.factory = factory
        self.address = address
        self.sockets = (MemorySocket(address),)
        self.context = copy_context()
        """Context in which the connections' protocols are called."""
        self.connection_count = 0
        self._network = network
        self._is_serving = True
        self._close_waiters: list[asyncio.Future[None]] = []

    def get_loop(self) -> asyncio.AbstractEventLoop:
        """Return the network's event loop."""
        return self._network.loop

    async def start_serving(self) -> None:
        """Do nothing, because the server listens from its creation."""

    async def serve_forever(self) -> None:
        """Wait until cancelled, then close the server."""
        try:
            await self._network.loop.create_future()
        finally:
            self.close()

    def is_serving(self) -> bool:
        """Return whether the server accepts connections."""
        return self._is_serving

    def close(self) -> None:
        """Stop accepting connections; existing connections stay open."""
        self._is_serving = False
        self._network.forget_server(self)

    async def wait_closed(self) -> None:
        """Wait until the last connection is closed."""
        if self.connection_count:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._close_waiters.append(future)
            await future

    def on_connection_lost(self) -> None:
        """Count a closed connection, and wake the tasks in `wait_closed` after the last one."""
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
