"""The transactions of a connection, and the link that declares and discharges them (AMQP 1.0, part 4).

Owns: transaction ids, the limit on open transactions, and their timeout. A transaction is rolled back when the link
that declared it is detached. The broker executes the transaction.
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
    from collections.abc import KeysView

    from twinbus.amqp.delivery import IncomingDelivery
    from twinbus.amqp.receiver import Receiver
    from twinbus.broker.clock import Timer
    from twinbus.broker.namespace import Namespace, Transaction

MAX_OPEN_TRANSACTIONS: Final = 100
"""The maximum number of open transactions per connection."""
MAX_TRANSACTION_BYTES: Final = 67_108_864
"""The maximum total size of messages in a connection's open transactions; they stay in memory until the discharge."""
MAX_TRANSACTION_S: Final = 120.0
COORDINATOR_CREDIT: Final = 100
_ID_BITS: Final = 128


class Transactions:
    """The open transactions of one connection."""

    def __init__(self, namespace: Namespace) -> None:
        """Create an empty set of transactions."""
        self._namespace = namespace
        self._open: dict[bytes, tuple[Transaction, Timer]] = {}
        self._timed_out: dict[bytes, None] = {}
        """Transactions that were rolled back after the timeout, so that later operations get the right error."""

    def declare(self) -> bytes:
        """Open a transaction and return its id. Raise ServerBusy if the connection has too many transactions."""
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
        """Return the transaction with this id. Raise TransactionUnknown or TransactionTimeout."""
        entry = self._open.get(txn_id)
        if entry is None:
            raise self._not_found_error(txn_id)
        return entry[0]

    def join(self, state: object, message_bytes: int) -> tuple[Transaction, TransactionalState]:
        """Return the transaction named by a message's delivery state, and the state with which to accept the message.

        Raise InvalidOperation, ServerBusy, TransactionUnknown or TransactionTimeout.
        """
        if not isinstance(state, TransactionalState):
            raise InvalidOperation(f"a message cannot be sent with the state {type(state).__name__}")
        transaction = self.find(state.txn_id)
        total_bytes = sum([open_transaction.size for open_transaction, _ in self._open.values()])
        if total_bytes and total_bytes + message_bytes > MAX_TRANSACTION_BYTES:
            error = ServerBusy(
                f"the open transactions of the connection hold {total_bytes:,} bytes, and {message_bytes:,} more would "
                f"exceed {MAX_TRANSACTION_BYTES:,}: discharge one first"
            )
            transaction.fail(error)
            raise error
        return transaction, TransactionalState(txn_id=state.txn_id, outcome=ACCEPTED)

    def remove(self, txn_id: bytes) -> Transaction:
        """Remove the transaction with this id and return it. Raise TransactionUnknown or TransactionTimeout."""
        transaction = self.find(txn_id)
        self._open.pop(txn_id)[1].cancel()
        return transaction

    @property
    def open_ids(self) -> KeysView[bytes]:
        """The ids of all open transactions."""
        return self._open.keys()

    def roll_back_all(self, txn_ids: set[bytes]) -> None:
        """Roll back the transactions with these ids, if they are still open."""
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
        return TransactionUnknown("the connection has no such transaction: it was discharged, or never declared")


class CoordinatorLink:
    """The server's end of a link on which a client declares and discharges transactions."""

    def __init__(self, link: Receiver, transactions: Transactions, namespace: Namespace) -> None:
        """Accept the link and grant credit."""
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
        """Whether a transaction declared on this link is still open; the link then does not count as idle."""
        self._declared_ids &= self._transactions.open_ids  # the other transactions have timed out
        return bool(self._declared_ids)

    def on_deliveries(self, deliveries: list[IncomingDelivery]) -> None:
        """Handle requests that arrived in one read."""
        self.last_used_s = self._clock.monotonic_s()
        for delivery in deliveries:
            try:
                self._handle(delivery)
            except ServiceBusError as error:
                self._reject(delivery, error)

    def on_detached(self) -> None:
        """Roll back the transactions that were declared on this link."""
        self._transactions.roll_back_all(self._declared_ids)

    def _handle(self, delivery: IncomingDelivery) -> None:
        try:
            request = Message(delivery.payload).value
        except DecodeError as error:
            raise MalformedMessage(f"the request to the coordinator is malformed: {error.description}") from None
        if isinstance(request, Declare):
            if request.global_id is not None:
                raise InvalidOperation("distributed transactions are not supported: declare one without a global id")
            txn_id = self._transactions.declare()
            self._declared_ids.add(txn_id)
            self.link.settle([delivery], Declared(txn_id=txn_id))
        elif isinstance(request, Discharge):
            self._discharge(delivery, request)
        else:
            raise MalformedMessage(f"the coordinator accepts declare and discharge, not {type(request).__name__}")

    def _discharge(self, delivery: IncomingDelivery, discharge: Discharge) -> None:
        transaction = self._transactions.remove(discharge.txn_id)
        self._declared_ids.discard(discharge.txn_id)
        if discharge.fail:
            transaction.roll_back()
            self.link.settle([delivery], ACCEPTED)
            return

        def on_committed(error: ServiceBusError | None) -> None:
            if error is None:
                self.link.settle([delivery], ACCEPTED)
            else:
                self._reject(delivery, error)

        transaction.commit(on_committed)

    def _reject(self, delivery: IncomingDelivery, error: ServiceBusError) -> None:
        send_error(self, error, lambda: self.link.settle([delivery], Rejected(error=to_amqp_error(error))))


def disposition_of(outcome: object) -> Disposition:
    """Return the disposition for an outcome in a transaction. Raise InvalidOperation for any other state."""
    if isinstance(outcome, Accepted):
        return Disposition.COMPLETE
    if isinstance(outcome, Rejected):
        return Disposition.DEAD_LETTER
    if isinstance(outcome, Released):
        return Disposition.RELEASE
    if isinstance(outcome, Modified):
        return Disposition.DEFER if outcome.undeliverable_here else Disposition.ABANDON
    raise InvalidOperation(f"a message cannot be settled with {type(outcome).__name__} in a transaction")
