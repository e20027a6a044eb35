"""Messages of a queue in several processes as clients see them: copies, locks, sessions, transactions.

Owns: the possible states of each of them, as far as clients know.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING

from tests.support.delivery_checker.messages import Copy as BaseCopy
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
    """Messages sent in one batch."""

    def __init__(self, messages: list[Message], store_failures: list[int]) -> None:
        self.messages = messages
        self.store_failures = store_failures
        """Number of failures of each store at the time of the send."""
        self.is_answered = False
        self.is_void = False
        """Whether its process is lost, so that it gets no outcome."""

    def __repr__(self) -> str:
        return f"the send of {[message.identity for message in self.messages]}"


class Message:
    """A message that was sent."""

    def __init__(self, identity: int, key: str | None, process_life: int) -> None:
        self.identity = identity
        self.key = key
        self.process_life = process_life
        """Number of the process through which it was sent."""
        self.sending: SendOperation
        self.is_accepted = False
        self.transaction: ExpectedTransaction | None = None
        self.copies: dict[int, Copy] = {}
        """Received copies by sequence number."""
        self.dead_letters: dict[int, Copy] = {}
        """Copies received from the dead-letter queue, by sequence number."""
        self.was_deleted = False
        """Whether it was deleted for a receiver that may not have got it."""
        self.was_overtaken = False
        """Whether it was deleted for a receiver whose session lock expired before the message was delivered."""
        self.lost: set[int] = set()
        """Sequence numbers of copies that were deleted for a receiver, and may be lost because of a failure."""

    def __repr__(self) -> str:
        return f"message {self.identity} ({self.key})"


class Copy(BaseCopy):
    """A message in a fragment or in its dead-letter queue."""

    def __init__(self, message: Message, sequence: int, *, is_dead: bool) -> None:
        super().__init__(message.identity, QUEUE, {QUEUE: sequence})
        self.message = message
        self.sequence = sequence
        self.is_dead = is_dead
        self.locks: list[Lock] = []
        self.max_delivery_count = 0
        """Upper bound of the delivery count."""
        self.has_dead_letter = False
        """Whether its dead letter was received."""
        self.was_seen = False
        self.was_handed_out = False
        self.was_returned = False
        """Whether its receiver has settled it, or its lock was lost with the store."""
        self.transactions: list[ExpectedTransaction] = []
        """Transactions that settle it."""

    def __repr__(self) -> str:
        return f"{self.message!r} under {self.sequence >> 48}:{self.sequence & 0xFFFFFFFF}{' (dead)' * self.is_dead}"

    @property
    def lock(self) -> Lock | None:
        """The latest lock."""
        return self.locks[-1] if self.locks else None

    def check_free(self, now_ms: int) -> None:
        """Check that the copy can be delivered now."""
        if self.state is not State.ACTIVE:
            raise Violation(f"{self!r} is {self.state.value}, and comes again")
        held = next((lock for lock in self.locks if lock.is_valid(now_ms)), None)
        if held is not None:
            raise Violation(f"{self!r} is locked until {held.until_ms}, and is given to another at {now_ms}")

    def settlement_done(self, how: Disposition) -> None:
        """Record a confirmed settlement."""
        self.state = self._state_after(how) or self.state

    def settlement_requested(self, how: Disposition) -> None:
        """Record a requested settlement."""
        self.was_returned = True
        if state := self._state_after(how):
            self.requested_states[state] += 1
        self.max_delivery_count += how is Disposition.ABANDON or (how is Disposition.DEAD_LETTER and self.is_dead)

    def _state_after(self, how: Disposition) -> State | None:
        """Return the state after a settlement. Dead-lettering a dead letter does not change its state."""
        return None if how is Disposition.DEAD_LETTER and self.is_dead else STATE_AFTER.get(how)


class Lock:
    """A lock given to a receiver."""

    def __init__(self, copy: Copy, tag: bytes, until_ms: int, receiver: SimulatedReceiver) -> None:
        self.copy = copy
        self.tag = tag
        self.until_ms = until_ms
        self.receiver = receiver
        self.is_void = False
        """Whether others may have received the message: the store failed, or the session ended."""
        self.is_lost = False
        """Whether the store failed, and with it the lock."""
        self.is_settling = False
        """Whether a settlement was requested."""
        self.is_settled = False
        """Whether the settlement was confirmed."""
        self.request_count = 0
        """Number of requested settlements."""
        self.is_in_transaction = False
        """Whether a transaction holds it, so that it does not expire."""
        self.is_counted = False
        self.is_late = False
        """Whether it had expired before the message was delivered."""
        self.is_renewed = False
        """Whether a renewal was requested, so that it may last longer than `until_ms`."""

    def is_valid(self, now_ms: int) -> bool:
        """Whether no other receiver may get the message."""
        return not self.is_void and not self.is_settling and (self.is_in_transaction or self.until_ms > now_ms + 1)

    def may_be_valid(self, now_ms: int) -> bool:
        """Whether the message may be settled. A session lock is valid until the broker notices that it has expired."""
        is_in_time = self.receiver.session is not None or self.is_renewed or self.until_ms >= now_ms
        return not self.is_lost and not self.is_late and not self.is_settled and is_in_time


class SessionHolder:
    """The receiver that holds a session."""

    def __init__(self, receiver: SimulatedSessionReceiver, until_ms: int) -> None:
        self.receiver = receiver
        self.until_ms = until_ms


class TransactionProgress(Enum):
    OPEN = auto()
    COMMITTING = auto()
    DONE = auto()
    FAILED = auto()
    """Rolled back, or failed without effect."""
    UNKNOWN = auto()


class ExpectedTransaction:
    """A transaction: all of it is done, or nothing."""

    def __init__(self, process_life: int) -> None:
        self.process_life = process_life
        self.messages: list[Message] = []
        self.settlements: list[tuple[Lock, Disposition]] = []
        self.progress = TransactionProgress.OPEN
        self._is_done = False
        """Whether a message that it sends was received."""
        self._is_undone = False
        """Whether a message that it settles was received again."""

    def __repr__(self) -> str:
        settled = [(lock.copy.message.identity, how.value) for lock, how in self.settlements]
        return f"transaction that sends {[message.identity for message in self.messages]} and settles {settled}"

    def settle(self, locks: list[Lock], how: Disposition, *, is_certain: bool) -> None:
        """Record settlements. Unless `is_certain`, locks in another process may expire, and the commit then fails."""
        for lock in locks:
            self.settlements.append((lock, how))
            lock.is_in_transaction = is_certain
            lock.copy.transactions.append(self)

    def commit_requested(self) -> None:
        """Record that the commit was requested."""
        self.progress = TransactionProgress.COMMITTING
        for lock, how in self.settlements:
            lock.is_settling = True
            lock.copy.settlement_requested(how)

    def ended(self, *, is_done: bool | None) -> None:
        """Record the outcome; None: unknown."""
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
        """Record that a message that it sends was received."""
        if self.progress is TransactionProgress.OPEN:
            raise Violation(f"{message!r} is there before its {self!r} was committed")
        self._is_done = True
        self._check()

    def message_redelivered(self, copy: Copy) -> None:
        """Record that a message that it settles was received again."""
        how = next(how for lock, how in self.settlements if lock.copy is copy)
        if how in (Disposition.COMPLETE, Disposition.DEFER, Disposition.DEAD_LETTER) and not copy.is_dead:
            self._is_undone = True
            self._check()

    def _check(self) -> None:
        if self._is_done and (self._is_undone or self.progress is TransactionProgress.FAILED):
            raise Violation(f"{self!r} was done in part, or though it failed")
        if self._is_undone and self.progress is TransactionProgress.DONE:
            raise Violation(f"{self!r} was committed, and what it settles comes again")
