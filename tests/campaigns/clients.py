"""One connection of ours with one link on it, which sends to a queue or receives from it, and tells the ledger.

    async with connected(SendingLine(ledger, "orders", 7), endpoint) as line: ...

A line ends when its link, its connection or its server does; whatever it was doing then is for the ledger to judge.
Owns: what the engine's events mean for the ledger. When to send, settle or hang up is decided in `workload`.
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
    from twinbus.amqp.composite import Composite
    from twinbus.amqp.delivery import IncomingDelivery, OutgoingDelivery
    from twinbus.amqp.events import Event
    from twinbus.amqp.receiver import Receiver
    from twinbus.amqp.sender import Sender
    from twinbus.amqp.session import Session

    LineT = TypeVar("LineT", bound="CampaignClient")

CONNECT_TIMEOUT_S: Final = 30.0
SEQUENCE_NUMBER: Final = "x-opt-sequence-number"
PARTITIONED: Final = "partitioned-"
"""How the names of partitioned queues begin."""
ABANDONED: Final = Modified(delivery_failed=True)
_numbers: Final = itertools.count()


class ClientDisconnected(ConnectionError):
    """The line ended before it was wanted to."""


class CampaignClient:
    """What both kinds have in common."""

    peer: Peer
    link_count: ClassVar = 1
    """So many does it attach."""

    def __init__(self, checker: DeliveryChecker, queue: str) -> None:
        self.checker = checker
        self.queue = queue
        self.number = next(_numbers)
        self.attached_count = 0
        self.end_reason: str | None = None
        """Why it is over, once it is."""
        self._changed = asyncio.Event()

    @property
    def order_key(self) -> int | None:
        """What its messages have in common that keeps them in order: nothing, over several fragments."""
        return None if self.queue.startswith(PARTITIONED) else self.number

    def use_connection(self, peer: Peer) -> Self:
        """Become the handler of a connection."""
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
        """Wait for something; False if the time is over before. LineFailed when the line is."""
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
    """Sends messages, and writes down what the broker says to each."""

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
        """Send one message; its number."""
        number, body = self.checker.record_send(self.queue, self.order_key, filler_bytes)
        self.send_payload(number, build(header=Header(durable=True), body=data(body)))
        return number

    def send_payload(self, number: int, payload: bytes) -> None:
        """Send what was written."""
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
                why = f"{error.condition}: {error.description}" if error is not None else str(event.state)
                self.checker.send_refused(number, why)


class ReceiverClient(CampaignClient):
    """Receives messages and settles each in two steps: asked for, then confirmed by the broker."""

    link: Receiver

    def __init__(
        self, checker: DeliveryChecker, queue: str, choose_outcome: Callable[[], Composite | None] = lambda: ACCEPTED
    ) -> None:
        """`choose` says what becomes of a message; None: it is kept under its lock."""
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
        """Ask for the link on which the messages come."""
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

    # --- what the ledger is told --------------------------------------------------------------------------------------

    def record_receipt(self, message: Message) -> int | None:
        """A message came: its number, if it is one of ours."""
        annotations = message.message_annotations
        assert isinstance(annotations, dict)
        return self.checker.message_received(self.queue, annotations[SEQUENCE_NUMBER], b"".join(message.data))

    def request_settlement(self, number: int, outcome: Composite) -> bool:
        """It will be settled now. True if it matters when that is confirmed."""
        if outcome is ACCEPTED:
            self.checker.completion_requested(number)
        return outcome is ACCEPTED

    def settlement_confirmed(self, number: int, state: object) -> None:
        """The broker has said what became of it."""
        if isinstance(state, Accepted):
            self.checker.completion_confirmed(number)
            self.completed += 1


@asynccontextmanager
async def connect_client(client: LineT, endpoint: Endpoint) -> AsyncIterator[LineT]:
    """A line whose link is attached. At the end the socket is dropped without a word: `close` it before, who wants."""
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
        if client.end_reason is not None:  # a link that is refused is attached for a moment
            raise ClientDisconnected(client.end_reason)
        yield client
    finally:
        client.peer.transport.abort()
        await asyncio.shield(client.peer.lost)


async def disconnect(client: CampaignClient) -> None:
    """Hang up in good order."""
    client.peer.close()
    async with asyncio.timeout(CONNECT_TIMEOUT_S):
        await asyncio.shield(client.peer.lost)
