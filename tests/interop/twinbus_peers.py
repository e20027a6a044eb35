"""Twinbus peers of the interoperability tests: handlers on the AMQP engine, as a server and as a client.

A `RecordingHandler` records every event of its connection, so that a test can wait for events and count them.
`EchoServer` delivers messages sent to an address to the receiver of that address.
"""

from __future__ import annotations

import asyncio
import collections
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Self, TypeVar

from twinbus.amqp.aio import connect, listen
from twinbus.amqp.connection import Connection
from twinbus.amqp.events import (
    AttachRequested,
    ConnectionClosed,
    ConnectionOpened,
    CreditGranted,
    DeliveriesReceived,
    SaslFailed,
    SaslInitReceived,
    SendsUpdated,
)
from twinbus.amqp.message import Message, value
from twinbus.amqp.outcomes import ACCEPTED
from twinbus.amqp.receiver import Receiver
from twinbus.amqp.sasl import PLAIN, Credentials, SaslCode, read_plain
from twinbus.amqp.sender import Sender
from twinbus.amqp.settings import Limits, Settings
from twinbus.amqp.terminus import Source, Target

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator, Callable, Sequence

    from twinbus.amqp.aio import Peer
    from twinbus.amqp.events import Event
    from twinbus.amqp.listener import Listener

    EventT = TypeVar("EventT", bound=Event)
    ProgramT = TypeVar("ProgramT", bound="RecordingHandler")

TIMEOUT_S = 10
WINDOW = 500
USER, PASSWORD = "alice", "wonderland"
LIMITS = Limits(max_message_size=8_388_608, max_string_bytes=8_388_608)
SETTINGS = Settings(container_id="ours", limits=LIMITS)


class RecordingHandler:
    """Handler of one connection that records its events and lets a test wait for them."""

    peer: Peer

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._changed = asyncio.Event()

    def use_connection(self, peer: Peer) -> Self:
        """Become the handler of a connection."""
        self.peer = peer
        return self

    def on_event(self, event: Event) -> None:
        self.events.append(event)
        self.handle_event(event)
        self._changed.set()

    def on_writable(self) -> None:
        pass

    def handle_event(self, event: Event) -> None:
        """Handle an event. This base class only answers SASL."""
        if isinstance(event, SaslInitReceived):
            self.peer.connection.send_sasl_outcome(self.check_credentials(event))

    def check_credentials(self, init: SaslInitReceived) -> SaslCode:
        if init.mechanism == PLAIN and read_plain(init.initial_response) != (USER, PASSWORD):
            return SaslCode.AUTH
        return SaslCode.OK

    def events_of(self, kind: type[EventT]) -> list[EventT]:
        return [event for event in self.events if isinstance(event, kind)]

    async def wait_until(self, condition: Callable[[], object], *, timeout_s: float = TIMEOUT_S) -> None:
        async with asyncio.timeout(timeout_s):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    async def wait_until_closed(self) -> None:
        """Wait until the socket is closed."""
        async with asyncio.timeout(TIMEOUT_S):
            await asyncio.shield(self.peer.lost)

    async def wait_for_event(self, kind: type[EventT]) -> EventT:
        await self.wait_until(lambda: self.events_of(kind))
        return self.events_of(kind)[0]


