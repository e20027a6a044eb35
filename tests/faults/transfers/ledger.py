"""The book of messages that are copied and forwarded, and of transactions.

A message that is sent to one entity has a *copy* in each of those where it is to arrive. What a transaction does to a
copy, or that it sends a message, is a *deed*. The promises, in the words of `problems`:

- lost: a message that was accepted, committed or seen is in every place where it is to arrive, until its completion is
  asked for there.
- back: a copy is never where it cannot be any more: completed, dead-lettered or deferred.
- doubled: a copy has one sequence number in a place, and a sequence number one copy.
- strange: nothing comes that was not sent, or not there.
- order: what one link sent, or one transaction, arrives in that order.
- torn: the deeds of a transaction are all done or none is: all if its commit was confirmed; none if it was rolled back,
  or refused, or if its client vanished before it asked for the commit.

What became of a deed is told by what is seen afterwards: the copy that was to be completed comes again, or it never
does. So that an abandon can be told as well, it leaves its transaction's number in the message (`TOUCHED`).

Owns: these promises. Knows nothing of servers, links or disks.
"""

from __future__ import annotations

import collections
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Final

from tests.faults.features import letter
from tests.faults.ledger import Ledger
from tests.faults.transfers.places import PLACES, Spot, homes_of

if TYPE_CHECKING:
    import random

TOUCHED: Final = "touched"
"""The property that an abandon in a transaction leaves."""
COMMITS_ENOUGH: Final = 20


class What(Enum):
    """What a transaction does."""

    SEND = "send"
    COMPLETE = "complete"
    ABANDON = "abandon"
    DEFER = "defer"
    BURY = "dead-letter"


SPOT_AFTER: Final = {
    What.SEND: Spot.ACTIVE,
    What.COMPLETE: Spot.GONE,
    What.ABANDON: Spot.ACTIVE,
    What.DEFER: Spot.DEFERRED,
    What.BURY: Spot.DEAD,
}


@dataclass(slots=True, eq=False)
class Transaction:
    """All that is known of one."""

    number: int
    deeds: list[Deed] = field(default_factory=list)
    is_done: bool | None = False
    """As its client knows it: it is not before its commit is asked for; None if that was not answered."""
    is_refused: bool = False
    """One of its deeds was: it can only be rolled back."""
    is_discharged: bool = False


@dataclass(slots=True, eq=False)
class Deed:
    """One thing that a transaction does."""

    transaction: Transaction
    what: What
    message: int
    home: str = ""
    is_done: bool | None = None
    """As it was seen; None if nothing was yet."""


@dataclass(slots=True)
class Copy:
    """A message in one of the places where it is to arrive."""

    may_be: set[Spot] = field(default_factory=lambda: {Spot.ACTIVE})
    numbers: dict[str, int] = field(default_factory=dict)
    """Its sequence numbers, by the address where it was received."""
    receipts: int = 0
    """How often it was received: only who received it last can have a lock."""
    deed: Deed | None = None
    """The last that was done to it, if nobody has seen yet what became of that."""


@dataclass(slots=True)
class Message:
    """What is known of a message beside its entry."""

    copies: dict[str, Copy]
    """By where it is to arrive."""
    deed: Deed | None = None
    """The transaction that sent it, if one did."""
    is_seen: bool = False

    @property
    def is_finished(self) -> bool:
        """All of its copies were completed, as far as is known, or wait until somebody asks for them."""
        return all(copy.may_be & {Spot.GONE, Spot.DEFERRED} for copy in self.copies.values())


