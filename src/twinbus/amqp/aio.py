"""Asyncio adapter for the engine, for both roles: accepts or opens sockets, feeds the engine, and flushes its output.

    listener = await listen(Handler, make_connection, host="127.0.0.1", port=0)
    handler = await connect(Handler, make_connection, host="localhost", port=5672)

A `Handler` is the program's side: it receives the events of one connection and responds by calling the engine's
methods. All output queued while one read is handled goes out in one write. Output queued at other times (after a
commit, from a timer) goes out at the end of the current iteration of the event loop.

Owns sockets and timers; `peer_input` decides when a socket is read. Must not know the protocol (`connection`).
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final, Protocol, TypeVar, cast

from twinbus.amqp.codec.performatives import Error
from twinbus.amqp.errors import INTERNAL_ERROR, LocalError
from twinbus.amqp.events import ConnectionClosed, LinkDetached, SessionEnded
from twinbus.amqp.listener import AcceptedPeers, Listener
from twinbus.amqp.peer_input import PeerInput

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

    from twinbus.amqp.connection import Connection
    from twinbus.amqp.events import Event
    from twinbus.amqp.listener import AcceptingServer, ConnectionSlot, StartAccepting

log: Final = logging.getLogger(__name__)

WRITE_HIGH_WATER: Final = 1_048_576
"""Number of unsent bytes in the socket's write buffer above which the handler should stop sending messages."""
TLS_HANDSHAKE_TIMEOUT_S: Final = 20.0
CLOSE_GRACE_S: Final = 10.0
"""Time that a peer has to read the last output before the socket is aborted."""
_END_EVENTS: Final = (LinkDetached, SessionEnded, ConnectionClosed)


class Handler(Protocol):
    """The program's side of one connection."""

    def on_event(self, event: Event) -> None:
        """Handle an event from the connection. The last event is always ConnectionClosed.

        If this method raises, the connection is closed, and the handler then receives only LinkDetached, SessionEnded
        and ConnectionClosed.
        """

    def on_writable(self) -> None:
        """Resume sending: the socket accepts data again, or less output waits for the peer's session windows."""


HandlerT = TypeVar("HandlerT", bound=Handler)


