"""The delivery checker of messages that an application sends to a pair of namespaces.

    message = checker.send_started("orders-a/12", "orders", ["orders"])      # before a message is sent
    checker.send_ended(message, None)                                        # or with an error
    checker.found_at_destination("orders-a/12", "orders", sequence_number, is_marked_duplicate=False)
    checker.found_dead_lettered("orders-a/13", backlog_queue, reason, is_marked_duplicate=False)
    problems = checker.finish()                                              # after all messages were read

In addition to the guarantees of every delivery checker, by the kind of problem that reports a violation:

- lost: no parked or spooled message is lost either (R002, Q02); a faulty message is dead-lettered.
- untruthful: an error that says "nothing was sent" is true: the message is nowhere.
- unmarked: at most one copy of a message lacks the mark `x-ms-possible-duplicate` (Q04, Q17).
- doubled: a destination that detects duplicates has one copy.
- order: messages of one session that went through one backlog queue arrive in the order of their sends, and a message
  that the primary confirmed to its sender is before all messages sent later in its session. No other order is
  guaranteed: a message that went to another backlog queue, or directly to the primary, may overtake a parked message
  (Q18, R074).
- dead-lettered: only faulty messages are dead-lettered in backlog queues, or rejected by the spool (Q19).
- changed: every message arrives as it was sent (Q06).

Owns: these guarantees. Knows nothing about processes, networks and outages: the guarantees do not depend on them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from tests.support.delivery_checker.checker import DeliveryChecker
from tests.support.delivery_checker.messages import Copy, Message, State, format_sequence_number

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable

DEAD_LETTERS: Final = "the dead letters of the backlog"
"""Destination of faulty messages."""
INCARNATION_SHIFT: Final = 64
"""An entity that is deleted and created again restarts its sequence numbers: the bits above distinguish them."""


@dataclass(slots=True, eq=False)
class PairCopy(Copy):
    """A copy that was found at the end of a run."""

    is_marked_duplicate: bool = False
    """Whether the copy is marked as a possible duplicate."""
    parked_at_ms: int | None = None
    """When the copy was parked; None if it was sent to the primary directly."""
    is_dead: bool = False
    """Whether the copy was dead-lettered in a backlog queue, or rejected by the spool."""
    reason: str = ""
    is_expired_excused: bool = False
    """Whether the copy was dead-lettered because it had expired, which is correct."""

    @property
    def incarnations(self) -> list[int]:
        """Incarnations of the entity that the copy is in."""
        return [number >> INCARNATION_SHIFT for number in self.sequence_numbers.values()]


@dataclass(slots=True, eq=False)
class PairMessage(Message):
    """A message, its way to its destination, and the copies found at the end."""

    message_id: str = ""
    session: Hashable | None = None
    """Messages of one session keep their order; None: no order."""
    detects_duplicates: bool = False
    """Whether the destination detects duplicates."""
    parked_in: list[str] = field(default_factory=list)
    """Backlog queues that have confirmed the message."""
    moved_from: set[str] = field(default_factory=set)
    """Backlog queues from which a pump is known to have moved a copy to the primary."""
    is_confirmed_by_primary: bool = False
    """Whether the primary has confirmed the message to its sender."""
    is_spooled: bool = False
    may_be_missing: bool = False
    """Whether the message was deleted with its destination, or is still on its way."""
    found_copies: list[PairCopy] = field(default_factory=list)
    """All copies, including those that are not at a destination of the message."""

    def __str__(self) -> str:
        return self.message_id

    @property
    def has_fault(self) -> bool:
        return DEAD_LETTERS in self.copies

    @property
    def sender_view(self) -> str:
        """Where the message went, as far as its sender knows."""
        if any(copy.is_dead for copy in self.found_copies):
            return "was dead-lettered"
        if not self.is_accepted:
            return "was stored elsewhere"
        where = f"parked in {', '.join(self.parked_in)}" if self.parked_in else "sent to the primary"
        return f"was spooled, and {where}" if self.is_spooled else f"was {where}"

    @property
    def has_expired(self) -> bool:
        """Whether a copy is in the dead-letter queue of its destination, where it has another sequence number."""
        return any(copy.destination not in copy.sequence_numbers for copies in self.copies.values() for copy in copies)

    @property
    def backlog_queue(self) -> str | None:
        """The only backlog queue that the message went through; None if there is none, or may be another."""
        parkings = {copy.parked_at_ms for copy in self.found_copies} - {None}
        is_single = len(self.parked_in) == len(parkings) == 1 and len(self.moved_from) <= 1
        return self.parked_in[0] if is_single and not self.has_expired else None

    def may_have_been_dropped(self, copy: PairCopy) -> bool:
        """Whether the entity, before it was deleted and created again, may have dropped this copy as a duplicate."""
        direct_copies = [
            other for other in self.found_copies if other.destination == copy.destination and other.parked_at_ms is None
        ]
        return self.detects_duplicates and any(other.incarnations < copy.incarnations for other in direct_copies)


class PairDeliveryChecker(DeliveryChecker):
    """Checker for all messages of a run."""

    allows_duplicates = True

    def __init__(self) -> None:
        super().__init__()
        self.messages_by_id: dict[str, PairMessage] = {}
        """Messages in the order of their sends."""
        self.duplicates: Counter[str] = Counter()
        """Number of extra copies by cause."""
        self.marked_count = 0
        """Number of copies marked as possible duplicates."""
        self.marked_single_count = 0
        """Number of marked copies without another copy."""

    # --- senders -----------------------------------------------------------------------------------------------------

    def send_started(
        self,
        message_id: str,
        path: str,
        destinations: Iterable[str],
        session: Hashable | None = None,
        *,
        has_fault: bool = False,
        detects_duplicates: bool = False,
    ) -> PairMessage:
        """Record a message that is about to be sent. Messages of a session are sent one after the other."""
        copies: dict[str, list[Copy]] = {
            destination: [] for destination in ((DEAD_LETTERS,) if has_fault else destinations)
        }
        message = PairMessage(
            len(self.messages),
            path,
            copies,
            message_id=message_id,
            session=session,
            detects_duplicates=detects_duplicates,
        )
        self.messages.append(message)
        self.messages_by_id[message_id] = message
        return message

    def send_ended(self, message: PairMessage, error: str | None, *, may_have_happened: bool = False) -> None:
        """Record the outcome of a send: success, or an error that says whether the message may have been sent."""
        if error is None:
            self.send_accepted(message.number)
        elif not may_have_happened:
            self.send_refused(message.number, error)

    # --- found copies ------------------------------------------------------------------------------------------------

    def found_at_destination(
        self,
        message_id: str,
        destination: str,
        sequence_number: int,
        *,
        is_marked_duplicate: bool,
        parked_at_ms: int | None = None,
        incarnation: int = 0,
        is_expired: bool = False,
        differences: Iterable[str] = (),
    ) -> None:
        """Record a message found at a destination, or (`is_expired`) in the destination's dead-letter queue."""
        message = self._message_by_id(message_id, destination)
        if message is None or not self.check_destination(f"at {destination} is", message, destination):
            return
        address, state = (
            (f"{destination}'s dead letters", State.DEAD_LETTERED) if is_expired else (destination, State.ACTIVE)
        )
        number = (incarnation << INCARNATION_SHIFT) + sequence_number
        self.record_receipt(
            f"at {address} is, as number {format_sequence_number(number)},",
            message,
            destination,
            address,
            number,
            state,
        )
        copy = message.found_copies[-1]
        copy.is_marked_duplicate, copy.parked_at_ms = is_marked_duplicate, parked_at_ms
        copy.confirm(State.COMPLETED)
        for difference in differences:
            self.report_problem(f"changed: {message} at {destination}: {difference}")

    def found_dead_lettered(
        self, message_id: str, where: str, reason: str, *, is_marked_duplicate: bool, is_expired_excused: bool = False
    ) -> None:
        """Record a message found in the dead-letter queue of a backlog queue, or rejected by the spool."""
        message = self._message_by_id(message_id, where)
        if message is None:
            return
        copy = PairCopy(
            message.number,
            where,
            is_dead=True,
            is_marked_duplicate=is_marked_duplicate,
            reason=reason,
            is_expired_excused=is_expired_excused,
        )
        message.found_copies.append(copy)
        message.may_be_missing = message.may_be_missing or is_expired_excused
        if message.has_fault:
            copy.destination = DEAD_LETTERS
            copy.confirm(State.COMPLETED)
            message.copies[DEAD_LETTERS].append(copy)

    def found_parked(self, message_id: str, where: str, *, is_marked_duplicate: bool) -> None:
        """Record a message that is still parked: late, but not lost."""
        message = self._message_by_id(message_id, where)
        if message is not None:
            message.may_be_missing = True
            message.found_copies.append(PairCopy(message.number, where, is_marked_duplicate=is_marked_duplicate))

    def _message_by_id(self, message_id: str, where: str) -> PairMessage | None:
        message = self.messages_by_id.get(message_id)
        if message is None:
            self.report_problem(f"strange: {message_id} at {where} was never sent")
        return message

    def received_copy(self, message: Message, destination: str, address: str, sequence_number: int) -> Copy:
        """Return a new copy: every message is read once, so each receipt is another copy."""
        assert isinstance(message, PairMessage)
        copy = PairCopy(message.number, destination, {address: sequence_number})
        message.copies[destination].append(copy)
        message.found_copies.append(copy)
        return copy

    def may_change_state(self, copy: Copy, state: State) -> bool:  # noqa: ARG002  # any message may expire
        return state is State.DEAD_LETTERED

    # --- final check -------------------------------------------------------------------------------------------------

    def must_exist(self, message: Message) -> bool:
        assert isinstance(message, PairMessage)
        return super().must_exist(message) and not message.may_be_missing

    def describe_loss(self, message: Message, copies: list[Copy]) -> str:  # noqa: ARG002  # the sender's view says more than the copies
        assert isinstance(message, PairMessage)
        return message.sender_view

    def has_position(self, copy: Copy) -> bool:
        """Whether a copy was parked: the order of the other copies is checked in `_check_direct_order`.

        The first arrival of a message determines its position. If that copy may have been dropped as a duplicate, the
        message has no position.
        """
        if not super().has_position(copy) or not isinstance(copy, PairCopy) or copy.parked_at_ms is None:
            return False
        message = self.messages[copy.number]
        return isinstance(message, PairMessage) and not message.may_have_been_dropped(copy)

    def finish(self) -> list[str]:
        """Return all problems, after all messages were read."""
        for message in self.messages_by_id.values():
            queue = message.backlog_queue
            message.order_key = (message.session, queue) if message.session is not None and queue is not None else None
        super().finish()
        sessions: dict[Hashable, list[PairMessage]] = defaultdict(list)
        for message in self.messages_by_id.values():
            self._check_dead_letters(message)
            self._check_refusal(message)
            for destination in message.copies:
                self._check_copies(message, destination)
            if message.session is not None:
                sessions[message.session].append(message)
        for messages in sessions.values():
            self._check_direct_order(messages)
        return self.problems

    def _check_dead_letters(self, message: PairMessage) -> None:
        for copy in message.found_copies:
            if copy.is_dead and not copy.is_expired_excused and not message.has_fault:
                self.report_problem(
                    f"dead-lettered: {message}, which has no fault, in {copy.destination}: {copy.reason:.300}"
                )

    def _check_refusal(self, message: PairMessage) -> None:
        if message.refusal is not None and message.found_copies:
            where = ", ".join(sorted({copy.destination for copy in message.found_copies}))
            self.report_problem(
                f"untruthful: {message} failed with {message.refusal}, which says that nothing was sent,"
                f" and is at {where}"
            )

    def _check_copies(self, message: PairMessage, destination: str) -> None:
        """Check the copies at a destination together with the copies that are at no destination of the message."""
        copies = [
            copy
            for copy in message.found_copies
            if copy.destination == destination or copy.destination not in message.copies
        ]
        marked = sum(copy.is_marked_duplicate for copy in copies)
        self.marked_count += marked
        if len(copies) < 2:
            self.marked_single_count += marked
            return
        name = f"{message} is at {destination} {len(copies)} times"
        direct = sum(copy.parked_at_ms is None for copy in copies)
        parkings = {copy.parked_at_ms for copy in copies} - {None}
        counts_by_cause = {
            "sent twice": max(0, direct - 1),
            "parked again": len(parkings) - 1 + (direct > 0) if parkings else 0,
            "moved again": len(copies) - direct - len(parkings),
        }
        self.duplicates += Counter(counts_by_cause)
        # An entity that was deleted and created again does not detect duplicates of earlier messages.
        copies_by_incarnation = Counter(incarnation for copy in copies for incarnation in copy.incarnations)
        if message.detects_duplicates and any(count > 1 for count in copies_by_incarnation.values()):
            self.report_problem(f"doubled: {name}, where duplicates are detected")
        if len(copies) - marked > 1:
            causes = ", ".join(f"{cause} {count}" for cause, count in counts_by_cause.items() if count)
            self.report_problem(f"unmarked: {name}, {len(copies) - marked} of them unmarked ({causes})")

    def _check_direct_order(self, messages: list[PairMessage]) -> None:
        """Check that a message confirmed by the primary is before all messages that are sent later."""
        last: dict[str, tuple[int, PairMessage]] = {}
        for message in messages:
            if message.has_expired:
                continue
            for destination, copies in message.copies.items():
                if not copies:
                    continue
                first = min(copy.sequence_numbers[destination] for copy in copies)
                highest, previous = last.get(destination, (-1, message))
                if first < highest:
                    self.report_problem(
                        f"order: {message} of {destination} has number {format_sequence_number(first)}, below number "
                        f"{format_sequence_number(highest)} of"
                        f" {previous}, which the primary had confirmed before"
                    )
                if message.is_confirmed_by_primary and not message.parked_in:
                    self.order_checks += previous is not message
                    last[destination] = max((highest, previous), (first, message), key=lambda candidate: candidate[0])


def stored_positions_of(error: BaseException) -> list[int]:
    """Return the positions of the messages of a failed batch that are stored, according to the error."""
    stored = getattr(error, "stored", None)
    return list(range(getattr(error, "safe", 0))) if stored is None else [int(position) for position in stored]
