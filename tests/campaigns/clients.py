"""Clients of the campaigns: a connection with one link that sends or receives, and records everything in the checker.

    async with connect_client(SenderClient(checker, "orders"), endpoint) as client: ...

A client ends with its link, its connection or its server; the checker judges the operations that were under way.
Owns: which engine events are recorded in the checker. `workload` decides when to send, settle or disconnect.
"""

from __future__ import annotations

import asyncio
import itertools
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, ClassVar, Final, Self, TypeVar

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
from twinbus.amqp.message import Header, Message, build, data
from twinbus.amqp.outcomes import ACCEPTED, Accepted, Modified, Rejected
from twinbus.amqp.sasl import Credentials
from twinbus.amqp.settings import Settings
from twinbus.amqp.states import ReceiverSettleMode
from twinbus.amqp.terminus import Source, Target

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from tests.campaigns.restartable_server import Endpoint
    from tests.support.delivery_checker.checker import DeliveryChecker
    from twinbus.amqp.aio import Peer
    from twinbus.amqp.codec.composite import Composite
    from twinbus.amqp.delivery import IncomingDelivery, OutgoingDelivery
    from twinbus.amqp.events import Event
    from twinbus.amqp.receiver import Receiver
    from twinbus.amqp.sender import Sender
    from twinbus.amqp.session import Session

    ClientT = TypeVar("ClientT", bound="CampaignClient")

CONNECT_TIMEOUT_S: Final = 30.0
SEQUENCE_NUMBER: Final = "x-opt-sequence-number"
PARTITIONED: Final = "partitioned-"
"""Prefix of the names of partitioned queues."""
ABANDONED: Final = Modified(delivery_failed=True)
_numbers: Final = itertools.count()


class ClientDisconnected(ConnectionError):
    """The client was disconnected unexpectedly."""


class CampaignClient:
    """Base class of senders and receivers."""

    peer: Peer
    link_count: ClassVar = 1
    """Number of links that it attaches."""

    def __init__(self, checker: DeliveryChecker, queue: str) -> None:
        self.checker = checker
        self.queue = queue
        self.number = next(_numbers)
        self.attached_count = 0
        self.end_reason: str | None = None
        """Why the link or connection ended; None before."""
        self._changed = asyncio.Event()

    @property
    def order_key(self) -> int | None:
        """Key of messages whose order is checked; None for partitioned queues, which have no order over fragments."""
        return None if self.queue.startswith(PARTITIONED) else self.number

    def use_connection(self, peer: Peer) -> Self:
        """Handle the events of a connection."""
        self.peer = peer
        return self

    @property
    def is_attached(self) -> bool:
        return self.attached_count == self.link_count

    def attach(self) -> None:
        raise NotImplementedError

    def handle_event(self, event: Event) -> None:
        raise NotImplementedError

    def on_event(self, event: Event) -> None:
        if isinstance(event, ConnectionOpened):
            self.attach()
        elif isinstance(event, AttachConfirmed):
            self.attached_count += 1
        elif isinstance(event, LinkDetached | ConnectionClosed):
            self.end_reason = self.end_reason or f"{type(event).__name__}: {event.error}"
        elif isinstance(event, SaslFailed):
            self.end_reason = f"SaslFailed: {event.reason}"
        else:
            self.handle_event(event)
        self._changed.set()

    def on_writable(self) -> None:
        self._changed.set()

    async def wait_until(self, condition: Callable[[], object], *, timeout_s: float) -> bool:
        """Wait for a condition; return False on timeout, raise ClientDisconnected when the client ends."""
        try:
            async with asyncio.timeout(timeout_s):
                while not condition():
                    if self.end_reason is not None:
                        raise ClientDisconnected(self.end_reason)
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            return False
        return True


class SenderClient(CampaignClient):
    """Sends messages, and records the disposition of each."""

    link: Sender

    def __init__(self, checker: DeliveryChecker, queue: str) -> None:
        super().__init__(checker, queue)
        self.unsettled: dict[OutgoingDelivery, int] = {}

    def attach(self) -> None:
        session = self.peer.connection.begin_session()
        self.link = session.attach_sender(f"faults-{self.number}", target=Target(address=self.queue))

    @property
    def can_send(self) -> bool:
        return self.peer.is_writable and self.link.sendable > 0

    def send(self, filler_bytes: int) -> int:
        """Send one message, and return its number."""
        number, body = self.checker.record_send(self.queue, self.order_key, filler_bytes)
        self.send_payload(number, build(header=Header(durable=True), body=data(body)))
        return number

    def send_payload(self, number: int, payload: bytes) -> None:
        """Send the encoded message."""
        self.unsettled[self.link.send(payload)] = number

    def handle_event(self, event: Event) -> None:
        if not isinstance(event, SendsUpdated):
            return
        for delivery in event.deliveries:
            number = self.unsettled.pop(delivery, None)
            if number is None:
                continue
            if isinstance(event.state, Accepted):
                self.checker.send_accepted(number)
            else:
                error = event.state.error if isinstance(event.state, Rejected) else None
                reason = f"{error.condition}: {error.description}" if error is not None else str(event.state)
                self.checker.send_refused(number, reason)


