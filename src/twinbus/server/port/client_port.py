"""A port for clients: recognises the protocol of each connection, and hands the connection to the right listener.

    port = ClientPort("amqp", directory, gateway)
    port.add_listener(await aio.listen(..., serve=port.serve_function(WireProtocol.AMQP)))
    port.add_listener(await http.listen(..., serve=port.serve_function(WireProtocol.HTTP)))
    directory.ports["amqp"] = await port.open(acceptor.serve, tls)

A connection is *undecided* until its first bytes show its protocol: on a plaintext connection the first bytes received,
on a TLS connection the first bytes decrypted. An undecided connection costs a small object and a timer, and counts as
unauthenticated. Then the listener's protocol replaces the undecided protocol and owns the transport, so detection costs
nothing afterwards.

Owns: undecided connections, connections with a protocol that the port does not serve, and the order in which a port
closes. The acceptor accepts connections and negotiates TLS; `directory` says what the port serves.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol, cast

from twinbus.amqp.aio import TLS_HANDSHAKE_TIMEOUT_S, Peer
from twinbus.amqp.listener import AcceptedPeers
from twinbus.server.port.detection import WireProtocol, detect
from twinbus.server.port.directory import MAIN_PROTOCOLS, Spoken
from twinbus.server.port.refusal import TLS_ALERT, RefusedAmqpClient, RefusedConnection, http_reply
from twinbus.server.runtime.logs import ThrottledLog

if TYPE_CHECKING:
    import ssl
    from collections.abc import Sequence

    from twinbus.amqp.connection import Connection
    from twinbus.amqp.listener import AcceptingServer, BoundSocket, ConnectionSlot, MakeProtocol, StartAccepting
    from twinbus.server.port.directory import PortDirectory

log: Final = logging.getLogger(__name__)

DETECTION_TIMEOUT_S: Final = 10.0
"""How long a client may take to show its protocol, from its first byte or from the end of its TLS handshake."""


class Accept(Protocol):
    """Starts accepting connections: `Acceptor.serve`, or a function like it."""

    async def __call__(
        self,
        make_protocol: MakeProtocol,
        tls: ssl.SSLContext | None,
        tls_handshake_timeout_s: float,
        make_plaintext_protocol: MakeProtocol | None = None,
        /,
    ) -> AcceptingServer:
        """Start accepting. With TLS, clients that do not start TLS get `make_plaintext_protocol`, if it is set."""


class ClosableListener(Protocol):
    """A listener whose connections come from a port."""

    async def close(self, *, grace_s: float) -> None:
        """Close all connections, and wait at most `grace_s` for requests in progress."""


class AmqpSide(Protocol):
    """The methods of the AMQP gateway that a port needs to refuse AMQP clients."""

    def make_connection(self, now: float, /) -> Connection:
        """Return the AMQP engine for an accepted socket."""

    def restrict_mechanisms(self, peer: Peer, /) -> None:
        """Offer SASL PLAIN only where passwords are confidential."""


class ClientPort:
    """A port for clients, with the listeners of the protocols that it serves."""

    def __init__(
        self,
        name: str,
        directory: PortDirectory,
        amqp: AmqpSide,
        *,
        detection_timeout_s: float = DETECTION_TIMEOUT_S,
    ) -> None:
        """Create a port that is not open; `name` is its name in the directory."""
        self.name = name
        self.detection_timeout_s = detection_timeout_s
        self._directory = directory
        self._served = frozenset(directory.protocols(name))
        self._amqp = amqp
        self._factories: dict[WireProtocol, MakeProtocol] = {}
        self._listeners: list[ClosableListener] = []
        self._server: AcceptingServer
        self._is_closed = False
        self._pending: dict[asyncio.BaseTransport, None] = {}
        """Connections that belong to no listener: undecided and refused."""
        self._refused_peers = AcceptedPeers()
        self._refusal_log = ThrottledLog(log)

    # --- opening and closing ------------------------------------------------------------------------------------------

    def serve_function(self, protocol: WireProtocol) -> StartAccepting:
        """Return the function that a listener calls to get all connections of one protocol from this port."""

        async def serve(make_protocol: MakeProtocol, _tls: ssl.SSLContext | None, _timeout_s: float) -> AcceptingServer:
            self._factories[protocol] = make_protocol
            return _ListenerPort(self)

        return serve

    def add_listener(self, listener: ClosableListener) -> None:
        """Add a listener, which `close` closes."""
        self._listeners.append(listener)

    async def open(self, accept: Accept, tls: ssl.SSLContext | None) -> int:
        """Start accepting connections, after all listeners were added, and return the port's number."""
        make_plaintext = partial(_UndecidedConnection, self, is_tls=False)
        if any(spoken.is_tls for spoken in self._served):
            make_secure = partial(_UndecidedConnection, self, is_tls=True)
            self._server = await accept(make_secure, tls, TLS_HANDSHAKE_TIMEOUT_S, make_plaintext)
        else:
            self._server = await accept(make_plaintext, None, TLS_HANDSHAKE_TIMEOUT_S)
        return int(self.sockets[0].getsockname()[1])

    @property
    def sockets(self) -> Sequence[BoundSocket]:
        """The listening socket."""
        return self._server.sockets

    def stop_accepting(self) -> None:
        """Stop accepting connections, and drop connections that belong to no listener."""
        if self._is_closed:
            return
        self._is_closed = True
        self._server.close()
        self._refused_peers.is_closed = True
        for transport in [*self._pending, *(peer.transport for peer in self._refused_peers.peers)]:
            cast("asyncio.Transport", transport).abort()

    async def close(self, *, grace_s: float) -> None:
        """Stop accepting, and close the connections of all listeners."""
        self.stop_accepting()
        async with asyncio.TaskGroup() as group:
            for listener in self._listeners:
                group.create_task(listener.close(grace_s=grace_s))
        await self._server.wait_closed()

    # --- called by undecided connections ------------------------------------------------------------------------------

    def add_pending(self, transport: asyncio.BaseTransport) -> bool:
        """Add a connection that belongs to no listener yet, and return whether the port is still open."""
        if not self._is_closed:
            self._pending[transport] = None
        return not self._is_closed

    def remove_pending(self, transport: asyncio.BaseTransport) -> None:
        """Remove a connection that got its protocol or is closed."""
        self._pending.pop(transport, None)

    def make_protocol(
        self, detected: WireProtocol, slot: ConnectionSlot | None, transport: asyncio.Transport, *, is_tls: bool
    ) -> asyncio.Protocol:
        """Return the protocol for a connection whose first bytes show what the client speaks."""
        protocol = detected
        if detected is WireProtocol.UNKNOWN or (detected is WireProtocol.TLS and is_tls):
            protocol = MAIN_PROTOCOLS[self.name].protocol  # the most likely protocol of the client
        if Spoken(protocol, is_tls) in self._served:
            return cast("asyncio.Protocol", self._factories[protocol](slot))
        text = self._directory.refusal(self.name, Spoken(detected, is_tls))
        address = transport.get_extra_info("peername")
        self._refusal_log.warning("refused a connection from %s: %s", address[0] if address else "a client", text)
        if protocol is WireProtocol.AMQP:
            return self._refuse_amqp(text, slot)
        self.add_pending(transport)
        reply = TLS_ALERT if protocol is WireProtocol.TLS else http_reply(text)
        return RefusedConnection(reply, slot, partial(self.remove_pending, transport))

    def _refuse_amqp(self, text: str, slot: ConnectionSlot | None) -> Peer:
        def make_handler(peer: Peer) -> RefusedAmqpClient:
            self._amqp.restrict_mechanisms(peer)
            return RefusedAmqpClient(text, peer)

        connection = self._amqp.make_connection(asyncio.get_running_loop().time())
        return Peer(make_handler, connection, self._refused_peers, slot)


