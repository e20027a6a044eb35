"""Clients that use transactions, send to the entry points of forwarding chains, and receive at the destinations.

    async with connect_client(TransactionClient(checker, "orders"), endpoint) as client:
        transaction = await client.declare()
        client.settle(transaction, ActionKind.COMPLETE, is_presettled=False)
        await client.discharge(transaction, fail=False)

Owns: the messages on the wire, and what the responses mean for the checker. `workload` decides when to send them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from tests.campaigns.clients import SEQUENCE_NUMBER, CampaignClient, ClientDisconnected, ReceiverClient, SenderClient
from tests.campaigns.crashes.transfers.checker import ABANDON_PROPERTY, ActionKind
from tests.campaigns.crashes.transfers.topology import DESTINATIONS, ENTRY_POINTS
from tests.support.delivery_checker.messages import State
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

    from tests.campaigns.crashes.transfers.checker import Transaction, TransferChecker
    from twinbus.amqp.codec.composite import Composite
    from twinbus.amqp.delivery import IncomingDelivery, OutgoingDelivery
    from twinbus.amqp.events import Event
    from twinbus.amqp.receiver import Receiver
    from twinbus.amqp.sender import Sender
    from twinbus.amqp.session import Session

RESPONSE_TIMEOUT_S: Final = 20.0
SESSION_WAIT_MS: Final = 300
SESSION_FILTER: Final = Symbol("com.microsoft:session-filter")
DEAD_LETTERED: Final = Rejected()
UNCERTAIN_CONDITIONS: Final = frozenset({"amqp:internal-error", "com.microsoft:server-busy"})
"""Error conditions that leave the outcome uncertain."""


class ComposedSenderClient(SenderClient):
    """Sends the messages of `compose_message`."""

    def __init__(
        self,
        checker: TransferChecker,
        entry: str,
        compose_message: Callable[[ComposedSenderClient, int], tuple[int, bytes]],
    ) -> None:
        super().__init__(checker, entry)
        self._compose_message = compose_message

    def send(self, filler_bytes: int) -> int:
        number, payload = self._compose_message(self, filler_bytes)
        self.send_payload(number, payload)
        return number


class DestinationReceiverClient(ReceiverClient):
    """Receives at a destination, and completes, abandons or dead-letters."""

    def __init__(
        self,
        checker: TransferChecker,
        address: str,
        choose_outcome: Callable[[], Composite | None] = lambda: ACCEPTED,
        session: str | None = None,
    ) -> None:
        """`session` is the id of the session; None for the next available one."""
        super().__init__(checker, address, choose_outcome)
        self.transfer_checker = checker
        self.destination = DESTINATIONS[address]
        self._receipt_counts: dict[int, int] = {}
        """Receipt counts of messages, which show later receipts by other clients."""
        self.session = session

    def attach(self) -> None:
        properties: dict[str, object] | None = None
        if self.destination.has_sessions:
            properties = {"com.microsoft:timeout": UInt(SESSION_WAIT_MS)}
        session = self.peer.connection.begin_session()
        self.attach_receiver(session, source_of(self.address, self.session), properties)

    def record_receipt(self, message: Message) -> int | None:
        number = record_receipt(self.transfer_checker, self.address, message)
        if number is not None:
            self._receipt_counts[number] = self.transfer_checker.receipt_count_of(self.destination.entity, number)
        return number

    def request_settlement(self, number: int, outcome: Composite) -> bool:
        state = State.COMPLETED if outcome is ACCEPTED else State.DEAD_LETTERED if outcome is DEAD_LETTERED else None
        if state is not None:
            self.transfer_checker.settlement_requested(self.destination.entity, number, state)
        return state is not None

    def settlement_confirmed(self, number: int, state: object) -> None:
        if isinstance(state, Accepted):
            self.transfer_checker.settlement_confirmed(
                self.destination.entity, number, self._receipt_counts[number], State.COMPLETED
            )
            self.completed += 1
        elif isinstance(state, Rejected) and state.error is None:
            self.transfer_checker.settlement_confirmed(
                self.destination.entity, number, self._receipt_counts[number], State.DEAD_LETTERED
            )


class LockedMessage(NamedTuple):
    """Message that a client received; its lock may have expired."""

    delivery: IncomingDelivery
    number: int
    receipt: int


class TransactionClient(CampaignClient):
    """Sends to an entity and receives from it, if possible, in transactions."""

    control: Sender
    target: Sender | None = None
    source: Receiver | None = None

    def __init__(self, checker: TransferChecker, entity: str) -> None:
        super().__init__(checker, entity)
        self.transfer_checker = checker
        self.timeout_s = RESPONSE_TIMEOUT_S
        """Time limit for a response of the coordinator; then the client disconnects."""
        self.locked_messages: list[LockedMessage] = []
        """Received messages that are not settled."""
        self._links = 1
        self._responses: dict[OutgoingDelivery, object] = {}
        self._unanswered: set[OutgoingDelivery] = set()
        """Sends of the transaction without a response."""
        self._unconfirmed: set[IncomingDelivery] = set()
        """Settlements of the transaction without a response."""
        self._settling: list[LockedMessage] = []
        """Messages that are locked again if the transaction is rolled back."""
        self._current: Transaction | None = None
        self._id = b""

    # --- the links ----------------------------------------------------------------------------------------------------

    @property
    def is_attached(self) -> bool:
        return self.attached_count == self._links

    @property
    def _destination(self) -> str:
        return DESTINATIONS[self.queue].entity

    def attach(self) -> None:
        session, name = self.peer.connection.begin_session(), f"faults-{self.number}"
        self.control = session.attach_sender(f"{name}-control", target=Coordinator())
        if self.queue in ENTRY_POINTS:
            self._links += 1
            self.target = session.attach_sender(f"{name}-to", target=Target(address=self.queue))
        if self.queue in DESTINATIONS:
            self._links += 1
            self.source = self._attach_source(session, name)

    def _attach_source(self, session: Session, name: str) -> Receiver:
        return session.attach_receiver(
            f"{name}-from",
            source=source_of(self.queue),
            rcv_settle_mode=ReceiverSettleMode.SECOND,
            properties={"com.microsoft:timeout": UInt(SESSION_WAIT_MS)}
            if DESTINATIONS[self.queue].has_sessions
            else None,
        )

    def handle_event(self, event: Event) -> None:
        if isinstance(event, DeliveriesReceived):
            for delivery in event.deliveries:
                number = record_receipt(self.transfer_checker, self.queue, Message(delivery.payload))
                if number is not None:
                    self.locked_messages.append(
                        LockedMessage(
                            delivery, number, self.transfer_checker.receipt_count_of(self._destination, number)
                        )
                    )
        elif isinstance(event, SendsUpdated):
            for sent in event.deliveries:
                self._handle_response(sent, event.state)
        elif isinstance(event, ReceiptsUpdated):
            self._unconfirmed.difference_update(event.deliveries)
            if isinstance(event.state, Rejected) and self._current is not None:
                self._current.is_refused = True
                self._settling = [locked for locked in self._settling if locked.delivery not in event.deliveries]

    def _handle_response(self, delivery: OutgoingDelivery, state: object) -> None:
        if delivery not in self._unanswered:
            self._responses[delivery] = state
            return
        self._unanswered.discard(delivery)
        if isinstance(state, Rejected) and self._current is not None:
            self._current.is_refused = True

    # --- a transaction ------------------------------------------------------------------------------------------------

    async def declare(self) -> Transaction:
        """Declare a transaction; raise ClientDisconnected if it is refused."""
        state = await self._request(Declare())
        if not isinstance(state, Declared):
            raise ClientDisconnected(f"no transaction was declared: {_condition(state)}")
        self._id, self._current, self._settling = state.txn_id, self.transfer_checker.begin_transaction(), []
        return self._current

    def can_send(self) -> bool:
        return self.target is not None and self.target.sendable > 0 and self.peer.is_writable

    def send(self, payload: bytes) -> None:
        """Send a recorded message in the transaction."""
        assert self.target is not None
        self._unanswered.add(self.target.send(payload, state=TransactionalState(txn_id=self._id)))

    def settle(self, transaction: Transaction, kind: ActionKind, *, is_presettled: bool) -> None:
        """Settle the oldest locked message in the transaction; `is_presettled` means without a response."""
        locked = self.locked_messages.pop(0)
        self.transfer_checker.transaction_settles(transaction, self._destination, locked.number, locked.receipt, kind)
        assert self.source is not None
        state = TransactionalState(txn_id=self._id, outcome=_outcome(kind, transaction.number))
        self.source.settle([locked.delivery], state, settled=is_presettled)
        if not is_presettled:
            self._unconfirmed.add(locked.delivery)
            self._settling.append(locked)

    async def wait_for_responses(self) -> None:
        """Wait for the responses to all sends and settlements."""
        if not await self.wait_until(
            lambda: not self._unanswered and not self._unconfirmed, timeout_s=RESPONSE_TIMEOUT_S
        ):
            raise ClientDisconnected(f"no answer in a transaction in {RESPONSE_TIMEOUT_S:.0f} s")

    async def discharge(self, transaction: Transaction, *, fail: bool) -> None:
        """Discharge the transaction, and record the outcome."""
        if fail:
            self.transfer_checker.rolled_back(transaction)
        else:
            self.transfer_checker.commit_requested(transaction)
        state = await self._request(Discharge(txn_id=self._id, fail=fail))
        self._current = None
        if isinstance(state, Accepted):
            if fail:
                self.locked_messages = self._settling + self.locked_messages
            else:
                self.transfer_checker.committed(transaction)
        elif not fail and _condition(state) not in UNCERTAIN_CONDITIONS:
            self.transfer_checker.rolled_back(transaction)

    async def _request(self, body: Composite) -> object:
        if not await self.wait_until(lambda: self.control.sendable > 0, timeout_s=RESPONSE_TIMEOUT_S):
            raise ClientDisconnected(f"no credit to ask the coordinator in {RESPONSE_TIMEOUT_S:.0f} s")
        delivery = self.control.send(build(body=value(body)))
        if not await self.wait_until(lambda: delivery in self._responses, timeout_s=self.timeout_s):
            raise ClientDisconnected("no answer from the coordinator in time")
        return self._responses.pop(delivery)


def source_of(address: str, session: str | None = None) -> Source:
    """Return the source of a link to a destination."""
    if not DESTINATIONS[address].has_sessions:
        return Source(address=address)
    return Source(address=address, filter={SESSION_FILTER: session})


def record_receipt(checker: TransferChecker, address: str, message: Message, state: State | None = None) -> int | None:
    """Record a received message; return its number if the campaign sent it."""
    annotations, properties = message.message_annotations, message.application_properties
    assert isinstance(annotations, dict)
    touched = properties.get(ABANDON_PROPERTY) if isinstance(properties, dict) else None
    return checker.message_received_at(address, annotations[SEQUENCE_NUMBER], b"".join(message.data), touched, state)


def _outcome(kind: ActionKind, transaction: int) -> Composite:
    if kind is ActionKind.COMPLETE:
        return ACCEPTED
    if kind is ActionKind.DEAD_LETTER:
        return DEAD_LETTERED
    if kind is ActionKind.DEFER:
        return Modified(delivery_failed=True, undeliverable_here=True)
    return Modified(delivery_failed=True, message_annotations={Symbol(ABANDON_PROPERTY): transaction})


def _condition(state: object) -> str:
    error = state.error if isinstance(state, Rejected) else None
    return str(error.condition) if error is not None else str(state)