class TransferLedger(Ledger):
    """One book for all clients of a run."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self.messages: list[Message] = []
        self.transactions: list[Transaction] = []
        self.resends = 0
        self._completed = 0

    # --- senders ------------------------------------------------------------------------------------------------------

    def write_to(self, head: str, line: int | None, filler_bytes: int, session: str | None) -> tuple[int, bytes]:
        """A new message, which will be sent now: its number and its payload."""
        number, body = self.write(head, line, filler_bytes)
        payload = letter.write(f"message-{number}", body, letter.Terms(session=session))
        self.messages.append(Message({home: Copy() for home in homes_of(head, session)}))
        return number, payload

    def sent_again(self, number: int) -> None:
        """It may be taken in now or have been before: it keeps no order."""
        self.resends += 1
        self.entries[number].line = None

    def is_surely_sent(self, number: int) -> bool:
        """The broker said so."""
        deed = self.messages[number].deed
        return self.entries[number].is_accepted or (deed is not None and deed.transaction.is_done is True)

    # --- transactions -------------------------------------------------------------------------------------------------

    def begin(self) -> Transaction:
        """A transaction was declared."""
        transaction = Transaction(len(self.transactions))
        self.transactions.append(transaction)
        return transaction

    def sends(self, transaction: Transaction, number: int) -> None:
        """A message is sent in it: a new one, or one that no other transaction has sent."""
        deed = self.messages[number].deed = Deed(transaction, What.SEND, number)
        transaction.deeds.append(deed)
        self.entries[number].line = -1 - transaction.number

    def settles(self, transaction: Transaction, home: str, number: int, receipt: int, what: What) -> None:
        """A copy that its client holds is to be settled in it. That must be refused if another has got it since."""
        copy = self.messages[number].copies[home]
        if copy.receipts != receipt:
            transaction.is_refused = True
            return
        copy.deed = Deed(transaction, what, number, home)
        transaction.deeds.append(copy.deed)

    def receipt_of(self, home: str, number: int) -> int:
        """By which who just received a copy is known."""
        return self.messages[number].copies[home].receipts

    def commit_requested(self, transaction: Transaction) -> None:
        transaction.is_discharged, transaction.is_done = True, None
        for deed in transaction.deeds:
            if deed.home and self._copy(deed).deed is deed:
                self._copy(deed).may_be.add(SPOT_AFTER[deed.what])

    def committed(self, transaction: Transaction) -> None:
        transaction.is_done = True
        if transaction.is_refused:
            self._tell(f"torn: transaction {transaction.number} was committed, and one of its deeds had been refused")
        for deed in transaction.deeds:
            if deed.what is What.SEND:
                self._must_be_there(deed.message)
            elif self._copy(deed).deed is deed:
                self._is_now(deed.message, self._copy(deed), SPOT_AFTER[deed.what])

    def rolled_back(self, transaction: Transaction) -> None:
        """That was asked for, or the commit was refused: it will never be done."""
        transaction.is_discharged, transaction.is_done = True, False
        for deed in transaction.deeds:
            if deed.home and self._copy(deed).deed is deed:
                self._copy(deed).may_be = {Spot.ACTIVE}
                self._copy(deed).deed = None

    def _copy(self, deed: Deed) -> Copy:
        return self.messages[deed.message].copies[deed.home]

    # --- receivers ----------------------------------------------------------------------------------------------------

    def receive_at(
        self, address: str, sequence_number: int, body: bytes, touched: object = None, spot: Spot | None = None
    ) -> int | None:
        """Somebody got a message from a place: its number, if it is one of ours.

        `touched` is what TOUCHED says in it; `spot` is where it was, if not where the place's messages are.
        """
        self.received_count += 1
        place, where = PLACES[address], f"from {address} came, as number {sequence_number},"
        spot = spot or place.spot
        number = self.number_in(where, body)
        if number is None:
            return None
        message = self.messages[number]
        copy = message.copies.get(place.home)
        if copy is None:
            self._tell(f"strange: {where} message {number}, which was sent to {self.entries[number].queue}")
            return None
        where = f"{where} message {number},"
        if spot not in copy.may_be:
            known = "or ".join(sorted(known.value for known in copy.may_be))
            self._tell(f"back: {where} which is {known}")
        if copy.numbers.setdefault(address, sequence_number) != sequence_number:
            self._tell(f"doubled: {where} which had been number {copy.numbers[address]}")
        self._note_place(address, where, sequence_number, number)
        self._learn(message, copy, spot, touched)
        self._is_now(number, copy, spot)
        self._must_be_there(number)
        return number

    def _learn(self, message: Message, copy: Copy, spot: Spot, touched: object) -> None:
        """What a copy that is seen somewhere tells of transactions."""
        message.is_seen = True
        copy.receipts += 1
        if message.deed is not None:
            message.deed.is_done = True
        deed, copy.deed = copy.deed, None
        if deed is None:
            return
        if deed.what is What.ABANDON:
            deed.is_done = touched == deed.transaction.number
        else:
            deed.is_done = spot is SPOT_AFTER[deed.what]

    def asks(self, home: str, number: int, spot: Spot) -> None:
        """Who has a copy asks, in no transaction, that it be completed or dead-lettered."""
        self.messages[number].copies[home].may_be.add(spot)
        self._look(number)

    def answered(self, home: str, number: int, receipt: int, spot: Spot) -> None:
        """... and that was done. Another may have received it there before that is known, and asked for more."""
        copy = self.messages[number].copies[home]
        self._completed += spot is Spot.GONE
        if copy.receipts == receipt:
            self._is_now(number, copy, spot)

    def _is_now(self, number: int, copy: Copy, spot: Spot) -> None:
        copy.may_be = {spot}
        self._look(number)

    def _look(self, number: int) -> None:
        if self.messages[number].is_finished:
            self.waiting.discard(number)

    def _must_be_there(self, number: int) -> None:
        if not self.messages[number].is_finished:
            self.waiting.add(number)

    # --- the reckoning ------------------------------------------------------------------------------------------------

    def close(self) -> list[str]:
        """All that is anywhere was received and completed."""
        for number, message in enumerate(self.messages):
            self._check_message(number, message)
        for transaction in self.transactions:
            self._check_transaction(transaction)
        self._check_order()
        return self.problems

    def _check_message(self, number: int, message: Message) -> None:
        if message.deed is not None and not message.is_seen:
            message.deed.is_done = False
        if not message.is_seen and not self.is_surely_sent(number):
            return
        for home, copy in message.copies.items():
            if Spot.GONE not in copy.may_be:
                known = " or ".join(sorted(spot.value for spot in copy.may_be))
                self._tell(f"lost: message {number} of {self.entries[number].queue}, which is {known} in {home}")
            elif copy.deed is not None and copy.deed.what is What.COMPLETE:
                copy.deed.is_done = True  # it never came again

    def _check_transaction(self, transaction: Transaction) -> None:
        done = [deed for deed in transaction.deeds if deed.is_done is True]
        left = [deed for deed in transaction.deeds if deed.is_done is False]
        if (done and left) or (done and transaction.is_done is False) or (left and transaction.is_done is True):
            known = {True: "was committed", False: "was not committed", None: "was to be committed"}
            self._tell(
                f"torn: transaction {transaction.number} {known[transaction.is_done]}: "
                f"done are {_told(done)}; not done are {_told(left)}"
            )

    def _check_order(self) -> None:
        last: dict[tuple[int, str], tuple[int, int]] = {}
        for number, message in enumerate(self.messages):
            line = self.entries[number].line
            for home, copy in message.copies.items():
                sequence_number = copy.numbers.get(home)
                if line is None or sequence_number is None:
                    continue
                before, highest = last.get((line, home), (-1, -1))
                if highest > sequence_number:
                    self._tell(
                        f"order: of one source, message {before} is number {highest} in {home}, "
                        f"and message {number} after it {sequence_number}"
                    )
                last[line, home] = (number, sequence_number)

    def uses(self) -> dict[str, int]:
        """How often each feature was made use of."""
        ends = collections.Counter(
            "vanished" if not transaction.is_discharged else transaction.is_done for transaction in self.transactions
        )
        deeds = collections.Counter(
            deed.what for transaction in self.transactions if transaction.is_done for deed in transaction.deeds
        )
        arrived = collections.Counter(
            self.entries[number].queue for number, message in enumerate(self.messages) if message.is_seen
        )
        return {
            "transactions committed": ends[True],
            "rolled back": ends[False],
            "of clients that vanished": ends["vanished"],
            "with a commit without an answer": ends[None],
            **{f"{what.value}s committed": deeds[what] for what in What},
            **{f"arrived from {head}": arrived[head] for head in ("before", "head", "middle", "fork", "road")},
            "sent again": self.resends,
        }

    def unused(self) -> list[str]:
        """What a run says nothing of, because it was hardly used."""
        committed = "transactions committed"
        return [committed] if self.uses()[committed] < COMMITS_ENOUGH else []

    def figures(self) -> str:
        entries = self.entries
        return (
            f"{len(entries):,} sent, {sum(entry.is_accepted for entry in entries):,} accepted, "
            f"{self.received_count:,} received, {self._completed:,} completed; "
            f"{', '.join(f'{count:,} {name}' for name, count in self.uses().items())}"
        )


def _told(deeds: list[Deed]) -> str:
    told = [f"{deed.what.value} {deed.message}" + (f" in {deed.home}" if deed.home else "") for deed in deeds[:5]]
    more = [f"{len(deeds) - 5} more"] if len(deeds) > 5 else []
    return ", ".join([*told, *more]) or "none"
