"""Every promise of a feature that can be broken is told when it is, and nothing is told when none is."""

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


def written(checker: FeatureChecker, queue: str, **terms: object) -> tuple[int, bytes, MessageTerms]:
    """A message that was sent: its number, its body, and its terms."""
    kept = MessageTerms(**terms)  # type: ignore[arg-type]  # each test names its own
    number, payload = checker.record_send_with_terms(queue, 1, 10, kept)
    return number, b"".join(Message(payload).data), kept


def got(body: bytes, terms: MessageTerms, sequence_number: int = 1, **seen: object) -> ReceivedMessage:
    """That message as it comes, just enqueued and handed out, unless told otherwise."""
    usual = {"enqueued_ms": now_ms(), "delivered_ms": now_ms(), "session": terms.session, "ttl_ms": terms.ttl_ms}
    return ReceivedMessage(sequence_number=sequence_number, body=body, **usual | seen)  # type: ignore[arg-type]  # as above


def complete(checker: FeatureChecker, number: int) -> None:
    checker.completion_requested(number)
    checker.completion_confirmed(number)


# --- sessions ---------------------------------------------------------------------------------------------------------


def test_messages_of_a_session_come_in_order_and_may_come_again(checker: FeatureChecker) -> None:
    messages = [written(checker, "sessions", session="a") for _ in range(3)]
    for at in (0, 1, 0, 1, 2):
        number, body, terms = messages[at]
        checker.message_received_from("sessions", got(body, terms, at + 1))
    for number, _, _ in messages:
        complete(checker, number)
    assert checker.finish() == []


def test_a_message_that_comes_for_the_first_time_after_a_later_one_is_out_of_order(checker: FeatureChecker) -> None:
    first, second = (written(checker, "sessions", session="a") for _ in range(2))
    checker.message_received_from("sessions", got(*second[1:], 2))
    checker.message_received_from("sessions", got(*first[1:], 1))
    assert [problem.split(",")[0] for problem in checker.problems] == ["order: from sessions came"]


def test_sessions_keep_no_order_with_each_other(checker: FeatureChecker) -> None:
    first, second = written(checker, "sessions", session="a"), written(checker, "sessions", session="b")
    checker.message_received_from("sessions", got(*second[1:], 2))
    checker.message_received_from("sessions", got(*first[1:], 1))
    assert checker.problems == []


def test_a_message_of_another_session_is_strange(checker: FeatureChecker) -> None:
    _, body, terms = written(checker, "sessions", session="a")
    checker.message_received_from("sessions", got(body, terms, session="b"))
    assert checker.problems[0].startswith("strange: ")


@pytest.mark.parametrize(
    ("read", "is_wrong"),
    [(b"confirmed", False), (b"unanswered", False), (b"before", True), (None, True), (b"never told", True)],
)
def test_a_session_remembers_what_was_confirmed_or_something_later(
    checker: FeatureChecker, read: bytes | None, *, is_wrong: bool
) -> None:
    checker.state_requested("sessions", "a", b"before")
    checker.state_confirmed("sessions", "a", checker.state_requested("sessions", "a", b"confirmed"))
    checker.state_requested("sessions", "a", b"unanswered")
    checker.state_read("sessions", "a", read)
    assert [problem.split(":")[0] for problem in checker.problems] == ["state"] * is_wrong


def test_a_state_that_was_read_stays(checker: FeatureChecker) -> None:
    checker.state_requested("sessions", "a", b"unanswered")
    checker.state_read("sessions", "a", b"unanswered")
    checker.state_read("sessions", "a", None)
    assert [problem.split(":")[0] for problem in checker.problems] == ["state"]


def test_a_session_without_a_state_remembers_nothing(checker: FeatureChecker) -> None:
    checker.state_read("sessions", "a", None)
    assert checker.problems == []


# --- schedules --------------------------------------------------------------------------------------------------------


def test_a_scheduled_message_that_comes_when_it_is_due_is_no_problem(checker: FeatureChecker) -> None:
    number, body, terms = written(checker, "schedule", due_ms=now_ms() - 1)
    checker.scheduled(number, 1)
    checker.message_received_from("schedule", got(body, terms, 2))
    complete(checker, number)
    assert checker.finish() == []


