"""The engine on asyncio sockets, for both roles: accept or connect, feed, flush.

    listener = await listen(Handler, make_connection, host="127.0.0.1", port=0)
    handler = await connect(Handler, make_connection, host="localhost", port=5672)

A `Handler` is the program: it gets the events of one connection and answers by the engine's methods; what they queue
for one read goes out in one write, and what is queued at another time (after a commit, from a timer) at the end of that
turn of the loop.

Owns: sockets and timers; when a socket is read from is in `reading`. Knows nothing of the protocol: that is
`connection`'s, which never sees a socket.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final, Protocol, TypeVar, cast

from twinbus.amqp.errors import INTERNAL_ERROR, LocalError
from twinbus.amqp.events import ConnectionClosed, LinkDetached, SessionEnded
from twinbus.amqp.listener import AcceptedPeers, Listener
from twinbus.amqp.peer_input import PeerInput
from twinbus.amqp.performatives import Error

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

    from twinbus.amqp.connection import Connection
    from twinbus.amqp.events import Event
    from twinbus.amqp.listener import AcceptingServer, ConnectionSlot, StartAccepting

log: Final = logging.getLogger(__name__)

WRITE_HIGH_WATER: Final = 1_048_576
"""Bytes the socket has not taken yet, above which the handler should send no more messages."""
TLS_HANDSHAKE_TIMEOUT_S: Final = 20.0
CLOSE_GRACE_S: Final = 10.0
"""How long a peer may take to read what was sent to it last."""
_END_EVENTS: Final = (LinkDetached, SessionEnded, ConnectionClosed)


class Handler(Protocol):
    """A program's side of one connection."""

    def on_event(self, event: Event) -> None:
        """Take what the peer did. The last event of all is ConnectionClosed, in every case.

        Who raises loses the connection, and then hears only of ends: LinkDetached, SessionEnded, ConnectionClosed.
        """

    def on_writable(self) -> None:
        """The socket takes data again after `peer.is_writable` was False."""


HandlerT = TypeVar("HandlerT", bound=Handler)


