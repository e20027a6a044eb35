"""The HTTP listener: uvicorn's protocol, with a time limit for everything that a client can delay.

    listener = await listen(app, serve=acceptor.serve, tls=None)
    print(listener.port)
    await listener.close(grace_s=5.0)

Owns: the connections to one listening socket and their time limits. Knows nothing of the application. The `admission`
module limits the number of connections, and learns from this module which connections are idle.

Only uvicorn's protocol is used, not its server: the server handles signals itself, exits the process if a port is in
use, and waits without limit for the first bytes of a request, for a client to read, and for TLS.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from typing import TYPE_CHECKING, Final

import h11
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from twinbus.model.errors import InvalidArgument, ServiceBusError
from twinbus.server.http import error_responses
from twinbus.server.http.allowed_hosts import ANY_HOST, AllowedHosts
from twinbus.server.http.call import Caller
from twinbus.server.http.limits import DEFAULT_LIMITS, HttpLimits

if TYPE_CHECKING:
    import ssl
    from collections.abc import Collection

    from starlette.types import ASGIApp, Receive, Scope, Send

    from twinbus.amqp.listener import AcceptingServer, ConnectionSlot, StartAccepting
    from twinbus.server.websocket.upgrade import WebSocketUpgrade

log: Final = logging.getLogger(__name__)

CLOSE_TIMEOUT_S: Final = 1.0
"""How long a client may take, when the listener closes, to read the last response and to close TLS."""
_HEAD_END: Final = re.compile(rb"\n\r?\n")
_AMBIGUOUS_LINE: Final = re.compile(rb"(?<!\r)\n|\n[ \t]")
"""A line that ends in LF alone, or that continues the previous line (obsolete line folding)."""
_MAX_HEAD_END_BYTES: Final = 3
_CONTENT_LENGTH: Final = re.compile(rb"\ncontent-length[ \t]*:([^\r\n]*)", re.IGNORECASE)


class _UncountedSlot:
    """The slot of a connection that is not counted when it is accepted."""

    def authenticated(self) -> None:
        pass

    busy = idle = release = authenticated


UNCOUNTED_SLOT: Final = _UncountedSlot()


class _StrictH11Connection(h11.Connection):
    """An HTTP/1.1 connection that refuses requests that h11 and a proxy may parse differently (request smuggling)."""

    def __init__(self, max_head_bytes: int) -> None:
        """Create a connection before its first request."""
        super().__init__(h11.SERVER, max_head_bytes)
        self.request: h11.Request
        """The current request, with the original case of header names, which uvicorn drops."""
        self._max_head_bytes = max_head_bytes
        self._searched_bytes = 0

    def next_event(self) -> h11.Event | type[h11.NEED_DATA | h11.PAUSED]:
        if self.their_state is h11.IDLE:
            self._check_head()
        event = super().next_event()
        if isinstance(event, h11.Request):
            self.request = event
            if {b"content-length", b"transfer-encoding"} <= {name for name, _ in event.headers}:
                raise h11.RemoteProtocolError("both Content-Length and Transfer-Encoding")
        return event

    def _check_head(self) -> None:
        data, _ = self.trailing_data
        end = _HEAD_END.search(data, max(0, self._searched_bytes - _MAX_HEAD_END_BYTES))
        if end is None:
            self._searched_bytes = len(data)
            return
        self._searched_bytes = 0
        if end.end() > self._max_head_bytes:  # h11 checks the size only until it has the whole head
            raise h11.RemoteProtocolError("head too large")
        if _AMBIGUOUS_LINE.search(data, 0, end.end()):
            raise h11.RemoteProtocolError("ambiguous line ending")
        # h11 accepts several equal lengths; a proxy may use the first, or ignore some of them.
        lengths = _CONTENT_LENGTH.findall(data, 0, end.end())
        if len(lengths) > 1 or any(b"," in length for length in lengths):
            raise h11.RemoteProtocolError("several Content-Length values")


class HttpConnection(H11Protocol):
    """The HTTP connection of one client."""

    def __init__(self, listener: HttpListener, slot: ConnectionSlot | None) -> None:
        super().__init__(listener.config, listener.state, {}, asyncio.get_running_loop())
        self.conn: _StrictH11Connection = _StrictH11Connection(listener.limits.max_head_bytes)
        self.closed: asyncio.Future[None] = self.loop.create_future()
        """Done when the socket is closed."""
        self._listener = listener
        self._limits = listener.limits
        self._slot = slot or UNCOUNTED_SLOT
        self._answer_now: asyncio.Future[None] = self.loop.create_future()
        """Done when the current request must get its response at once."""
        self._upgrade_response = b""
        """The response that turns this connection into a WebSocket, or empty."""
        self._request_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None

    # --- called by asyncio --------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # uvicorn's signature
        """Start the timer for the first request, after the TLS handshake if there is one."""
        super().connection_made(transport)
        if self._listener.is_closed:  # the listener was closed during the TLS handshake
            transport.abort()
        else:
            self._update_request_timer()

    def data_received(self, data: bytes) -> None:
        """Pass the data to uvicorn's protocol, and update the request timer."""
        super().data_received(data)
        if self._upgrade_response:
            return
        self._update_request_timer()
        if self.conn.their_state is h11.DONE and self.conn.trailing_data[0]:
            # The next request has arrived and reading is paused, so that a disconnect would not be noticed.
            _set_done(self._answer_now)

    def pause_writing(self) -> None:
        """Start the write timer, because the client reads too slowly."""
        super().pause_writing()
        self._write_timer = self.loop.call_later(self._limits.write_timeout_s, self.transport.abort)

    def resume_writing(self) -> None:
        """Cancel the write timer, because the client is reading again."""
        super().resume_writing()
        _cancel_timer(self._write_timer)

    def connection_lost(self, exc: Exception | None) -> None:
        """Release the slot, and cancel all timers."""
        self._slot.release()
        super().connection_lost(exc)
        self._unset_keepalive_if_required()
        self._release_timers()

    # --- called by uvicorn --------------------------------------------------------------------------------------------

    def _should_upgrade(self) -> bool:
        """Store the caller of a new request, check its Host, and return whether it is a WebSocket handshake."""
        self._answer_now, state = self.loop.create_future(), self.scope["state"]
        self._slot.busy()
        state["caller"] = Caller(
            self.closed, self._answer_now, self.conn.request.headers.raw_items(), self._slot.authenticated
        )
        websocket_upgrade = self._listener.websocket_upgrade
        try:
            if not self.scope["path"].startswith("/"):
                raise InvalidArgument("the target of the request is not a path: it must start with a slash")
            self._listener.allowed_hosts.check(self.headers)
            if websocket_upgrade is None or not websocket_upgrade.matches_path(self.scope["path"]):
                return False
            self._upgrade_response = websocket_upgrade.make_response(
                self.scope["method"], self.scope["http_version"], self.headers
            )
        except ServiceBusError as error:
            state["refusal"] = error
        return bool(self._upgrade_response)

    def handle_websocket_upgrade(self, event: h11.Request) -> None:  # noqa: ARG002  # uvicorn's signature
        """Hand the connection over to the WebSocket protocol."""
        assert self._listener.websocket_upgrade is not None
        self.connections.discard(self)
        self._release_timers()
        self._listener.websocket_upgrade.upgrade(
            self.transport, self._upgrade_response, self.conn.trailing_data[0], self._slot
        )

    def on_response_complete(self) -> None:
        """Mark the connection as idle; if it is closing, limit how long closing may take."""
        self._slot.idle()  # before uvicorn handles the next request, which may have arrived
        super().on_response_complete()
        if self.transport.is_closing():
            self._abort_after_timeout()

    def shutdown(self) -> None:
        """Close the connection at once if it is idle, otherwise after the current response."""
        _set_done(self._answer_now)
        is_idle = self.conn.our_state in (h11.IDLE, h11.DONE)
        if is_idle and self.transport.get_write_buffer_size() == 0:
            self.transport.abort()  # closing TLS waits for the client's reply, which a pooled connection never sends
        else:
            super().shutdown()

    def timeout_keep_alive_handler(self) -> None:
        """Close a connection that was idle for too long."""
        super().timeout_keep_alive_handler()
        self._abort_after_timeout()

    # --- inside -------------------------------------------------------------------------------------------------------

    def _release_timers(self) -> None:
        _cancel_timer(self._request_timer)
        _cancel_timer(self._write_timer)
        _set_done(self.closed)

    def _update_request_timer(self) -> None:
        """Limit the time for a request's head, and for the rest of a body whose response was already sent."""
        # `read_body` limits the time for other bodies, and uvicorn's keep-alive timer the time between requests.
        is_incomplete = self.conn.their_state is h11.IDLE or self.conn.our_state is h11.DONE
        if not is_incomplete:
            _cancel_timer(self._request_timer)
            self._request_timer = None
        elif self._request_timer is None:
            self._request_timer = self.loop.call_later(self._limits.head_timeout_s, self.transport.abort)

    def _abort_after_timeout(self) -> None:
        # Closing waits until the client has read everything, which may never happen.
        self.loop.call_later(self._limits.write_timeout_s, self.transport.abort)


