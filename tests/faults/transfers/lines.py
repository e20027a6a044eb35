"""Connections of clients that make transactions, and of those that send to the heads of chains and receive at the ends.

    async with connected(TransactionLine(ledger, "orders"), endpoint) as line:
        transaction = await line.declare()
        line.settle(transaction, What.COMPLETE, forgets=False)
        await line.discharge(transaction, fail=False)

Owns: what such a client puts on the wire, and what the answers mean for the ledger. When to do what is decided in
`workload`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from tests.faults.line import SEQUENCE_NUMBER, Line, LineFailed, ReceivingLine, SendingLine
from tests.faults.transfers.ledger import TOUCHED, What
from tests.faults.transfers.places import HEADS, PLACES
from tests.ledger.messages import State
from twinbus.amqp.events import DeliveriesReceived, ReceiptsUpdated, SendsUpdated
from twinbus.amqp.message import Message, build, value
from twinbus.amqp.outcomes import (
    ACCEPTED,
    Accepted,
    Declare,
    Declared,
    Discharge,
    Modified,
    Rejected,
    TransactionalState,
)
from twinbus.amqp.states import ReceiverSettleMode
from twinbus.amqp.terminus import Coordinator, Source, Target
from twinbus.amqp.types import Symbol, UInt

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.faults.transfers.ledger import Transaction, TransferLedger
    from twinbus.amqp.composite import Composite
    from twinbus.amqp.delivery import IncomingDelivery, OutgoingDelivery
    from twinbus.amqp.events import Event
    from twinbus.amqp.receiver import Receiver
    from twinbus.amqp.sender import Sender
    from twinbus.amqp.session import Session

ANSWER_S: Final = 20.0
SESSION_WAIT_MS: Final = 300
SESSION_FILTER: Final = Symbol("com.microsoft:session-filter")
BURIED: Final = Rejected()
UNKNOWN: Final = frozenset({"amqp:internal-error", "com.microsoft:server-busy"})
"""Errors that do not say whether something was done."""


class LetterLine(SendingLine):
    """Sends what somebody composes."""

    def __init__(
        self, ledger: TransferLedger, head: str, compose: Callable[[LetterLine, int], tuple[int, bytes]]
    ) -> None:
        super().__init__(ledger, head)
        self._compose = compose

    def send(self, filler_bytes: int) -> int:
        number, payload = self._compose(self, filler_bytes)
        self.post(number, payload)
        return number


class PlaceLine(ReceivingLine):
    """Receives at a place, and completes, gives back or dead-letters."""

    def __init__(
        self,
        ledger: TransferLedger,
        address: str,
        choose: Callable[[], Composite | None] = lambda: ACCEPTED,
        session: str | None = None,
    ) -> None:
        """`session` is the one it wants, where there are sessions; None if any."""
        super().__init__(ledger, address, choose)
        self.book = ledger
        self.place = PLACES[address]
        self._receipts: dict[int, int] = {}
        """By which it is known that nobody has received a message after it."""
        self.session = session

    def attach(self) -> None:
        properties: dict[str, object] | None = None
        if self.place.has_sessions:
            properties = {"com.microsoft:timeout": UInt(SESSION_WAIT_MS)}
        session = self.peer.connection.begin_session()
        self.attach_receiver(session, source_of(self.address, self.session), properties)

    def note(self, message: Message) -> int | None:
        number = noted(self.book, self.address, message)
        if number is not None:
            self._receipts[number] = self.book.receipt_of(self.place.home, number)
        return number

    def ask(self, number: int, outcome: Composite) -> bool:
        state = State.GONE if outcome is ACCEPTED else State.DEAD if outcome is BURIED else None
        if state is not None:
            self.book.asks(self.place.home, number, state)
        return state is not None

    def confirmed(self, number: int, state: object) -> None:
        if isinstance(state, Accepted):
            self.book.answered(self.place.home, number, self._receipts[number], State.GONE)
            self.completed += 1
        elif isinstance(state, Rejected) and state.error is None:
            self.book.answered(self.place.home, number, self._receipts[number], State.DEAD)


class Held(NamedTuple):
    """A message that a client has, under a lock or not any more."""

    delivery: IncomingDelivery
    number: int
    receipt: int


class TransactionLine(Line):
    """Sends to an entity and receives from it, as far as either can be, and does both in transactions."""

    control: Sender
    target: Sender | None = None
    source: Receiver | None = None

    def __init__(self, ledger: TransferLedger, entity: str) -> None:
        super().__init__(ledger, entity)
        self.book = ledger
        self.patience_s = ANSWER_S
        """Who waits for an answer from the coordinator no longer hangs up."""
        self.held: list[Held] = []
        """What it received and has not settled."""
        self._links = 1
        self._answers: dict[OutgoingDelivery, object] = {}
        self._unanswered: set[OutgoingDelivery] = set()
        """Messages that were sent in a transaction."""
        self._unconfirmed: set[IncomingDelivery] = set()
        """... and those that were settled in it."""
        self._settling: list[Held] = []
        """Those that are held again if it is rolled back."""
        self._current: Transaction | None = None
        self._id = b""

    # --- the links ----------------------------------------------------------------------------------------------------

    @property
    def is_attached(self) -> bool:
        return self.attached == self._links

    @property
    def _home(self) -> str:
        return PLACES[self.queue].home

    def attach(self) -> None:
        session, name = self.peer.connection.begin_session(), f"faults-{self.number}"
        self.control = session.attach_sender(f"{name}-control", target=Coordinator())
        if self.queue in HEADS:
            self._links += 1
            self.target = session.attach_sender(f"{name}-to", target=Target(address=self.queue))
        if self.queue in PLACES:
            self._links += 1
            self.source = self._attach_source(session, name)

    def _attach_source(self, session: Session, name: str) -> Receiver:
        return session.attach_receiver(
            f"{name}-from",
            source=source_of(self.queue),
            rcv_settle_mode=ReceiverSettleMode.SECOND,
            properties={"com.microsoft:timeout": UInt(SESSION_WAIT_MS)} if PLACES[self.queue].has_sessions else None,
        )

    def react(self, event: Event) -> None:
        if isinstance(event, DeliveriesReceived):
            for delivery in event.deliveries:
                number = noted(self.book, self.queue, Message(delivery.payload))
                if number is not None:
                    self.held.append(Held(delivery, number, self.book.receipt_of(self._home, number)))
        elif isinstance(event, SendsUpdated):
            for sent in event.deliveries:
                self._answered(sent, event.state)
        elif isinstance(event, ReceiptsUpdated):
            self._unconfirmed.difference_update(event.deliveries)
            if isinstance(event.state, Rejected) and self._current is not None:
                self._current.is_refused = True
                self._settling = [held for held in self._settling if held.delivery not in event.deliveries]

    def _answered(self, delivery: OutgoingDelivery, state: object) -> None:
        if delivery not in self._unanswered:
            self._answers[delivery] = state
            return
        self._unanswered.discard(delivery)
        if isinstance(state, Rejected) and self._current is not None:
            self._current.is_refused = True

    # --- a transaction ------------------------------------------------------------------------------------------------

    async def declare(self) -> Transaction:
        """Begin one. LineFailed if that is not possible."""
        state = await self._ask(Declare())
        if not isinstance(state, Declared):
            raise LineFailed(f"no transaction was declared: {_condition(state)}")
        self._id, self._current, self._settling = state.txn_id, self.book.begin(), []
        return self._current

    def can_send(self) -> bool:
        return self.target is not None and self.target.sendable > 0 and self.peer.is_writable

    def send(self, payload: bytes) -> None:
        """Send what was written down as a part of it."""
        assert self.target is not None
        self._unanswered.add(self.target.send(payload, state=TransactionalState(txn_id=self._id)))

    def settle(self, transaction: Transaction, what: What, *, forgets: bool) -> None:
        """Settle the oldest message that is held, as a part of it; `forgets` means that no answer is waited for."""
        held = self.held.pop(0)
        self.book.settles(transaction, self._home, held.number, held.receipt, what)
        assert self.source is not None
        state = TransactionalState(txn_id=self._id, outcome=_outcome(what, transaction.number))
        self.source.settle([held.delivery], state, settled=forgets)
        if not forgets:
            self._unconfirmed.add(held.delivery)
            self._settling.append(held)

    async def until_answered(self) -> None:
        """Wait for the answers to all that was sent and settled."""
        if not await self.until(lambda: not self._unanswered and not self._unconfirmed, patience_s=ANSWER_S):
            raise LineFailed(f"no answer in a transaction in {ANSWER_S:.0f} s")

    async def discharge(self, transaction: Transaction, *, fail: bool) -> None:
        """End it, and write down what is known of it then."""
        if fail:
            self.book.rolled_back(transaction)
        else:
            self.book.commit_requested(transaction)
        state = await self._ask(Discharge(txn_id=self._id, fail=fail))
        self._current = None
        if isinstance(state, Accepted):
            if fail:
                self.held = self._settling + self.held
            else:
                self.book.committed(transaction)
        elif not fail and _condition(state) not in UNKNOWN:
            self.book.rolled_back(transaction)

    async def _ask(self, body: Composite) -> object:
        if not await self.until(lambda: self.control.sendable > 0, patience_s=ANSWER_S):
            raise LineFailed(f"no credit to ask the coordinator in {ANSWER_S:.0f} s")
        delivery = self.control.send(build(body=value(body)))
        if not await self.until(lambda: delivery in self._answers, patience_s=self.patience_s):
            raise LineFailed("no answer from the coordinator in time")
        return self._answers.pop(delivery)


def source_of(address: str, session: str | None = None) -> Source:
    """The source of a link to a place."""
    if not PLACES[address].has_sessions:
        return Source(address=address)
    return Source(address=address, filter={SESSION_FILTER: session})


def noted(book: TransferLedger, address: str, message: Message, state: State | None = None) -> int | None:
    """The book is told that a message was received: its number, if it is one of ours."""
    annotations, properties = message.message_annotations, message.application_properties
    assert isinstance(annotations, dict)
    touched = properties.get(TOUCHED) if isinstance(properties, dict) else None
    return book.receive_at(address, annotations[SEQUENCE_NUMBER], b"".join(message.data), touched, state)


def _outcome(what: What, transaction: int) -> Composite:
    if what is What.COMPLETE:
        return ACCEPTED
    if what is What.DEAD_LETTER:
        return BURIED
    if what is What.DEFER:
        return Modified(delivery_failed=True, undeliverable_here=True)
    return Modified(delivery_failed=True, message_annotations={Symbol(TOUCHED): transaction})


def _condition(state: object) -> str:
    error = state.error if isinstance(state, Rejected) else None
    return str(error.condition) if error is not None else str(state)
