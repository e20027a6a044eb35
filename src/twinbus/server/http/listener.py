"""HTTP on a socket of the running loop: uvicorn's protocol, with an end to everything a client can drag out.

    listener = await listen(app, host="127.0.0.1", port=0, tls=None)
    print(listener.port)
    await listener.close(grace_s=5.0)

Owns: the listening socket, its connections and their time limits. Knows nothing of what is served.
Only uvicorn's protocol is used, not its server: that one takes over signals, ends the process when a port is taken, and
waits without limit for the first bytes of a request, for a client to read, and for TLS.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Final

import h11
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from twinbus.server.http.limits import DEFAULT_LIMITS, HttpLimits

if TYPE_CHECKING:
    import ssl
    from collections.abc import Collection

    from starlette.types import ASGIApp, Receive, Scope, Send

log: Final = logging.getLogger(__name__)

LAST_WORDS_S: Final = 1.0
"""How long a client may take, when the listener closes, to read the last answer and to end TLS."""


class HttpConnection(H11Protocol):
    """One client's connection."""

    def __init__(self, listener: HttpListener) -> None:
        super().__init__(listener.config, listener.state, {}, asyncio.get_running_loop())
        self.lost: asyncio.Future[None] = self.loop.create_future()
        """Done when the socket is gone."""
        self._listener = listener
        self._limits = listener.limits
        self._request_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None

    # --- asyncio calls these ------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        """The socket (and TLS) is there: the first request has its time from now."""
        super().connection_made(transport)
        if self._listener.admits(self):
            self._watch_request()
        else:
            transport.abort()

    def data_received(self, data: bytes) -> None:
        """Feed the protocol, and see what is still to come."""
        super().data_received(data)
        self._watch_request()

    def pause_writing(self) -> None:
        """More waits to be sent than the client reads."""
        super().pause_writing()
        self._write_timer = self.loop.call_later(self._limits.write_timeout_s, self.transport.abort)

    def resume_writing(self) -> None:
        """The client reads again."""
        super().resume_writing()
        _cancel(self._write_timer)

    def connection_lost(self, exc: Exception | None) -> None:
        """No timer outlives its socket."""
        super().connection_lost(exc)
        self._unset_keepalive_if_required()
        _cancel(self._request_timer)
        _cancel(self._write_timer)
        if not self.lost.done():
            self.lost.set_result(None)

    # --- uvicorn calls these ------------------------------------------------------------------------------------------

    def on_response_complete(self) -> None:
        """Closing, if that is what follows, has an end too."""
        super().on_response_complete()
        if self.transport.is_closing():
            self._abort_unless_read()

    def shutdown(self) -> None:
        """Let go of an idle client at once, and of another after its answer."""
        is_idle = self.conn.our_state in (h11.IDLE, h11.DONE)
        if is_idle and self.transport.get_write_buffer_size() == 0:
            self.transport.abort()  # to close TLS is to wait for the client's consent, which a pooled one never gives
        else:
            super().shutdown()

    def timeout_keep_alive_handler(self) -> None:
        """The client had no more requests."""
        super().timeout_keep_alive_handler()
        self._abort_unless_read()

    # --- inside -------------------------------------------------------------------------------------------------------

    def _watch_request(self) -> None:
        """Give the rest of a request's head its time; also the rest of a body that was answered before it had come."""
        # A body that is still wanted has its limit where it is read, and between requests uvicorn's own timer runs.
        is_dragging = self.conn.their_state is h11.IDLE or self.conn.our_state is h11.DONE
        if not is_dragging:
            _cancel(self._request_timer)
            self._request_timer = None
        elif self._request_timer is None:
            self._request_timer = self.loop.call_later(self._limits.head_timeout_s, self.transport.abort)

    def _abort_unless_read(self) -> None:
        # Closing waits until all is sent: for ever, if the client does not read.
        self.loop.call_later(self._limits.write_timeout_s, self.transport.abort)


class HttpListener:
    """A listening socket and the connections that came through it."""

    def __init__(self, app: ASGIApp, limits: HttpLimits) -> None:
        """Made by `listen`."""
        self.limits = limits
        self.state = ServerState()
        self.config = Config(
            _until_cut_off(app),
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
        self._server: asyncio.Server

    @property
    def port(self) -> int:
        """The port it listens on."""
        return int(self._server.sockets[0].getsockname()[1])

    @property
    def connections(self) -> list[HttpConnection]:
        """Those that are there now."""
        return [one for one in self.state.connections if isinstance(one, HttpConnection)]

    def admits(self, connection: HttpConnection) -> bool:
        """Whether one more is served. Asked when its socket (and TLS) is there, and it is counted."""
        if self.is_closed:  # while it was in its TLS handshake
            return False
        if len(self.state.connections) > self.limits.max_connections:
            log.warning("%d HTTP connections, the limit: %s refused", self.limits.max_connections, connection.client)
            return False
        return True

    async def close(self, *, grace_s: float = 5.0) -> None:
        """Accept no more, let the requests that are being answered finish, and cut off those that take longer."""
        self.is_closed = True
        self._server.close()
        for connection in self.connections:
            if not connection.transport.is_closing():
                connection.shutdown()
        await _wait(self.state.tasks, grace_s)
        unanswered = len(self.state.tasks)
        if unanswered:
            log.warning("%d HTTP requests were not answered within %s s: they are cut off", unanswered, grace_s)
        else:
            await _wait([connection.lost for connection in self.connections], min(grace_s, LAST_WORDS_S))
        for connection in self.connections:
            connection.transport.abort()
        await _wait([connection.lost for connection in self.connections], LAST_WORDS_S)
        for task in self.state.tasks:
            task.cancel()
        await _wait(self.state.tasks, LAST_WORDS_S)
        await self._server.wait_closed()


async def listen(
    app: ASGIApp,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    tls: ssl.SSLContext | None = None,
    limits: HttpLimits = DEFAULT_LIMITS,
) -> HttpListener:
    """Serve `app`; with `tls` as https. Raises OSError if the port is taken."""
    listener = HttpListener(app, limits)
    listener._server = await asyncio.get_running_loop().create_server(  # noqa: SLF001  # two halves of one thing
        lambda: HttpConnection(listener),
        host,
        port,
        ssl=tls,
        ssl_handshake_timeout=limits.tls_handshake_timeout_s if tls is not None else None,
        backlog=1024,
    )
    return listener


def _until_cut_off(app: ASGIApp) -> ASGIApp:
    """Only `close` cancels a request, and says so itself: uvicorn would tell it as a failure of the application."""

    async def run(scope: Scope, receive: Receive, send: Send) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await app(scope, receive, send)

    return run


async def _wait(for_these: Collection[asyncio.Future[None]], timeout_s: float) -> None:
    if for_these:
        await asyncio.wait(set(for_these), timeout=timeout_s)


def _cancel(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()