class HttpListener:
    """A listening socket and its connections."""

    def __init__(
        self, app: ASGIApp, limits: HttpLimits, websocket_upgrade: WebSocketUpgrade | None, allowed_hosts: AllowedHosts
    ) -> None:
        """Create a listener; `listen` calls this and then starts accepting."""
        self.allowed_hosts = allowed_hosts
        self.limits = limits
        self.websocket_upgrade = websocket_upgrade
        self.state = ServerState()
        self.config = Config(
            _with_refusals(app),
            http=HttpConnection,
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            log_level="error",  # invalid requests are not worth a log line, and the application logs its own failures
            access_log=False,
            proxy_headers=False,
            h11_max_incomplete_event_size=limits.max_head_bytes,
            timeout_keep_alive=limits.keep_alive_s,
        )
        self.config.load()
        self.is_closed = False
        self._server: AcceptingServer

    @property
    def port(self) -> int:
        """The port on which the listener accepts connections."""
        return int(self._server.sockets[0].getsockname()[1])

    @property
    def connections(self) -> list[HttpConnection]:
        """The open connections."""
        return [connection for connection in self.state.connections if isinstance(connection, HttpConnection)]

    async def close(self, *, grace_s: float = 5.0) -> None:
        """Stop accepting, wait `grace_s` for requests in progress, and abort the remaining requests."""
        self.is_closed = True
        self._server.close()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._close_requests(grace_s))
            if self.websocket_upgrade is not None:
                group.create_task(self.websocket_upgrade.close(grace_s=grace_s))
        await self._server.wait_closed()

    async def _close_requests(self, grace_s: float) -> None:
        for connection in self.connections:
            if not connection.transport.is_closing():
                connection.shutdown()
        await _wait_all(self.state.tasks, grace_s)
        unanswered = len(self.state.tasks)
        if unanswered:
            log.warning("aborting %d HTTP requests that were not answered within %s s", unanswered, grace_s)
        else:
            await _wait_all([connection.closed for connection in self.connections], min(grace_s, CLOSE_TIMEOUT_S))
        for connection in self.connections:
            connection.transport.abort()
        await _wait_all([connection.closed for connection in self.connections], CLOSE_TIMEOUT_S)
        for task in self.state.tasks:
            task.cancel()
        await _wait_all(self.state.tasks, CLOSE_TIMEOUT_S)


