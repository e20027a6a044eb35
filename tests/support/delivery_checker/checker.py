"""The delivery checker of a campaign records every send, outcome, delivery and settlement as it happens.

    number, body = checker.record_send("orders", source, filler_bytes)     # before a message is sent
    checker.send_accepted(number)                                          # or `send_refused`
    checker.message_received("orders", sequence_number, body)              # returns the message number
    checker.completion_requested(number), checker.completion_confirmed(number)
    problems = checker.finish()                                            # after all messages were completed

Guarantees, by the kind of problem that reports a violation:

- lost: a message that was accepted or received stays at each of its destinations until its completion is requested.
- back: a message is never received in a state that it cannot be in (see the table in `messages`).
- strange: no message arrives that was not sent, that was changed, or that belongs to another destination.
- doubled: at an address, a message has one sequence number, and a sequence number belongs to one message, for ever.
- order: messages of one source have increasing sequence numbers.

A message whose send got no outcome, or an error, may or may not be stored.

Owns: these guarantees. Knows nothing about servers, links or disks. Campaigns add the guarantees of the features that
they use.
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
    """Checker for all senders and receivers of a run."""

    allows_duplicates: ClassVar = False
    """Whether a message may be at a destination more than once; if not, a second copy is a problem."""
    cancelled_requests: ClassVar = frozenset(State) - {State.COMPLETED}
    """If a message is received again, requests for these states were not carried out. A completion may still be."""
    resting_states: ClassVar = frozenset({State.COMPLETED, State.CANCELLED})
    """States of copies that do not wait for receivers."""

    def __init__(self, rng: random.Random | None = None) -> None:
        """`rng` generates the bodies of messages."""
        self.messages: list[Message] = []
        self.received_count = 0
        self.completed_count = 0
        self.pending: set[int] = set()
        """Numbers of messages that must exist and wait for receivers."""
        self.order_checks = 0
        """Number of messages whose position was compared with that of an earlier message."""
        self._rng = rng or random.Random()
        self._problems = Problems()
        self._by_sequence_number: dict[tuple[str, int], int] = {}
        """Message numbers by address and sequence number."""

    @property
    def problems(self) -> list[str]:
        return self._problems.problems

    @property
    def problem_counts(self) -> Counter[str]:
        """Number of problems by kind."""
        return self._problems.counts

    def report_problem(self, problem: str) -> None:
        self._problems.add(problem)

    # --- senders -----------------------------------------------------------------------------------------------------

    def record_send(
        self, path: str, source: Hashable | None, filler_bytes: int, destinations: Iterable[str] | None = None
    ) -> tuple[int, bytes]:
        """Record a message that is about to be sent, and return its number and body (default destination: `path`)."""
        number, filler = len(self.messages), self._rng.randbytes(filler_bytes)
        self.messages.append(Message(number, path, {address: [] for address in destinations or (path,)}, source))
        return number, make_body(number, filler)

    def send_accepted(self, number: int) -> None:
        self.messages[number].is_accepted = True
        self.update_pending(self.messages[number])

    def send_refused(self, number: int, reason: str) -> None:
        self.messages[number].refusal = reason

    # --- receivers ---------------------------------------------------------------------------------------------------

    def message_received(self, address: str, sequence_number: int, body: bytes) -> int | None:
        """Record a received message, and return its number; None if it is not from this run."""
        self.received_count += 1
        context = f"from {address} came, as number {sequence_number},"
        message = self.identify_message(context, body, address)
        if message is None:
            return None
        self.record_receipt(context, message, address, address, sequence_number)
        return message.number

    def identify_message(self, context: str, body: bytes, destination: str) -> Message | None:
        """Return the message with this body, or report a problem if it was not sent to the destination."""
        number = read_message_number(body)
        if number is None or number >= len(self.messages):
            self.report_problem(f"strange: {context} {len(body)} bytes that nobody sent")
            return None
        return self.messages[number] if self.check_destination(context, self.messages[number], destination) else None

    def check_destination(self, context: str, message: Message, destination: str) -> bool:
        """Whether a message belongs to a destination; if not, report a problem."""
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
        """Record that a message was received from an address of its destination; check state and sequence number."""
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

    def may_change_state(self, copy: Copy, state: State) -> bool:  # noqa: ARG002  # subclasses use the arguments
        """Whether a copy can have reached a state without a request."""
        return False

    def received_copy(self, message: Message, destination: str, address: str, sequence_number: int) -> Copy:
        """Return the copy that was received; create it if duplicates are allowed and the sequence number is new."""
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
        (destination,) = self.messages[number].copies
        return self.messages[number].copy_in(destination)

    # --- messages that must exist ------------------------------------------------------------------------------------

    def must_exist(self, message: Message) -> bool:
        """Whether a sender or receiver knows that the message is stored."""
        return message.is_accepted or message.was_received

    def update_pending(self, message: Message) -> None:
        """Update whether a message must exist and waits for receivers."""
        is_resting = all(
            any(not copy.possible_states.isdisjoint(self.resting_states) for copy in copies)
            for copies in message.copies.values()
        )
        if self.must_exist(message) and not is_resting:
            self.pending.add(message.number)
        else:
            self.pending.discard(message.number)

    # --- final check -------------------------------------------------------------------------------------------------

    def uncovered_features(self) -> list[str]:
        """Return the features that the run used too rarely to test them."""
        return ["completions"] if self.completed_count < MIN_COMPLETIONS else []

    def finish(self) -> list[str]:
        """Return all problems, after every message was received and completed."""
        for message in self.messages:
            if self.must_exist(message):
                self._check_losses(message)
        self._check_order()
        return self.problems

    def _check_losses(self, message: Message) -> None:
        for destination, copies in message.copies.items():
            if any(copy.may_be_gone for copy in copies):
                continue
            where = "" if destination == message.sent_to else f" at {destination}"
            self.report_problem(
                f"lost: {message} of {message.sent_to}{where}, which {self.describe_loss(message, copies)}"
            )

    def describe_loss(self, message: Message, copies: list[Copy]) -> str:
        """Describe what is known about a message that is lost at one of its destinations."""
        seen = [copy for copy in copies if copy.receipt_count]
        if any(copy.state is not State.ACTIVE for copy in seen):
            return f"is {seen[0].possible_states_text}"
        if message.is_accepted or not seen:
            return "was accepted" if message.is_accepted else "was stored elsewhere"
        return f"was received as number {format_sequence_number(next(iter(seen[0].sequence_numbers.values())))}"

    def is_ordered(self, message: Message) -> bool:
        """Whether the order of a message among the messages of its source is guaranteed."""
        return message.order_key is not None

    def has_position(self, copy: Copy) -> bool:
        """Whether the sequence number of a copy counts for the order: dead letters have other numbers."""
        return copy.destination in copy.sequence_numbers

    def _check_order(self) -> None:
        last: dict[tuple[Hashable, str], tuple[int, Message]] = defaultdict(lambda: (-1, self.messages[0]))
        for message in self.messages:
            if not self.is_ordered(message):
                continue
            for destination, copies in message.copies.items():
                numbers = [copy.sequence_numbers[destination] for copy in copies if self.has_position(copy)]
                if not numbers:
                    continue
                self.order_checks += (message.order_key, destination) in last
                highest, previous = last[message.order_key, destination]
                if min(numbers) < highest:
                    self.report_problem(
                        f"order: {message} of {destination} has number {format_sequence_number(min(numbers))}, "
                        f"below number {format_sequence_number(highest)} of {previous} before it"
                    )
                last[message.order_key, destination] = (min(numbers), message)

    def statistics(self) -> str:
        messages = self.messages
        return (
            f"{len(messages):,} sent, {sum(message.is_accepted for message in messages):,} accepted, "
            f"{self.received_count:,} received, {self.completed_count:,} completed, "
            f"{sum(not sent.is_accepted and sent.refusal is None for sent in messages):,} sends without an answer, "
            f"{sum(message.refusal is not None for message in messages):,} refused"
        )
