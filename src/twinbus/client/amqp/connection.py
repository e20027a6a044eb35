"""A factory's AMQP connection, from connecting until the connection is lost.

Owns the handler of the socket, the AMQP sessions, and the dispatch of events to links. A lost connection is not
repaired. Instead, the factory opens a new connection, and senders and receivers attach their links to the new one.
"""

from __future__ import annotations

import asyncio
import uuid
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Final

from twinbus import __version__
from twinbus.amqp import aio
from twinbus.amqp.connection import Connection
from twinbus.amqp.errors import AmqpError
from twinbus.amqp.events import (
    AttachConfirmed,
    ConnectionClosed,
    ConnectionOpened,
    CreditGranted,
    DeliveriesReceived,
    Drained,
    LinkDetached,
    ReceiptsUpdated,
    SaslFailed,
    SendsUpdated,
)
from twinbus.amqp.sasl import Credentials
from twinbus.amqp.settings import Limits, Settings
from twinbus.client.amqp.lease import Leases
from twinbus.client.amqp.receiver_link import ReceiverLink
from twinbus.client.amqp.sender_link import SenderLink
from twinbus.client.errors import ConnectionFailed, ConnectionLost, error_from_peer
from twinbus.model.callbacks import do_nothing
from twinbus.model.errors import Unauthorized

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Iterator

    from twinbus.amqp.codec.composite import Composite
    from twinbus.amqp.codec.performatives import Attach
    from twinbus.amqp.events import Event
    from twinbus.amqp.session import Session
    from twinbus.model.errors import ServiceBusError

MAX_LINKS_PER_SESSION: Final = 200
"""Maximum number of links per AMQP session (Azure allows 256)."""
MAX_MESSAGE_BYTES: Final = 104_857_600
"""The largest message size that Azure offers for an entity. Each entity announces its own limit in its attach."""
_CONNECTION_LIMITS: Final = Limits(max_message_size=MAX_MESSAGE_BYTES, max_assembling_bytes=4 * MAX_MESSAGE_BYTES)
CLIENT_ID_PROPERTY: Final = "twinbus:client-id"
"""Connection property that carries the client id. A twinbus server meters usage per client id."""
_PRODUCT_PROPERTIES: Final[dict[str, object]] = {"product": "twinbus", "version": __version__}


