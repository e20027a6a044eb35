"""HTTP on a socket of the running loop: uvicorn's protocol, with an end to everything a client can drag out.

    listener = await listen(app, serve=acceptor.serve, tls=None)
    print(listener.port)
    await listener.close(grace_s=5.0)

Owns: the connections of one listening socket and their time limits. Knows nothing of what is served. How many
connections there may be is decided where they are accepted, and told there is which of them are idle.
Only uvicorn's protocol is used, not its server: that one takes over signals, ends the process when a port is taken, and
waits without limit for the first bytes of a request, for a client to read, and for TLS.
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
"""How long a client may take, when the listener closes, to read the last answer and to end TLS."""
_HEAD_END: Final = re.compile(rb"\n\r?\n")
_AMBIGUOUS_LINE: Final = re.compile(rb"(?<!\r)\n|\n[ \t]")
"""A line that ends in LF alone, or goes on with the one before."""
_MAX_HEAD_END_BYTES: Final = 3
_CONTENT_LENGTH: Final = re.compile(rb"\ncontent-length[ \t]*:([^\r\n]*)", re.IGNORECASE)


class _UncountedSlot:
    """Of a connection that is not counted at accept."""

    def authenticated(self) -> None:
        pass

    busy = idle = release = authenticated


UNCOUNTED_SLOT: Final = _UncountedSlot()


class _StrictH11Connection(h11.Connection):
    """HTTP/1.1, without what h11 allows and a proxy in front of us may read as another request."""

    def __init__(self, max_head_bytes: int) -> None:
        """Nothing was asked yet."""
        super().__init__(h11.SERVER, max_head_bytes)
        self.request: h11.Request
        """The one it is at: uvicorn keeps the names of its headers in lower case only."""
        self._max_head_bytes = max_head_bytes
        self._searched_bytes = 0

    def next_event(self) -> h11.Event | type[h11.NEED_DATA | h11.PAUSED]:
        if self.their_state is h11.IDLE:
            self._check_head()
        event = super().next_event()
        if isinstance(event, h11.Request):
            self.request = event
            if {b"content-length", b"transfer-encoding"} <= {name for name, _ in event.headers}:
                raise h11.RemoteProtocolError("a length and chunks")
        return event

    def _check_head(self) -> None:
        data, _ = self.trailing_data
        end = _HEAD_END.search(data, max(0, self._searched_bytes - _MAX_HEAD_END_BYTES))
        if end is None:
            self._searched_bytes = len(data)
            return
        self._searched_bytes = 0
        if end.end() > self._max_head_bytes:  # h11 looks at it only while the end has not come
            raise h11.RemoteProtocolError("a head too large")
        if _AMBIGUOUS_LINE.search(data, 0, end.end()):
            raise h11.RemoteProtocolError("a line that is not one line")
        # h11 takes several that are equal for one; what is in front of us may take the first, or refuse to see others.
        lengths = _CONTENT_LENGTH.findall(data, 0, end.end())
        if len(lengths) > 1 or any(b"," in length for length in lengths):
            raise h11.RemoteProtocolError("more than one length")


class HttpConnection(H11Protocol):
    """One client's connection."""

    def __init__(self, listener: HttpListener, slot: ConnectionSlot | None) -> None:
        super().__init__(listener.config, listener.state, {}, asyncio.get_running_loop())
        self.conn: _StrictH11Connection = _StrictH11Connection(listener.limits.max_head_bytes)
        self.closed: asyncio.Future[None] = self.loop.create_future()
        """Done when the socket is gone."""
        self._listener = listener
        self._limits = listener.limits
        self._slot = slot or UNCOUNTED_SLOT
        self._answer_now: asyncio.Future[None] = self.loop.create_future()
        """Of the request that is being answered."""
        self._upgrade_response = b""
        """The answer with which this becomes a WebSocket."""
        self._request_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None

    # --- asyncio calls these ------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        """The socket (and TLS) is there: the first request has its time from now."""
        super().connection_made(transport)
        if self._listener.is_closed:  # while this was in its TLS handshake
            transport.abort()
        else:
            self._update_request_timer()

    def data_received(self, data: bytes) -> None:
        """Feed the protocol, and see what is still to come."""
        super().data_received(data)
        if self._upgrade_response:
            return
        self._update_request_timer()
        if self.conn.their_state is h11.DONE and self.conn.trailing_data[0]:
            # The next request is there, and reading is paused: that the client goes away would not be seen.
            _set_done(self._answer_now)

    def pause_writing(self) -> None:
        """More waits to be sent than the client reads."""
        super().pause_writing()
        self._write_timer = self.loop.call_later(self._limits.write_timeout_s, self.transport.abort)

    def resume_writing(self) -> None:
        """The client reads again."""
        super().resume_writing()
        _cancel_timer(self._write_timer)

    def connection_lost(self, exc: Exception | None) -> None:
        """No timer outlives its socket."""
        self._slot.release()
        super().connection_lost(exc)
        self._unset_keepalive_if_required()
        self._release_timers()

    # --- uvicorn calls these ------------------------------------------------------------------------------------------

    def _should_upgrade(self) -> bool:
        """A request has come: see who makes it, and whether it is for a WebSocket."""
        self._answer_now, state = self.loop.create_future(), self.scope["state"]
        self._slot.busy()
        state["caller"] = Caller(
            self.closed, self._answer_now, self.conn.request.headers.raw_items(), self._slot.authenticated
        )
        entrance = self._listener.websocket_upgrade
        try:
            if not self.scope["path"].startswith("/"):
                raise InvalidArgument("the target of the request is no path: it has to start with a slash")
            self._listener.allowed_hosts.check(self.headers)
            if entrance is None or not entrance.matches_path(self.scope["path"]):
                return False
            self._upgrade_response = entrance.make_response(
                self.scope["method"], self.scope["http_version"], self.headers
            )
        except ServiceBusError as error:
            state["refusal"] = error
        return bool(self._upgrade_response)

    def handle_websocket_upgrade(self, event: h11.Request) -> None:  # noqa: ARG002  # as uvicorn has it
        """The connection is none of HTTP's any more."""
        assert self._listener.websocket_upgrade is not None
        self.connections.discard(self)
        self._release_timers()
        self._listener.websocket_upgrade.upgrade(
            self.transport, self._upgrade_response, self.conn.trailing_data[0], self._slot
        )

    def on_response_complete(self) -> None:
        """Closing, if that is what follows, has an end too."""
        self._slot.idle()  # before the next request is read, which may be there already
        super().on_response_complete()
        if self.transport.is_closing():
            self._abort_after_timeout()

    def shutdown(self) -> None:
        """Let go of an idle client at once, and of another after its answer."""
        _set_done(self._answer_now)
        is_idle = self.conn.our_state in (h11.IDLE, h11.DONE)
        if is_idle and self.transport.get_write_buffer_size() == 0:
            self.transport.abort()  # to close TLS is to wait for the client's consent, which a pooled one never gives
        else:
            super().shutdown()

    def timeout_keep_alive_handler(self) -> None:
        """The client had no more requests."""
        super().timeout_keep_alive_handler()
        self._abort_after_timeout()

    # --- inside -------------------------------------------------------------------------------------------------------

    def _release_timers(self) -> None:
        _cancel_timer(self._request_timer)
        _cancel_timer(self._write_timer)
        _set_done(self.closed)

    def _update_request_timer(self) -> None:
        """Give the rest of a request's head its time; also the rest of a body that was answered before it had come."""
        # A body that is still wanted has its limit where it is read, and between requests uvicorn's own timer runs.
        is_dragging = self.conn.their_state is h11.IDLE or self.conn.our_state is h11.DONE
        if not is_dragging:
            _cancel_timer(self._request_timer)
            self._request_timer = None
        elif self._request_timer is None:
            self._request_timer = self.loop.call_later(self._limits.head_timeout_s, self.transport.abort)

    def _abort_after_timeout(self) -> None:
        # Closing waits until all is sent: for ever, if the client does not read.
        self.loop.call_later(self._limits.write_timeout_s, self.transport.abort)