class Peer(asyncio.Protocol):
    """One socket with the connection that runs over it."""

    def __init__(
        self,
        make_handler: Callable[[Peer], Handler],
        connection: Connection,
        accepted_peers: AcceptedPeers | None = None,
        slot: ConnectionSlot | None = None,
    ) -> None:
        """`others` came the same way; `slot` is its place in the process. The handler is made after TLS, if any."""
        self.connection = connection
        self.is_writable = True
        """False while the socket is full: a handler that sends messages waits for `on_writable`."""
        self.awaits_window = False
        """Set by a handler that sends no more because much waits for the peer to open a session's window. The handler
        hears by `on_writable` when that has left."""
        self.transport: asyncio.Transport
        """The socket, for its addresses and certificates. There when the handler is made."""
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the socket is gone."""
        self.handler: Handler | None = None
        self._make_handler = make_handler
        self._accepted_peers = accepted_peers
        self._slot = slot
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._flush_is_due = False
        self._output_holds = 0
        self._input = PeerInput(self, connection, self._loop)
        self._has_handler_failed = False
        self._timer_key: object = None

    # --- asyncio calls these ------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Speak first if the engine has something to say (a client has)."""
        self.transport = cast("asyncio.Transport", transport)  # a socket has no other; uvloop's is no subclass of it
        self._call_handler(self._start_handler)
        if self.handler is None or (self._accepted_peers is not None and not self._accepted_peers.admit(self)):
            self.transport.abort()
            return
        self.transport.set_write_buffer_limits(high=WRITE_HIGH_WATER)
        self.connection.on_output = self.flush_soon
        self.flush()

    def data_received(self, data: bytes) -> None:
        """Feed the engine, let the handler answer, and send all answers in one write."""
        self._flush_is_due = True  # at the end of this, so nobody needs to ask for it
        self._input.receive(data)

    def pause_writing(self) -> None:
        """The socket is full. A server reads no more either, so that what it owes its peer stays bounded."""
        self.is_writable = False
        self._input.update_paused()

    def resume_writing(self) -> None:
        """The socket takes data again."""
        self.is_writable = True
        self._input.update_paused()
        self._notify_writable()
        self.flush_soon()

    def connection_lost(self, _error: Exception | None) -> None:
        """Tell the handler, which hears ConnectionClosed in every case."""
        if self._slot is not None:
            self._slot.release()
        if self._timer is not None:
            self._timer.cancel()
        self.is_writable = False
        self.handle(self.connection.receive_eof())
        self.lost.set_result(None)
        if self._accepted_peers is not None:
            self._accepted_peers.peers.discard(self)

    # --- the program calls these --------------------------------------------------------------------------------------

    @property
    def time_slice_s(self) -> float:
        """How long this peer's input may be handled at a time, for transports that decode the input themselves."""
        return self._input.time_slice_s

    def authenticated(self) -> None:
        """The client has proved who it is: its connection is not dropped to make room for others."""
        if self._slot is not None:
            self._slot.authenticated()

    def hold_output(self) -> Callable[[], None]:
        """Send nothing until what is returned is called: something has to happen elsewhere before."""
        self._output_holds += 1
        is_held = True

        def release() -> None:
            nonlocal is_held
            if is_held:
                is_held = False
                self._output_holds -= 1
                self.flush_soon()

        return release

    def flush(self) -> None:
        """Send what is queued now."""
        transport, connection = self.transport, self.connection
        if transport.is_closing() or self._output_holds:
            return
        self._input.read_held()
        data = connection.data_to_send()
        if data:
            transport.write(data)
            if self.awaits_window and self.is_writable and connection.queued_bytes <= WRITE_HIGH_WATER:
                self.awaits_window = False
                self._loop.call_soon(self._notify_writable)
        if connection.is_finished:
            transport.close()
            self._loop.call_later(CLOSE_GRACE_S, transport.abort)
        else:
            self._input.update_paused()
            self._reset_timer()

    def flush_soon(self) -> None:
        """Send what is queued at the end of this turn of the loop: many answers, one write. The engine asks for it."""
        if not self._flush_is_due:
            self._flush_is_due = True
            self._loop.call_soon(self.flush_due)

    def close(self, error: Error | None = None) -> None:
        """Close in good order; the socket follows when the peer has answered, or has not in time."""
        if not self.connection.is_finished:
            try:
                self.connection.close(error)
            except LocalError:  # before open there is nothing to close, after close nothing more
                if not self.connection.is_closing:
                    self.transport.abort()
                return
            self.flush()

    # --- inside -------------------------------------------------------------------------------------------------------

    def handle(self, events: list[Event]) -> None:
        """Give the handler what happened."""
        for event in events:
            if self.handler is not None and (not self._has_handler_failed or isinstance(event, _END_EVENTS)):
                self._call_handler(self.handler.on_event, event)

    def _start_handler(self) -> None:
        self.handler = self._make_handler(self)

    def _call_handler(self, call: Callable[..., None], *arguments: object) -> None:
        """A fault of the handler's costs its own connection, and nobody else's."""
        try:
            call(*arguments)
        except Exception:
            log.exception("the handler of %r failed: the connection is closed", self.connection)
            self._has_handler_failed = True
            self.close(Error(condition=INTERNAL_ERROR, description="internal error"))

    def flush_due(self) -> None:
        """Send what is queued now: what was asked for by `flush_soon` is done with it."""
        self._flush_is_due = False
        self.flush()

    def _notify_writable(self) -> None:
        if self.handler is not None and not self.lost.done():
            self._call_handler(self.handler.on_writable)

    def _tick(self) -> None:
        now = self._loop.time()
        self._input.excuse_paused_peer(now)
        self.handle(self.connection.tick(now))
        self._timer_key = None
        self.flush()

    def _reset_timer(self) -> None:
        """Set the timer, anew if something has changed by which a tick is due at another time."""
        connection = self.connection
        limit_s = connection.silence_limit.limit_s
        pace = (connection.local_state, connection.remote_state, limit_s, limit_s and not self.is_writable)
        if pace != self._timer_key:
            self._timer_key = pace
            if self._timer is not None:
                self._timer.cancel()
            wait_s = min(connection.tick_in_s(self._loop.time()), self._input.check_in_s)
            self._timer = self._loop.call_later(wait_s, self._tick)


async def listen(
    make_handler: Callable[[Peer], Handler],
    make_connection: Callable[[float], Connection],
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    serve: StartAccepting | None = None,
    tls: ssl.SSLContext | None = None,
    max_connections: int = 10_000,
) -> Listener:
    """Serve: each accepted socket gets a connection made for it, given the time, and a handler.

    `serve` accepts, and limits the connections, in place of a socket of our own on that host and port.
    """
    listener, loop = Listener(max_connections if serve is None else None), asyncio.get_running_loop()
    make_peer = lambda slot=None: Peer(make_handler, make_connection(loop.time()), listener, slot)  # noqa: E731
    server: AcceptingServer
    if serve is not None:
        server = await serve(make_peer, tls, TLS_HANDSHAKE_TIMEOUT_S)
    else:
        timeout_s = TLS_HANDSHAKE_TIMEOUT_S if tls is not None else None
        server = await loop.create_server(make_peer, host, port, ssl=tls, ssl_handshake_timeout=timeout_s, backlog=1024)
    listener._server = server  # noqa: SLF001  # two halves of one thing
    return listener


async def connect(
    make_handler: Callable[[Peer], HandlerT],
    make_connection: Callable[[float], Connection],
    *,
    host: str,
    port: int,
    tls: ssl.SSLContext | None = None,
    tls_name: str | None = None,
    timeout_s: float = 20.0,
) -> HandlerT:
    """Connect: the handler of a socket (and TLS) that is there. ConnectionOpened will tell it when AMQP is, too.

    `tls_name` is the name that the certificate must have, where that is not `host`.
    """
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(timeout_s):
        made = lambda: Peer(make_handler, make_connection(loop.time()))  # noqa: E731
        _, peer = await loop.create_connection(made, host, port, ssl=tls, server_hostname=tls_name)
    if peer.handler is None:
        raise LocalError("the handler could not be made")
    return cast("HandlerT", peer.handler)
