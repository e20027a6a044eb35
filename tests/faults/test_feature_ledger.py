"""Every promise of a feature that can be broken is told when it is, and nothing is told when none is."""

from __future__ import annotations

import random
import time

import pytest

from tests.faults.features.kinds import LONG_MS
from tests.faults.features.ledger import EXPIRED, FeatureLedger
from tests.faults.features.letter import SCHEDULED, Received, Terms
from twinbus.amqp.message import Message

SOON_MS = 1_000


@pytest.fixture
def ledger() -> FeatureLedger:
    return FeatureLedger(random.Random(1))


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def written(ledger: FeatureLedger, queue: str, **terms: object) -> tuple[int, bytes, Terms]:
    """A message that was sent: its number, its body, and its terms."""
    kept = Terms(**terms)  # type: ignore[arg-type]  # each test names its own
    number, payload = ledger.write_with(queue, 1, 10, kept)
    return number, b"".join(Message(payload).data), kept


def got(body: bytes, terms: Terms, sequence_number: int = 1, **seen: object) -> Received:
    """That message as it comes, just enqueued and handed out, unless told otherwise."""
    usual = {"enqueued_ms": now_ms(), "handed_out_ms": now_ms(), "session": terms.session, "ttl_ms": terms.ttl_ms}
    return Received(sequence_number=sequence_number, body=body, **usual | seen)  # type: ignore[arg-type]  # as above


def complete(ledger: FeatureLedger, number: int) -> None:
    ledger.completion_requested(number)
    ledger.completion_confirmed(number)


# --- sessions ---------------------------------------------------------------------------------------------------------


def test_messages_of_a_session_come_in_order_and_may_come_again(ledger: FeatureLedger) -> None:
    messages = [written(ledger, "sessions", session="a") for _ in range(3)]
    for at in (0, 1, 0, 1, 2):
        number, body, terms = messages[at]
        ledger.receive_from("sessions", got(body, terms, at + 1))
    for number, _, _ in messages:
        complete(ledger, number)
    assert ledger.close() == []


def test_a_message_that_comes_for_the_first_time_after_a_later_one_is_out_of_order(ledger: FeatureLedger) -> None:
    first, second = (written(ledger, "sessions", session="a") for _ in range(2))
    ledger.receive_from("sessions", got(*second[1:], 2))
    ledger.receive_from("sessions", got(*first[1:], 1))
    assert [problem.split(",")[0] for problem in ledger.problems] == ["order: from sessions came"]


def test_sessions_keep_no_order_with_each_other(ledger: FeatureLedger) -> None:
    first, second = written(ledger, "sessions", session="a"), written(ledger, "sessions", session="b")
    ledger.receive_from("sessions", got(*second[1:], 2))
    ledger.receive_from("sessions", got(*first[1:], 1))
    assert ledger.problems == []


def test_a_message_of_another_session_is_strange(ledger: FeatureLedger) -> None:
    _, body, terms = written(ledger, "sessions", session="a")
    ledger.receive_from("sessions", got(body, terms, session="b"))
    assert ledger.problems[0].startswith("strange: ")


@pytest.mark.parametrize(
    ("read", "is_wrong"),
    [(b"confirmed", False), (b"unanswered", False), (b"before", True), (None, True), (b"never told", True)],
)
def test_a_session_remembers_what_was_confirmed_or_something_later(
    ledger: FeatureLedger, read: bytes | None, *, is_wrong: bool
) -> None:
    ledger.state_requested("sessions", "a", b"before")
    ledger.state_confirmed("sessions", "a", ledger.state_requested("sessions", "a", b"confirmed"))
    ledger.state_requested("sessions", "a", b"unanswered")
    ledger.state_read("sessions", "a", read)
    assert [problem.split(":")[0] for problem in ledger.problems] == ["state"] * is_wrong


def test_a_state_that_was_read_stays(ledger: FeatureLedger) -> None:
    ledger.state_requested("sessions", "a", b"unanswered")
    ledger.state_read("sessions", "a", b"unanswered")
    ledger.state_read("sessions", "a", None)
    assert [problem.split(":")[0] for problem in ledger.problems] == ["state"]


def test_a_session_without_a_state_remembers_nothing(ledger: FeatureLedger) -> None:
    ledger.state_read("sessions", "a", None)
    assert ledger.problems == []


# --- schedules --------------------------------------------------------------------------------------------------------