class _ListenerPort:
    """The server object that a listener gets. `wait_closed` does nothing: the port itself waits for its socket."""

    def __init__(self, port: ClientPort) -> None:
        self._port = port

    @property
    def sockets(self) -> Sequence[BoundSocket]:
        return self._port.sockets

    def close(self) -> None:
        self._port.stop_accepting()

    async def wait_closed(self) -> None:
        pass


class _UndecidedConnection(asyncio.Protocol):
    """A connection whose protocol is not known yet."""

    __slots__ = ("_first_bytes", "_is_tls", "_port", "_slot", "_timer", "_transport")

    def __init__(self, port: ClientPort, slot: ConnectionSlot | None, *, is_tls: bool) -> None:
        self._port = port
        self._is_tls = is_tls
        self._slot = slot
        self._first_bytes = b""
        self._timer: asyncio.TimerHandle | None = None
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's transport is not a subclass
        if not self._port.add_pending(transport):  # the port was closed during the TLS handshake
            self._transport.abort()
            return
        self._timer = asyncio.get_running_loop().call_later(self._port.detection_timeout_s, self._transport.abort)

    def data_received(self, data: bytes) -> None:
        first_bytes = self._first_bytes + data
        detected = detect(first_bytes)
        if detected is None:
            self._first_bytes = first_bytes  # at most three bytes
            return
        transport = self._transport
        self._end()
        protocol = self._port.make_protocol(detected, self._slot, transport, is_tls=self._is_tls)
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        if not transport.is_closing():
            protocol.data_received(first_bytes)

    def connection_lost(self, _error: Exception | None) -> None:
        self._end()
        if self._slot is not None:
            self._slot.release()

    def _end(self) -> None:
        self._port.remove_pending(self._transport)
        if self._timer is not None:
            self._timer.cancel()
