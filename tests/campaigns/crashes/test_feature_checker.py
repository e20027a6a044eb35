"""FeatureChecker reports every broken guarantee of a feature, and nothing if all hold."""

from __future__ import annotations

import random
import time

import pytest

from tests.campaigns.crashes.features.checker import EXPIRED, FeatureChecker
from tests.campaigns.crashes.features.messages import SCHEDULED, MessageTerms, ReceivedMessage
from tests.campaigns.crashes.features.queue_kinds import LONG_MS
from twinbus.amqp.message import Message

SOON_MS = 1_000


@pytest.fixture
def checker() -> FeatureChecker:
    return FeatureChecker(random.Random(1))


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def send(checker: FeatureChecker, queue: str, **terms: object) -> tuple[int, bytes, MessageTerms]:
    """Record a sent message; return its number, its body and its terms."""
    message_terms = MessageTerms(**terms)  # type: ignore[arg-type]  # each test passes its terms
    number, payload = checker.record_send_with_terms(queue, 1, 10, message_terms)
    return number, b"".join(Message(payload).data), message_terms


def received(body: bytes, terms: MessageTerms, sequence_number: int = 1, **fields: object) -> ReceivedMessage:
    """Return the message as received, just enqueued and delivered by default."""
    defaults = {"enqueued_ms": now_ms(), "delivered_ms": now_ms(), "session": terms.session, "ttl_ms": terms.ttl_ms}
    return ReceivedMessage(sequence_number=sequence_number, body=body, **defaults | fields)  # type: ignore[arg-type]  # as above


def complete(checker: FeatureChecker, number: int) -> None:
    checker.completion_requested(number)
    checker.completion_confirmed(number)


# --- sessions ---------------------------------------------------------------------------------------------------------


def test_session_messages_in_order_and_redelivered_are_no_problem(checker: FeatureChecker) -> None:
    messages = [send(checker, "sessions", session="a") for _ in range(3)]
    for index in (0, 1, 0, 1, 2):
        number, body, terms = messages[index]
        checker.message_received_from("sessions", received(body, terms, index + 1))
    for number, _, _ in messages:
        complete(checker, number)
    assert checker.finish() == []


def test_a_first_delivery_after_a_later_session_message_is_out_of_order(checker: FeatureChecker) -> None:
    first, second = (send(checker, "sessions", session="a") for _ in range(2))
    checker.message_received_from("sessions", received(*second[1:], 2))
    checker.message_received_from("sessions", received(*first[1:], 1))
    assert [problem.split(",")[0] for problem in checker.problems] == ["order: from sessions came"]


def test_there_is_no_order_between_sessions(checker: FeatureChecker) -> None:
    first, second = send(checker, "sessions", session="a"), send(checker, "sessions", session="b")
    checker.message_received_from("sessions", received(*second[1:], 2))
    checker.message_received_from("sessions", received(*first[1:], 1))
    assert checker.problems == []


def test_a_message_of_another_session_is_strange(checker: FeatureChecker) -> None:
    _, body, terms = send(checker, "sessions", session="a")
    checker.message_received_from("sessions", received(body, terms, session="b"))
    assert checker.problems[0].startswith("strange: ")


@pytest.mark.parametrize(
    ("read", "is_wrong"),
    [(b"confirmed", False), (b"unanswered", False), (b"before", True), (None, True), (b"never told", True)],
)
def test_a_session_has_the_confirmed_state_or_a_later_one(
    checker: FeatureChecker, read: bytes | None, *, is_wrong: bool
) -> None:
    checker.state_requested("sessions", "a", b"before")
    checker.state_confirmed("sessions", "a", checker.state_requested("sessions", "a", b"confirmed"))
    checker.state_requested("sessions", "a", b"unanswered")
    checker.state_read("sessions", "a", read)
    assert [problem.split(":")[0] for problem in checker.problems] == ["state"] * is_wrong


def test_a_state_that_was_read_must_not_disappear(checker: FeatureChecker) -> None:
    checker.state_requested("sessions", "a", b"unanswered")
    checker.state_read("sessions", "a", b"unanswered")
    checker.state_read("sessions", "a", None)
    assert [problem.split(":")[0] for problem in checker.problems] == ["state"]


def test_a_session_without_a_state_is_no_problem(checker: FeatureChecker) -> None:
    checker.state_read("sessions", "a", None)
    assert checker.problems == []


# --- schedules --------------------------------------------------------------------------------------------------------


