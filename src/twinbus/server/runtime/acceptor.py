"""The acceptor: a listening socket, and its connections until each has a protocol.

    admission = Admission(max_connections=10_000)
    acceptor = await Acceptor(sock, admission).serve(make_protocol, tls, 20.0)

Every connection is counted when it is accepted, before TLS. Then the acceptor waits for the first bytes, for at most
`FIRST_BYTES_TIMEOUT_S`. In all served protocols the client sends first, so a silent connection costs only a socket and
a small object. After the first bytes, TLS is negotiated (within the timeout of `serve`) and the protocol takes over.
The protocol releases the connection's slot when the socket is closed. A socket may have a second protocol, for clients
that do not start TLS.

If several processes accept from one socket, an `AcceptBalancer` decides which process accepts next.

Owns: accepting, waiting for the first bytes, and TLS handshakes. At a limit, `admission` decides which connection is
dropped.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from twinbus.model.callbacks import do_nothing
from twinbus.server.port.detection import TLS_HANDSHAKE_RECORD
from twinbus.server.runtime.logs import ThrottledLog

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

    from twinbus.amqp.listener import MakeProtocol
    from twinbus.server.runtime.admission import Admission, Slot

log: Final = logging.getLogger(__name__)

MAX_ACCEPTS_PER_TURN: Final = 16
"""How many connections are accepted in one turn of the event loop, so that a flood does not block other connections."""
FIRST_BYTES_TIMEOUT_S: Final = 10.0
"""How long a client may take to send its first byte."""
SWEEP_INTERVAL_S: Final = 1.0
"""How often silent connections are checked for their deadlines."""
ACCEPT_RETRY_S: Final = 1.0
"""The pause after accept has failed because the process or the machine has too many open files."""


class AcceptBalancer(Protocol):
    """Balances new connections between the processes that accept from one socket."""

    def delay_s(self) -> float:
        """Return how long to wait for other processes before accepting the next connection."""

    def on_accepted(self) -> bool:
        """Count a new connection, and return whether this process may also accept the next connection."""

    def on_closed(self) -> None:
        """Subtract a closed connection from the count."""

    def start(self) -> None:
        """Publish this process's count, so that other processes may wait for this process."""

    def stop(self) -> None:
        """Mark this process as absent, so that other processes no longer wait for this process."""