class AmqpConnection:
    """Handler of one AMQP connection."""

    def __init__(self, peer: aio.Peer) -> None:
        """Create the handler of a connected socket. `opened` completes, or fails, with the AMQP handshake."""
        loop = asyncio.get_running_loop()
        self.opened: asyncio.Future[None] = loop.create_future()
        self.lost: asyncio.Future[ServiceBusError] = loop.create_future()
        """Done when the connection is lost; the result is the reason."""
        self.on_unauthorized: Callable[[], None] = do_nothing
        """Called when the namespace detaches or refuses a link because a token is missing or no longer accepted."""
        self._peer = peer
        self._leases = Leases(peer.connection)
        self._sessions: list[Session] = []

    @classmethod
    async def connect(
        cls,
        *,
        host: str,
        port: int,
        tls: ssl.SSLContext | None,
        client_id: str,
        idle_timeout_s: float,
        timeout_s: float,
    ) -> AmqpConnection:
        """Connect and wait until the AMQP connection is open. Raise ConnectionFailed or Unauthorized if that fails."""
        settings = Settings(
            container_id=client_id,
            hostname=host,
            properties={**_PRODUCT_PROPERTIES, CLIENT_ID_PROPERTY: client_id},
            idle_timeout_ms=round(idle_timeout_s * 1000),
            limits=_CONNECTION_LIMITS,
        )
        make = partial(_make_connection, settings)
        try:
            async with asyncio.timeout(timeout_s):
                connection = await aio.connect(cls, make, host=host, port=port, tls=tls, timeout_s=timeout_s)
                try:
                    await connection.opened
                except BaseException:
                    connection.abort()
                    raise
        except ConnectionLost as error:
            raise ConnectionFailed(f"{host}:{port} closed the connection during the handshake: {error}") from error
        except TimeoutError:
            raise ConnectionFailed(f"{host}:{port} did not answer within {timeout_s:g} s") from None
        except (OSError, UnicodeError) as error:  # UnicodeError: invalid host name
            raise ConnectionFailed(f"{host}:{port} cannot be reached: {error}") from error
        return connection

    # --- links --------------------------------------------------------------------------------------------------------

    def attach_sender(
        self, name: str, *, target: Composite, source: Composite, properties: dict[str, object] | None = None
    ) -> SenderLink:
        """Start attaching a sender link. The link's `attached` future completes with the namespace's response."""
        with _link_errors():
            link = self._session_with_room().attach_sender(
                f"{name}-{uuid.uuid4()}", target=target, source=source, snd_settle_mode=0, properties=properties
            )
        return SenderLink(link)

    def attach_receiver(
        self,
        name: str,
        *,
        source: Composite,
        target: Composite,
        is_presettled: bool = False,
        properties: dict[str, object] | None = None,
    ) -> ReceiverLink:
        """Start attaching a receiver link. With `is_presettled`, the server deletes messages as it sends them."""
        with _link_errors():
            link = self._session_with_room().attach_receiver(
                f"{name}-{uuid.uuid4()}",
                source=source,
                target=target,
                snd_settle_mode=1 if is_presettled else 0,
                rcv_settle_mode=0 if is_presettled else 1,
                properties=properties,
            )
        return ReceiverLink(link)

    def _session_with_room(self) -> Session:
        if self.lost.done():
            raise ConnectionLost(str(self.lost.result()))
        for session in self._sessions:
            if len(session.links) < MAX_LINKS_PER_SESSION and not session.is_dropped:
                return session
        session = self._peer.connection.begin_session()
        self._sessions = [kept for kept in self._sessions if not kept.is_dropped]
        self._sessions.append(session)
        return session

    # --- callbacks of the AMQP engine ---------------------------------------------------------------------------------

    def on_event(self, event: Event) -> None:
        """Dispatch an event to its link. Frequent events are checked first."""
        if isinstance(event, SendsUpdated | CreditGranted):
            sender_link = event.link.context
            assert isinstance(sender_link, SenderLink)
            if isinstance(event, SendsUpdated):
                sender_link.on_sends_updated(event.deliveries, event.state)
            else:
                sender_link.on_credit_granted()
        elif isinstance(event, DeliveriesReceived | ReceiptsUpdated | Drained):
            receiver_link = event.link.context
            assert isinstance(receiver_link, ReceiverLink)
            if isinstance(event, DeliveriesReceived):
                receiver_link.on_deliveries_received(event.deliveries)
            elif isinstance(event, ReceiptsUpdated):
                receiver_link.on_receipts_updated(event.deliveries, event.state)
            else:
                receiver_link.on_drained()
        elif isinstance(event, AttachConfirmed | LinkDetached):
            link = event.link.context
            if isinstance(link, SenderLink | ReceiverLink):
                if isinstance(event, AttachConfirmed):
                    self._on_attach_confirmed(link, event.attach)
                else:
                    self._on_link_detached(link, event)
        else:
            self._on_connection_event(event)

    def _on_attach_confirmed(self, link: SenderLink | ReceiverLink, attach: Attach) -> None:
        if isinstance(link, ReceiverLink) and link.failure is None:
            link.lease = self._leases.grant(attach.properties, link.requested_s)
        link.on_attach_confirmed(attach)

    def _on_connection_event(self, event: Event) -> None:
        if isinstance(event, ConnectionOpened) and not self.opened.done():
            self.opened.set_result(None)
        elif isinstance(event, SaslFailed):
            self._fail(Unauthorized(f"the namespace refused the SASL handshake: {event.reason}"))
        elif isinstance(event, ConnectionClosed):
            self._fail(error_from_peer(event.error))

    def _on_link_detached(self, link: SenderLink | ReceiverLink, event: LinkDetached) -> None:
        link.on_link_detached(event)
        if isinstance(link.failure, Unauthorized):
            self.on_unauthorized()

    def on_writable(self) -> None:
        """Do nothing, because links never wait for the socket. Credit bounds the bytes that the transport buffers."""

    def _fail(self, error: ServiceBusError) -> None:
        if not self.lost.done():
            self.lost.set_result(error)
        if not self.opened.done():
            self.opened.set_exception(error)
            self.opened.exception()  # asyncio logs an exception that nobody retrieves

    # --- state and closing --------------------------------------------------------------------------------------------

    @property
    def silence_s(self) -> float:
        """Seconds since the last data from the peer."""
        return asyncio.get_running_loop().time() - self._peer.connection.last_received

    @property
    def is_open(self) -> bool:
        """Whether the connection can be used."""
        return not self.lost.done() and self.opened.done()

    async def close(self, grace_s: float = 5.0) -> None:
        """Close the connection; abort it if the peer does not respond within `grace_s`."""
        self._peer.close()
        await asyncio.wait([self._peer.lost], timeout=grace_s)
        self.abort()

    def abort(self) -> None:
        """Close the socket at once."""
        self._peer.transport.abort()


@contextmanager
def _link_errors() -> Iterator[None]:
    """Raise ConnectionFailed if the engine refuses a link because the connection is closing or has too many links."""
    try:
        yield
    except AmqpError as error:
        raise ConnectionFailed(f"the link could not be attached: {error}") from error


def _make_connection(settings: Settings, now: float) -> Connection:
    return Connection.client(settings, Credentials.anonymous(), now=now)
