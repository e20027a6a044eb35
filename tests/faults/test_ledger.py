"""Every promise that can be broken is told when it is, and nothing is told when none is."""

from __future__ import annotations

import random

import pytest

from tests.ledger.ledger import Ledger


@pytest.fixture
def ledger() -> Ledger:
    return Ledger(random.Random(1))


def test_what_was_accepted_and_completed_is_no_problem(ledger: Ledger) -> None:
    number, body = ledger.write("orders", source=1, filler_bytes=100)
    ledger.accepted(number)
    for _ in range(2):  # abandoned, and received again
        assert ledger.receive("orders", 1, body) == number
    ledger.completion_requested(number)
    assert ledger.receive("orders", 1, body) == number  # its confirmation had not come
    ledger.completion_confirmed(number)
    assert ledger.close() == []


def test_a_message_without_answer_or_with_an_error_may_be_there_or_not(ledger: Ledger) -> None:
    ledger.write("orders", 1, 0)
    ledger.refused(ledger.write("orders", 1, 0)[0], "unavailable")
    number, body = ledger.write("orders", 1, 0)
    ledger.receive("orders", 1, body)
    ledger.completion_requested(number)
    assert ledger.close() == []


def test_an_accepted_message_that_never_came_is_lost(ledger: Ledger) -> None:
    ledger.accepted(ledger.write("orders", 1, 0)[0])
    assert ledger.close() == ["lost: message 0 of orders, which was accepted"]


def test_a_message_that_was_once_received_is_lost_when_it_comes_no_more(ledger: Ledger) -> None:
    ledger.receive("orders", 7, ledger.write("orders", 1, 0)[1])
    assert ledger.close() == ["lost: message 0 of orders, which was received as number 7"]


def test_a_message_whose_completion_was_confirmed_must_not_come_back(ledger: Ledger) -> None:
    number, body = ledger.write("orders", 1, 0)
    ledger.receive("orders", 7, body)
    ledger.completion_requested(number)
    ledger.completion_confirmed(number)
    ledger.receive("orders", 7, body)
    assert ledger.close() == ["back: from orders came, as number 7, message 0, which is completed"]


@pytest.mark.parametrize("change", [b"", b"short", bytes(200)])
def test_what_nobody_sent_is_strange(ledger: Ledger, change: bytes) -> None:
    ledger.write("orders", 1, 100)
    assert ledger.receive("orders", 7, change) is None
    assert ledger.close() == [f"strange: from orders came, as number 7, {len(change)} bytes that nobody sent"]


def test_a_changed_byte_is_found(ledger: Ledger) -> None:
    _, body = ledger.write("orders", 1, 100)
    assert ledger.receive("orders", 7, body[:-1] + bytes([body[-1] ^ 1])) is None
    assert ledger.problems[0].startswith("strange: ")


def test_a_message_from_another_queue_is_strange(ledger: Ledger) -> None:
    assert ledger.receive("bills", 7, ledger.write("orders", 1, 0)[1]) is None
    assert ledger.close() == ["strange: from bills came, as number 7, message 0, which was sent to orders"]


def test_a_message_with_two_numbers_is_doubled(ledger: Ledger) -> None:
    number, body = ledger.write("orders", 1, 0)
    ledger.receive("orders", 7, body)
    ledger.receive("orders", 8, body)
    ledger.completion_requested(number)
    assert ledger.close() == ["doubled: from orders came, as number 8, message 0, which had been number 7"]


def test_a_number_with_two_messages_is_doubled(ledger: Ledger) -> None:
    for _ in range(2):
        number, body = ledger.write("orders", 1, 0)
        ledger.receive("orders", 7, body)
        ledger.completion_requested(number)
    assert ledger.close() == ["doubled: from orders came, as number 7, message 1, where message 0 had been"]


def test_messages_of_one_link_keep_their_order(ledger: Ledger) -> None:
    for source, sequence_number in ((1, 7), (2, 3), (1, 6)):
        number, body = ledger.write("orders", source, 0)
        ledger.receive("orders", sequence_number, body)
        ledger.completion_requested(number)
    assert ledger.close() == ["order: message 2 of orders has number 6, below number 7 of message 0 before it"]