class Peer(asyncio.Protocol):
    """Socket together with the connection that runs over it."""

    def __init__(
        self,
        make_handler: Callable[[Peer], Handler],
        connection: Connection,
        accepted_peers: AcceptedPeers | None = None,
        slot: ConnectionSlot | None = None,
    ) -> None:
        """Create a peer; the handler is created later, when the socket (and TLS, if used) is established.

        `accepted_peers` are the peers of the same listener; `slot` is the connection's place in the process-wide limit.
        """
        self.connection = connection
        self.received_bytes = self.sent_bytes = 0
        """Bytes of AMQP in either direction, without those of TLS and WebSockets."""
        self.is_writable = True
        """False while the socket's write buffer is full; the handler then waits for `on_writable` to send messages."""
        self.awaits_window = False
        """Set by a handler that waits for `on_writable` until less output waits for the peer's session windows."""
        self.transport: asyncio.Transport
        """Transport of the socket, for its addresses and certificates. Set before the handler is created."""
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Future that is done when the socket is closed."""
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

    # --- callbacks of asyncio -----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Create the handler and send the engine's first output, which only a client has at this point."""
        self.transport = cast("asyncio.Transport", transport)  # uvloop's transport is not a subclass
        self._call_handler(self._start_handler)
        if self.handler is None or (self._accepted_peers is not None and not self._accepted_peers.admit(self)):
            self.transport.abort()
            return
        self.transport.set_write_buffer_limits(high=WRITE_HIGH_WATER)
        self.connection.on_output = self.flush_soon
        self.flush()

    def data_received(self, data: bytes) -> None:
        """Feed the engine, let the handler respond, and send all responses in one write."""
        self.received_bytes += len(data)
        self._flush_is_due = True  # `receive` flushes at its end, so `flush_soon` must not schedule another flush
        self._input.receive(data)

    def pause_writing(self) -> None:
        """Note that the write buffer is full. A server also stops reading, so that pending responses stay bounded."""
        self.is_writable = False
        self._input.update_paused()

    def resume_writing(self) -> None:
        """Continue writing and reading: the write buffer has room again."""
        self.is_writable = True
        self._input.update_paused()
        self._notify_writable()
        self.flush_soon()

    def connection_lost(self, _error: Exception | None) -> None:
        """Release the slot and the timer, and pass the final events to the handler, ending with ConnectionClosed."""
        if self._slot is not None:
            self._slot.release()
        if self._timer is not None:
            self._timer.cancel()
        self.is_writable = False
        self.handle(self.connection.receive_eof())
        self.lost.set_result(None)
        if self._accepted_peers is not None:
            self._accepted_peers.peers.discard(self)

    # --- called by the program ----------------------------------------------------------------------------------------

    @property
    def time_slice_s(self) -> float:
        """Maximum time for handling this peer's input at once, for transports that decode the input themselves."""
        return self._input.time_slice_s

    def authenticated(self) -> None:
        """Note that the client has authenticated, so its connection is not dropped to make room for new connections."""
        if self._slot is not None:
            self._slot.authenticated()

    def hold_output(self) -> Callable[[], None]:
        """Hold back all output until the returned function is called."""
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
        """Send the queued output now, unless output is held back. Close the socket if the connection is finished."""
        transport, connection = self.transport, self.connection
        if transport.is_closing() or self._output_holds:
            return
        self._input.read_held()
        data = connection.data_to_send()
        if data:
            transport.write(data)
            self.sent_bytes += len(data)
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
        """Send the queued output at the end of this event loop iteration, so that many responses share one write."""
        if not self._flush_is_due:
            self._flush_is_due = True
            self._loop.call_soon(self.flush_due)

    def close(self, error: Error | None = None) -> None:
        """Close the connection, and wait a limited time for the peer. Abort the socket if AMQP is not open yet."""
        if not self.connection.is_finished:
            try:
                self.connection.close(error)
            except LocalError:  # not open yet, or already closing
                if not self.connection.is_closing:
                    self.transport.abort()
                return
            self.flush()

    # --- internals ----------------------------------------------------------------------------------------------------

    def handle(self, events: list[Event]) -> None:
        """Pass events to the handler."""
        for event in events:
            if self.handler is not None and (not self._has_handler_failed or isinstance(event, _END_EVENTS)):
                self._call_handler(self.handler.on_event, event)

    def _start_handler(self) -> None:
        self.handler = self._make_handler(self)

    def _call_handler(self, call: Callable[..., None], *arguments: object) -> None:
        """Call the handler; if it raises, close this connection only."""
        try:
            call(*arguments)
        except Exception:
            log.exception("the handler of %r failed: the connection is closed", self.connection)
            self._has_handler_failed = True
            self.close(Error(condition=INTERNAL_ERROR, description="internal error"))

    def flush_due(self) -> None:
        """Run the flush that `flush_soon` scheduled."""
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
        """Restart the tick timer if the connection's state or silence limit has changed."""
        connection = self.connection
        limit_s = connection.silence_limit.limit_s
        timer_key = (connection.local_state, connection.remote_state, limit_s, limit_s and not self.is_writable)
        if timer_key != self._timer_key:
            self._timer_key = timer_key
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
    """Accept connections: each accepted socket gets an engine connection from `make_connection(now)` and a handler.

    If `serve` is given, `serve` accepts and limits the connections; `host`, `port` and `max_connections` are ignored.
    """
    listener, loop = Listener(max_connections if serve is None else None), asyncio.get_running_loop()
    make_peer = lambda slot=None: Peer(make_handler, make_connection(loop.time()), listener, slot)  # noqa: E731
    server: AcceptingServer
    if serve is not None:
        server = await serve(make_peer, tls, TLS_HANDSHAKE_TIMEOUT_S)
    else:
        timeout_s = TLS_HANDSHAKE_TIMEOUT_S if tls is not None else None
        server = await loop.create_server(make_peer, host, port, ssl=tls, ssl_handshake_timeout=timeout_s, backlog=1024)
    listener._server = server  # noqa: SLF001  # only this function creates listeners
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
    """Connect to a server and return the handler once the socket (and TLS) is established.

    ConnectionOpened tells the handler when AMQP is open. `tls_name` is the name expected in the certificate (default:
    `host`).
    """
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(timeout_s):
        make_peer = lambda: Peer(make_handler, make_connection(loop.time()))  # noqa: E731
        _, peer = await loop.create_connection(make_peer, host, port, ssl=tls, server_hostname=tls_name)
    if peer.handler is None:
        raise LocalError("the handler could not be created")
    return cast("HandlerT", peer.handler)