def test_a_scheduled_message_that_comes_before_its_time_is_early(checker: FeatureChecker) -> None:
    _, body, terms = written(checker, "schedule", due_ms=now_ms() + SOON_MS)
    checker.message_received_from("schedule", got(body, terms))
    assert checker.problems[0].startswith("early: ")


def test_a_cancelled_message_never_comes(checker: FeatureChecker) -> None:
    number, body, terms = written(checker, "schedule", due_ms=now_ms() - 1)
    checker.scheduled(number, 1)
    checker.cancel_requested([number])
    checker.cancel_confirmed([number])
    assert checker.finish() == []
    checker.message_received_from("schedule", got(body, terms, 2))
    assert checker.problems[0].startswith("back: ")


def test_a_message_whose_cancellation_had_no_answer_may_come_or_not(checker: FeatureChecker) -> None:
    number, body, terms = written(checker, "schedule", due_ms=now_ms() - 1)
    checker.scheduled(number, 1)
    checker.cancel_requested([number])
    checker.cancel_unanswered([number])
    assert checker.finish() == []
    checker.message_received_from("schedule", got(body, terms, 2))
    assert checker.finish() == ["lost: message 0 of schedule, which was accepted"]


def test_a_message_that_was_due_when_it_was_to_be_cancelled_must_come(checker: FeatureChecker) -> None:
    number, _, _ = written(checker, "schedule", due_ms=now_ms() - 1)
    checker.scheduled(number, 1)
    checker.cancel_requested([number])
    checker.cancel_refused([number])
    assert checker.finish() == ["lost: message 0 of schedule, which was accepted"]


def test_a_message_that_cannot_be_cancelled_before_it_is_due_is_lost(checker: FeatureChecker) -> None:
    number, _, _ = written(checker, "schedule", due_ms=now_ms() + LONG_MS)
    checker.scheduled(number, 1)
    checker.cancel_requested([number])
    checker.cancel_refused([number])
    assert checker.problems == [
        "lost: one of the scheduled messages [0], which were not due, cannot be cancelled",
    ]


def test_what_was_scheduled_together_is_there_together(checker: FeatureChecker) -> None:
    first, second = (written(checker, "schedule", due_ms=now_ms() - 1) for _ in range(2))
    checker.scheduled_together([first[0], second[0]])
    checker.message_peeked("schedule", got(*first[1:], state=SCHEDULED))
    assert checker.finish() == ["torn: of [0, 1], which were scheduled together, only [0] were there"]


# --- duplicates -------------------------------------------------------------------------------------------------------


def test_a_message_that_was_sent_again_is_there_once(checker: FeatureChecker) -> None:
    number, body, terms = written(checker, "duplicates")
    checker.resent(number)
    checker.send_accepted(number)
    checker.message_received_from("duplicates", got(body, terms, 1))
    assert checker.problems == []
    checker.message_received_from("duplicates", got(body, terms, 2))
    assert checker.problems == ["doubled: from duplicates came, as number 2, message 0, which had been number 1"]


# --- times to live ----------------------------------------------------------------------------------------------------


def test_a_message_that_expired_is_a_dead_letter(checker: FeatureChecker) -> None:
    number, body, terms = written(checker, "burying", ttl_ms=SOON_MS)
    checker.send_accepted(number)
    dead = {"enqueued_ms": now_ms() - SOON_MS, "reason": EXPIRED, "original_number": 7}
    checker.dead_letter_received("burying", got(body, terms, 1, **dead))
    complete(checker, number)
    assert checker.finish() == []


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"reason": "MaxDeliveryCountExceeded"}, "dead-lettered"),
        ({"enqueued_ms": now_ms() + LONG_MS}, "early"),
        ({"original_number": 8}, "doubled"),
    ],
)
def test_a_dead_letter_says_why_it_is_one(checker: FeatureChecker, changed: dict[str, object], told: str) -> None:
    _, body, terms = written(checker, "burying", ttl_ms=SOON_MS)
    checker.message_received_from("burying", got(body, terms, 7))
    dead = {"enqueued_ms": now_ms() - SOON_MS, "reason": EXPIRED, "original_number": 7} | changed
    checker.dead_letter_received("burying", got(body, terms, 1, **dead))
    assert [problem.split(":")[0] for problem in checker.problems] == [told]


