"""A client that can do what no library lets one do: our own engine, and the socket below it.

    async with raw(server) as client:
        link = await client.attach_sender(queue)
        assert await client.send(link, b"no message") == "amqp:decode-error"

It answers each question with the condition of the error that came, or with None where all went well.
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
    from twinbus.amqp.composite import Composite
    from twinbus.amqp.delivery import IncomingDelivery
    from twinbus.amqp.events import Event
    from twinbus.amqp.link import Link
    from twinbus.amqp.performatives import Error
    from twinbus.amqp.receiver import Receiver
    from twinbus.amqp.sender import Sender
    from twinbus.amqp.session import Session

SETTINGS = Settings(container_id="raw", limits=Limits(max_message_size=8_388_608))


class LinkRefused(Exception):
    """A link was; the message is the condition of the error."""

    def __init__(self, error: Error | None) -> None:
        super().__init__(condition_of(error))
        self.text = str(error.description) if error is not None else ""
        """What is said to be wrong."""


class RawClient(RecordingHandler):
    """One connection with one session."""

    session: Session

    def __init__(self) -> None:
        super().__init__()
        self._names = itertools.count(1)

    # --- links --------------------------------------------------------------------------------------------------------

    async def attach_sender(
        self, address: object, *, target: Composite | None = None, properties: dict[str, object] | None = None
    ) -> Sender:
        link = self.session.attach_sender(
            f"sender {next(self._names)}",
            target=target or Target(address=address),
            source=Source(address="here"),
            properties=properties,
        )
        await self._attached(link)
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
        await self._attached(link)
        return link

    async def _attached(self, link: Link) -> None:
        await self.wait_until(lambda: any(event.link is link for event in self.events_of(AttachConfirmed)))
        attach = next(event.attach for event in self.events_of(AttachConfirmed) if event.link is link)
        if attach.source is None and attach.target is None:
            raise LinkRefused(await self._detach_error(link))

    async def detach_condition(self, link: Link) -> str | None:
        """Why a link has ended."""
        return condition_of(await self._detach_error(link))

    async def _detach_error(self, link: Link) -> Error | None:
        await self.wait_until(lambda: any(event.link is link for event in self.events_of(LinkDetached)))
        return next(event.error for event in self.events_of(LinkDetached) if event.link is link)

    async def detach(self, link: Link) -> None:
        """End a link, and wait for the answer."""
        link.detach()
        await self.detach_condition(link)

    # --- messages -----------------------------------------------------------------------------------------------------

    async def send(
        self, link: Sender, payload: bytes, *, message_format: int = 0, state: Composite | None = None
    ) -> str | None:
        answer = await self.send_for_state(link, payload, message_format=message_format, state=state)
        return condition_of(answer.error) if isinstance(answer, Rejected) else None

    async def send_for_state(
        self, link: Sender, payload: bytes, *, message_format: int = 0, state: Composite | None = None
    ) -> Any:  # noqa: ANN401  # whatever state the server gives
        """... the whole answer."""
        delivery = link.send(payload, message_format=message_format, state=state)

        def answers() -> list[SendsUpdated]:
            return [event for event in self.events_of(SendsUpdated) if delivery in event.deliveries]

        await self.wait_until(answers)
        return answers()[0].state

    async def receive(self, link: Receiver, count: int = 1) -> list[IncomingDelivery]:
        """The next messages of a link."""
        before = len(self.received(link))
        link.grant(count)
        await self.wait_until(lambda: len(self.received(link)) >= before + count)
        return self.received(link)[before:]

    async def receive_all(self, link: Receiver, count: int) -> list[IncomingDelivery]:
        """So many, and what a link gives beyond them: nothing, if they were all."""
        return await self.receive(link, count) + await self.drain(link)

    async def drain(self, link: Receiver, credit: int = 1_000) -> list[IncomingDelivery]:
        """What a link gives now; one that takes messages is answered within a tenth of a second, whatever there is."""
        before, drains = len(self.received(link)), self._drains(link)
        link.grant(credit, drain=True)
        await self.wait_until(lambda: self._drains(link) > drains)
        return self.received(link)[before:]

    def _drains(self, link: Receiver) -> int:
        return len([event for event in self.events_of(Drained) if event.link is link])

    def received(self, link: Receiver) -> list[IncomingDelivery]:
        return [one for event in self.events_of(DeliveriesReceived) if event.link is link for one in event.deliveries]

    async def settle(self, link: Receiver, delivery: IncomingDelivery, state: Composite) -> str | None:
        """Settle, and wait for the confirmation."""
        link.settle([delivery], state, settled=False)

        def answers() -> list[ReceiptsUpdated]:
            return [event for event in self.events_of(ReceiptsUpdated) if delivery in event.deliveries]

        await self.wait_until(answers)
        answered = answers()[0].state
        return condition_of(answered.error) if isinstance(answered, Rejected) and answered.error is not None else None

    # --- requests -----------------------------------------------------------------------------------------------------

    async def request_status(self, node: str, properties: Mapping[str, object], body: object) -> dict[str, Any]:
        """A request on links of its own; the properties of the answer."""
        answer = await self.request(node, properties, body)
        assert isinstance(answer.application_properties, dict)
        return {str(name): found for name, found in answer.application_properties.items()}

    async def request(
        self, node: str, properties: Mapping[str, object], body: object, *, state: Composite | None = None
    ) -> Message:
        """... the whole answer."""
        answers = await self.attach_receiver(node, target="answers")
        answers.grant(10)
        requests = await self.attach_sender(node)
        request = Properties(message_id=f"request {next(self._names)}", reply_to="answers")
        payload = build(properties=request, application_properties=properties, body=value(body))
        assert await self.send(requests, payload, state=state) is None
        await self.wait_until(lambda: self.received(answers))
        answer = Message(self.received(answers)[0].payload)
        assert answer.properties is not None
        assert answer.properties.correlation_id == request.message_id
        answers.detach()
        requests.detach()
        return answer

    # --- the end ------------------------------------------------------------------------------------------------------

    async def close_condition(self) -> str | None:
        """Why the server has ended the connection."""
        event = await self.wait_for_event(ConnectionClosed)
        return condition_of(event.error)

    def handle_event(self, event: Event) -> None:
        """Nothing happens by itself."""


def condition_of(error: Error | None) -> str | None:
    assert error is None or error.description, "an error says what is wrong"
    return str(error.condition) if error is not None else None


@asynccontextmanager
async def connect_raw(
    server: ServerProcess, credentials: Credentials | None = None, *, sasl: bool = True
) -> AsyncIterator[RawClient]:
    """A connection with the key of the server, unless other credentials are given; in the end it is gone."""
    client = RawClient()
    shown = (credentials or Credentials.plain(server.key_name, server.key)) if sasl else None
    await connect(
        client.use_connection,
        lambda now: Connection.client(SETTINGS, shown, now=now),
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
