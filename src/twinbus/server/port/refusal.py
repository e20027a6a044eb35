"""Replies to clients that speak a protocol which a port does not serve.

The client can show each reply to its user: an HTTP error response, an AMQP close with an error, or a TLS alert. An
alert has no text, so for TLS only the server's log says which port is right.

Owns: refused connections until they are closed. Sends nothing but the reply, and processes no request.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, cast

from twinbus.amqp.codec.performatives import Error
from twinbus.amqp.errors import NOT_ALLOWED
from twinbus.amqp.events import ConnectionOpened, SaslInitReceived
from twinbus.server.http.error_responses import make_error_response, new_tracking_id

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinbus.amqp.aio import Peer
    from twinbus.amqp.events import Event
    from twinbus.amqp.listener import ConnectionSlot

LINGER_S: Final = 2.0
"""How long a refused client may take to read the reply and close its connection."""
MAX_DISCARDED_BYTES: Final = 65_536
"""How much input of a refused client is read and dropped. Closing with unread input would destroy the reply."""
TLS_ALERT: Final = bytes.fromhex("15 0301 0002 02 28")
"""A fatal alert, handshake_failure: the server has no parameters for TLS on this port."""
_HTTP_STATUS: Final = 400


def http_reply(text: str) -> bytes:
    """Return an HTTP response in the format of all error responses, which the SDKs' administration clients show."""
    response = make_error_response(_HTTP_STATUS, text, new_tracking_id())
    fields = b"".join(name + b": " + value + b"\r\n" for name, value in response.raw_headers)
    return b"HTTP/1.1 400 Bad Request\r\n" + fields + b"connection: close\r\n\r\n" + bytes(response.body)


class RefusedConnection(asyncio.Protocol):
    """A connection that gets one reply, and is then closed."""

    def __init__(self, reply: bytes, slot: ConnectionSlot | None, on_lost: Callable[[], None]) -> None:
        """Create a protocol that sends `reply` when it is connected, and calls `on_lost` when the socket is closed."""
        self._reply = reply
        self._slot = slot
        self._on_lost = on_lost
        self._discarded_bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the reply, and close the sending side."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's transport is not a subclass
        self._timer = asyncio.get_running_loop().call_later(LINGER_S, self._transport.abort)
        self._transport.write(self._reply)
        if self._transport.can_write_eof():
            self._transport.write_eof()

    def data_received(self, data: bytes) -> None:
        """Drop the data, up to a limit."""
        self._discarded_bytes += len(data)
        if self._discarded_bytes > MAX_DISCARDED_BYTES:
            self._transport.abort()

    def connection_lost(self, _error: Exception | None) -> None:
        """Release the slot and the timer."""
        if self._timer is not None:
            self._timer.cancel()
        if self._slot is not None:
            self._slot.release()
        self._on_lost()


class RefusedAmqpClient:
    """The handler of an AMQP connection that is closed as soon as it is open.

    AMQP has no place for a text before `open`, so SASL succeeds with every mechanism, without a check and without any
    right.
    """

    def __init__(self, text: str, peer: Peer) -> None:
        """Create a handler that closes the connection of `peer` with `text`."""
        self._text = text
        self._peer = peer

    def on_event(self, event: Event) -> None:
        """Finish SASL, and close the connection once it is open; all other events are ignored."""
        if isinstance(event, SaslInitReceived):
            self._peer.connection.send_sasl_outcome()
        elif isinstance(event, ConnectionOpened):
            self._peer.close(Error(condition=NOT_ALLOWED, description=self._text))
            asyncio.get_running_loop().call_later(LINGER_S, self._peer.transport.abort)

    def on_writable(self) -> None:
        """Do nothing: this handler sends no messages."""
