"""A thousand links on one connection: half of them senders, half receivers, on 500 addresses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from proton import Message

from tests.interop.proton_peers import ProtonClient, ProtonEchoServer, ProtonEvent, run, running
from tests.interop.twinbus_peers import EchoServer, RecordingHandler, body_of, connected, payload_of, serving
from twinbus.amqp.events import (
    AttachConfirmed,
    AttachRequested,
    ConnectionClosed,
    CreditGranted,
    DeliveriesReceived,
    LinkDetached,
)
from twinbus.amqp.outcomes import ACCEPTED
from twinbus.amqp.terminus import Source, Target

if TYPE_CHECKING:
    from proton import Connection
    from proton.reactor import Container

    from twinbus.amqp.events import Event

LINKS = 1000
ADDRESSES = [f"address {number}" for number in range(LINKS // 2)]


class ProtonManyLinksClient(ProtonClient):
    """Sends each address its own name as a message, and records which body each address delivers."""

    def __init__(self, port: int) -> None:
        super().__init__(port, prefetch=1)
        self.received: dict[str, str] = {}
        self.accepted = 0

    def open_links(self, container: Container, connection: Connection) -> None:
        for address in ADDRESSES:
            container.create_sender(connection, address).send(Message(body=address))
            container.create_receiver(connection, address)

    def on_accepted(self, event: ProtonEvent) -> None:
        self.accepted += 1
        self.close_when_done(event)

    def on_message(self, event: ProtonEvent) -> None:
        self.received[event.link.source.address] = event.message.body
        self.close_when_done(event)

    def close_when_done(self, event: ProtonEvent) -> None:
        if self.accepted == len(self.received) == len(ADDRESSES):
            event.connection.close()


async def test_a_proton_client_uses_a_thousand_links_to_our_server() -> None:
    async with serving(EchoServer) as server:
        client = ProtonManyLinksClient(server.port)
        await run(client)
        handler = await server.accepted()
        await handler.wait_for_event(ConnectionClosed)
    assert client.failures == []
    assert client.received == {address: address for address in ADDRESSES}
    assert len(handler.events_of(AttachRequested)) == LINKS
    assert detached_link_count(handler) == LINKS


class ManyLinksClient(RecordingHandler):
    """Sends each address its own name as a message, and records which body each address delivers."""

    def __init__(self) -> None:
        super().__init__()
        self.received: dict[object, str] = {}

    def open_links(self) -> None:
        session = self.peer.connection.begin_session()
        for address in ADDRESSES:
            session.attach_sender(address, target=Target(address=address)).context = address
            receiver = session.attach_receiver(address, source=Source(address=address))
            receiver.context = address
            receiver.grant(1)

    def handle_event(self, event: Event) -> None:
        if isinstance(event, CreditGranted) and not event.link.delivery_count:
            event.link.send(payload_of(str(event.link.context)))
        elif isinstance(event, DeliveriesReceived):
            self.received[event.link.context] = body_of(event.deliveries[0].payload)
            event.link.settle(event.deliveries, ACCEPTED)


async def test_our_client_uses_a_thousand_links_to_a_proton_server() -> None:
    server = ProtonEchoServer(window=1)
    async with running(server) as port, connected(ManyLinksClient(), port) as client:
        client.open_links()
        await client.wait_until(lambda: len(client.received) == len(ADDRESSES))
    assert server.failures == []
    assert client.received == {address: address for address in ADDRESSES}
    assert len(client.events_of(AttachConfirmed)) == LINKS
    assert detached_link_count(client) == LINKS


def detached_link_count(handler: RecordingHandler) -> int:
    """Return the number of detached links, and assert that each was reported once."""
    detached = [event.link for event in handler.events_of(LinkDetached)]
    assert len(detached) == len(set(detached))
    return len(detached)
