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

from tests.ledger.ledger import Ledger
from tests.ledger.messages import Copy, Message, State, shown

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable

DEAD_LETTERS: Final = "the dead letters of the backlog"
"""The home of messages with a fault of their own."""
INCARNATION_SHIFT: Final = 64
"""The sequence numbers of an entity that was deleted and created again begin anew: these bits tell them apart."""


@dataclass(slots=True, eq=False)
class PairCopy(Copy):
    """A message as it was found in the end."""

    is_marked: bool = False
    """As a possible duplicate."""
    parked_at_ms: int | None = None
    """None: it came directly."""
    is_dead: bool = False
    """It was dead-lettered in a backlog queue, or put aside by the spool."""
    reason: str = ""
    is_excused: bool = False
    """Its time was over: that is no problem."""

    @property
    def incarnations(self) -> list[int]:
        """Of the entity that it is in."""
        return [number >> INCARNATION_SHIFT for number in self.numbers.values()]


@dataclass(slots=True, eq=False)
class PairMessage(Message):
    """One message, where it went, and what was found of it."""

    name: str = ""
    session: Hashable | None = None
    """Messages of one session keep their order; None: this message has no place in an order."""
    is_once: bool = False
    """Its destination detects duplicates."""
    parked_in: list[str] = field(default_factory=list)
    """Backlog queues that have confirmed it."""
    moved_from: set[str] = field(default_factory=set)
    """Backlog queues from which a pump has brought a copy to the primary, as far as that is known."""
    is_direct: bool = False
    """The primary has confirmed it to its sender."""
    is_spooled: bool = False
    may_be_missing: bool = False
    """It was deleted with its destination, or is still on its way."""
    found: list[PairCopy] = field(default_factory=list)
    """All copies, also those that are not at a home."""

    def __str__(self) -> str:
        return self.name

    @property
    def has_fault(self) -> bool:
        return DEAD_LETTERS in self.copies

    @property
    def known(self) -> str:
        """Where it went, as its sender knows it."""
        if any(copy.is_dead for copy in self.found):
            return "was dead-lettered"
        if not self.is_accepted:
            return "was stored elsewhere"
        where = f"parked in {', '.join(self.parked_in)}" if self.parked_in else "sent to the primary"
        return f"was spooled, and {where}" if self.is_spooled else f"was {where}"

    @property
    def has_expired(self) -> bool:
        """Some copy of it is among the dead letters of its destination, where it has another number."""
        return any(copy.home not in copy.numbers for copies in self.copies.values() for copy in copies)

    @property
    def backlog_queue(self) -> str | None:
        """The one backlog queue that it came through; None if there may be more, or none."""
        parkings = {copy.parked_at_ms for copy in self.found} - {None}
        is_one = len(self.parked_in) == len(parkings) == 1 and len(self.moved_from) <= 1
        return self.parked_in[0] if is_one and not self.has_expired else None


