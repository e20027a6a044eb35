"""A small server on the AMQP engine that records what a client does.

It accepts every link and every message, and answers put-token with 202.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, TypeVar

from twinbus.amqp.aio import listen
from twinbus.amqp.connection import Connection
from twinbus.amqp.events import (
    AttachRequested,
    DeliveriesReceived,
    SaslInitReceived,
)
from twinbus.amqp.message import Message, Properties, Section, build, value
from twinbus.amqp.outcomes import ACCEPTED
from twinbus.amqp.receiver import Receiver
from twinbus.amqp.sender import Sender
from twinbus.amqp.settings import Limits, Settings
from twinbus.amqp.terminus import Source, Target
from twinbus.amqp.types import Int

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from twinbus.amqp.aio import Peer
    from twinbus.amqp.codec.performatives import Attach
    from twinbus.amqp.events import Event

    EventT = TypeVar("EventT", bound=Event)

CBS = "$cbs"


class RecordingServer:
    """Handler of one connection."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.events: list[Event] = []
        self.token_requests: list[Message] = []
        self.sent_to: dict[str, list[Message]] = {}

    def events_of(self, kind: type[EventT]) -> list[EventT]:
        return [event for event in self.events if isinstance(event, kind)]

    def on_writable(self) -> None:
        pass

    def on_event(self, event: Event) -> None:
        self.events.append(event)
        if isinstance(event, SaslInitReceived):
            self.peer.connection.send_sasl_outcome()
        elif isinstance(event, AttachRequested):
            event.link.accept()
            if isinstance(event.link, Receiver):
                event.link.keep_credit(100)
        elif isinstance(event, DeliveriesReceived):
            self.handle_attach(event)

    def handle_attach(self, event: DeliveriesReceived) -> None:
        assert event.link.remote_attach is not None
        address = address_of(event.link.remote_attach)
        event.link.settle(event.deliveries, ACCEPTED)
        for delivery in event.deliveries:
            message = Message(delivery.payload)
            if address == CBS:
                self.token_requests.append(message)
                self.answer(event.link, message)
            else:
                self.sent_to.setdefault(address, []).append(message)

    def answer(self, link: Receiver, request: Message) -> None:
        """Answer 202 on the link of the same session that receives from $cbs."""
        assert request.properties is not None
        response = build(
            properties=Properties(correlation_id=request.properties.message_id),
            application_properties={"status-code": Int(202), "status-description": "Accepted"},
            body=value(None),
        )
        for other in link.session.links.values():
            if isinstance(other, Sender) and other.remote_attach and address_of(other.remote_attach) == CBS:
                other.send(response, settled=True)


def address_of(attach: Attach) -> str:
    """Return the address of the server's node: the target of a sender, or the source of a receiver."""
    terminus = attach.source if attach.role else attach.target
    assert isinstance(terminus, Source | Target)
    return str(terminus.address)


def audience_of(request: Message) -> object:
    return request.lookup(Section.APPLICATION_PROPERTIES, "name")


@asynccontextmanager
async def run_recording_server() -> AsyncIterator[tuple[int, list[RecordingServer]]]:
    """Run a server; yield its port and a list with one record for each connection."""
    records: list[RecordingServer] = []

    def admit(peer: Peer) -> RecordingServer:
        records.append(RecordingServer(peer))
        return records[-1]

    # The SDK for Python sends before it has credit.
    settings = Settings(container_id="recording", limits=Limits(enforce_credit=False))
    listener = await listen(admit, lambda now: Connection.server(settings, now=now))
    try:
        yield listener.port, records
    finally:
        await listener.close()
