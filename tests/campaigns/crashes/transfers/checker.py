"""Checker of copied and forwarded messages, and of transactions.

A message has a copy at each of its destinations. A send or a settlement in a transaction is an *action* of the
transaction. It adds these guarantees to those of every checker:

- lost: also messages of a committed transaction, and all copies of a message that was seen at one destination.
- torn: all actions of a transaction take effect, or none: all if its commit was confirmed; none if it was rolled back
  or refused, or if its client disconnected before it requested the commit.

Later deliveries show whether an action took effect: a copy is redelivered only if its completion did not. An abandon
writes the number of its transaction into the message (`ABANDON_PROPERTY`), so that it can be recognised, too.

Owns: these guarantees. Knows nothing of servers, links or disks.
"""

from __future__ import annotations

import collections
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Final

from tests.campaigns.crashes.features import messages
from tests.campaigns.crashes.transfers.topology import CHAIN, DESTINATIONS, destinations_of
from tests.support.delivery_checker.checker import DeliveryChecker
from tests.support.delivery_checker.messages import State

if TYPE_CHECKING:
    import random
    from collections.abc import Hashable

    from tests.support.delivery_checker.messages import Copy, Message

ABANDON_PROPERTY: Final = "touched"
"""Property that an abandon in a transaction sets."""
MIN_COMMITS: Final = 20


class ActionKind(Enum):
    """Kind of an action in a transaction."""

    SEND = "send"
    COMPLETE = "complete"
    ABANDON = "abandon"
    DEFER = "defer"
    DEAD_LETTER = "dead-letter"


STATE_AFTER: Final = {
    ActionKind.SEND: State.ACTIVE,
    ActionKind.COMPLETE: State.COMPLETED,
    ActionKind.ABANDON: State.ACTIVE,
    ActionKind.DEFER: State.DEFERRED,
    ActionKind.DEAD_LETTER: State.DEAD_LETTERED,
}


@dataclass(slots=True, eq=False)
class Transaction:
    """Transaction, its actions and its outcome."""

    number: int
    actions: list[Action] = field(default_factory=list)
    is_done: bool | None = False
    """Outcome known to the client: False before the commit is requested; None if the commit had no response."""
    is_refused: bool = False
    """One of its actions was refused: it can only be rolled back."""
    is_discharged: bool = False


@dataclass(slots=True, eq=False)
class Action:
    """A send or a settlement in a transaction."""

    transaction: Transaction
    kind: ActionKind
    message: int
    destination: str = ""
    is_done: bool | None = None
    """Whether it took effect, as observed; None if unknown."""