class HttpListener:
    """A listening socket and the connections that came through it."""

    def __init__(
        self, app: ASGIApp, limits: HttpLimits, websocket_upgrade: WebSocketUpgrade | None, allowed_hosts: AllowedHosts
    ) -> None:
        """Made by `listen`."""
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
            log_level="error",  # what strangers send is no news; what the application fails at, it logs itself
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
        """The port it listens on."""
        return int(self._server.sockets[0].getsockname()[1])

    @property
    def connections(self) -> list[HttpConnection]:
        """Those that are there now."""
        return [one for one in self.state.connections if isinstance(one, HttpConnection)]

    async def close(self, *, grace_s: float = 5.0) -> None:
        """Accept no more, let the requests that are being answered finish, and cut off those that take longer."""
        self.is_closed = True
        self._server.close()
        async with asyncio.TaskGroup() as both:
            both.create_task(self._close_requests(grace_s))
            if self.websocket_upgrade is not None:
                both.create_task(self.websocket_upgrade.close(grace_s=grace_s))
        await self._server.wait_closed()

    async def _close_requests(self, grace_s: float) -> None:
        for connection in self.connections:
            if not connection.transport.is_closing():
                connection.shutdown()
        await _wait_all(self.state.tasks, grace_s)
        unanswered = len(self.state.tasks)
        if unanswered:
            log.warning("%d HTTP requests were not answered within %s s: they are cut off", unanswered, grace_s)
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
    """Serve `app` on the connections that `serve` accepts; with `tls` as https.

    `entrance` takes WebSockets. Requests for other `hosts` are refused.
    """
    listener = HttpListener(app, limits, websocket_upgrade, allowed_hosts)
    make = lambda slot: HttpConnection(listener, slot)  # noqa: E731
    listener._server = await serve(make, tls, limits.tls_handshake_timeout_s)  # noqa: SLF001  # two halves of one thing
    return listener


def _with_refusals(app: ASGIApp) -> ASGIApp:
    """What answers a request: `app`, unless it was refused already."""

    async def run(scope: Scope, receive: Receive, send: Send) -> None:
        # Only `close` cancels a request, and says so itself: uvicorn would tell it as a failure of the application.
        with contextlib.suppress(asyncio.CancelledError):
            refusal = scope["state"].get("refusal")
            answer = app if refusal is None else error_responses.error_response(refusal)
            await answer(scope, receive, send)

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
