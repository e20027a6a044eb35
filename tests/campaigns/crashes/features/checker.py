"""The ledger of messages that are scheduled, expire, are deferred, sent again or of sessions, and of sessions' states.

To the promises of every ledger it adds, in the words of `problems`:

- back: a message whose deferral was confirmed comes only to a receiver that asks for it by its number, and one whose
  cancellation was confirmed to nobody; a dead letter never comes from its queue again.
- order: the messages of a session come for the first time in the order of their sequence numbers.
- early: no scheduled message comes before it is due, and no message expires before its time.
- late: no message is handed out after it has expired.
- cancelled: no message is cancelled that somebody has received.
- torn: messages that were scheduled together are all there, or none is.
- dead-lettered: a message is in the dead-letter queue because it expired.
- state: a session has the state that was last set, as far as that was confirmed or read, or a later one.

A message that was sent again, to a queue that detects duplicates, is the same message: it must not be `doubled`.

Owns: these promises. Knows nothing of servers, links or disks.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from tests.campaigns.crashes.features import messages
from tests.campaigns.crashes.features.queue_kinds import QUEUE_KINDS, SHORT_DELAY_RANGE_MS
from tests.support.delivery_checker.checker import DeliveryChecker
from tests.support.delivery_checker.messages import State

if TYPE_CHECKING:
    import random
    from collections.abc import Hashable, Sequence

    from tests.campaigns.crashes.features.messages import MessageTerms, ReceivedMessage
    from tests.support.delivery_checker.messages import Copy

EXPIRED: Final = "TTLExpiredException"
MIN_USES: Final = 5
"""Uses of a feature that make a run say something of it."""
SOCKET_DELAY_MS: Final = 3_000
"""A message may have lain in a socket for so long, on a busy machine."""


@dataclass(slots=True)
class MessageHistory:
    """What a message was sent with, and what was found of it beside its copies."""

    terms: MessageTerms
    scheduled_number: int | None = None
    """The number to cancel it by."""
    was_seen_scheduled: bool = False
    """It was seen among the scheduled messages."""


@dataclass(slots=True)
class SessionStateHistory:
    """All that a session was ever told to remember."""

    states: list[bytes | None] = field(default_factory=lambda: [None])
    last_confirmed: int = 0
    """The last that was confirmed or read: nothing before it can come again."""


class FeatureChecker(DeliveryChecker):
    """One ledger for all clients of a run."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self.histories: list[MessageHistory] = []
        self.deferred_sequence_numbers: dict[int, int] = {}
        """Messages that must be among the deferred ones, with their sequence numbers."""
        self.cancellable: dict[int, int] = {}
        """Messages that were scheduled, and nobody has cancelled yet, with the numbers to do it by."""
        self.resends = 0
        self.dead_letter_count = 0
        self._deferred: set[int] = set()
        """Messages that were ever deferred."""
        self._session_states: dict[tuple[str, str], SessionStateHistory] = {}
        self._latest_by_session: dict[tuple[str, str], int] = {}
        """By session: the highest sequence number that somebody received."""
        self._scheduled_batches: list[Sequence[int]] = []

    # --- senders ------------------------------------------------------------------------------------------------------

    def record_send_with_terms(
        self, queue: str, source: Hashable | None, filler_bytes: int, terms: MessageTerms
    ) -> tuple[int, bytes]:
        """Record a new message, which will be sent now: its number and its payload."""
        number, body = self.record_send(queue, source if terms.due_ms is None else None, filler_bytes)
        self.histories.append(MessageHistory(terms))
        return number, messages.encode_message(f"message-{number}", body, terms)

    def resent(self, number: int) -> None:
        """It may be stored now or have been before: it has no place in an order."""
        self.resends += 1
        self.messages[number].order_key = None

    def scheduled_together(self, numbers: Sequence[int]) -> None:
        self._scheduled_batches.append(numbers)

    def scheduled(self, number: int, sequence_number: int) -> None:
        """The broker has accepted it, and said by which number it can be cancelled."""
        self.send_accepted(number)
        self.histories[number].scheduled_number = self.cancellable[number] = sequence_number

    def is_cancelled(self, number: int) -> bool:
        return self._only_copy(number).state is State.CANCELLED

    def cancel_requested(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            self._only_copy(number).requested_states[State.CANCELLED] += 1
            self.cancellable.pop(number, None)
            self.update_pending(self.messages[number])

    def cancel_confirmed(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            copy = self._only_copy(number)
            if copy.sequence_numbers:
                self.report_problem(f"cancelled: message {number}, which somebody had received before")
            copy.confirm(State.CANCELLED)

    def cancel_refused(self, numbers: Sequence[int]) -> None:
        """The broker does not know one of them any more, and has cancelled none."""
        now_ms = _now_ms()
        if all(self._is_surely_scheduled(number, now_ms) for number in numbers):
            self.report_problem(
                f"lost: one of the scheduled messages {list(numbers)}, which were not due, cannot be cancelled"
            )
        for number in numbers:
            asked = self._only_copy(number).requested_states
            asked[State.CANCELLED] = max(0, asked[State.CANCELLED] - 1)
            self.update_pending(self.messages[number])

    def cancel_unanswered(self, numbers: Sequence[int]) -> None:
        """They may be cancelled or not: it can be tried again."""
        for number in numbers:
            sequence_number = self.histories[number].scheduled_number
            if sequence_number is not None and not self._only_copy(number).sequence_numbers:
                self.cancellable[number] = sequence_number

    def _is_surely_scheduled(self, number: int, now_ms: int) -> bool:
        due_ms, copy = self.histories[number].terms.due_ms, self._only_copy(number)
        is_due = due_ms is None or due_ms <= now_ms
        return not is_due and copy.requested_states[State.CANCELLED] == 1 and copy.state is not State.CANCELLED

    # --- receivers ----------------------------------------------------------------------------------------------------

    def message_received_from(self, queue: str, got: ReceivedMessage) -> int | None:
        """Somebody received a message from a queue: its number, if it is one of ours."""
        self.received_count += 1
        where = f"from {queue} came, as number {got.sequence_number},"
        message = self.identify_message(where, got.body, queue)
        if message is None:
            return None
        story, was_seen = self.histories[message.number], message.was_received
        self.record_receipt(where, message, queue, queue, got.sequence_number)
        self.cancellable.pop(message.number, None)
        where = f"{where} {message},"
        self._check_times(where, story.terms, got)
        self._check_session(queue, where, story, got, was_seen=was_seen or story.was_seen_scheduled)
        return message.number

    def _check_times(self, where: str, terms: MessageTerms, got: ReceivedMessage) -> None:
        now_ms = _now_ms()
        if terms.due_ms is not None and min(now_ms, got.enqueued_ms) < terms.due_ms:
            self.report_problem(f"early: {where} which was scheduled for {terms.due_ms - now_ms} ms later")
        if got.ttl_ms != terms.ttl_ms:
            self.report_problem(f"strange: {where} which lives for {got.ttl_ms} ms, and was to live for {terms.ttl_ms}")
        elif got.expires_ms is not None:
            at_ms = got.delivered_ms if terms.session is None else now_ms - SOCKET_DELAY_MS
            if at_ms is not None and at_ms >= got.expires_ms:
                self.report_problem(f"late: {where} which had expired {at_ms - got.expires_ms} ms before")

    def _check_session(
        self, queue: str, where: str, story: MessageHistory, got: ReceivedMessage, *, was_seen: bool
    ) -> None:
        session = story.terms.session
        if got.session != session:
            self.report_problem(f"strange: {where} of session {got.session}, which was sent to {session}")
        elif session is not None:
            latest = self._latest_by_session.get((queue, session), 0)
            if not was_seen and got.sequence_number < latest:
                self.report_problem(
                    f"order: {where} for the first time, and number {latest} of its session was there before"
                )
            self._latest_by_session[queue, session] = max(latest, got.sequence_number)

    def dead_letter_received(self, queue: str, got: ReceivedMessage) -> int | None:
        """Somebody received a message from the dead-letter queue of a queue: its number, if it is one of ours."""
        self.received_count += 1
        address = f"{queue}'s dead letters"
        where = f"from {address} came, as number {got.sequence_number},"
        message = self.identify_message(where, got.body, queue)
        if message is None:
            return None
        ttl_ms, copy = self.histories[message.number].terms.ttl_ms, message.copy_in(queue)
        self.dead_letter_count += address not in copy.sequence_numbers
        self.record_receipt(where, message, queue, address, got.sequence_number, State.DEAD_LETTERED)
        where = f"{where} {message},"
        if got.reason != EXPIRED or got.ttl_ms != ttl_ms:
            self.report_problem(f"dead-lettered: {where} for {got.reason}, with {got.ttl_ms} ms of {ttl_ms} to live")
        elif got.expires_ms is None or _now_ms() < got.expires_ms:
            self.report_problem(f"early: {where} which has not expired yet")
        if got.original_number is not None:
            known = copy.sequence_numbers.setdefault(queue, got.original_number)
            if known != got.original_number:
                self.report_problem(f"doubled: {where} once number {got.original_number}, which was number {known}")
        return message.number

    def may_change_state(self, copy: Copy, state: State) -> bool:
        """An active message that expires is dead-lettered."""
        return state is State.DEAD_LETTERED and copy.state is State.ACTIVE

    def message_peeked(self, queue: str, got: ReceivedMessage) -> int | None:
        """Somebody peeked a message: its number, if it is one of ours."""
        where = f"in {queue} lies, as number {got.sequence_number},"
        message = self.identify_message(where, got.body, queue)
        if message is None:
            return None
        if message.copy_in(queue).state is State.COMPLETED:
            self.report_problem(f"back: {where} {message}, which is {State.COMPLETED.value}")
        story = self.histories[message.number]
        story.was_seen_scheduled = story.was_seen_scheduled or got.state == messages.SCHEDULED
        return message.number

    # --- deferral -----------------------------------------------------------------------------------------------------

    def deferral_requested(self, number: int) -> None:
        self._only_copy(number).requested_states[State.DEFERRED] += 1

    def deferral_confirmed(self, number: int) -> None:
        copy = self._only_copy(number)
        copy.state = State.DEFERRED
        self.deferred_sequence_numbers[number] = copy.sequence_number
        self._deferred.add(number)

    def completion_requested(self, number: int) -> None:
        super().completion_requested(number)
        self.deferred_sequence_numbers.pop(number, None)

    def receive_deferred(self, queue: str, got: ReceivedMessage) -> int | None:
        """Somebody asked for a deferred message, and received it."""
        self.received_count += 1
        where = f"from the deferred messages of {queue} came, as number {got.sequence_number},"
        message = self.identify_message(where, got.body, queue)
        if message is None:
            return None
        self.record_receipt(where, message, queue, queue, got.sequence_number, State.DEFERRED)
        self._deferred.add(message.number)
        return message.number

    def deferred_missing(self, queue: str, numbers: Sequence[int], reason: str) -> None:
        """Somebody asked for deferred messages, and the broker said that one of them is not there."""
        if all(number in self.deferred_sequence_numbers for number in numbers):
            self.report_problem(f"lost: one of the deferred messages {list(numbers)} of {queue}: {reason}")

    # --- what sessions remember ---------------------------------------------------------------------------------------

    def state_requested(self, queue: str, session: str, state: bytes | None) -> int:
        """A session is to remember something, or, with None, nothing: which one this is."""
        told = self._session_states.setdefault((queue, session), SessionStateHistory()).states
        told.append(state)
        return len(told) - 1

    def state_confirmed(self, queue: str, session: str, index: int) -> None:
        memory = self._session_states[queue, session]
        memory.last_confirmed = max(memory.last_confirmed, index)

    def state_read(self, queue: str, session: str, state: bytes | None) -> None:
        memory = self._session_states.setdefault((queue, session), SessionStateHistory())
        possible = memory.states[memory.last_confirmed :]
        if state in possible:
            memory.last_confirmed += possible.index(state)
        else:
            self.report_problem(
                f"state: session {session} of {queue} remembers {state!r:.60}, which is none of the "
                f"{len(possible)} that it can be since {possible[0]!r:.60}"
            )

    def sessions_with_state(self, queue: str) -> set[str]:
        """Sessions that must remember something."""
        return {
            session
            for (place, session), memory in self._session_states.items()
            if place == queue and all(state is not None for state in memory.states[memory.last_confirmed :])
        }

    def sessions_with_possible_state(self, queue: str) -> set[str]:
        """... and those that may."""
        return {
            session
            for (place, session), memory in self._session_states.items()
            if place == queue and any(state is not None for state in memory.states[memory.last_confirmed :])
        }

    # --- the end ------------------------------------------------------------------------------------------------------

    def finish(self) -> list[str]:
        """All queues were received and completed to the end, long after the last message was sent."""
        for number in self.pending:
            ttl_ms, queue = self.histories[number].terms.ttl_ms, self.messages[number].sent_to
            if not QUEUE_KINDS[queue].dead_letters_expired and ttl_ms is not None and ttl_ms <= SHORT_DELAY_RANGE_MS[1]:
                self._only_copy(number).requested_states[State.COMPLETED] += 1  # it has expired
        for numbers in self._scheduled_batches:
            seen = [
                number
                for number in numbers
                if self.histories[number].was_seen_scheduled or self.messages[number].was_received
            ]
            is_cancelled = any(State.CANCELLED in self._only_copy(number).possible_states for number in numbers)
            if seen and len(seen) < len(numbers) and not is_cancelled:
                self.report_problem(f"torn: of {list(numbers)}, which were scheduled together, only {seen} were there")
        return super().finish()

    def feature_counts(self) -> dict[str, int]:
        """How often each feature was made use of."""
        terms = [story.terms for story in self.histories]
        return {
            "in sessions": sum(one.session is not None for one in terms),
            "states": sum(len(memory.states) - 1 for memory in self._session_states.values()),
            "scheduled": sum(one.due_ms is not None for one in terms),
            "cancelled": sum(self.is_cancelled(number) for number in range(len(terms))),
            "dead-lettered": self.dead_letter_count,
            "deferred": len(self._deferred),
            "sent again": self.resends,
        }

    def uncovered_features(self) -> list[str]:
        """What a run says nothing of, because it was hardly used."""
        return [name for name, count in self.feature_counts().items() if count < MIN_USES]

    def statistics(self) -> str:
        return (
            f"{super().statistics()}; {', '.join(f'{count:,} {name}' for name, count in self.feature_counts().items())}"
        )


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