def test_a_scheduled_message_delivered_when_due_is_no_problem(checker: FeatureChecker) -> None:
    number, body, terms = send(checker, "schedule", due_ms=now_ms() - 1)
    checker.scheduled(number, 1)
    checker.message_received_from("schedule", received(body, terms, 2))
    complete(checker, number)
    assert checker.finish() == []


def test_a_scheduled_message_delivered_before_it_is_due_is_early(checker: FeatureChecker) -> None:
    _, body, terms = send(checker, "schedule", due_ms=now_ms() + SOON_MS)
    checker.message_received_from("schedule", received(body, terms))
    assert checker.problems[0].startswith("early: ")


def test_a_cancelled_message_that_is_delivered_is_back(checker: FeatureChecker) -> None:
    number, body, terms = send(checker, "schedule", due_ms=now_ms() - 1)
    checker.scheduled(number, 1)
    checker.cancel_requested([number])
    checker.cancel_confirmed([number])
    assert checker.finish() == []
    checker.message_received_from("schedule", received(body, terms, 2))
    assert checker.problems[0].startswith("back: ")


def test_a_message_whose_cancellation_had_no_response_may_be_delivered_or_not(checker: FeatureChecker) -> None:
    number, body, terms = send(checker, "schedule", due_ms=now_ms() - 1)
    checker.scheduled(number, 1)
    checker.cancel_requested([number])
    checker.cancel_unanswered([number])
    assert checker.finish() == []
    checker.message_received_from("schedule", received(body, terms, 2))
    assert checker.finish() == ["lost: message 0 of schedule, which was accepted"]


def test_a_message_whose_cancellation_was_refused_must_be_delivered(checker: FeatureChecker) -> None:
    number, _, _ = send(checker, "schedule", due_ms=now_ms() - 1)
    checker.scheduled(number, 1)
    checker.cancel_requested([number])
    checker.cancel_refused([number])
    assert checker.finish() == ["lost: message 0 of schedule, which was accepted"]


def test_a_message_not_found_by_a_cancellation_before_it_is_due_is_lost(checker: FeatureChecker) -> None:
    number, _, _ = send(checker, "schedule", due_ms=now_ms() + LONG_MS)
    checker.scheduled(number, 1)
    checker.cancel_requested([number])
    checker.cancel_refused([number])
    assert checker.problems == [
        "lost: one of the scheduled messages [0], which were not due, cannot be cancelled",
    ]


def test_a_partly_stored_schedule_request_is_torn(checker: FeatureChecker) -> None:
    first, second = (send(checker, "schedule", due_ms=now_ms() - 1) for _ in range(2))
    checker.scheduled_together([first[0], second[0]])
    checker.message_peeked("schedule", received(*first[1:], state=SCHEDULED))
    assert checker.finish() == ["torn: of [0, 1], which were scheduled together, only [0] were there"]


# --- duplicates -------------------------------------------------------------------------------------------------------


def test_a_repeated_send_that_is_stored_twice_is_doubled(checker: FeatureChecker) -> None:
    number, body, terms = send(checker, "duplicates")
    checker.resent(number)
    checker.send_accepted(number)
    checker.message_received_from("duplicates", received(body, terms, 1))
    assert checker.problems == []
    checker.message_received_from("duplicates", received(body, terms, 2))
    assert checker.problems == ["doubled: from duplicates came, as number 2, message 0, which had been number 1"]


# --- times to live ----------------------------------------------------------------------------------------------------


def test_an_expired_dead_letter_is_no_problem(checker: FeatureChecker) -> None:
    number, body, terms = send(checker, "burying", ttl_ms=SOON_MS)
    checker.send_accepted(number)
    dead = {"enqueued_ms": now_ms() - SOON_MS, "reason": EXPIRED, "original_number": 7}
    checker.dead_letter_received("burying", received(body, terms, 1, **dead))
    complete(checker, number)
    assert checker.finish() == []


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"reason": "MaxDeliveryCountExceeded"}, "dead-lettered"),
        ({"enqueued_ms": now_ms() + LONG_MS}, "early"),
        ({"original_number": 8}, "doubled"),
    ],
)
def test_a_dead_letter_with_wrong_reason_time_or_number_is_a_problem(
    checker: FeatureChecker, changed: dict[str, object], expected: str
) -> None:
    _, body, terms = send(checker, "burying", ttl_ms=SOON_MS)
    checker.message_received_from("burying", received(body, terms, 7))
    dead = {"enqueued_ms": now_ms() - SOON_MS, "reason": EXPIRED, "original_number": 7} | changed
    checker.dead_letter_received("burying", received(body, terms, 1, **dead))
    assert [problem.split(":")[0] for problem in checker.problems] == [expected]


