"""The ledger of a campaign: every send, answer, delivery and settlement is recorded here as it happens.

    number, body = ledger.write("orders", source, filler_bytes)    # a message, before it is sent
    ledger.accepted(number)                                        # or refused
    ledger.receive("orders", sequence_number, body)                # its number
    ledger.completion_requested(number), ledger.completion_confirmed(number)
    problems = ledger.close()                                      # after everything was received and completed

The promises, in the words of `problems`:

- lost: a message that was accepted, or that somebody received, is at each of its homes until its completion is
  asked for.
- back: a message is never received in a state that it cannot be in (the table is in `messages`).
- strange: nothing arrives that was not sent, that was changed, or at another home.
- doubled: a message has one sequence number at an address, and a sequence number one message, for ever.
- order: messages of one source have growing sequence numbers.

A message without an answer, or with an error, may be there or not: its sender has to send it again.

Owns: these promises. Knows nothing of servers, links or disks. Campaigns extend it with the promises of what they use.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, ClassVar, Final

from tests.ledger.messages import Copy, Message, State, body_of, number_in, shown
from tests.ledger.problems import Problems

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable

COMPLETIONS_ENOUGH: Final = 300


class Ledger:
    """One ledger for all senders and receivers of a run."""

    is_copied: ClassVar = False
    """A message may be at a home more than once; otherwise a second copy of it is a problem."""
    forgotten: ClassVar = frozenset(State) - {State.GONE}
    """Requests that were not carried out if a message is received again. A completion may be confirmed even then."""
    at_rest: ClassVar = frozenset({State.GONE, State.CANCELLED})
    """States in which a copy does not wait for receivers."""

    def __init__(self, rng: random.Random | None = None) -> None:
        """`rng` fills the bodies of messages."""
        self.messages: list[Message] = []
        self.received_count = 0
        self.completed = 0
        self.waiting: set[int] = set()
        """Messages that must be there, and wait for receivers."""
        self.ordered = 0
        """Messages whose place in an order was compared with that of another."""
        self._rng = rng or random.Random()
        self._problems = Problems()
        self._at: dict[tuple[str, int], int] = {}
        """The message that an address has under a sequence number."""

    @property
    def problems(self) -> list[str]:
        return self._problems.problems

    @property
    def counts(self) -> Counter[str]:
        """All problems, by kind."""
        return self._problems.counts

    def tell(self, problem: str) -> None:
        self._problems.tell(problem)

    # --- senders ------------------------------------------------------------------------------------------------------

    def write(
        self, path: str, source: Hashable | None, filler_bytes: int, homes: Iterable[str] | None = None
    ) -> tuple[int, bytes]:
        """Record a new message, which will be sent now: its number and its body. It has to arrive at `homes` (path)."""
        number, filler = len(self.messages), self._rng.randbytes(filler_bytes)
        self.messages.append(Message(number, path, {home: [] for home in homes or (path,)}, source))
        return number, body_of(number, filler)

    def accepted(self, number: int) -> None:
        self.messages[number].is_accepted = True
        self.look(self.messages[number])

    def refused(self, number: int, why: str) -> None:
        self.messages[number].refusal = why

    # --- receivers ----------------------------------------------------------------------------------------------------

    def receive(self, address: str, sequence_number: int, body: bytes) -> int | None:
        """Somebody received a message: its number, if it is one of ours."""
        self.received_count += 1
        where = f"from {address} came, as number {sequence_number},"
        message = self.identify(where, body, address)
        if message is None:
            return None
        self.arrive(where, message, address, address, sequence_number)
        return message.number

    def identify(self, where: str, body: bytes, home: str) -> Message | None:
        """Find the message that has this body, if it was sent and belongs to a home."""
        number = number_in(body)
        if number is None or number >= len(self.messages):
            self.tell(f"strange: {where} {len(body)} bytes that nobody sent")
            return None
        return self.messages[number] if self.belongs(where, self.messages[number], home) else None

    def belongs(self, where: str, message: Message, home: str) -> bool:
        """Whether a message has to arrive at a home; if not, that is a problem."""
        if home not in message.copies:
            self.tell(f"strange: {where} {message}, which was sent to {message.path}")
        return home in message.copies

    def arrive(
        self,
        where: str,
        message: Message,
        home: str,
        address: str,
        sequence_number: int,
        state: State = State.ACTIVE,
    ) -> Copy:
        """Record that a message was received from an address of its home, and compare that with what is known."""
        copy = self.copy_of(message, home, address, sequence_number)
        if state not in copy.may_be and not self.may_become(copy, state):
            self.tell(f"back: {where} {message}, which is {copy.known}")
        if copy.numbers.setdefault(address, sequence_number) != sequence_number:
            self.tell(f"doubled: {where} {message}, which had been number {copy.numbers[address]}")
        self._note_number(where, message, address, sequence_number)
        copy.see(state, self.forgotten)
        message.is_seen = True
        self.look(message)
        return copy

    def may_become(self, copy: Copy, state: State) -> bool:  # noqa: ARG002  # for ledgers of entities that do more
        """Whether a copy can have come into a state unasked."""
        return False

    def copy_of(self, message: Message, home: str, address: str, sequence_number: int) -> Copy:
        """The copy that was received: a new one, if a message may be there more than once."""
        if not self.is_copied:
            return message.copy_at(home)
        for copy in message.copies[home]:
            if copy.numbers[address] == sequence_number:
                return copy
        message.copies[home].append(Copy(message.number, home, {address: sequence_number}))
        return message.copies[home][-1]

    def _note_number(self, where: str, message: Message, address: str, sequence_number: int) -> None:
        other = self._at.setdefault((address, sequence_number), message.number)
        if other != message.number:
            self.tell(f"doubled: {where} {message}, where message {other} had been")

    def completion_requested(self, number: int) -> None:
        self._only_copy(number).asked[State.GONE] += 1
        self.look(self.messages[number])

    def completion_confirmed(self, number: int) -> None:
        self._only_copy(number).confirm(State.GONE)
        self.completed += 1
        self.look(self.messages[number])

    def _only_copy(self, number: int) -> Copy:
        (home,) = self.messages[number].copies
        return self.messages[number].copy_at(home)

    # --- what has to be there -----------------------------------------------------------------------------------------

    def is_expected(self, message: Message) -> bool:
        """Whether somebody was told, or has seen, that it is stored."""
        return message.is_accepted or message.is_seen

    def look(self, message: Message) -> None:
        """Something happened to a message: does it have to be there, and wait for receivers?"""
        is_at_rest = all(
            any(not copy.may_be.isdisjoint(self.at_rest) for copy in copies) for copies in message.copies.values()
        )
        if self.is_expected(message) and not is_at_rest:
            self.waiting.add(message.number)
        else:
            self.waiting.discard(message.number)

    # --- the end ------------------------------------------------------------------------------------------------------

    def unused(self) -> list[str]:
        """What a run says nothing of, because it was hardly used."""
        return ["completions"] if self.completed < COMPLETIONS_ENOUGH else []

    def close(self) -> list[str]:
        """Everything was received and completed to the end: all problems."""
        for message in self.messages:
            if self.is_expected(message):
                self._find_losses(message)
        self._check_order()
        return self.problems

    def _find_losses(self, message: Message) -> None:
        for home, copies in message.copies.items():
            if any(copy.may_be_gone for copy in copies):
                continue
            where = "" if home == message.path else f" at {home}"
            self.tell(f"lost: {message} of {message.path}{where}, which {self.known(message, copies)}")

    def known(self, message: Message, copies: list[Copy]) -> str:
        """What is known of a lost message at one of its homes."""
        seen = [copy for copy in copies if copy.receipts]
        if any(copy.state is not State.ACTIVE for copy in seen):
            return f"is {seen[0].known}"
        if message.is_accepted or not seen:
            return "was accepted" if message.is_accepted else "was stored elsewhere"
        return f"was received as number {shown(next(iter(seen[0].numbers.values())))}"

    def keeps_order(self, message: Message) -> bool:
        """Whether its place among the messages of its source is promised."""
        return message.source is not None

    def has_place(self, copy: Copy) -> bool:
        """Whether a copy counts as the place of its message: dead letters have other numbers."""
        return copy.home in copy.numbers

    def _check_order(self) -> None:
        last: dict[tuple[Hashable, str], tuple[int, Message]] = defaultdict(lambda: (-1, self.messages[0]))
        for message in self.messages:
            if not self.keeps_order(message):
                continue
            for home, copies in message.copies.items():
                numbers = [copy.numbers[home] for copy in copies if self.has_place(copy)]
                if not numbers:
                    continue
                self.ordered += (message.source, home) in last
                highest, before = last[message.source, home]
                if min(numbers) < highest:
                    self.tell(
                        f"order: {message} of {home} has number {shown(min(numbers))}, "
                        f"below number {shown(highest)} of {before} before it"
                    )
                last[message.source, home] = (min(numbers), message)

    def figures(self) -> str:
        messages = self.messages
        return (
            f"{len(messages):,} sent, {sum(message.is_accepted for message in messages):,} accepted, "
            f"{self.received_count:,} received, {self.completed:,} completed, "
            f"{sum(not one.is_accepted and one.refusal is None for one in messages):,} sends without an answer, "
            f"{sum(message.refusal is not None for message in messages):,} refused"
        )