class Acceptor:
    """A listening socket, with the methods of an asyncio server that listeners need."""

    def __init__(
        self,
        sock: socket.socket,
        admission: Admission,
        balancer: AcceptBalancer | None = None,
        *,
        first_bytes_timeout_s: float = FIRST_BYTES_TIMEOUT_S,
    ) -> None:
        """Create an acceptor, which accepts nothing before `serve`."""
        self.sockets = (sock,)
        self._sock = sock
        self._admission = admission
        self._balancer = balancer
        self._first_bytes_timeout_s = first_bytes_timeout_s
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[_WaitingConnection, float] = {}
        """Silent connections with their deadlines, in order of deadline."""
        self._starting_tasks: set[asyncio.Task[None]] = set()
        self._pause_timer: asyncio.TimerHandle | None = None
        self._sweep_timer: asyncio.TimerHandle | None = None
        self._is_closed = False
        self._failure_log = ThrottledLog(log)

    async def serve(
        self,
        make_protocol: MakeProtocol,
        tls: ssl.SSLContext | None,
        tls_handshake_timeout_s: float,
        make_plaintext_protocol: MakeProtocol | None = None,
    ) -> Acceptor:
        """Start accepting, and return this acceptor.

        With TLS, clients that do not start TLS get `make_plaintext_protocol`; without this function, their handshake
        fails.
        """
        self._make_protocol = make_protocol
        self._make_plaintext_protocol = make_plaintext_protocol if tls is not None else None
        self._tls = tls
        self._tls_handshake_timeout_s = tls_handshake_timeout_s
        self._sock.settimeout(0.0)
        if self._balancer is not None:
            self._balancer.start()
        self._loop.add_reader(self._sock, self._on_readable)
        return self

    def close(self) -> None:
        """Stop accepting, and drop connections that have no protocol yet."""
        if self._is_closed:
            return
        self._is_closed = True
        for timer in (self._pause_timer, self._sweep_timer):
            if timer is not None:
                timer.cancel()
        self._loop.remove_reader(self._sock)
        if self._balancer is not None:
            self._balancer.stop()
        self._sock.close()
        for waiting in list(self._waiting):
            waiting.close()
        for task in list(self._starting_tasks):
            task.cancel()

    async def wait_closed(self) -> None:
        """Wait until cancelled handshakes have finished; the listener waits for connections that have a protocol."""
        if self._starting_tasks:
            await asyncio.wait(self._starting_tasks)

    # --- accepting ----------------------------------------------------------------------------------------------------

    def _on_readable(self) -> None:
        delay_s = self._balancer.delay_s() if self._balancer is not None else 0.0
        if delay_s:
            self._pause_accepting(delay_s, self._accept)
        else:
            self._accept()

    def _accept(self) -> None:
        """Accept connections until the turn's limit, or until another process should accept the next connection."""
        try:
            for _ in range(MAX_ACCEPTS_PER_TURN):
                connection, address = self._sock.accept()
                slot = self._admission.admit(address[0])
                if slot is None:
                    connection.close()
                elif not self._wait_for_first_bytes(connection, slot):
                    return
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return  # another process accepted the connection, or the client has disconnected
        except OSError as error:
            self._failure_log.warning("accept failed, trying again in %g s: %s", ACCEPT_RETRY_S, error.strerror)
            self._pause_accepting(ACCEPT_RETRY_S, do_nothing)

    def _wait_for_first_bytes(self, connection: socket.socket, slot: Slot) -> bool:
        """Start waiting for a connection's first bytes; return whether this process may accept another connection."""
        connection.settimeout(0.0)
        waiting = _WaitingConnection(self, connection, slot)
        self._waiting[waiting] = self._loop.time() + self._first_bytes_timeout_s
        if self._sweep_timer is None:
            self._sweep_timer = self._loop.call_later(
                min(SWEEP_INTERVAL_S, self._first_bytes_timeout_s), self._drop_overdue
            )
        if self._balancer is None:
            return True
        slot.on_released = self._balancer.on_closed
        return self._balancer.on_accepted()

    def _pause_accepting(self, seconds: float, then: Callable[[], None]) -> None:
        self._loop.remove_reader(self._sock)

        def resume() -> None:
            self._loop.add_reader(self._sock, self._on_readable)
            then()

        self._pause_timer = self._loop.call_later(seconds, resume)

    def _drop_overdue(self) -> None:
        now_s = self._loop.time()
        for waiting, deadline_s in list(self._waiting.items()):
            if deadline_s > now_s:
                break
            waiting.close()
        interval_s = min(SWEEP_INTERVAL_S, self._first_bytes_timeout_s)
        self._sweep_timer = self._loop.call_later(interval_s, self._drop_overdue) if self._waiting else None

    # --- first bytes and handshakes -----------------------------------------------------------------------------------

    def remove_waiting(self, waiting: _WaitingConnection) -> None:
        """Remove a connection that has sent its first bytes or is closed."""
        self._waiting.pop(waiting, None)

    def start_protocol(self, connection: socket.socket, slot: Slot, *, starts_tls: bool = True) -> None:
        """Start a task that negotiates TLS and creates the protocol.

        `starts_tls` says whether the first byte starts a TLS handshake.
        """
        if starts_tls or self._make_plaintext_protocol is None:
            negotiation = self._negotiate(connection, slot, self._make_protocol, self._tls)
        else:
            negotiation = self._negotiate(connection, slot, self._make_plaintext_protocol, None)
        task = self._loop.create_task(negotiation)
        slot.drop = task.cancel  # type: ignore[assignment]  # the returned bool is not needed
        self._starting_tasks.add(task)
        task.add_done_callback(partial(self._on_started, connection, slot))

    def _on_started(self, connection: socket.socket, slot: Slot, task: asyncio.Task[None]) -> None:
        """Close the connection if the task was cancelled before it ran, and so could not clean up itself."""
        self._starting_tasks.discard(task)
        if task.cancelled():
            connection.close()
            slot.release()

    async def _negotiate(
        self, connection: socket.socket, slot: Slot, make_protocol: MakeProtocol, tls: ssl.SSLContext | None
    ) -> None:
        is_started = False
        try:
            transport, _ = await self._loop.connect_accepted_socket(
                lambda: make_protocol(slot),
                connection,
                ssl=tls,
                ssl_handshake_timeout=self._tls_handshake_timeout_s if tls is not None else None,
            )
            is_started = True
            slot.drop = transport.abort
        except (OSError, asyncio.CancelledError):
            pass  # TLS failed or timed out, the client disconnected, or the connection was dropped
        finally:
            if not is_started:
                slot.release()


class _WaitingConnection:
    """A connection that has not sent a byte yet."""

    __slots__ = ("_acceptor", "_connection", "_loop", "_slot")

    def __init__(self, acceptor: Acceptor, connection: socket.socket, slot: Slot) -> None:
        self._acceptor = acceptor
        self._connection = connection
        self._slot = slot
        self._loop = asyncio.get_running_loop()
        slot.drop, slot.check_readable = self.close, self.check_readable
        self._loop.add_reader(connection, self.check_readable)

    def check_readable(self) -> bool:
        """Start the protocol if bytes have arrived, or close if the client has closed. Otherwise return False."""
        try:
            first = self._connection.recv(1, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            first = b""
        if not first:
            self.close()
            return True
        self._stop_watching()
        self._slot.busy()
        self._acceptor.start_protocol(self._connection, self._slot, starts_tls=first[0] == TLS_HANDSHAKE_RECORD)
        return True

    def close(self) -> None:
        self._stop_watching()
        self._connection.close()
        self._slot.release()

    def _stop_watching(self) -> None:
        self._loop.remove_reader(self._connection)
        self._acceptor.remove_waiting(self)
        self._slot.check_readable = None