async def listen(
    app: ASGIApp,
    *,
    serve: StartAccepting,
    tls: ssl.SSLContext | None = None,
    limits: HttpLimits = DEFAULT_LIMITS,
    websocket_upgrade: WebSocketUpgrade | None = None,
    allowed_hosts: AllowedHosts = ANY_HOST,
) -> HttpListener:
    """Serve `app` on the connections that `serve` accepts, with TLS if `tls` is given.

    `websocket_upgrade` handles WebSocket handshakes. Requests for hosts other than `allowed_hosts` are refused.
    """
    listener = HttpListener(app, limits, websocket_upgrade, allowed_hosts)
    make_connection = lambda slot: HttpConnection(listener, slot)  # noqa: E731
    listener._server = await serve(make_connection, tls, limits.tls_handshake_timeout_s)  # noqa: SLF001  # constructor
    return listener


def _with_refusals(app: ASGIApp) -> ASGIApp:
    """Return an application that responds to a refused request with its error, and otherwise runs `app`."""

    async def run(scope: Scope, receive: Receive, send: Send) -> None:
        # Only `close` cancels requests, and it logs the cancellation; uvicorn would log a failure of the application.
        with contextlib.suppress(asyncio.CancelledError):
            refusal = scope["state"].get("refusal")
            respond = app if refusal is None else error_responses.error_response(refusal)
            await respond(scope, receive, send)

    return run


async def _wait_all(futures: Collection[asyncio.Future[None]], timeout_s: float) -> None:
    if futures:
        await asyncio.wait(set(futures), timeout=timeout_s)


def _cancel_timer(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()


def _set_done(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
