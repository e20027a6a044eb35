"""One AMQP connection of a factory, from its opening until it is lost.

Owns: the socket's handler, its sessions, and which link hears of what. A conversation that is lost is never mended: the
factory begins another one, and those who had links here attach anew there.
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

    from twinbus.amqp.composite import Composite
    from twinbus.amqp.events import Event
    from twinbus.amqp.performatives import Attach
    from twinbus.amqp.session import Session
    from twinbus.model.errors import ServiceBusError

MAX_LINKS_PER_SESSION: Final = 200
"""Azure allows 256."""
MAX_MESSAGE_BYTES: Final = 104_857_600
"""Azure's largest; what an entity takes, it says itself."""
_CONNECTION_LIMITS: Final = Limits(max_message_size=MAX_MESSAGE_BYTES, max_assembling_bytes=4 * MAX_MESSAGE_BYTES)
CLIENT_ID_PROPERTY: Final = "twinbus:client-id"
"""A property of the connection: under what a server of ours counts what we use."""
_PRODUCT_PROPERTIES: Final[dict[str, object]] = {"product": "twinbus", "version": __version__}


class AmqpConnection:
    """The handler of one connection."""

    def __init__(self, peer: aio.Peer) -> None:
        """The socket is there; `opened` tells when AMQP is, too."""
        loop = asyncio.get_running_loop()
        self.opened: asyncio.Future[None] = loop.create_future()
        self.lost: asyncio.Future[ServiceBusError] = loop.create_future()
        """Done when it is over, with the reason."""
        self.on_unauthorized: Callable[[], None] = do_nothing
        """Called when the namespace ends or refuses a link because a token is missing or no longer accepted."""
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
        """Connect and open; ConnectionFailed says why that did not work, Unauthorized that we are not wanted."""
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
                conversation = await aio.connect(cls, make, host=host, port=port, tls=tls, timeout_s=timeout_s)
                try:
                    await conversation.opened
                except BaseException:
                    conversation.abort()
                    raise
        except ConnectionLost as error:
            raise ConnectionFailed(f"{host}:{port} ended the connection at once: {error}") from error
        except TimeoutError:
            raise ConnectionFailed(f"{host}:{port} did not answer within {timeout_s:g} s") from None
        except (OSError, UnicodeError) as error:  # a host's name may be none
            raise ConnectionFailed(f"{host}:{port} cannot be reached: {error}") from error
        return conversation

    # --- links --------------------------------------------------------------------------------------------------------

    def attach_sender(
        self, name: str, *, target: Composite, source: Composite, properties: dict[str, object] | None = None
    ) -> SenderLink:
        """Ask for a link to send on."""
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
        """Ask for a link to receive on. `is_settled`: messages come without a lock, and are gone."""
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
        self._sessions = [one for one in self._sessions if not one.is_dropped]
        self._sessions.append(session)
        return session

    # --- the engine calls these ---------------------------------------------------------------------------------------

    def on_event(self, event: Event) -> None:
        """Hand an event to the link it is about. The hot ones come first."""
        if isinstance(event, SendsUpdated | CreditGranted):
            owner = event.link.context
            assert isinstance(owner, SenderLink)
            if isinstance(event, SendsUpdated):
                owner.on_sends_updated(event.deliveries, event.state)
            else:
                owner.on_credit_granted()
        elif isinstance(event, DeliveriesReceived | ReceiptsUpdated | Drained):
            receiving = event.link.context
            assert isinstance(receiving, ReceiverLink)
            if isinstance(event, DeliveriesReceived):
                receiving.on_deliveries_received(event.deliveries)
            elif isinstance(event, ReceiptsUpdated):
                receiving.on_receipts_updated(event.deliveries, event.state)
            else:
                receiving.on_drained()
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
            self._fail(Unauthorized(f"the namespace does not let us in: {event.reason}"))
        elif isinstance(event, ConnectionClosed):
            self._fail(error_from_peer(event.error))

    def _on_link_detached(self, link: SenderLink | ReceiverLink, event: LinkDetached) -> None:
        link.on_link_detached(event)
        if isinstance(link.failure, Unauthorized):
            self.on_unauthorized()

    def on_writable(self) -> None:
        """Links send as they are asked to: what the socket does not take waits in it, bounded by credit."""

    def _fail(self, error: ServiceBusError) -> None:
        if not self.lost.done():
            self.lost.set_result(error)
        if not self.opened.done():
            self.opened.set_exception(error)
            self.opened.exception()  # if nobody waits for it any more, it is no news

    # --- the end ------------------------------------------------------------------------------------------------------

    @property
    def silence_s(self) -> float:
        """For how long nothing was heard."""
        return asyncio.get_running_loop().time() - self._peer.connection.last_received

    @property
    def is_open(self) -> bool:
        """It can be used."""
        return not self.lost.done() and self.opened.done()

    async def close(self, grace_s: float = 5.0) -> None:
        """End in good order; cut off a peer that does not answer within `grace_s`."""
        self._peer.close()
        await asyncio.wait([self._peer.lost], timeout=grace_s)
        self.abort()

    def abort(self) -> None:
        """Cut it off."""
        self._peer.transport.abort()


@contextmanager
def _link_errors() -> Iterator[None]:
    """The connection is closing, or has all the links it can have."""
    try:
        yield
    except AmqpError as error:
        raise ConnectionFailed(f"no link could be attached: {error}") from error


def _make_connection(settings: Settings, now: float) -> Connection:
    return Connection.client(settings, Credentials.anonymous(), now=now)