class TransferChecker(DeliveryChecker):
    """Checker for all clients of a run."""

    cancelled_requests = frozenset(State)
    resting_states = frozenset({State.COMPLETED, State.DEFERRED})
    """Deferred messages stay until they are received by sequence number."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self.transactions: list[Transaction] = []
        self.sent_by: dict[int, Action] = {}
        """Messages that were sent in a transaction."""
        self.resends = 0
        self._last_action: dict[Copy, Action] = {}
        """Last action on a copy, if its effect has not been observed."""

    # --- senders ------------------------------------------------------------------------------------------------------

    def record_send_to(
        self, entry: str, source: Hashable | None, filler_bytes: int, session: str | None
    ) -> tuple[int, bytes]:
        """Record a new message; return its number and its payload."""
        number, body = self.record_send(entry, source, filler_bytes, destinations_of(entry, session))
        return number, messages.encode_message(f"message-{number}", body, messages.MessageTerms(session=session))

    def resent(self, number: int) -> None:
        """Record a repeated send; the first or the second may be stored, so the order is unknown."""
        self.resends += 1
        self.messages[number].order_key = None

    def must_exist(self, message: Message) -> bool:
        action = self.sent_by.get(message.number)
        return super().must_exist(message) or (action is not None and action.transaction.is_done is True)

    # --- transactions -------------------------------------------------------------------------------------------------

    def begin_transaction(self) -> Transaction:
        """Record a declared transaction."""
        transaction = Transaction(len(self.transactions))
        self.transactions.append(transaction)
        return transaction

    def transaction_sends(self, transaction: Transaction, number: int) -> None:
        """Record a send in a transaction: a new message, or one that no other transaction has sent."""
        action = self.sent_by[number] = Action(transaction, ActionKind.SEND, number)
        transaction.actions.append(action)
        self.messages[number].order_key = ("transaction", transaction.number)

    def transaction_settles(
        self, transaction: Transaction, destination: str, number: int, receipt: int, kind: ActionKind
    ) -> None:
        """Record a settlement in a transaction; it is refused if another client has received the copy since."""
        copy = self.messages[number].copy_in(destination)
        if copy.receipt_count != receipt:
            transaction.is_refused = True
            return
        action = self._last_action[copy] = Action(transaction, kind, number, destination)
        transaction.actions.append(action)

    def receipt_count_of(self, destination: str, number: int) -> int:
        """Return the number of receipts of a copy: only the last receiver can hold the lock."""
        return self.messages[number].copy_in(destination).receipt_count

    def commit_requested(self, transaction: Transaction) -> None:
        transaction.is_discharged, transaction.is_done = True, None
        for copy, action in self._open_settlements(transaction):
            copy.requested_states[STATE_AFTER[action.kind]] += 1

    def committed(self, transaction: Transaction) -> None:
        transaction.is_done = True
        if transaction.is_refused:
            self.report_problem(
                f"torn: transaction {transaction.number} was committed, and one of its actions had been refused"
            )
        for copy, action in self._open_settlements(transaction):
            copy.confirm(STATE_AFTER[action.kind])
        for action in transaction.actions:
            self.update_pending(self.messages[action.message])

    def rolled_back(self, transaction: Transaction) -> None:
        """Record a rollback or a refused commit."""
        transaction.is_discharged, transaction.is_done = True, False
        for copy, _ in self._open_settlements(transaction):
            copy.confirm(State.ACTIVE)
            del self._last_action[copy]

    def _open_settlements(self, transaction: Transaction) -> list[tuple[Copy, Action]]:
        """Return the copies that the transaction settles and that were not received since."""
        copies = [
            (self.messages[action.message].copy_in(action.destination), action)
            for action in transaction.actions
            if action.destination
        ]
        return [(copy, action) for copy, action in copies if self._last_action.get(copy) is action]

    # --- receivers ----------------------------------------------------------------------------------------------------

    def message_received_at(
        self, address: str, sequence_number: int, body: bytes, abandon_mark: object = None, state: State | None = None
    ) -> int | None:
        """Record a received message; return its number if the campaign sent it.

        `abandon_mark` is its ABANDON_PROPERTY; `state` its state, if it differs from that of the destination.
        """
        self.received_count += 1
        destination, where = DESTINATIONS[address], f"from {address} came, as number {sequence_number},"
        message = self.identify_message(where, body, destination.entity)
        if message is None:
            return None
        state = state or destination.state
        copy = self.record_receipt(where, message, destination.entity, address, sequence_number, state)
        if message.number in self.sent_by:
            self.sent_by[message.number].is_done = True
        action = self._last_action.pop(copy, None)
        if action is not None:
            is_abandoned = abandon_mark == action.transaction.number
            action.is_done = is_abandoned if action.kind is ActionKind.ABANDON else state is STATE_AFTER[action.kind]
        return message.number

    def settlement_requested(self, destination: str, number: int, state: State) -> None:
        """Record that a copy is to be completed or dead-lettered, without a transaction."""
        self.messages[number].copy_in(destination).requested_states[state] += 1
        self.update_pending(self.messages[number])

    def settlement_confirmed(self, destination: str, number: int, receipt: int, state: State) -> None:
        """Record the confirmation; another client may have received and settled the copy in the meantime."""
        copy = self.messages[number].copy_in(destination)
        self.completed_count += state is State.COMPLETED
        if copy.receipt_count == receipt:
            copy.confirm(state)
            self.update_pending(self.messages[number])

    # --- the end ------------------------------------------------------------------------------------------------------

    def finish(self) -> list[str]:
        """Check the result after all messages were received and completed."""
        for number, action in self.sent_by.items():
            if not self.messages[number].was_received:
                action.is_done = False
        for copy, action in self._last_action.items():
            if action.kind is ActionKind.COMPLETE and copy.may_be_gone and self.must_exist(self.messages[copy.number]):
                action.is_done = True  # it was never redelivered
        super().finish()
        for transaction in self.transactions:
            self._check_transaction(transaction)
        return self.problems

    def _check_transaction(self, transaction: Transaction) -> None:
        done = [action for action in transaction.actions if action.is_done is True]
        not_done = [action for action in transaction.actions if action.is_done is False]
        if (done and not_done) or (done and transaction.is_done is False) or (not_done and transaction.is_done is True):
            known = {True: "was committed", False: "was not committed", None: "was to be committed"}
            self.report_problem(
                f"torn: transaction {transaction.number} {known[transaction.is_done]}: "
                f"done are {_describe_actions(done)}; not done are {_describe_actions(not_done)}"
            )

    def feature_counts(self) -> dict[str, int]:
        """Return the number of uses of each feature."""
        ends = collections.Counter(
            "vanished" if not transaction.is_discharged else transaction.is_done for transaction in self.transactions
        )
        actions = collections.Counter(
            action.kind for transaction in self.transactions if transaction.is_done for action in transaction.actions
        )
        arrived = collections.Counter(message.sent_to for message in self.messages if message.was_received)
        return {
            "transactions committed": ends[True],
            "rolled back": ends[False],
            "of clients that vanished": ends["vanished"],
            "with a commit without an answer": ends[None],
            **{f"{what.value}s committed": actions[what] for what in ActionKind},
            **{f"arrived from {head}": arrived[head] for head in ("before", "head", "middle", "fork", "road")},
            "sent again": self.resends,
        }

    def uncovered_features(self) -> list[str]:
        """Return the features that were used too rarely."""
        counts = self.feature_counts()
        required = {"transactions committed": MIN_COMMITS} | {f"arrived from {entry}": 1 for entry in CHAIN}
        return [name for name, minimum in required.items() if counts[name] < minimum]

    def statistics(self) -> str:
        return (
            f"{super().statistics()}; {', '.join(f'{count:,} {name}' for name, count in self.feature_counts().items())}"
        )


def _describe_actions(actions: list[Action]) -> str:
    descriptions = [
        f"{action.kind.value} {action.message}" + (f" in {action.destination}" if action.destination else "")
        for action in actions[:5]
    ]
    more = [f"{len(actions) - 5} more"] if len(actions) > 5 else []
    return ", ".join([*descriptions, *more]) or "none"