def test_a_scheduled_message_that_comes_when_it_is_due_is_no_problem(ledger: FeatureLedger) -> None:
    number, body, terms = written(ledger, "schedule", due_ms=now_ms() - 1)
    ledger.scheduled(number, 1)
    ledger.receive_from("schedule", got(body, terms, 2))
    complete(ledger, number)
    assert ledger.close() == []


def test_a_scheduled_message_that_comes_before_its_time_is_early(ledger: FeatureLedger) -> None:
    _, body, terms = written(ledger, "schedule", due_ms=now_ms() + SOON_MS)
    ledger.receive_from("schedule", got(body, terms))
    assert ledger.problems[0].startswith("early: ")


def test_a_cancelled_message_never_comes(ledger: FeatureLedger) -> None:
    number, body, terms = written(ledger, "schedule", due_ms=now_ms() - 1)
    ledger.scheduled(number, 1)
    ledger.cancel_requested([number])
    ledger.cancel_confirmed([number])
    assert ledger.close() == []
    ledger.receive_from("schedule", got(body, terms, 2))
    assert ledger.problems[0].startswith("back: ")


def test_a_message_whose_cancellation_had_no_answer_may_come_or_not(ledger: FeatureLedger) -> None:
    number, body, terms = written(ledger, "schedule", due_ms=now_ms() - 1)
    ledger.scheduled(number, 1)
    ledger.cancel_requested([number])
    ledger.cancel_unanswered([number])
    assert ledger.close() == []
    ledger.receive_from("schedule", got(body, terms, 2))
    assert ledger.close() == ["lost: message 0 of schedule, which was accepted"]


def test_a_message_that_was_due_when_it_was_to_be_cancelled_must_come(ledger: FeatureLedger) -> None:
    number, _, _ = written(ledger, "schedule", due_ms=now_ms() - 1)
    ledger.scheduled(number, 1)
    ledger.cancel_requested([number])
    ledger.cancel_refused([number])
    assert ledger.close() == ["lost: message 0 of schedule, which was accepted"]


def test_a_message_that_cannot_be_cancelled_before_it_is_due_is_lost(ledger: FeatureLedger) -> None:
    number, _, _ = written(ledger, "schedule", due_ms=now_ms() + LONG_MS)
    ledger.scheduled(number, 1)
    ledger.cancel_requested([number])
    ledger.cancel_refused([number])
    assert ledger.problems == [
        "lost: one of the scheduled messages [0], which were not due, cannot be cancelled",
    ]


def test_what_was_scheduled_together_is_there_together(ledger: FeatureLedger) -> None:
    first, second = (written(ledger, "schedule", due_ms=now_ms() - 1) for _ in range(2))
    ledger.scheduled_together([first[0], second[0]])
    ledger.peek("schedule", got(*first[1:], state=SCHEDULED))
    assert ledger.close() == ["torn: of [0, 1], which were scheduled together, only [0] were there"]


# --- duplicates -------------------------------------------------------------------------------------------------------


def test_a_message_that_was_sent_again_is_there_once(ledger: FeatureLedger) -> None:
    number, body, terms = written(ledger, "duplicates")
    ledger.sent_again(number)
    ledger.accepted(number)
    ledger.receive_from("duplicates", got(body, terms, 1))
    assert ledger.problems == []
    ledger.receive_from("duplicates", got(body, terms, 2))
    assert ledger.problems == ["doubled: from duplicates came, as number 2, message 0, which had been number 1"]


# --- times to live ----------------------------------------------------------------------------------------------------


def test_a_message_that_expired_is_a_dead_letter(ledger: FeatureLedger) -> None:
    number, body, terms = written(ledger, "burying", ttl_ms=SOON_MS)
    ledger.accepted(number)
    dead = {"enqueued_ms": now_ms() - SOON_MS, "reason": EXPIRED, "original_number": 7}
    ledger.receive_dead("burying", got(body, terms, 1, **dead))
    complete(ledger, number)
    assert ledger.close() == []


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"reason": "MaxDeliveryCountExceeded"}, "dead-lettered"),
        ({"enqueued_ms": now_ms() + LONG_MS}, "early"),
        ({"original_number": 8}, "doubled"),
    ],
)
def test_a_dead_letter_says_why_it_is_one(ledger: FeatureLedger, changed: dict[str, object], told: str) -> None:
    _, body, terms = written(ledger, "burying", ttl_ms=SOON_MS)
    ledger.receive_from("burying", got(body, terms, 7))
    dead = {"enqueued_ms": now_ms() - SOON_MS, "reason": EXPIRED, "original_number": 7} | changed
    ledger.receive_dead("burying", got(body, terms, 1, **dead))
    assert [problem.split(":")[0] for problem in ledger.problems] == [told]


