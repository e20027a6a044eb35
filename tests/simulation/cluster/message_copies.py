"""Messages as they are seen in a queue of several processes: copies, locks on them, sessions, transactions.

Owns: what may become of each of them, as far as clients know it.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING

from tests.support.delivery_checker.messages import Copy as Seen
from tests.support.delivery_checker.messages import State
from tests.support.delivery_checker.problems import Violation
from twinbus.broker.ports.settlement import Disposition

if TYPE_CHECKING:
    from tests.simulation.cluster.receivers import SimulatedReceiver, SimulatedSessionReceiver


QUEUE = "orders"
STATE_AFTER = {
    Disposition.COMPLETE: State.COMPLETED,
    Disposition.DEFER: State.DEFERRED,
    Disposition.DEAD_LETTER: State.DEAD_LETTERED,
}


class SendOperation:
    """Messages that were sent together."""

    def __init__(self, messages: list[Message], troubles: list[int]) -> None:
        self.messages = messages
        self.store_failures = troubles
        """Of each store, how often it had trouble when they were sent."""
        self.is_answered = False
        self.is_void = False
        """The process that was to answer is gone."""

    def __repr__(self) -> str:
        return f"the send of {[message.identity for message in self.messages]}"


class Message:
    """One message."""

    def __init__(self, identity: int, key: str | None, way: int) -> None:
        self.identity = identity
        self.key = key
        self.process_life = way
        """The process that it was sent through."""
        self.sending: SendOperation
        self.is_accepted = False
        self.transaction: ExpectedTransaction | None = None
        self.copies: dict[int, Copy] = {}
        """By sequence number, those that were seen."""
        self.dead_letters: dict[int, Copy] = {}
        """... among dead letters."""
        self.was_deleted = False
        """For a receiver, who may not have got it."""
        self.lost: set[int] = set()
        """The sequence numbers under which it was deleted for a receiver, and something failed before he got it."""

    def __repr__(self) -> str:
        return f"message {self.identity} ({self.key})"


class Copy(Seen):
    """A message in a fragment, or among the dead letters of one."""

    def __init__(self, message: Message, sequence: int, *, is_dead: bool) -> None:
        super().__init__(message.identity, QUEUE, {QUEUE: sequence})
        self.message = message
        self.sequence = sequence
        self.is_dead = is_dead
        self.locks: list[Lock] = []
        self.max_delivery_count = 0
        """How often its delivery may have been counted."""
        self.has_dead_letter = False
        """The dead letter that it became was seen."""
        self.was_seen = False
        self.was_handed_out = False
        self.was_returned = False
        """By its receiver, or it was locked where the store failed."""
        self.transactions: list[ExpectedTransaction] = []
        """Transactions that were to settle it."""

    def __repr__(self) -> str:
        return f"{self.message!r} under {self.sequence >> 48}:{self.sequence & 0xFFFFFFFF}{' (dead)' * self.is_dead}"

    @property
    def lock(self) -> Lock | None:
        """The last that was given."""
        return self.locks[-1] if self.locks else None

    def check_free(self, now_ms: int) -> None:
        """It is given to a receiver now."""
        if self.state is not State.ACTIVE:
            raise Violation(f"{self!r} is {self.state.value}, and comes again")
        held = next((lock for lock in self.locks if lock.is_valid(now_ms)), None)
        if held is not None:
            raise Violation(f"{self!r} is locked until {held.until_ms}, and is given to another at {now_ms}")

    def settlement_done(self, how: Disposition) -> None:
        """It was answered that this is done."""
        self.state = self._state_after(how) or self.state

    def settlement_requested(self, how: Disposition) -> None:
        """A receiver has asked for this."""
        self.was_returned = True
        if state := self._state_after(how):
            self.requested_states[state] += 1
        self.max_delivery_count += how is Disposition.ABANDON or (how is Disposition.DEAD_LETTER and self.is_dead)

    def _state_after(self, how: Disposition) -> State | None:
        """What it becomes. A dead letter that is dead-lettered stays where it is."""
        return None if how is Disposition.DEAD_LETTER and self.is_dead else STATE_AFTER.get(how)


class Lock:
    """What someone was given."""

    def __init__(self, copy: Copy, tag: bytes, until_ms: int, receiver: SimulatedReceiver) -> None:
        self.copy = copy
        self.tag = tag
        self.until_ms = until_ms
        self.receiver = receiver
        self.is_void = False
        """Others may have the message: the store failed, or the session is over."""
        self.is_lost = False
        """Nobody knows it any more: the store failed."""
        self.is_settling = False
        """Someone has asked to end it."""
        self.is_settled = False
        """... and was told that it is done."""
        self.request_count = 0
        """How often."""
        self.is_in_transaction = False
        """A transaction has it: it does not expire."""
        self.is_counted = False
        self.is_late = False
        """It was over before the message came: it settles nothing."""
        self.is_renewed = False
        """Someone has asked for that: it may last longer than is known."""

    def is_valid(self, now_ms: int) -> bool:
        """Nobody else may have the message."""
        return not self.is_void and not self.is_settling and (self.is_in_transaction or self.until_ms > now_ms + 1)

    def may_be_valid(self, now_ms: int) -> bool:
        """It may be settled. Who has a session has it until his time is over and somebody has noticed."""
        is_in_time = self.receiver.session is not None or self.is_renewed or self.until_ms >= now_ms
        return not self.is_lost and not self.is_late and not self.is_settled and is_in_time


class SessionHolder:
    """A session that someone has."""

    def __init__(self, receiver: SimulatedSessionReceiver, until_ms: int) -> None:
        self.receiver = receiver
        self.until_ms = until_ms


class TransactionProgress(Enum):
    OPEN = auto()
    COMMITTING = auto()
    """It is being committed."""
    DONE = auto()
    FAILED = auto()
    """Nothing of it is done."""
    UNKNOWN = auto()


class ExpectedTransaction:
    """A transaction: all of it is done, or nothing."""

    def __init__(self, way: int) -> None:
        self.process_life = way
        self.messages: list[Message] = []
        self.settlements: list[tuple[Lock, Disposition]] = []
        self.progress = TransactionProgress.OPEN
        self._is_done = False
        """... as is seen: what it sends is there."""
        self._is_undone = False
        """... as is seen: what it completes is there."""

    def __repr__(self) -> str:
        settled = [(lock.copy.message.identity, how.value) for lock, how in self.settlements]
        return f"transaction that sends {[one.identity for one in self.messages]} and settles {settled}"

    def settle(self, locks: list[Lock], how: Disposition, *, is_certain: bool) -> None:
        """Where another process has them it may be too late, which is seen by a commit that fails."""
        for lock in locks:
            self.settlements.append((lock, how))
            lock.is_in_transaction = is_certain
            lock.copy.transactions.append(self)

    def commit_requested(self) -> None:
        """It is being committed."""
        self.progress = TransactionProgress.COMMITTING
        for lock, how in self.settlements:
            lock.is_settling = True
            lock.copy.settlement_requested(how)

    def ended(self, *, is_done: bool | None) -> None:
        """It was answered; None: perhaps it was done."""
        self.progress = {
            True: TransactionProgress.DONE,
            False: TransactionProgress.FAILED,
            None: TransactionProgress.UNKNOWN,
        }[is_done]
        for lock, how in self.settlements:
            lock.is_in_transaction = False
            if is_done:
                lock.is_settled = True
                lock.copy.settlement_done(how)
        for message in self.messages:
            message.is_accepted = bool(is_done)
        self._check()

    def message_appeared(self, message: Message) -> None:
        """What it sends was received."""
        if self.progress is TransactionProgress.OPEN:
            raise Violation(f"{message!r} is there before its {self!r} was committed")
        self._is_done = True
        self._check()

    def message_redelivered(self, copy: Copy) -> None:
        """What it settles is received once more."""
        how = next(how for lock, how in self.settlements if lock.copy is copy)
        if how in (Disposition.COMPLETE, Disposition.DEFER, Disposition.DEAD_LETTER) and not copy.is_dead:
            self._is_undone = True
            self._check()

    def _check(self) -> None:
        if self._is_done and (self._is_undone or self.progress is TransactionProgress.FAILED):
            raise Violation(f"{self!r} was done in part, or though it failed")
        if self._is_undone and self.progress is TransactionProgress.DONE:
            raise Violation(f"{self!r} was committed, and what it settles comes again")
