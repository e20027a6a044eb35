"""A low-level AMQP client on twinbus's own engine, for requests that client libraries do not permit.

    async with connect_raw(server) as client:
        link = await client.attach_sender(queue)
        assert await client.send(link, b"no message") == "amqp:decode-error"

Methods return the condition of the error, or None if the operation succeeded.
"""

from __future__ import annotations

import asyncio
import itertools
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from tests.interop.twinbus_peers import RecordingHandler
from twinbus.amqp.aio import connect
from twinbus.amqp.connection import Connection
from twinbus.amqp.events import (
    AttachConfirmed,
    ConnectionClosed,
    ConnectionOpened,
    DeliveriesReceived,
    Drained,
    LinkDetached,
    ReceiptsUpdated,
    SaslFailed,
    SendsUpdated,
)
from twinbus.amqp.message import Message, Properties, build, value
from twinbus.amqp.outcomes import Rejected
from twinbus.amqp.sasl import Credentials
from twinbus.amqp.settings import Limits, Settings
from twinbus.amqp.states import ReceiverSettleMode, SenderSettleMode
from twinbus.amqp.terminus import Source, Target

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from tests.support.server_process import ServerProcess
    from twinbus.amqp.codec.composite import Composite
    from twinbus.amqp.codec.performatives import Error
    from twinbus.amqp.delivery import IncomingDelivery
    from twinbus.amqp.events import Event
    from twinbus.amqp.link import Link
    from twinbus.amqp.receiver import Receiver
    from twinbus.amqp.sender import Sender
    from twinbus.amqp.session import Session

SETTINGS = Settings(container_id="raw", limits=Limits(max_message_size=8_388_608))


class LinkRefused(Exception):
    """The server refused a link; the message is the error condition."""

    def __init__(self, error: Error | None) -> None:
        super().__init__(condition_of(error))
        self.text = str(error.description) if error is not None else ""
        """Error description."""