def test_a_message_with_two_dead_letters_is_doubled(checker: FeatureChecker) -> None:
    _, body, terms = send(checker, "burying", ttl_ms=SOON_MS)
    dead = {"enqueued_ms": now_ms() - SOON_MS, "reason": EXPIRED, "original_number": 7}
    for sequence_number in (1, 2):
        checker.dead_letter_received("burying", received(body, terms, sequence_number, **dead))
    assert [problem.split(":")[0] for problem in checker.problems] == ["doubled"]


def test_a_dead_letter_that_is_delivered_from_its_queue_is_back(checker: FeatureChecker) -> None:
    _, body, terms = send(checker, "burying", ttl_ms=SOON_MS)
    dead = {"enqueued_ms": now_ms() - SOON_MS, "reason": EXPIRED, "original_number": 7}
    checker.dead_letter_received("burying", received(body, terms, 1, **dead))
    checker.message_received_from("burying", received(body, terms, 7))
    assert [problem.split(":")[0] for problem in checker.problems] == ["back"]


def test_an_expired_message_without_a_dead_letter_is_lost(checker: FeatureChecker) -> None:
    checker.send_accepted(send(checker, "burying", ttl_ms=SOON_MS)[0])
    assert checker.finish() == ["lost: message 0 of burying, which was accepted"]


def test_without_dead_lettering_only_expired_messages_may_be_missing(checker: FeatureChecker) -> None:
    checker.send_accepted(send(checker, "vanishing", ttl_ms=SOON_MS)[0])
    checker.send_accepted(send(checker, "vanishing", ttl_ms=LONG_MS)[0])
    assert checker.finish() == ["lost: message 1 of vanishing, which was accepted"]


def test_a_delivery_after_expiry_is_late(checker: FeatureChecker) -> None:
    _, body, terms = send(checker, "burying", ttl_ms=SOON_MS)
    checker.message_received_from("burying", received(body, terms, enqueued_ms=now_ms() - SOON_MS))
    assert [problem.split(":")[0] for problem in checker.problems] == ["late"]


# --- deferral ---------------------------------------------------------------------------------------------------------


def defer_message(checker: FeatureChecker) -> tuple[int, bytes, MessageTerms]:
    """Record a message whose deferral was confirmed."""
    message = send(checker, "deferring")
    checker.message_received_from("deferring", received(*message[1:], 7))
    checker.deferral_requested(message[0])
    checker.deferral_confirmed(message[0])
    return message


def test_a_deferred_message_received_by_number_is_no_problem(checker: FeatureChecker) -> None:
    number, body, terms = defer_message(checker)
    assert checker.deferred_sequence_numbers == {number: 7}
    checker.receive_deferred("deferring", received(body, terms, 7))
    complete(checker, number)
    assert checker.deferred_sequence_numbers == {}
    assert checker.finish() == []


def test_a_deferred_message_that_is_delivered_to_a_receiver_is_back(checker: FeatureChecker) -> None:
    _, body, terms = defer_message(checker)
    checker.message_received_from("deferring", received(body, terms, 7))
    assert checker.problems == ["back: from deferring came, as number 7, message 0, which is deferred"]


def test_a_message_whose_deferral_had_no_response_may_be_active_or_deferred(checker: FeatureChecker) -> None:
    number, body, terms = send(checker, "deferring")
    for receive in (checker.message_received_from, checker.message_received_from, checker.receive_deferred):
        receive("deferring", received(body, terms, 7))
        checker.deferral_requested(number)
    assert checker.problems == []


def test_a_deferred_message_that_is_not_found_is_lost(checker: FeatureChecker) -> None:
    number, _, _ = defer_message(checker)
    checker.deferred_missing("deferring", [number], "not there")
    assert checker.problems == ["lost: one of the deferred messages [0] of deferring: not there"]


def test_a_deferred_message_whose_completion_had_no_response_may_be_missing(checker: FeatureChecker) -> None:
    number, _, _ = defer_message(checker)
    checker.completion_requested(number)
    checker.deferred_missing("deferring", [number], "not there")
    assert checker.finish() == []