class EchoServer(RecordingHandler):
    """Accepts messages sent to an address and sends them to the receiver of that address, on one connection."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: dict[object, collections.deque[bytes]] = collections.defaultdict(collections.deque)
        self.senders: dict[object, Sender] = {}

    def handle_event(self, event: Event) -> None:
        if isinstance(event, DeliveriesReceived):
            self.store_messages(event)
        elif isinstance(event, CreditGranted):
            self.pump(event.link)
        elif isinstance(event, SendsUpdated):
            for link in {delivery.link for delivery in event.deliveries}:
                self.pump(link)
        elif isinstance(event, AttachRequested):
            self.accept_link(event)
        else:
            super().handle_event(event)

    def accept_link(self, event: AttachRequested) -> None:
        link = event.link
        link.accept()
        if isinstance(link, Receiver):
            assert isinstance(event.attach.target, Target)
            link.context = event.attach.target.address
            link.keep_credit(WINDOW)
        elif isinstance(link, Sender):
            assert isinstance(event.attach.source, Source)
            link.context = event.attach.source.address
            self.senders[link.context] = link

    def store_messages(self, event: DeliveriesReceived) -> None:
        address = event.link.context
        self.waiting[address].extend(delivery.payload for delivery in event.deliveries)
        event.link.settle(event.deliveries, ACCEPTED)
        if address in self.senders:
            self.pump(self.senders[address])

    def pump(self, link: Sender) -> None:
        waiting = self.waiting[link.context]
        for _ in range(min(link.sendable, len(waiting))):
            link.send(waiting.popleft())
        if link.drain_requested:
            link.drained()


class EchoClient(RecordingHandler):
    """Sends bodies to an address and receives from it, as a client."""

    def __init__(self, bodies: Sequence[str]) -> None:
        super().__init__()
        self.unsent = collections.deque(bodies)
        self.accepted = 0
        self.received: list[str] = []

    def start(self, address: str = "echo") -> None:
        session = self.peer.connection.begin_session()
        session.attach_sender(f"to {address}", target=Target(address=address))
        receiver = session.attach_receiver(f"from {address}", source=Source(address=address))
        receiver.keep_credit(WINDOW)

    def handle_event(self, event: Event) -> None:
        if isinstance(event, DeliveriesReceived):
            self.received += [body_of(delivery.payload) for delivery in event.deliveries]
            event.link.settle(event.deliveries, ACCEPTED)
        elif isinstance(event, CreditGranted):
            self.pump(event.link)
        elif isinstance(event, SendsUpdated) and event.state == ACCEPTED and event.settled:
            self.accepted += len(event.deliveries)
            self.pump(event.link)

    def pump(self, link: Sender) -> None:
        for _ in range(min(link.sendable, len(self.unsent))):
            link.send(payload_of(self.unsent.popleft()))


class Server:
    """A listener with one handler for each connection; `accepted` returns them in order of arrival."""

    def __init__(self, listener: Listener, arrivals: asyncio.Queue[RecordingHandler]) -> None:
        self.listener = listener
        self.port = listener.port
        self._arrivals = arrivals

    async def accepted(self) -> RecordingHandler:
        async with asyncio.timeout(TIMEOUT_S):
            return await self._arrivals.get()


@asynccontextmanager
async def serving(
    make_program: Callable[[], RecordingHandler], *, settings: Settings = SETTINGS, tls: ssl.SSLContext | None = None
) -> AsyncIterator[Server]:
    arrivals: asyncio.Queue[RecordingHandler] = asyncio.Queue()

    def admit(peer: Peer) -> RecordingHandler:
        handler = make_program().use_connection(peer)
        arrivals.put_nowait(handler)
        return handler

    listener = await listen(admit, lambda now: Connection.server(settings, now=now), tls=tls)
    try:
        yield Server(listener, arrivals)
    finally:
        await listener.close()


@asynccontextmanager
async def connected(
    handler: ProgramT,
    port: int,
    *,
    credentials: Credentials | None = None,
    settings: Settings = SETTINGS,
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[ProgramT]:
    """Connect a client, and close it at the end; raise PermissionError if authentication fails."""
    sasl_credentials = credentials if credentials is not None else Credentials.anonymous()
    host = "localhost" if tls is not None else "127.0.0.1"
    await connect(
        handler.use_connection,
        lambda now: Connection.client(settings, sasl_credentials, now=now),
        host=host,
        port=port,
        tls=tls,
    )
    try:
        await handler.wait_until(lambda: handler.events_of(ConnectionOpened) or handler.events_of(SaslFailed))
        if handler.events_of(SaslFailed):
            raise PermissionError(handler.events_of(SaslFailed)[0].reason)
        yield handler
        handler.peer.close()
        await handler.wait_for_event(ConnectionClosed)
    finally:
        handler.peer.transport.abort()
        await handler.wait_until_closed()


def payload_of(body: str) -> bytes:
    return value(body)


def body_of(payload: bytes) -> str:
    body = Message(payload, LIMITS).value
    assert isinstance(body, str)
    return body
