"""The ledger of messages that are copied and forwarded, and of transactions.

A message that is sent to one entity has a copy in each of those where it has to arrive. What a transaction does to a
copy, or that it sends a message, is an *action* of the transaction. To the promises of every ledger it adds:

- lost: also of messages that a confirmed transaction has sent, and at every home of a message that was seen at one.
- torn: the actions of a transaction are all done or none is: all if its commit was confirmed; none if it was rolled
  back, or refused, or if its client vanished before it asked for the commit.

What became of an action is known by what is seen afterwards: the copy that was to be completed comes again, or it never
does. So that an abandon can be recognised as well, it leaves its transaction's number in the message (`TOUCHED`).

Owns: these promises. Knows nothing of servers, links or disks.
"""

from __future__ import annotations

import collections
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Final

from tests.campaigns.crashes.features import messages
from tests.campaigns.crashes.transfers.topology import DESTINATIONS, destinations_of
from tests.support.delivery_checker.checker import DeliveryChecker
from tests.support.delivery_checker.messages import State

if TYPE_CHECKING:
    import random
    from collections.abc import Hashable

    from tests.support.delivery_checker.messages import Copy, Message

ABANDON_PROPERTY: Final = "touched"
"""The property that an abandon in a transaction leaves."""
MIN_COMMITS: Final = 20


class ActionKind(Enum):
    """What a transaction does."""

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
    """All that is known of one."""

    number: int
    actions: list[Action] = field(default_factory=list)
    is_done: bool | None = False
    """As its client knows it: False before its commit is asked for; None if the commit was not answered."""
    is_refused: bool = False
    """One of its actions was: it can only be rolled back."""
    is_discharged: bool = False


@dataclass(slots=True, eq=False)
class Action:
    """A send or a settlement in a transaction."""

    transaction: Transaction
    kind: ActionKind
    message: int
    destination: str = ""
    is_done: bool | None = None
    """As it was seen; None if nothing was yet."""