class PairLedger(Ledger):
    """One ledger for all messages of a run."""

    is_copied = True

    def __init__(self) -> None:
        super().__init__()
        self.by_name: dict[str, PairMessage] = {}
        """In the order of their sends."""
        self.duplicates: Counter[str] = Counter()
        """Extra copies, by the way they came about."""
        self.marked = 0
        """Copies with the mark."""
        self.marked_alone = 0
        """... that are the only copy."""

    # --- senders ------------------------------------------------------------------------------------------------------

    def begin(
        self,
        name: str,
        path: str,
        homes: Iterable[str],
        session: Hashable | None = None,
        *,
        has_fault: bool = False,
        is_once: bool = False,
    ) -> PairMessage:
        """Record a message, which will be sent now. Messages of a session are sent one after the other."""
        copies: dict[str, list[Copy]] = {home: [] for home in ((DEAD_LETTERS,) if has_fault else homes)}
        message = PairMessage(len(self.messages), path, copies, name=name, session=session, is_once=is_once)
        self.messages.append(message)
        self.by_name[name] = message
        return message

    def end(self, message: PairMessage, error: str | None, *, may_have_happened: bool = False) -> None:
        """Record what the sender was told: no error, or an error and what the error says of itself."""
        if error is None:
            self.accepted(message.number)
        elif not may_have_happened:
            self.refused(message.number, error)

    # --- what is found ------------------------------------------------------------------------------------------------

    def find(
        self,
        name: str,
        home: str,
        sequence_number: int,
        *,
        is_marked: bool,
        parked_at_ms: int | None = None,
        incarnation: int = 0,
        is_expired: bool = False,
        differences: Iterable[str] = (),
    ) -> None:
        """A message is at a destination, or `is_expired` and among the dead letters of it."""
        message = self._named(name, home)
        if message is None or not self.belongs(f"at {home} is", message, home):
            return
        address, state = (f"{home}'s dead letters", State.DEAD) if is_expired else (home, State.ACTIVE)
        number = (incarnation << INCARNATION_SHIFT) + sequence_number
        self.arrive(f"at {address} is, as number {shown(number)},", message, home, address, number, state)
        copy = message.found[-1]
        copy.is_marked, copy.parked_at_ms = is_marked, parked_at_ms
        copy.confirm(State.GONE)
        for difference in differences:
            self.tell(f"changed: {message} at {home}: {difference}")

    def find_dead(self, name: str, where: str, reason: str, *, is_marked: bool, is_excused: bool = False) -> None:
        """A message is in the dead-letter queue of a backlog queue, or the spool has put it aside."""
        message = self._named(name, where)
        if message is None:
            return
        copy = PairCopy(message.number, where, is_dead=True, is_marked=is_marked, reason=reason, is_excused=is_excused)
        message.found.append(copy)
        message.may_be_missing = message.may_be_missing or is_excused
        if message.has_fault:
            copy.home = DEAD_LETTERS
            copy.confirm(State.GONE)
            message.copies[DEAD_LETTERS].append(copy)

    def find_parked(self, name: str, where: str, *, is_marked: bool) -> None:
        """A message is still parked: late, but not lost."""
        message = self._named(name, where)
        if message is not None:
            message.may_be_missing = True
            message.found.append(PairCopy(message.number, where, is_marked=is_marked))

    def _named(self, name: str, where: str) -> PairMessage | None:
        message = self.by_name.get(name)
        if message is None:
            self.tell(f"strange: {name} at {where} was never sent")
        return message

    def copy_of(self, message: Message, home: str, address: str, sequence_number: int) -> Copy:
        """Everything that is found is a copy of its own: nothing is looked at twice."""
        assert isinstance(message, PairMessage)
        copy = PairCopy(message.number, home, {address: sequence_number})
        message.copies[home].append(copy)
        message.found.append(copy)
        return copy

    def may_become(self, copy: Copy, state: State) -> bool:  # noqa: ARG002  # any message may expire
        return state is State.DEAD

    # --- the end ------------------------------------------------------------------------------------------------------

    def is_expected(self, message: Message) -> bool:
        assert isinstance(message, PairMessage)
        return super().is_expected(message) and not message.may_be_missing

    def known(self, message: Message, copies: list[Copy]) -> str:  # noqa: ARG002  # the sender knows more of it
        assert isinstance(message, PairMessage)
        return message.known

    def has_place(self, copy: Copy) -> bool:
        """Only copies that were parked are compared: the order of the others is compared in `_check_direct`."""
        return super().has_place(copy) and isinstance(copy, PairCopy) and copy.parked_at_ms is not None

    def close(self) -> list[str]:
        """Everything that is there was found: all problems."""
        for message in self.by_name.values():
            queue = message.backlog_queue
            message.source = (message.session, queue) if message.session is not None and queue is not None else None
        super().close()
        sessions: dict[Hashable, list[PairMessage]] = defaultdict(list)
        for message in self.by_name.values():
            self._check_dead_letters(message)
            self._check_refusal(message)
            for home in message.copies:
                self._check_copies(message, home)
            if message.session is not None:
                sessions[message.session].append(message)
        for messages in sessions.values():
            self._check_direct(messages)
        return self.problems

    def _check_dead_letters(self, message: PairMessage) -> None:
        for copy in message.found:
            if copy.is_dead and not copy.is_excused and not message.has_fault:
                self.tell(f"dead-lettered: {message}, which has no fault, in {copy.home}: {copy.reason:.300}")

    def _check_refusal(self, message: PairMessage) -> None:
        if message.refusal is not None and message.found:
            where = ", ".join(sorted({copy.home for copy in message.found}))
            self.tell(
                f"untruthful: {message} failed with {message.refusal}, which says that nothing was sent,"
                f" and is at {where}"
            )

    def _check_copies(self, message: PairMessage, home: str) -> None:
        """Compare the copies at one home, and those that are at no home, with each other."""
        found = [copy for copy in message.found if copy.home == home or copy.home not in message.copies]
        marked = sum(copy.is_marked for copy in found)
        self.marked += marked
        if len(found) < 2:
            self.marked_alone += marked
            return
        name = f"{message} is at {home} {len(found)} times"
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
        if message.is_once and any(count > 1 for count in lives.values()):
            self.tell(f"doubled: {name}, where duplicates are detected")
        if len(found) - marked > 1:
            told = ", ".join(f"{way} {count}" for way, count in ways.items() if count)
            self.tell(f"unmarked: {name}, {len(found) - marked} of them unmarked ({told})")

    def _check_direct(self, messages: list[PairMessage]) -> None:
        """Whatever the primary has confirmed to a sender is before all messages that are sent later."""
        last: dict[str, tuple[int, PairMessage]] = {}
        for message in messages:
            if message.has_expired:
                continue
            for home, copies in message.copies.items():
                if not copies:
                    continue
                first = min(copy.numbers[home] for copy in copies)
                highest, before = last.get(home, (-1, message))
                if first < highest:
                    self.tell(
                        f"order: {message} of {home} has number {shown(first)}, below number {shown(highest)} of"
                        f" {before}, which the primary had confirmed before"
                    )
                if message.is_direct and not message.parked_in:
                    self.ordered += before is not message
                    last[home] = max((highest, before), (first, message), key=lambda one: one[0])


def stored_of(error: BaseException) -> list[int]:
    """The places of those messages of a failed batch that are safe, as the error says."""
    stored = getattr(error, "stored", None)
    return list(range(getattr(error, "safe", 0))) if stored is None else [int(place) for place in stored]
