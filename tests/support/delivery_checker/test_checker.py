"""The delivery checker reports each kind of violation, and reports nothing for correct deliveries."""

from __future__ import annotations

import random

import pytest

from tests.support.delivery_checker.checker import DeliveryChecker


@pytest.fixture
def checker() -> DeliveryChecker:
    return DeliveryChecker(random.Random(1))


def test_an_accepted_and_completed_message_is_no_problem(checker: DeliveryChecker) -> None:
    number, body = checker.record_send("orders", source=1, filler_bytes=100)
    checker.send_accepted(number)
    for _ in range(2):  # abandoned, and received again
        assert checker.message_received("orders", 1, body) == number
    checker.completion_requested(number)
    assert checker.message_received("orders", 1, body) == number  # before the completion is confirmed
    checker.completion_confirmed(number)
    assert checker.finish() == []


def test_a_message_without_outcome_or_with_an_error_may_be_stored_or_not(checker: DeliveryChecker) -> None:
    checker.record_send("orders", 1, 0)
    checker.send_refused(checker.record_send("orders", 1, 0)[0], "unavailable")
    number, body = checker.record_send("orders", 1, 0)
    checker.message_received("orders", 1, body)
    checker.completion_requested(number)
    assert checker.finish() == []


def test_an_accepted_message_that_is_never_received_is_lost(checker: DeliveryChecker) -> None:
    checker.send_accepted(checker.record_send("orders", 1, 0)[0])
    assert checker.finish() == ["lost: message 0 of orders, which was accepted"]


def test_a_received_message_is_lost_if_it_is_neither_completed_nor_received_again(checker: DeliveryChecker) -> None:
    checker.message_received("orders", 7, checker.record_send("orders", 1, 0)[1])
    assert checker.finish() == ["lost: message 0 of orders, which was received as number 7"]


def test_a_message_whose_completion_was_confirmed_must_not_come_back(checker: DeliveryChecker) -> None:
    number, body = checker.record_send("orders", 1, 0)
    checker.message_received("orders", 7, body)
    checker.completion_requested(number)
    checker.completion_confirmed(number)
    checker.message_received("orders", 7, body)
    assert checker.finish() == ["back: from orders came, as number 7, message 0, which is completed"]


@pytest.mark.parametrize("change", [b"", b"short", bytes(200)])
def test_a_body_that_was_never_sent_is_strange(checker: DeliveryChecker, change: bytes) -> None:
    checker.record_send("orders", 1, 100)
    assert checker.message_received("orders", 7, change) is None
    assert checker.finish() == [f"strange: from orders came, as number 7, {len(change)} bytes that nobody sent"]


def test_a_changed_byte_is_reported(checker: DeliveryChecker) -> None:
    _, body = checker.record_send("orders", 1, 100)
    assert checker.message_received("orders", 7, body[:-1] + bytes([body[-1] ^ 1])) is None
    assert checker.problems[0].startswith("strange: ")


def test_a_message_from_another_queue_is_strange(checker: DeliveryChecker) -> None:
    assert checker.message_received("bills", 7, checker.record_send("orders", 1, 0)[1]) is None
    assert checker.finish() == ["strange: from bills came, as number 7, message 0, which was sent to orders"]


def test_a_message_with_two_sequence_numbers_is_doubled(checker: DeliveryChecker) -> None:
    number, body = checker.record_send("orders", 1, 0)
    checker.message_received("orders", 7, body)
    checker.message_received("orders", 8, body)
    checker.completion_requested(number)
    assert checker.finish() == ["doubled: from orders came, as number 8, message 0, which had been number 7"]


def test_a_sequence_number_with_two_messages_is_doubled(checker: DeliveryChecker) -> None:
    for _ in range(2):
        number, body = checker.record_send("orders", 1, 0)
        checker.message_received("orders", 7, body)
        checker.completion_requested(number)
    assert checker.finish() == ["doubled: from orders came, as number 7, message 1, where message 0 had been"]


def test_decreasing_sequence_numbers_of_one_source_are_reported(checker: DeliveryChecker) -> None:
    for source, sequence_number in ((1, 7), (2, 3), (1, 6)):
        number, body = checker.record_send("orders", source, 0)
        checker.message_received("orders", sequence_number, body)
        checker.completion_requested(number)
    assert checker.finish() == ["order: message 2 of orders has number 6, below number 7 of message 0 before it"]
