"""The ledger of messages that an application sends to a pair of namespaces.

    message = ledger.begin("orders-a/12", "orders", ["orders"])         # a message, before it is sent
    ledger.end(message, None)                                           # or with an error
    ledger.find("orders-a/12", "orders", sequence_number, is_marked=False)
    ledger.find_dead("orders-a/13", backlog_queue, reason, is_marked=False)
    problems = ledger.close()                                           # after everything that is there was found

To the promises of every ledger it adds, in the words of `problems`:

- lost: also of messages that were parked or spooled (R002, Q02); a message with a fault of its own is dead-lettered.
- untruthful: an error that says "it did not happen" is true: such a message is nowhere.
- unmarked: of several copies of a message at most one is without the mark `x-ms-possible-duplicate` (Q04, Q17).
- doubled: where duplicates are detected there is one copy.
- order: messages of one session that went through one backlog queue arrive in the order of their sends, and a message
  that the primary confirmed to its sender is before everything that is sent later in its session. Nothing else is
  promised: a parked message may be overtaken by one that went to another backlog queue, or straight to the primary
  (Q18, R074).
- dead-lettered: only messages with a fault of their own are dead-lettered in backlog queues, or put aside by the spool
  (Q19).
- changed: every message arrives as it was sent (Q06).

Owns: these promises. Knows nothing of processes, networks and outages: the promises do not depend on them.
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
"""The home of messages with a fault of their own."""
INCARNATION_SHIFT: Final = 64
"""The sequence numbers of an entity that was deleted and created again begin anew: these bits tell them apart."""


@dataclass(slots=True, eq=False)
class PairCopy(Copy):
    """A message as it was found in the end."""

    is_marked_duplicate: bool = False
    """As a possible duplicate."""
    parked_at_ms: int | None = None
    """None: it came directly."""
    is_dead: bool = False
    """It was dead-lettered in a backlog queue, or put aside by the spool."""
    reason: str = ""
    is_expired_excused: bool = False
    """Its time was over: that is no problem."""

    @property
    def incarnations(self) -> list[int]:
        """Of the entity that it is in."""
        return [number >> INCARNATION_SHIFT for number in self.sequence_numbers.values()]


@dataclass(slots=True, eq=False)
class PairMessage(Message):
    """One message, where it went, and what was found of it."""

    message_id: str = ""
    session: Hashable | None = None
    """Messages of one session keep their order; None: this message has no place in an order."""
    detects_duplicates: bool = False
    """Its destination detects duplicates."""
    parked_in: list[str] = field(default_factory=list)
    """Backlog queues that have confirmed it."""
    moved_from: set[str] = field(default_factory=set)
    """Backlog queues from which a pump has brought a copy to the primary, as far as that is known."""
    is_confirmed_by_primary: bool = False
    """The primary has confirmed it to its sender."""
    is_spooled: bool = False
    may_be_missing: bool = False
    """It was deleted with its destination, or is still on its way."""
    found_copies: list[PairCopy] = field(default_factory=list)
    """All copies, also those that are not at a home."""

    def __str__(self) -> str:
        return self.message_id

    @property
    def has_fault(self) -> bool:
        return DEAD_LETTERS in self.copies

    @property
    def sender_view(self) -> str:
        """Where it went, as its sender knows it."""
        if any(copy.is_dead for copy in self.found_copies):
            return "was dead-lettered"
        if not self.is_accepted:
            return "was stored elsewhere"
        where = f"parked in {', '.join(self.parked_in)}" if self.parked_in else "sent to the primary"
        return f"was spooled, and {where}" if self.is_spooled else f"was {where}"

    @property
    def has_expired(self) -> bool:
        """Some copy of it is among the dead letters of its destination, where it has another number."""
        return any(copy.destination not in copy.sequence_numbers for copies in self.copies.values() for copy in copies)

    @property
    def backlog_queue(self) -> str | None:
        """The one backlog queue that it came through; None if there may be more, or none."""
        parkings = {copy.parked_at_ms for copy in self.found_copies} - {None}
        is_one = len(self.parked_in) == len(parkings) == 1 and len(self.moved_from) <= 1
        return self.parked_in[0] if is_one and not self.has_expired else None

    def may_have_been_dropped(self, copy: PairCopy) -> bool:
        """Its entity was deleted and created again, and before that had a copy of which this one is a duplicate."""
        direct = [one for one in self.found_copies if one.destination == copy.destination and one.parked_at_ms is None]
        return self.detects_duplicates and any(one.incarnations < copy.incarnations for one in direct)


class PairDeliveryChecker(DeliveryChecker):
    """One ledger for all messages of a run."""

    allows_duplicates = True

    def __init__(self) -> None:
        super().__init__()
        self.messages_by_id: dict[str, PairMessage] = {}
        """In the order of their sends."""
        self.duplicates: Counter[str] = Counter()
        """Extra copies, by the way they came about."""
        self.marked_count = 0
        """Copies with the mark."""
        self.marked_single_count = 0
        """... that are the only copy."""

    # --- senders ------------------------------------------------------------------------------------------------------

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
        """Record a message, which will be sent now. Messages of a session are sent one after the other."""
        copies: dict[str, list[Copy]] = {home: [] for home in ((DEAD_LETTERS,) if has_fault else destinations)}
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
        """Record what the sender was told: no error, or an error and what the error says of itself."""
        if error is None:
            self.send_accepted(message.number)
        elif not may_have_happened:
            self.send_refused(message.number, error)

    # --- what is found ------------------------------------------------------------------------------------------------

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
        """A message is at a destination, or `is_expired` and among the dead letters of it."""
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
        """A message is in the dead-letter queue of a backlog queue, or the spool has put it aside."""
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
        """A message is still parked: late, but not lost."""
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
        """Everything that is found is a copy of its own: nothing is looked at twice."""
        assert isinstance(message, PairMessage)
        copy = PairCopy(message.number, destination, {address: sequence_number})
        message.copies[destination].append(copy)
        message.found_copies.append(copy)
        return copy

    def may_change_state(self, copy: Copy, state: State) -> bool:  # noqa: ARG002  # any message may expire
        return state is State.DEAD_LETTERED

    # --- the end ------------------------------------------------------------------------------------------------------

    def must_exist(self, message: Message) -> bool:
        assert isinstance(message, PairMessage)
        return super().must_exist(message) and not message.may_be_missing

    def describe_loss(self, message: Message, copies: list[Copy]) -> str:  # noqa: ARG002  # the sender knows more of it
        assert isinstance(message, PairMessage)
        return message.sender_view

    def has_position(self, copy: Copy) -> bool:
        """Only copies that were parked are compared: the order of the others is compared in `_check_direct`.

        A message counts from its first arrival. If that may have been dropped as a duplicate, it has no number.
        """
        if not super().has_position(copy) or not isinstance(copy, PairCopy) or copy.parked_at_ms is None:
            return False
        message = self.messages[copy.number]
        return isinstance(message, PairMessage) and not message.may_have_been_dropped(copy)

    def finish(self) -> list[str]:
        """Everything that is there was found: all problems."""
        for message in self.messages_by_id.values():
            queue = message.backlog_queue
            message.order_key = (message.session, queue) if message.session is not None and queue is not None else None
        super().finish()
        sessions: dict[Hashable, list[PairMessage]] = defaultdict(list)
        for message in self.messages_by_id.values():
            self._check_dead_letters(message)
            self._check_refusal(message)
            for home in message.copies:
                self._check_copies(message, home)
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
        """Compare the copies at one home, and those that are at no home, with each other."""
        found = [
            copy
            for copy in message.found_copies
            if copy.destination == destination or copy.destination not in message.copies
        ]
        marked = sum(copy.is_marked_duplicate for copy in found)
        self.marked_count += marked
        if len(found) < 2:
            self.marked_single_count += marked
            return
        name = f"{message} is at {destination} {len(found)} times"
        direct = sum(copy.parked_at_ms is None for copy in found)
        parkings = {copy.parked_at_ms for copy in found} - {None}
        ways = {
            "sent twice": max(0, direct - 1),
            "parked again": len(parkings) - 1 + (direct > 0) if parkings else 0,
            "moved again": len(found) - direct - len(parkings),
        }
        self.duplicates += Counter(ways)
        # An entity that was deleted and created again does not know what it had before.
        lives = Counter(one for copy in found for one in copy.incarnations)
        if message.detects_duplicates and any(count > 1 for count in lives.values()):
            self.report_problem(f"doubled: {name}, where duplicates are detected")
        if len(found) - marked > 1:
            told = ", ".join(f"{way} {count}" for way, count in ways.items() if count)
            self.report_problem(f"unmarked: {name}, {len(found) - marked} of them unmarked ({told})")

    def _check_direct_order(self, messages: list[PairMessage]) -> None:
        """Whatever the primary has confirmed to a sender is before all messages that are sent later."""
        last: dict[str, tuple[int, PairMessage]] = {}
        for message in messages:
            if message.has_expired:
                continue
            for home, copies in message.copies.items():
                if not copies:
                    continue
                first = min(copy.sequence_numbers[home] for copy in copies)
                highest, before = last.get(home, (-1, message))
                if first < highest:
                    self.report_problem(
                        f"order: {message} of {home} has number {format_sequence_number(first)}, below number "
                        f"{format_sequence_number(highest)} of"
                        f" {before}, which the primary had confirmed before"
                    )
                if message.is_confirmed_by_primary and not message.parked_in:
                    self.order_checks += before is not message
                    last[home] = max((highest, before), (first, message), key=lambda one: one[0])


def stored_positions_of(error: BaseException) -> list[int]:
    """The places of those messages of a failed batch that are safe, as the error says."""
    stored = getattr(error, "stored", None)
    return list(range(getattr(error, "safe", 0))) if stored is None else [int(place) for place in stored]
