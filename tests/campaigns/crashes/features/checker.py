"""Checker of scheduled, expiring, deferred and repeated messages, of sessions and session states.

It adds these guarantees to those of every checker; each problem starts with its word:

- back: after a confirmed deferral, a message is received by its sequence number only; after a confirmed cancellation it
  is never received; a dead letter is not received from its queue again.
- order: first deliveries of the messages of a session are in the order of their sequence numbers.
- early: no scheduled message is delivered before it is due, and no message expires before its time.
- late: no message is delivered after it has expired.
- cancelled: no message is cancelled that was received.
- torn: messages that were scheduled together all exist, or none does.
- dead-lettered: a message is in the dead-letter queue because it expired.
- state: a session has the state that was last set, as far as that was confirmed or read, or a later one.

A message that was sent again, to a queue that detects duplicates, is the same message: it must not be `doubled`.

Owns: these guarantees. Knows nothing of servers, links or disks.
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
"""Minimum uses of a feature for a meaningful run."""
SOCKET_DELAY_MS: Final = 3_000
"""Longest time of a message in a socket, on a busy machine."""


@dataclass(slots=True)
class MessageHistory:
    """Terms of a message, and observations other than its copies."""

    terms: MessageTerms
    scheduled_number: int | None = None
    """Sequence number for its cancellation."""
    was_seen_scheduled: bool = False
    """It was peeked as a scheduled message."""


@dataclass(slots=True)
class SessionStateHistory:
    """All states that were set for a session."""

    states: list[bytes | None] = field(default_factory=lambda: [None])
    last_confirmed: int = 0
    """Index of the last state that was confirmed or read; earlier states must not reappear."""


class FeatureChecker(DeliveryChecker):
    """Checker for all clients of a run."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self.histories: list[MessageHistory] = []
        self.deferred_sequence_numbers: dict[int, int] = {}
        """Messages that must be deferred, with their sequence numbers."""
        self.cancellable: dict[int, int] = {}
        """Scheduled messages that were not cancelled, with the sequence numbers for the cancellation."""
        self.resends = 0
        self.dead_letter_count = 0
        self._deferred: set[int] = set()
        """Messages that were deferred at any time."""
        self._session_states: dict[tuple[str, str], SessionStateHistory] = {}
        self._latest_by_session: dict[tuple[str, str], int] = {}
        """Highest received sequence number by session."""
        self._scheduled_batches: list[Sequence[int]] = []

    # --- senders ------------------------------------------------------------------------------------------------------

    def record_send_with_terms(
        self, queue: str, source: Hashable | None, filler_bytes: int, terms: MessageTerms
    ) -> tuple[int, bytes]:
        """Record a new message; return its number and its payload."""
        number, body = self.record_send(queue, source if terms.due_ms is None else None, filler_bytes)
        self.histories.append(MessageHistory(terms))
        return number, messages.encode_message(f"message-{number}", body, terms)

    def resent(self, number: int) -> None:
        """Record a repeated send; the first or the second may be stored, so the order is unknown."""
        self.resends += 1
        self.messages[number].order_key = None

    def scheduled_together(self, numbers: Sequence[int]) -> None:
        self._scheduled_batches.append(numbers)

    def scheduled(self, number: int, sequence_number: int) -> None:
        """Record that the broker accepted a scheduled message, with its sequence number."""
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
        """Record that the broker did not find one of the messages, and cancelled none."""
        now_ms = _now_ms()
        if all(self._is_surely_scheduled(number, now_ms) for number in numbers):
            self.report_problem(
                f"lost: one of the scheduled messages {list(numbers)}, which were not due, cannot be cancelled"
            )
        for number in numbers:
            requested = self._only_copy(number).requested_states
            requested[State.CANCELLED] = max(0, requested[State.CANCELLED] - 1)
            self.update_pending(self.messages[number])

    def cancel_unanswered(self, numbers: Sequence[int]) -> None:
        """Record a cancellation without response; it can be repeated."""
        for number in numbers:
            sequence_number = self.histories[number].scheduled_number
            if sequence_number is not None and not self._only_copy(number).sequence_numbers:
                self.cancellable[number] = sequence_number

    def _is_surely_scheduled(self, number: int, now_ms: int) -> bool:
        due_ms, copy = self.histories[number].terms.due_ms, self._only_copy(number)
        is_due = due_ms is None or due_ms <= now_ms
        return not is_due and copy.requested_states[State.CANCELLED] == 1 and copy.state is not State.CANCELLED

    # --- receivers ----------------------------------------------------------------------------------------------------

    def message_received_from(self, queue: str, received: ReceivedMessage) -> int | None:
        """Record a message received from a queue; return its number if the campaign sent it."""
        self.received_count += 1
        where = f"from {queue} came, as number {received.sequence_number},"
        message = self.identify_message(where, received.body, queue)
        if message is None:
            return None
        history, was_seen = self.histories[message.number], message.was_received
        self.record_receipt(where, message, queue, queue, received.sequence_number)
        self.cancellable.pop(message.number, None)
        where = f"{where} {message},"
        self._check_times(where, history.terms, received)
        self._check_session(queue, where, history, received, was_seen=was_seen or history.was_seen_scheduled)
        return message.number

    def _check_times(self, where: str, terms: MessageTerms, received: ReceivedMessage) -> None:
        now_ms = _now_ms()
        if terms.due_ms is not None and min(now_ms, received.enqueued_ms) < terms.due_ms:
            self.report_problem(f"early: {where} which was scheduled for {terms.due_ms - now_ms} ms later")
        if received.ttl_ms != terms.ttl_ms:
            self.report_problem(
                f"strange: {where} which lives for {received.ttl_ms} ms, and was to live for {terms.ttl_ms}"
            )
        elif received.expires_ms is not None:
            at_ms = received.delivered_ms if terms.session is None else now_ms - SOCKET_DELAY_MS
            if at_ms is not None and at_ms >= received.expires_ms:
                self.report_problem(f"late: {where} which had expired {at_ms - received.expires_ms} ms before")

    def _check_session(
        self, queue: str, where: str, history: MessageHistory, received: ReceivedMessage, *, was_seen: bool
    ) -> None:
        session = history.terms.session
        if received.session != session:
            self.report_problem(f"strange: {where} of session {received.session}, which was sent to {session}")
        elif session is not None:
            latest = self._latest_by_session.get((queue, session), 0)
            if not was_seen and received.sequence_number < latest:
                self.report_problem(
                    f"order: {where} for the first time, and number {latest} of its session was there before"
                )
            self._latest_by_session[queue, session] = max(latest, received.sequence_number)

    def dead_letter_received(self, queue: str, received: ReceivedMessage) -> int | None:
        """Record a message received from a dead-letter queue; return its number if the campaign sent it."""
        self.received_count += 1
        address = f"{queue}'s dead letters"
        where = f"from {address} came, as number {received.sequence_number},"
        message = self.identify_message(where, received.body, queue)
        if message is None:
            return None
        ttl_ms, copy = self.histories[message.number].terms.ttl_ms, message.copy_in(queue)
        self.dead_letter_count += address not in copy.sequence_numbers
        self.record_receipt(where, message, queue, address, received.sequence_number, State.DEAD_LETTERED)
        where = f"{where} {message},"
        if received.reason != EXPIRED or received.ttl_ms != ttl_ms:
            self.report_problem(
                f"dead-lettered: {where} for {received.reason}, with {received.ttl_ms} ms of {ttl_ms} to live"
            )
        elif received.expires_ms is None or _now_ms() < received.expires_ms:
            self.report_problem(f"early: {where} which has not expired yet")
        if received.original_number is not None:
            known = copy.sequence_numbers.setdefault(queue, received.original_number)
            if known != received.original_number:
                self.report_problem(
                    f"doubled: {where} once number {received.original_number}, which was number {known}"
                )
        return message.number

    def may_change_state(self, copy: Copy, state: State) -> bool:
        """An active message may become a dead letter by expiry."""
        return state is State.DEAD_LETTERED and copy.state is State.ACTIVE

    def message_peeked(self, queue: str, received: ReceivedMessage) -> int | None:
        """Record a peeked message; return its number if the campaign sent it."""
        where = f"in {queue} lies, as number {received.sequence_number},"
        message = self.identify_message(where, received.body, queue)
        if message is None:
            return None
        if message.copy_in(queue).state is State.COMPLETED:
            self.report_problem(f"back: {where} {message}, which is {State.COMPLETED.value}")
        history = self.histories[message.number]
        history.was_seen_scheduled = history.was_seen_scheduled or received.state == messages.SCHEDULED
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

    def receive_deferred(self, queue: str, received: ReceivedMessage) -> int | None:
        """Record a deferred message that was received by its sequence number."""
        self.received_count += 1
        where = f"from the deferred messages of {queue} came, as number {received.sequence_number},"
        message = self.identify_message(where, received.body, queue)
        if message is None:
            return None
        self.record_receipt(where, message, queue, queue, received.sequence_number, State.DEFERRED)
        self._deferred.add(message.number)
        return message.number

    def deferred_missing(self, queue: str, numbers: Sequence[int], reason: str) -> None:
        """Record that the broker did not find one of the requested deferred messages."""
        if all(number in self.deferred_sequence_numbers for number in numbers):
            self.report_problem(f"lost: one of the deferred messages {list(numbers)} of {queue}: {reason}")

    # --- session states -----------------------------------------------------------------------------------------------

    def state_requested(self, queue: str, session: str, state: bytes | None) -> int:
        """Record a new state of a session, or None to clear it; return its index."""
        states = self._session_states.setdefault((queue, session), SessionStateHistory()).states
        states.append(state)
        return len(states) - 1

    def state_confirmed(self, queue: str, session: str, index: int) -> None:
        history = self._session_states[queue, session]
        history.last_confirmed = max(history.last_confirmed, index)

    def state_read(self, queue: str, session: str, state: bytes | None) -> None:
        history = self._session_states.setdefault((queue, session), SessionStateHistory())
        possible = history.states[history.last_confirmed :]
        if state in possible:
            history.last_confirmed += possible.index(state)
        else:
            self.report_problem(
                f"state: session {session} of {queue} remembers {state!r:.60}, which is none of the "
                f"{len(possible)} that it can be since {possible[0]!r:.60}"
            )

    def sessions_with_state(self, queue: str) -> set[str]:
        """Return the sessions that must have a state."""
        return {
            session
            for (entity, session), history in self._session_states.items()
            if entity == queue and all(state is not None for state in history.states[history.last_confirmed :])
        }

    def sessions_with_possible_state(self, queue: str) -> set[str]:
        """Return the sessions that may have a state."""
        return {
            session
            for (entity, session), history in self._session_states.items()
            if entity == queue and any(state is not None for state in history.states[history.last_confirmed :])
        }

    # --- the end ------------------------------------------------------------------------------------------------------

    def finish(self) -> list[str]:
        """Check the result after all queues were drained, long after the last send."""
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
        """Return the number of uses of each feature."""
        terms = [history.terms for history in self.histories]
        return {
            "in sessions": sum(term.session is not None for term in terms),
            "states": sum(len(state_history.states) - 1 for state_history in self._session_states.values()),
            "scheduled": sum(term.due_ms is not None for term in terms),
            "cancelled": sum(self.is_cancelled(number) for number in range(len(terms))),
            "dead-lettered": self.dead_letter_count,
            "deferred": len(self._deferred),
            "sent again": self.resends,
        }

    def uncovered_features(self) -> list[str]:
        """Return the features that were used too rarely."""
        return [name for name, count in self.feature_counts().items() if count < MIN_USES]

    def statistics(self) -> str:
        return (
            f"{super().statistics()}; {', '.join(f'{count:,} {name}' for name, count in self.feature_counts().items())}"
        )


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