class TransferChecker(DeliveryChecker):
    """One ledger for all clients of a run."""

    cancelled_requests = frozenset(State)
    resting_states = frozenset({State.COMPLETED, State.DEFERRED})
    """Deferred messages wait until somebody asks for them."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self.transactions: list[Transaction] = []
        self.sent_by: dict[int, Action] = {}
        """Messages that were sent in a transaction."""
        self.resends = 0
        self._last_action: dict[Copy, Action] = {}
        """The last action on a copy, if nobody has seen yet what became of it."""

    # --- senders ------------------------------------------------------------------------------------------------------

    def record_send_to(
        self, entry: str, source: Hashable | None, filler_bytes: int, session: str | None
    ) -> tuple[int, bytes]:
        """Record a new message, which will be sent now: its number and its payload."""
        number, body = self.record_send(entry, source, filler_bytes, destinations_of(entry, session))
        return number, messages.encode_message(f"message-{number}", body, messages.MessageTerms(session=session))

    def resent(self, number: int) -> None:
        """It may be stored now or have been before: it has no place in an order."""
        self.resends += 1
        self.messages[number].order_key = None

    def must_exist(self, message: Message) -> bool:
        action = self.sent_by.get(message.number)
        return super().must_exist(message) or (action is not None and action.transaction.is_done is True)

    # --- transactions -------------------------------------------------------------------------------------------------

    def begin_transaction(self) -> Transaction:
        """A transaction was declared."""
        transaction = Transaction(len(self.transactions))
        self.transactions.append(transaction)
        return transaction

    def transaction_sends(self, transaction: Transaction, number: int) -> None:
        """A message is sent in it: a new one, or one that no other transaction has sent."""
        action = self.sent_by[number] = Action(transaction, ActionKind.SEND, number)
        transaction.actions.append(action)
        self.messages[number].order_key = ("transaction", transaction.number)

    def transaction_settles(
        self, transaction: Transaction, destination: str, number: int, receipt: int, kind: ActionKind
    ) -> None:
        """A copy that its client holds is to be settled in it: refused if another client has received it since."""
        copy = self.messages[number].copy_in(destination)
        if copy.receipt_count != receipt:
            transaction.is_refused = True
            return
        action = self._last_action[copy] = Action(transaction, kind, number, destination)
        transaction.actions.append(action)

    def receipt_count_of(self, destination: str, number: int) -> int:
        """The number of the last receipt of a copy: only its receiver can have a lock."""
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
        """That was asked for, or the commit was refused: it will never be done."""
        transaction.is_discharged, transaction.is_done = True, False
        for copy, _ in self._open_settlements(transaction):
            copy.confirm(State.ACTIVE)
            del self._last_action[copy]

    def _open_settlements(self, transaction: Transaction) -> list[tuple[Copy, Action]]:
        """Copies that it settles, and that nobody has received since."""
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
        """Somebody received a message from a place: its number, if it is one of ours.

        `touched` is what TOUCHED says in it; `state` its state, if not the one of all messages of the place.
        """
        self.received_count += 1
        place, where = DESTINATIONS[address], f"from {address} came, as number {sequence_number},"
        message = self.identify_message(where, body, place.entity)
        if message is None:
            return None
        state = state or place.state
        copy = self.record_receipt(where, message, place.entity, address, sequence_number, state)
        if message.number in self.sent_by:
            self.sent_by[message.number].is_done = True
        action = self._last_action.pop(copy, None)
        if action is not None:
            is_touched = abandon_mark == action.transaction.number
            action.is_done = is_touched if action.kind is ActionKind.ABANDON else state is STATE_AFTER[action.kind]
        return message.number

    def settlement_requested(self, destination: str, number: int, state: State) -> None:
        """The receiver of a copy asks, in no transaction, that it be completed or dead-lettered."""
        self.messages[number].copy_in(destination).requested_states[state] += 1
        self.update_pending(self.messages[number])

    def settlement_confirmed(self, destination: str, number: int, receipt: int, state: State) -> None:
        """... and that was done. Another client may have received it before that is known, and asked for more."""
        copy = self.messages[number].copy_in(destination)
        self.completed_count += state is State.COMPLETED
        if copy.receipt_count == receipt:
            copy.confirm(state)
            self.update_pending(self.messages[number])

    # --- the end ------------------------------------------------------------------------------------------------------

    def finish(self) -> list[str]:
        """Everything was received and completed to the end."""
        for number, action in self.sent_by.items():
            if not self.messages[number].was_received:
                action.is_done = False
        for copy, action in self._last_action.items():
            if action.kind is ActionKind.COMPLETE and copy.may_be_gone and self.must_exist(self.messages[copy.number]):
                action.is_done = True  # it never came again
        super().finish()
        for transaction in self.transactions:
            self._check_transaction(transaction)
        return self.problems

    def _check_transaction(self, transaction: Transaction) -> None:
        done = [action for action in transaction.actions if action.is_done is True]
        left = [action for action in transaction.actions if action.is_done is False]
        if (done and left) or (done and transaction.is_done is False) or (left and transaction.is_done is True):
            known = {True: "was committed", False: "was not committed", None: "was to be committed"}
            self.report_problem(
                f"torn: transaction {transaction.number} {known[transaction.is_done]}: "
                f"done are {_describe_actions(done)}; not done are {_describe_actions(left)}"
            )

    def feature_counts(self) -> dict[str, int]:
        """How often each feature was made use of."""
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
        """What a run says nothing of, because it was hardly used."""
        committed = "transactions committed"
        return [committed] if self.feature_counts()[committed] < MIN_COMMITS else []

    def statistics(self) -> str:
        return (
            f"{super().statistics()}; {', '.join(f'{count:,} {name}' for name, count in self.feature_counts().items())}"
        )


def _describe_actions(actions: list[Action]) -> str:
    told = [
        f"{one.kind.value} {one.message}" + (f" in {one.destination}" if one.destination else "") for one in actions[:5]
    ]
    more = [f"{len(actions) - 5} more"] if len(actions) > 5 else []
    return ", ".join([*told, *more]) or "none"