class RawClient(RecordingHandler):
    """A connection with one session."""

    session: Session

    def __init__(self) -> None:
        super().__init__()
        self._names = itertools.count(1)

    # --- links -------------------------------------------------------------------------------------------------------

    async def attach_sender(
        self, address: object, *, target: Composite | None = None, properties: dict[str, object] | None = None
    ) -> Sender:
        link = self.session.attach_sender(
            f"sender {next(self._names)}",
            target=target or Target(address=address),
            source=Source(address="here"),
            properties=properties,
        )
        await self._wait_for_attach(link)
        return link

    async def attach_receiver(
        self,
        address: object,
        *,
        source: Composite | None = None,
        target: str = "here",
        settled: bool = False,
        properties: dict[str, object] | None = None,
    ) -> Receiver:
        link = self.session.attach_receiver(
            f"receiver {next(self._names)}",
            source=source or Source(address=address),
            target=Target(address=target),
            snd_settle_mode=SenderSettleMode.SETTLED if settled else SenderSettleMode.UNSETTLED,
            rcv_settle_mode=ReceiverSettleMode.FIRST if settled else ReceiverSettleMode.SECOND,
            properties=properties,
        )
        await self._wait_for_attach(link)
        return link

    async def _wait_for_attach(self, link: Link) -> None:
        await self.wait_until(lambda: any(event.link is link for event in self.events_of(AttachConfirmed)))
        attach = next(event.attach for event in self.events_of(AttachConfirmed) if event.link is link)
        if attach.source is None and attach.target is None:
            raise LinkRefused(await self._detach_error(link))

    async def detach_condition(self, link: Link) -> str | None:
        """Wait until the server detaches a link, and return the error condition."""
        return condition_of(await self._detach_error(link))

    async def _detach_error(self, link: Link) -> Error | None:
        await self.wait_until(lambda: any(event.link is link for event in self.events_of(LinkDetached)))
        return next(event.error for event in self.events_of(LinkDetached) if event.link is link)

    async def detach(self, link: Link) -> None:
        """Detach a link, and wait for the server's detach."""
        link.detach()
        await self.detach_condition(link)

    # --- messages ----------------------------------------------------------------------------------------------------

    async def send(
        self, link: Sender, payload: bytes, *, message_format: int = 0, state: Composite | None = None
    ) -> str | None:
        outcome = await self.send_for_state(link, payload, message_format=message_format, state=state)
        return condition_of(outcome.error) if isinstance(outcome, Rejected) else None

    async def send_for_state(
        self, link: Sender, payload: bytes, *, message_format: int = 0, state: Composite | None = None
    ) -> Any:  # noqa: ANN401  # any delivery state
        """Send a message, and return the delivery state of the first disposition."""
        delivery = link.send(payload, message_format=message_format, state=state)

        def updates() -> list[SendsUpdated]:
            return [event for event in self.events_of(SendsUpdated) if delivery in event.deliveries]

        await self.wait_until(updates)
        return updates()[0].state

    async def receive(self, link: Receiver, count: int = 1) -> list[IncomingDelivery]:
        """Grant credit for `count` messages, and return them."""
        before = len(self.received(link))
        link.grant(count)
        await self.wait_until(lambda: len(self.received(link)) >= before + count)
        return self.received(link)[before:]

    async def receive_all(self, link: Receiver, count: int) -> list[IncomingDelivery]:
        """Receive `count` messages, drain the link, and return all of them."""
        return await self.receive(link, count) + await self.drain(link)

    async def drain(self, link: Receiver, credit: int = 1_000) -> list[IncomingDelivery]:
        """Drain a link, and return the messages received; the server answers a drain within a tenth of a second."""
        before, drains = len(self.received(link)), self._drains(link)
        link.grant(credit, drain=True)
        await self.wait_until(lambda: self._drains(link) > drains)
        return self.received(link)[before:]

    def _drains(self, link: Receiver) -> int:
        return len([event for event in self.events_of(Drained) if event.link is link])

    def received(self, link: Receiver) -> list[IncomingDelivery]:
        return [
            delivery
            for event in self.events_of(DeliveriesReceived)
            if event.link is link
            for delivery in event.deliveries
        ]

    async def settle(self, link: Receiver, delivery: IncomingDelivery, state: Composite) -> str | None:
        """Settle a delivery, wait for the server's disposition, and return its error condition."""
        link.settle([delivery], state, settled=False)

        def updates() -> list[ReceiptsUpdated]:
            return [event for event in self.events_of(ReceiptsUpdated) if delivery in event.deliveries]

        await self.wait_until(updates)
        outcome = updates()[0].state
        return condition_of(outcome.error) if isinstance(outcome, Rejected) and outcome.error is not None else None

    # --- requests ----------------------------------------------------------------------------------------------------

    async def request_status(self, node: str, properties: Mapping[str, object], body: object) -> dict[str, Any]:
        """Send a request, and return the application properties of the response."""
        response = await self.request(node, properties, body)
        assert isinstance(response.application_properties, dict)
        return {str(name): value for name, value in response.application_properties.items()}

    async def request(
        self, node: str, properties: Mapping[str, object], body: object, *, state: Composite | None = None
    ) -> Message:
        """Send a request on a new pair of links, and return the response."""
        responses = await self.attach_receiver(node, target="answers")
        responses.grant(10)
        requests = await self.attach_sender(node)
        request = Properties(message_id=f"request {next(self._names)}", reply_to="answers")
        payload = build(properties=request, application_properties=properties, body=value(body))
        assert await self.send(requests, payload, state=state) is None
        await self.wait_until(lambda: self.received(responses))
        response = Message(self.received(responses)[0].payload)
        assert response.properties is not None
        assert response.properties.correlation_id == request.message_id
        responses.detach()
        requests.detach()
        return response

    # --- end of connection -------------------------------------------------------------------------------------------

    async def close_condition(self) -> str | None:
        """Wait until the server closes the connection, and return the error condition."""
        event = await self.wait_for_event(ConnectionClosed)
        return condition_of(event.error)

    def handle_event(self, event: Event) -> None:
        """Do nothing: tests look at the recorded events."""


def condition_of(error: Error | None) -> str | None:
    assert error is None or error.description, "every error must have a description"
    return str(error.condition) if error is not None else None


@asynccontextmanager
async def connect_raw(
    server: ServerProcess, credentials: Credentials | None = None, *, sasl: bool = True
) -> AsyncIterator[RawClient]:
    """Open a connection (default credentials: the server's key), and close it at the end."""
    client = RawClient()
    used_credentials = (credentials or Credentials.plain(server.key_name, server.key)) if sasl else None
    await connect(
        client.use_connection,
        lambda now: Connection.client(SETTINGS, used_credentials, now=now),
        host=server.host,
        port=server.amqp_port,
    )
    try:
        await client.wait_until(lambda: client.events_of(ConnectionOpened) or client.events_of(SaslFailed))
        assert not client.events_of(SaslFailed), "it was not let in"
        client.session = client.peer.connection.begin_session()
        yield client
        client.peer.close()
    finally:
        client.peer.transport.abort()
        async with asyncio.timeout(10):
            await asyncio.shield(client.peer.lost)