class ReceiverClient(CampaignClient):
    """Receives messages and settles each in two steps: requested, then confirmed by the broker."""

    link: Receiver

    def __init__(
        self, checker: DeliveryChecker, queue: str, choose_outcome: Callable[[], Composite | None] = lambda: ACCEPTED
    ) -> None:
        """`choose_outcome` returns the outcome of a message; None keeps it locked."""
        super().__init__(checker, queue)
        self.unconfirmed_settlements: dict[IncomingDelivery, int] = {}
        self.completed = 0
        self.address = queue
        self.has_drained = False
        self._choose_outcome = choose_outcome

    def attach(self) -> None:
        session = self.peer.connection.begin_session()
        self.attach_receiver(session, Source(address=self.address))

    def attach_receiver(self, session: Session, source: Source, properties: dict[str, object] | None = None) -> None:
        """Attach the receiver."""
        self.link = session.attach_receiver(
            f"faults-{self.number}",
            source=source,
            rcv_settle_mode=ReceiverSettleMode.SECOND,
            properties=properties,
        )

    def handle_event(self, event: Event) -> None:
        if isinstance(event, DeliveriesReceived):
            for delivery in event.deliveries:
                self._receive(delivery)
        elif isinstance(event, ReceiptsUpdated) and event.settled:
            for delivery in event.deliveries:
                number = self.unconfirmed_settlements.pop(delivery, None)
                if number is not None:
                    self.settlement_confirmed(number, event.state)
        elif isinstance(event, Drained):
            self.has_drained = True

    def _receive(self, delivery: IncomingDelivery) -> None:
        number = self.record_receipt(Message(delivery.payload))
        outcome = self._choose_outcome()
        if outcome is None:
            return
        if number is not None and self.request_settlement(number, outcome):
            self.unconfirmed_settlements[delivery] = number
        self.link.settle([delivery], outcome, settled=False)

    # --- records for the checker --------------------------------------------------------------------------------------

    def record_receipt(self, message: Message) -> int | None:
        """Record a received message, and return its number if the campaign sent it."""
        annotations = message.message_annotations
        assert isinstance(annotations, dict)
        return self.checker.message_received(self.queue, annotations[SEQUENCE_NUMBER], b"".join(message.data))

    def request_settlement(self, number: int, outcome: Composite) -> bool:
        """Record a settlement; return True if its confirmation is to be recorded."""
        if outcome is ACCEPTED:
            self.checker.completion_requested(number)
        return outcome is ACCEPTED

    def settlement_confirmed(self, number: int, state: object) -> None:
        """Record the broker's confirmation of a settlement."""
        if isinstance(state, Accepted):
            self.checker.completion_confirmed(number)
            self.completed += 1


@asynccontextmanager
async def connect_client(client: ClientT, endpoint: Endpoint) -> AsyncIterator[ClientT]:
    """Connect and attach a client. On exit the socket is aborted; call `disconnect` first for a clean close."""
    credentials = Credentials.plain(endpoint.key_name, endpoint.key)
    settings = Settings(container_id=f"faults-{client.number}", hostname="localhost")
    await connect(
        client.use_connection,
        lambda now: Connection.client(settings, credentials, now=now),
        host="127.0.0.1",
        port=endpoint.amqp_port,
    )
    try:
        if not await client.wait_until(lambda: client.is_attached, timeout_s=CONNECT_TIMEOUT_S):
            raise ClientDisconnected(f"no answer to the attach in {CONNECT_TIMEOUT_S:.0f} s")
        if client.end_reason is not None:  # a refused link is attached before it is detached
            raise ClientDisconnected(client.end_reason)
        yield client
    finally:
        client.peer.transport.abort()
        await asyncio.shield(client.peer.lost)


async def disconnect(client: CampaignClient) -> None:
    """Close the connection cleanly."""
    client.peer.close()
    async with asyncio.timeout(CONNECT_TIMEOUT_S):
        await asyncio.shield(client.peer.lost)