def test_a_message_is_one_dead_letter(ledger: FeatureLedger) -> None:
    _, body, terms = written(ledger, "burying", ttl_ms=SOON_MS)
    dead = {"enqueued_ms": now_ms() - SOON_MS, "reason": EXPIRED, "original_number": 7}
    for sequence_number in (1, 2):
        ledger.receive_dead("burying", got(body, terms, sequence_number, **dead))
    assert [problem.split(":")[0] for problem in ledger.problems] == ["doubled"]


def test_a_dead_letter_does_not_come_from_its_queue_again(ledger: FeatureLedger) -> None:
    _, body, terms = written(ledger, "burying", ttl_ms=SOON_MS)
    dead = {"enqueued_ms": now_ms() - SOON_MS, "reason": EXPIRED, "original_number": 7}
    ledger.receive_dead("burying", got(body, terms, 1, **dead))
    ledger.receive_from("burying", got(body, terms, 7))
    assert [problem.split(":")[0] for problem in ledger.problems] == ["back"]


def test_an_expired_message_that_is_no_dead_letter_is_lost(ledger: FeatureLedger) -> None:
    ledger.accepted(written(ledger, "burying", ttl_ms=SOON_MS)[0])
    assert ledger.close() == ["lost: message 0 of burying, which was accepted"]


def test_where_nobody_wants_dead_letters_what_expired_is_gone_and_nothing_else(ledger: FeatureLedger) -> None:
    ledger.accepted(written(ledger, "vanishing", ttl_ms=SOON_MS)[0])
    ledger.accepted(written(ledger, "vanishing", ttl_ms=LONG_MS)[0])
    assert ledger.close() == ["lost: message 1 of vanishing, which was accepted"]


def test_a_message_is_not_handed_out_when_its_time_is_over(ledger: FeatureLedger) -> None:
    _, body, terms = written(ledger, "burying", ttl_ms=SOON_MS)
    ledger.receive_from("burying", got(body, terms, enqueued_ms=now_ms() - SOON_MS))
    assert [problem.split(":")[0] for problem in ledger.problems] == ["late"]


# --- deferral ---------------------------------------------------------------------------------------------------------


def deferred(ledger: FeatureLedger) -> tuple[int, bytes, Terms]:
    """A message whose deferral was confirmed."""
    message = written(ledger, "deferring")
    ledger.receive_from("deferring", got(*message[1:], 7))
    ledger.deferral_requested(message[0])
    ledger.deferral_confirmed(message[0])
    return message


def test_a_deferred_message_comes_to_who_asks_for_it(ledger: FeatureLedger) -> None:
    number, body, terms = deferred(ledger)
    assert ledger.set_aside == {number: 7}
    ledger.receive_deferred("deferring", got(body, terms, 7))
    complete(ledger, number)
    assert ledger.set_aside == {}
    assert ledger.close() == []


def test_a_deferred_message_comes_to_nobody_else(ledger: FeatureLedger) -> None:
    _, body, terms = deferred(ledger)
    ledger.receive_from("deferring", got(body, terms, 7))
    assert ledger.problems == ["back: from deferring came, as number 7, message 0, which is deferred"]


def test_a_message_whose_deferral_had_no_answer_may_be_here_or_there(ledger: FeatureLedger) -> None:
    number, body, terms = written(ledger, "deferring")
    for receive in (ledger.receive_from, ledger.receive_from, ledger.receive_deferred):
        receive("deferring", got(body, terms, 7))
        ledger.deferral_requested(number)
    assert ledger.problems == []


def test_a_deferred_message_that_is_not_found_is_lost(ledger: FeatureLedger) -> None:
    number, _, _ = deferred(ledger)
    ledger.deferred_missed("deferring", [number], "not there")
    assert ledger.problems == ["lost: one of the deferred messages [0] of deferring: not there"]


def test_a_deferred_message_whose_completion_had_no_answer_may_be_gone(ledger: FeatureLedger) -> None:
    number, _, _ = deferred(ledger)
    ledger.completion_requested(number)
    ledger.deferred_missed("deferring", [number], "not there")
    assert ledger.close() == []
