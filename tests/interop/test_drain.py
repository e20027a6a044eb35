"""Drain: the receiver gets the available messages, and both ends agree that the remaining credit is consumed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from proton import Message

from tests.interop.proton_peers import ProtonClient, ProtonEvent, ProtonServer, run, running
from tests.interop.twinbus_peers import EchoServer, RecordingHandler, body_of, connected, payload_of, serving
from twinbus.amqp.events import DeliveriesReceived, Drained
from twinbus.amqp.terminus import Source

if TYPE_CHECKING:
    from proton import Connection
    from proton.reactor import Container

    from twinbus.amqp.events import Event

WAITING = ["one", "two", "three"]
CREDIT = 10


class StockedServer(EchoServer):
    """Has three messages from the start."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting["q"].extend(payload_of(body) for body in WAITING)


class ProtonDrainingClient(ProtonClient):
    """Drains, then grants credit for one more message, and sends that message itself."""

    def __init__(self, port: int) -> None:
        super().__init__(port)
        self.received: list[str] = []
        self.drained_credit: list[int] = []

    def open_links(self, container: Container, connection: Connection) -> None:
        self.receiver = container.create_receiver(connection, "q")
        self.receiver.drain(CREDIT)
        self.container = container

    def on_link_flow(self, event: ProtonEvent) -> None:
        if event.link == self.receiver and not event.receiver.draining() and not self.drained_credit:
            self.drained_credit.append(event.receiver.drained())
            event.receiver.drain_mode = False
            event.receiver.flow(1)
            self.container.create_sender(event.connection, "q").send(Message(body="late"))

    def on_message(self, event: ProtonEvent) -> None:
        self.received.append(event.message.body)
        if event.message.body == "late":
            event.connection.close()


async def test_a_proton_client_drains_our_server() -> None:
    async with serving(StockedServer) as server:
        client = ProtonDrainingClient(server.port)
        await run(client)
    assert client.failures == []
    assert client.received == [*WAITING, "late"]
    assert client.drained_credit == [CREDIT - len(WAITING)]


class ProtonStockedServer(ProtonServer):
    """Has three messages from the start, and one more after a drain."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting = list(WAITING)
        self.drained_credit: list[int] = []

    def on_sendable(self, event: ProtonEvent) -> None:
        while self.waiting and event.sender.credit:
            event.sender.send(Message(body=self.waiting.pop(0)))
        if event.sender.drain_mode:
            self.drained_credit.append(event.sender.drained())
            self.waiting.append("late")


class DrainingClient(RecordingHandler):
    """Drains, then grants credit for one more message."""

    def drain(self) -> None:
        receiver = self.peer.connection.begin_session().attach_receiver("drain", source=Source(address="q"))
        receiver.grant(CREDIT, drain=True)

    def handle_event(self, event: Event) -> None:
        if isinstance(event, Drained):
            assert event.link.credit == 0
            event.link.grant(1)

    @property
    def received(self) -> list[str]:
        return [
            body_of(delivery.payload) for event in self.events_of(DeliveriesReceived) for delivery in event.deliveries
        ]


async def test_our_client_drains_a_proton_server() -> None:
    server = ProtonStockedServer()
    async with running(server) as port, connected(DrainingClient(), port) as client:
        client.drain()
        await client.wait_until(lambda: "late" in client.received)
    assert server.failures == []
    assert server.drained_credit == [CREDIT - len(WAITING)]
    assert client.received == [*WAITING, "late"]
    assert len(client.events_of(Drained)) == 1
