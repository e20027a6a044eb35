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

    from tests.faults.server_process import Endpoint
    from tests.ledger.ledger import Ledger
    from twinbus.amqp.aio import Peer
    from twinbus.amqp.composite import Composite
    from twinbus.amqp.delivery import IncomingDelivery, OutgoingDelivery
    from twinbus.amqp.events import Event
    from twinbus.amqp.receiver import Receiver
    from twinbus.amqp.sender import Sender
    from twinbus.amqp.session import Session

    LineT = TypeVar("LineT", bound="Line")

CONNECT_S: Final = 30.0
SEQUENCE_NUMBER: Final = "x-opt-sequence-number"
PARTITIONED: Final = "partitioned-"
"""How the names of partitioned queues begin."""
ABANDONED: Final = Modified(delivery_failed=True)
_numbers: Final = itertools.count()


class LineFailed(ConnectionError):
    """The line ended before it was wanted to."""


class Line:
    """What both kinds have in common."""

    peer: Peer
    links: ClassVar = 1
    """So many does it attach."""

    def __init__(self, ledger: Ledger, queue: str) -> None:
        self.ledger = ledger
        self.queue = queue
        self.number = next(_numbers)
        self.attached = 0
        self.end: str | None = None
        """Why it is over, once it is."""
        self._changed = asyncio.Event()

    @property
    def order_key(self) -> int | None:
        """What its messages have in common that keeps them in order: nothing, over several fragments."""
        return None if self.queue.startswith(PARTITIONED) else self.number

    def take(self, peer: Peer) -> Self:
        """Become the handler of a connection."""
        self.peer = peer
        return self

    @property
    def is_attached(self) -> bool:
        return self.attached == self.links

    def attach(self) -> None:
        raise NotImplementedError

    def react(self, event: Event) -> None:
        raise NotImplementedError

    def on_event(self, event: Event) -> None:
        if isinstance(event, ConnectionOpened):
            self.attach()
        elif isinstance(event, AttachConfirmed):
            self.attached += 1
        elif isinstance(event, LinkDetached | ConnectionClosed):
            self.end = self.end or f"{type(event).__name__}: {event.error}"
        elif isinstance(event, SaslFailed):
            self.end = f"SaslFailed: {event.reason}"
        else:
            self.react(event)
        self._changed.set()

    def on_writable(self) -> None:
        self._changed.set()

    async def until(self, happened: Callable[[], object], *, patience_s: float) -> bool:
        """Wait for something; False if the time is over before. LineFailed when the line is."""
        try:
            async with asyncio.timeout(patience_s):
                while not happened():
                    if self.end is not None:
                        raise LineFailed(self.end)
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            return False
        return True


class SendingLine(Line):
    """Sends messages, and writes down what the broker says to each."""

    link: Sender

    def __init__(self, ledger: Ledger, queue: str) -> None:
        super().__init__(ledger, queue)
        self.unanswered: dict[OutgoingDelivery, int] = {}

    def attach(self) -> None:
        session = self.peer.connection.begin_session()
        self.link = session.attach_sender(f"faults-{self.number}", target=Target(address=self.queue))

    @property
    def has_room(self) -> bool:
        return self.peer.is_writable and self.link.sendable > 0

    def send(self, filler_bytes: int) -> int:
        """Send one message; its number."""
        number, body = self.ledger.write(self.queue, self.order_key, filler_bytes)
        self.post(number, build(header=Header(durable=True), body=data(body)))
        return number

    def post(self, number: int, payload: bytes) -> None:
        """Send what was written."""
        self.unanswered[self.link.send(payload)] = number

    def react(self, event: Event) -> None:
        if not isinstance(event, SendsUpdated):
            return
        for delivery in event.deliveries:
            number = self.unanswered.pop(delivery, None)
            if number is None:
                continue
            if isinstance(event.state, Accepted):
                self.ledger.accepted(number)
            else:
                error = event.state.error if isinstance(event.state, Rejected) else None
                why = f"{error.condition}: {error.description}" if error is not None else str(event.state)
                self.ledger.refused(number, why)


class ReceivingLine(Line):
    """Receives messages and settles each in two steps: asked for, then confirmed by the broker."""

    link: Receiver

    def __init__(self, ledger: Ledger, queue: str, choose: Callable[[], Composite | None] = lambda: ACCEPTED) -> None:
        """`choose` says what becomes of a message; None: it is kept under its lock."""
        super().__init__(ledger, queue)
        self.unconfirmed: dict[IncomingDelivery, int] = {}
        self.completed = 0
        self.address = queue
        self.has_drained = False
        self._choose = choose

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

    def react(self, event: Event) -> None:
        if isinstance(event, DeliveriesReceived):
            for delivery in event.deliveries:
                self._receive(delivery)
        elif isinstance(event, ReceiptsUpdated) and event.settled:
            for delivery in event.deliveries:
                number = self.unconfirmed.pop(delivery, None)
                if number is not None:
                    self.confirmed(number, event.state)
        elif isinstance(event, Drained):
            self.has_drained = True

    def _receive(self, delivery: IncomingDelivery) -> None:
        number = self.note(Message(delivery.payload))
        outcome = self._choose()
        if outcome is None:
            return
        if number is not None and self.ask(number, outcome):
            self.unconfirmed[delivery] = number
        self.link.settle([delivery], outcome, settled=False)

    # --- what the ledger is told --------------------------------------------------------------------------------------

    def note(self, message: Message) -> int | None:
        """A message came: its number, if it is one of ours."""
        annotations = message.message_annotations
        assert isinstance(annotations, dict)
        return self.ledger.receive(self.queue, annotations[SEQUENCE_NUMBER], b"".join(message.data))

    def ask(self, number: int, outcome: Composite) -> bool:
        """It will be settled now. True if it matters when that is confirmed."""
        if outcome is ACCEPTED:
            self.ledger.completion_requested(number)
        return outcome is ACCEPTED

    def confirmed(self, number: int, state: object) -> None:
        """The broker has said what became of it."""
        if isinstance(state, Accepted):
            self.ledger.completion_confirmed(number)
            self.completed += 1


@asynccontextmanager
async def connected(line: LineT, endpoint: Endpoint) -> AsyncIterator[LineT]:
    """A line whose link is attached. At the end the socket is dropped without a word: `close` it before, who wants."""
    credentials = Credentials.plain(endpoint.key_name, endpoint.key)
    settings = Settings(container_id=f"faults-{line.number}", hostname="localhost")
    await connect(
        line.take,
        lambda now: Connection.client(settings, credentials, now=now),
        host="127.0.0.1",
        port=endpoint.amqp_port,
    )
    try:
        if not await line.until(lambda: line.is_attached, patience_s=CONNECT_S):
            raise LineFailed(f"no answer to the attach in {CONNECT_S:.0f} s")
        if line.end is not None:  # a link that is refused is attached for a moment
            raise LineFailed(line.end)
        yield line
    finally:
        line.peer.transport.abort()
        await asyncio.shield(line.peer.lost)


async def close(line: Line) -> None:
    """Hang up in good order."""
    line.peer.close()
    async with asyncio.timeout(CONNECT_S):
        await asyncio.shield(line.peer.lost)
