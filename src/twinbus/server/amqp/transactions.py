"""Transactions of a connection, and the link that opens and closes them (AMQP 1.0, part 4).

Owns: their ids, how many there may be, and how long one may take. A transaction lives as long as the link that opened
it; whatever ends that rolls it back. What one does is the broker's affair.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from twinbus.amqp.errors import DecodeError
from twinbus.amqp.message import Message
from twinbus.amqp.outcomes import (
    ACCEPTED,
    Accepted,
    Declare,
    Declared,
    Discharge,
    Modified,
    Rejected,
    Released,
    TransactionalState,
)
from twinbus.broker.ports.settlement import Disposition
from twinbus.model.errors import (
    InvalidOperation,
    MalformedMessage,
    ServerBusy,
    ServiceBusError,
    TransactionTimeout,
    TransactionUnknown,
)
from twinbus.server.amqp.errors import send_error, to_amqp_error

if TYPE_CHECKING:
    from twinbus.amqp.delivery import IncomingDelivery
    from twinbus.amqp.receiver import Receiver
    from twinbus.broker.clock import Timer
    from twinbus.broker.namespace import Namespace, Transaction

MAX_OPEN_TRANSACTIONS: Final = 100
"""Of one connection."""
MAX_TRANSACTION_BYTES: Final = 67_108_864
"""What is sent in the open transactions of one connection is in memory until they are discharged."""
MAX_TRANSACTION_S: Final = 120.0
COORDINATOR_CREDIT: Final = 100
_ID_BITS: Final = 128


class Transactions:
    """The open transactions of one connection."""

    def __init__(self, namespace: Namespace) -> None:
        """None yet."""
        self._namespace = namespace
        self._open: dict[bytes, tuple[Transaction, Timer]] = {}
        self._timed_out: dict[bytes, None] = {}
        """Those that were rolled back for taking too long: who goes on with one is told why."""

    def declare(self) -> bytes:
        """Open one; its id."""
        if len(self._open) >= MAX_OPEN_TRANSACTIONS:
            raise ServerBusy(
                f"the connection has {MAX_OPEN_TRANSACTIONS} open transactions, its limit: discharge one first"
            )
        namespace = self._namespace
        txn_id = namespace.make_token()
        deadline_s = namespace.clock.monotonic_s() + MAX_TRANSACTION_S
        timer = namespace.timers.call_at(deadline_s, lambda: self._expire(txn_id))
        self._open[txn_id] = (namespace.begin_transaction(), timer)
        return txn_id

    def find(self, txn_id: bytes) -> Transaction:
        """The one of that id. TransactionUnknown, TransactionTimeout."""
        found = self._open.get(txn_id)
        if found is None:
            raise self._not_found_error(txn_id)
        return found[0]

    def join(self, state: object, message_bytes: int) -> tuple[Transaction, TransactionalState]:
        """The transaction in which a message of that size is sent, as its state says, and the answer if it is taken.

        InvalidOperation, ServerBusy, and what `find` raises.
        """
        if not isinstance(state, TransactionalState):
            raise InvalidOperation(f"a message cannot be sent with the state {type(state).__name__}")
        transaction = self.find(state.txn_id)
        held = sum([one.size for one, _ in self._open.values()])
        if held and held + message_bytes > MAX_TRANSACTION_BYTES:
            error = ServerBusy(
                f"the open transactions of the connection hold {held:,} bytes, and {message_bytes:,} are too many"
            )
            transaction.fail(error)
            raise error
        return transaction, TransactionalState(txn_id=state.txn_id, outcome=ACCEPTED)

    def remove(self, txn_id: bytes) -> Transaction:
        """The one of that id, which is over now."""
        transaction = self.find(txn_id)
        self._open.pop(txn_id)[1].cancel()
        return transaction

    def roll_back_all(self, txn_ids: set[bytes]) -> None:
        """Roll back those of these that are still open."""
        for txn_id in txn_ids & self._open.keys():
            self.remove(txn_id).roll_back()

    def _expire(self, txn_id: bytes) -> None:
        self._timed_out[txn_id] = None
        if len(self._timed_out) > MAX_OPEN_TRANSACTIONS:
            del self._timed_out[next(iter(self._timed_out))]
        self.remove(txn_id).roll_back()

    def _not_found_error(self, txn_id: bytes) -> ServiceBusError:
        if txn_id in self._timed_out:
            return TransactionTimeout(f"the transaction took longer than {MAX_TRANSACTION_S:g} s, and was rolled back")
        return TransactionUnknown(
            "there is no such transaction on this connection: it was discharged, or never declared"
        )


class CoordinatorLink:
    """A link on which a client declares and discharges transactions."""

    def __init__(self, link: Receiver, transactions: Transactions, namespace: Namespace) -> None:
        """Accept the link."""
        self.link = link
        self.path = "the coordinator"
        self.last_used_s = namespace.clock.monotonic_s()
        self._transactions = transactions
        self._clock = namespace.clock
        self._declared_ids: set[bytes] = set()
        link.accept()
        link.keep_credit(COORDINATOR_CREDIT)

    @property
    def is_busy(self) -> bool:
        """A transaction may take long enough by itself."""
        return bool(self._declared_ids)

    def on_deliveries(self, deliveries: list[IncomingDelivery]) -> None:
        """Requests that came in one read."""
        self.last_used_s = self._clock.monotonic_s()
        for delivery in deliveries:
            try:
                self._handle(delivery)
            except ServiceBusError as error:
                self._reject(delivery, error)

    def on_detached(self) -> None:
        """The link is over, and so is what was declared on it."""
        self._transactions.roll_back_all(self._declared_ids)

    def _handle(self, delivery: IncomingDelivery) -> None:
        try:
            asked = Message(delivery.payload).value
        except DecodeError as error:
            raise MalformedMessage(f"the request to the coordinator is malformed: {error.description}") from None
        if isinstance(asked, Declare):
            if asked.global_id is not None:
                raise InvalidOperation("the transaction is to be part of a distributed one: there are local ones only")
            txn_id = self._transactions.declare()
            self._declared_ids.add(txn_id)
            self.link.settle([delivery], Declared(txn_id=txn_id))
        elif isinstance(asked, Discharge):
            self._discharge(delivery, asked)
        else:
            raise MalformedMessage(f"the coordinator is asked for {type(asked).__name__}; it can declare and discharge")

    def _discharge(self, delivery: IncomingDelivery, discharge: Discharge) -> None:
        transaction = self._transactions.remove(discharge.txn_id)
        self._declared_ids.discard(discharge.txn_id)
        if discharge.fail:
            transaction.roll_back()
            self.link.settle([delivery], ACCEPTED)
            return

        def answer(error: ServiceBusError | None) -> None:
            if error is None:
                self.link.settle([delivery], ACCEPTED)
            else:
                self._reject(delivery, error)

        transaction.commit(answer)

    def _reject(self, delivery: IncomingDelivery, error: ServiceBusError) -> None:
        send_error(self, error, lambda: self.link.settle([delivery], Rejected(error=to_amqp_error(error))))


def disposition_of(outcome: object) -> Disposition:
    """What an outcome in a transaction asks for. InvalidOperation."""
    if isinstance(outcome, Accepted):
        return Disposition.COMPLETE
    if isinstance(outcome, Rejected):
        return Disposition.DEAD_LETTER
    if isinstance(outcome, Released):
        return Disposition.RELEASE
    if isinstance(outcome, Modified):
        return Disposition.DEFER if outcome.undeliverable_here else Disposition.ABANDON
    raise InvalidOperation(f"a message cannot be settled with {type(outcome).__name__} in a transaction")