def test_a_message_is_one_dead_letter(checker: FeatureChecker) -> None:
    _, body, terms = written(checker, "burying", ttl_ms=SOON_MS)
    dead = {"enqueued_ms": now_ms() - SOON_MS, "reason": EXPIRED, "original_number": 7}
    for sequence_number in (1, 2):
        checker.dead_letter_received("burying", got(body, terms, sequence_number, **dead))
    assert [problem.split(":")[0] for problem in checker.problems] == ["doubled"]


def test_a_dead_letter_does_not_come_from_its_queue_again(checker: FeatureChecker) -> None:
    _, body, terms = written(checker, "burying", ttl_ms=SOON_MS)
    dead = {"enqueued_ms": now_ms() - SOON_MS, "reason": EXPIRED, "original_number": 7}
    checker.dead_letter_received("burying", got(body, terms, 1, **dead))
    checker.message_received_from("burying", got(body, terms, 7))
    assert [problem.split(":")[0] for problem in checker.problems] == ["back"]


def test_an_expired_message_that_is_no_dead_letter_is_lost(checker: FeatureChecker) -> None:
    checker.send_accepted(written(checker, "burying", ttl_ms=SOON_MS)[0])
    assert checker.finish() == ["lost: message 0 of burying, which was accepted"]


def test_where_nobody_wants_dead_letters_what_expired_is_gone_and_nothing_else(checker: FeatureChecker) -> None:
    checker.send_accepted(written(checker, "vanishing", ttl_ms=SOON_MS)[0])
    checker.send_accepted(written(checker, "vanishing", ttl_ms=LONG_MS)[0])
    assert checker.finish() == ["lost: message 1 of vanishing, which was accepted"]


def test_a_message_is_not_handed_out_when_its_time_is_over(checker: FeatureChecker) -> None:
    _, body, terms = written(checker, "burying", ttl_ms=SOON_MS)
    checker.message_received_from("burying", got(body, terms, enqueued_ms=now_ms() - SOON_MS))
    assert [problem.split(":")[0] for problem in checker.problems] == ["late"]


# --- deferral ---------------------------------------------------------------------------------------------------------


def deferred(checker: FeatureChecker) -> tuple[int, bytes, MessageTerms]:
    """A message whose deferral was confirmed."""
    message = written(checker, "deferring")
    checker.message_received_from("deferring", got(*message[1:], 7))
    checker.deferral_requested(message[0])
    checker.deferral_confirmed(message[0])
    return message


def test_a_deferred_message_comes_to_who_asks_for_it(checker: FeatureChecker) -> None:
    number, body, terms = deferred(checker)
    assert checker.deferred_sequence_numbers == {number: 7}
    checker.receive_deferred("deferring", got(body, terms, 7))
    complete(checker, number)
    assert checker.deferred_sequence_numbers == {}
    assert checker.finish() == []


def test_a_deferred_message_comes_to_nobody_else(checker: FeatureChecker) -> None:
    _, body, terms = deferred(checker)
    checker.message_received_from("deferring", got(body, terms, 7))
    assert checker.problems == ["back: from deferring came, as number 7, message 0, which is deferred"]


def test_a_message_whose_deferral_had_no_answer_may_be_here_or_there(checker: FeatureChecker) -> None:
    number, body, terms = written(checker, "deferring")
    for receive in (checker.message_received_from, checker.message_received_from, checker.receive_deferred):
        receive("deferring", got(body, terms, 7))
        checker.deferral_requested(number)
    assert checker.problems == []


def test_a_deferred_message_that_is_not_found_is_lost(checker: FeatureChecker) -> None:
    number, _, _ = deferred(checker)
    checker.deferred_missing("deferring", [number], "not there")
    assert checker.problems == ["lost: one of the deferred messages [0] of deferring: not there"]


def test_a_deferred_message_whose_completion_had_no_answer_may_be_gone(checker: FeatureChecker) -> None:
    number, _, _ = deferred(checker)
    checker.completion_requested(number)
    checker.deferred_missing("deferring", [number], "not there")
    assert checker.finish() == []
