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

from tests.support.delivery_checker.messages import (
    Copy,
    Message,
    State,
    format_sequence_number,
    make_body,
    read_message_number,
)
from tests.support.delivery_checker.problems import Problems

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable

MIN_COMPLETIONS: Final = 300


class DeliveryChecker:
    """One ledger for all senders and receivers of a run."""

    allows_duplicates: ClassVar = False
    """A message may be at a home more than once; otherwise a second copy of it is a problem."""
    cancelled_requests: ClassVar = frozenset(State) - {State.COMPLETED}
    """Requests that were not carried out if a message is received again. A completion may be confirmed even then."""
    resting_states: ClassVar = frozenset({State.COMPLETED, State.CANCELLED})
    """States in which a copy does not wait for receivers."""

    def __init__(self, rng: random.Random | None = None) -> None:
        """`rng` fills the bodies of messages."""
        self.messages: list[Message] = []
        self.received_count = 0
        self.completed_count = 0
        self.pending: set[int] = set()
        """Messages that must be there, and wait for receivers."""
        self.order_checks = 0
        """Messages whose place in an order was compared with that of another."""
        self._rng = rng or random.Random()
        self._problems = Problems()
        self._by_sequence_number: dict[tuple[str, int], int] = {}
        """The message that an address has under a sequence number."""

    @property
    def problems(self) -> list[str]:
        return self._problems.problems

    @property
    def problem_counts(self) -> Counter[str]:
        """All problems, by kind."""
        return self._problems.counts

    def report_problem(self, problem: str) -> None:
        self._problems.add(problem)

    # --- senders ------------------------------------------------------------------------------------------------------

    def record_send(
        self, path: str, source: Hashable | None, filler_bytes: int, destinations: Iterable[str] | None = None
    ) -> tuple[int, bytes]:
        """Record a new message, which will be sent now: its number and its body. It has to arrive at `homes` (path)."""
        number, filler = len(self.messages), self._rng.randbytes(filler_bytes)
        self.messages.append(Message(number, path, {home: [] for home in destinations or (path,)}, source))
        return number, make_body(number, filler)

    def send_accepted(self, number: int) -> None:
        self.messages[number].is_accepted = True
        self.update_pending(self.messages[number])

    def send_refused(self, number: int, reason: str) -> None:
        self.messages[number].refusal = reason

    # --- receivers ----------------------------------------------------------------------------------------------------

    def message_received(self, address: str, sequence_number: int, body: bytes) -> int | None:
        """Somebody received a message: its number, if it is one of ours."""
        self.received_count += 1
        where = f"from {address} came, as number {sequence_number},"
        message = self.identify_message(where, body, address)
        if message is None:
            return None
        self.record_receipt(where, message, address, address, sequence_number)
        return message.number

    def identify_message(self, context: str, body: bytes, destination: str) -> Message | None:
        """Find the message that has this body, if it was sent and belongs to a home."""
        number = read_message_number(body)
        if number is None or number >= len(self.messages):
            self.report_problem(f"strange: {context} {len(body)} bytes that nobody sent")
            return None
        return self.messages[number] if self.check_destination(context, self.messages[number], destination) else None

    def check_destination(self, context: str, message: Message, destination: str) -> bool:
        """Whether a message has to arrive at a home; if not, that is a problem."""
        if destination not in message.copies:
            self.report_problem(f"strange: {context} {message}, which was sent to {message.sent_to}")
        return destination in message.copies

    def record_receipt(
        self,
        context: str,
        message: Message,
        destination: str,
        address: str,
        sequence_number: int,
        state: State = State.ACTIVE,
    ) -> Copy:
        """Record that a message was received from an address of its home, and compare that with what is known."""
        copy = self.received_copy(message, destination, address, sequence_number)
        if state not in copy.possible_states and not self.may_change_state(copy, state):
            self.report_problem(f"back: {context} {message}, which is {copy.possible_states_text}")
        if copy.sequence_numbers.setdefault(address, sequence_number) != sequence_number:
            self.report_problem(f"doubled: {context} {message}, which had been number {copy.sequence_numbers[address]}")
        self._check_sequence_number(context, message, address, sequence_number)
        copy.record_receipt(state, self.cancelled_requests)
        message.was_received = True
        self.update_pending(message)
        return copy

    def may_change_state(self, copy: Copy, state: State) -> bool:  # noqa: ARG002  # for ledgers of entities that do more
        """Whether a copy can have come into a state unasked."""
        return False

    def received_copy(self, message: Message, destination: str, address: str, sequence_number: int) -> Copy:
        """The copy that was received: a new one, if a message may be there more than once."""
        if not self.allows_duplicates:
            return message.copy_in(destination)
        for copy in message.copies[destination]:
            if copy.sequence_numbers[address] == sequence_number:
                return copy
        message.copies[destination].append(Copy(message.number, destination, {address: sequence_number}))
        return message.copies[destination][-1]

    def _check_sequence_number(self, context: str, message: Message, address: str, sequence_number: int) -> None:
        other = self._by_sequence_number.setdefault((address, sequence_number), message.number)
        if other != message.number:
            self.report_problem(f"doubled: {context} {message}, where message {other} had been")

    def completion_requested(self, number: int) -> None:
        self._only_copy(number).requested_states[State.COMPLETED] += 1
        self.update_pending(self.messages[number])

    def completion_confirmed(self, number: int) -> None:
        self._only_copy(number).confirm(State.COMPLETED)
        self.completed_count += 1
        self.update_pending(self.messages[number])

    def _only_copy(self, number: int) -> Copy:
        (home,) = self.messages[number].copies
        return self.messages[number].copy_in(home)

    # --- what has to be there -----------------------------------------------------------------------------------------

    def must_exist(self, message: Message) -> bool:
        """Whether somebody was told, or has seen, that it is stored."""
        return message.is_accepted or message.was_received

    def update_pending(self, message: Message) -> None:
        """Something happened to a message: does it have to be there, and wait for receivers?"""
        is_at_rest = all(
            any(not copy.possible_states.isdisjoint(self.resting_states) for copy in copies)
            for copies in message.copies.values()
        )
        if self.must_exist(message) and not is_at_rest:
            self.pending.add(message.number)
        else:
            self.pending.discard(message.number)

    # --- the end ------------------------------------------------------------------------------------------------------

    def uncovered_features(self) -> list[str]:
        """What a run says nothing of, because it was hardly used."""
        return ["completions"] if self.completed_count < MIN_COMPLETIONS else []

    def finish(self) -> list[str]:
        """Everything was received and completed to the end: all problems."""
        for message in self.messages:
            if self.must_exist(message):
                self._check_losses(message)
        self._check_order()
        return self.problems

    def _check_losses(self, message: Message) -> None:
        for home, copies in message.copies.items():
            if any(copy.may_be_gone for copy in copies):
                continue
            where = "" if home == message.sent_to else f" at {home}"
            self.report_problem(
                f"lost: {message} of {message.sent_to}{where}, which {self.describe_loss(message, copies)}"
            )

    def describe_loss(self, message: Message, copies: list[Copy]) -> str:
        """What is known of a lost message at one of its homes."""
        seen = [copy for copy in copies if copy.receipt_count]
        if any(copy.state is not State.ACTIVE for copy in seen):
            return f"is {seen[0].possible_states_text}"
        if message.is_accepted or not seen:
            return "was accepted" if message.is_accepted else "was stored elsewhere"
        return f"was received as number {format_sequence_number(next(iter(seen[0].sequence_numbers.values())))}"

    def is_ordered(self, message: Message) -> bool:
        """Whether its place among the messages of its source is promised."""
        return message.order_key is not None

    def has_position(self, copy: Copy) -> bool:
        """Whether a copy counts as the place of its message: dead letters have other numbers."""
        return copy.destination in copy.sequence_numbers

    def _check_order(self) -> None:
        last: dict[tuple[Hashable, str], tuple[int, Message]] = defaultdict(lambda: (-1, self.messages[0]))
        for message in self.messages:
            if not self.is_ordered(message):
                continue
            for home, copies in message.copies.items():
                numbers = [copy.sequence_numbers[home] for copy in copies if self.has_position(copy)]
                if not numbers:
                    continue
                self.order_checks += (message.order_key, home) in last
                highest, before = last[message.order_key, home]
                if min(numbers) < highest:
                    self.report_problem(
                        f"order: {message} of {home} has number {format_sequence_number(min(numbers))}, "
                        f"below number {format_sequence_number(highest)} of {before} before it"
                    )
                last[message.order_key, home] = (min(numbers), message)

    def statistics(self) -> str:
        messages = self.messages
        return (
            f"{len(messages):,} sent, {sum(message.is_accepted for message in messages):,} accepted, "
            f"{self.received_count:,} received, {self.completed_count:,} completed, "
            f"{sum(not one.is_accepted and one.refusal is None for one in messages):,} sends without an answer, "
            f"{sum(message.refusal is not None for message in messages):,} refused"
        )
