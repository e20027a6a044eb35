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
from twinbus.client.errors import ConnectionFailed, ConnectionLost, from_peer
from twinbus.client.lease import Leases
from twinbus.client.receiving_link import ReceivingLink
from twinbus.client.sending_link import SendingLink
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

LINKS_OF_A_SESSION: Final = 200
"""Azure allows 256."""
MAX_MESSAGE_BYTES: Final = 104_857_600
"""Azure's largest; what an entity takes, it says itself."""
_LIMITS: Final = Limits(max_message_size=MAX_MESSAGE_BYTES, max_assembling_bytes=4 * MAX_MESSAGE_BYTES)
CLIENT_ID: Final = "twinbus:client-id"
"""A property of the connection: under what a server of ours counts what we use."""
_PRODUCT: Final[dict[str, object]] = {"product": "twinbus", "version": __version__}


class Conversation:
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
    async def begin(
        cls,
        *,
        host: str,
        port: int,
        tls: ssl.SSLContext | None,
        client_id: str,
        idle_timeout_s: float,
        timeout_s: float,
    ) -> Conversation:
        """Connect and open; ConnectionFailed says why that did not work, Unauthorized that we are not wanted."""
        settings = Settings(
            container_id=client_id,
            hostname=host,
            properties={**_PRODUCT, CLIENT_ID: client_id},
            idle_timeout_ms=round(idle_timeout_s * 1000),
            limits=_LIMITS,
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
    ) -> SendingLink:
        """Ask for a link to send on."""
        with _link_errors():
            link = self._session().attach_sender(
                f"{name}-{uuid.uuid4()}", target=target, source=source, snd_settle_mode=0, properties=properties
            )
        return SendingLink(link)

    def attach_receiver(
        self,
        name: str,
        *,
        source: Composite,
        target: Composite,
        is_settled: bool = False,
        properties: dict[str, object] | None = None,
    ) -> ReceivingLink:
        """Ask for a link to receive on. `is_settled`: messages come without a lock, and are gone."""
        with _link_errors():
            link = self._session().attach_receiver(
                f"{name}-{uuid.uuid4()}",
                source=source,
                target=target,
                snd_settle_mode=1 if is_settled else 0,
                rcv_settle_mode=0 if is_settled else 1,
                properties=properties,
            )
        return ReceivingLink(link)

    def _session(self) -> Session:
        if self.lost.done():
            raise ConnectionLost(str(self.lost.result()))
        for session in self._sessions:
            if len(session.links) < LINKS_OF_A_SESSION and not session.is_dropped:
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
            assert isinstance(owner, SendingLink)
            if isinstance(event, SendsUpdated):
                owner.updated(event.deliveries, event.state)
            else:
                owner.credited()
        elif isinstance(event, DeliveriesReceived | ReceiptsUpdated | Drained):
            receiving = event.link.context
            assert isinstance(receiving, ReceivingLink)
            if isinstance(event, DeliveriesReceived):
                receiving.received(event.deliveries)
            elif isinstance(event, ReceiptsUpdated):
                receiving.updated(event.deliveries, event.state)
            else:
                receiving.drained()
        elif isinstance(event, AttachConfirmed | LinkDetached):
            link = event.link.context
            if isinstance(link, SendingLink | ReceivingLink):
                if isinstance(event, AttachConfirmed):
                    self._confirmed(link, event.attach)
                else:
                    self._detached(link, event)
        else:
            self._on_state(event)

    def _confirmed(self, link: SendingLink | ReceivingLink, attach: Attach) -> None:
        if isinstance(link, ReceivingLink) and link.failure is None:
            link.lease = self._leases.grant(attach.properties, link.asked_s)
        link.confirmed(attach)

    def _on_state(self, event: Event) -> None:
        if isinstance(event, ConnectionOpened) and not self.opened.done():
            self.opened.set_result(None)
        elif isinstance(event, SaslFailed):
            self._end(Unauthorized(f"the namespace does not let us in: {event.reason}"))
        elif isinstance(event, ConnectionClosed):
            self._end(from_peer(event.error))

    def _detached(self, link: SendingLink | ReceivingLink, event: LinkDetached) -> None:
        link.detached(event)
        if isinstance(link.failure, Unauthorized):
            self.on_unauthorized()

    def on_writable(self) -> None:
        """Links send as they are asked to: what the socket does not take waits in it, bounded by credit."""

    def _end(self, error: ServiceBusError) -> None:
        if not self.lost.done():
            self.lost.set_result(error)
        if not self.opened.done():
            self.opened.set_exception(error)
            self.opened.exception()  # if nobody waits for it any more, it is no news

    # --- the end ------------------------------------------------------------------------------------------------------

    @property
    def silent_s(self) -> float:
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
