"""TransferChecker reports every broken guarantee of transfers and transactions, and nothing if all hold."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from tests.campaigns.crashes.transfers.checker import ActionKind, TransferChecker
from tests.campaigns.crashes.transfers.stored_records import remaining_records
from tests.campaigns.crashes.transfers.topology import CHAIN_END, NEWS, REFUSED
from tests.support.delivery_checker.messages import State
from twinbus.amqp.message import Message
from twinbus.broker.store_keys import (
    ACTIVE,
    BODY_CHECK,
    COUNTERS,
    DUPLICATE_IDS,
    FORWARDED_UP_TO,
    SHARED_BODY,
    Area,
    area_prefix,
)
from twinbus.store.change_batch import ChangeBatch
from twinbus.store.protocol import Table
from twinbus.store.rocks_database import RocksDatabase
from twinbus.store.rocks_tuning import RocksTuning

if TYPE_CHECKING:
    from pathlib import Path

    from tests.campaigns.crashes.transfers.checker import Transaction


@pytest.fixture
def checker() -> TransferChecker:
    return TransferChecker(random.Random(1))


def send(checker: TransferChecker, entry: str, session: str | None = None) -> tuple[int, bytes]:
    """Record a send without a response; return the number and the body."""
    number, payload = checker.record_send_to(entry, 1, 10, session)
    return number, b"".join(Message(payload).data)


def accepted_send(checker: TransferChecker, entry: str, session: str | None = None) -> tuple[int, bytes]:
    number, body = send(checker, entry, session)
    checker.send_accepted(number)
    return number, body


def receive_and_complete(
    checker: TransferChecker, destination: str, number: int, body: bytes, sequence_number: int = 1
) -> None:
    """Record that a message is received and completed."""
    checker.message_received_at(destination, sequence_number, body)
    checker.settlement_requested(destination, number, State.COMPLETED)
    checker.settlement_confirmed(destination, number, checker.receipt_count_of(destination, number), State.COMPLETED)


def problem_kinds(checker: TransferChecker) -> list[str]:
    return [problem.split(":")[0] for problem in checker.finish()]


# --- forwarding and copies --------------------------------------------------------------------------------------------


def test_a_message_that_arrives_once_at_every_destination_is_no_problem(checker: TransferChecker) -> None:
    number, body = accepted_send(checker, "before")
    for destination in CHAIN_END:
        receive_and_complete(checker, destination, number, body)
    assert checker.pending == set()
    assert checker.finish() == []


def test_a_message_missing_at_one_destination_is_lost(checker: TransferChecker) -> None:
    number, body = accepted_send(checker, "before")
    for destination in CHAIN_END[:2]:
        receive_and_complete(checker, destination, number, body)
    assert checker.finish() == [f"lost: message 0 of before at {CHAIN_END[2]}, which was accepted"]


def test_a_message_without_response_seen_at_one_destination_must_be_at_all(checker: TransferChecker) -> None:
    receive_and_complete(checker, NEWS[0], *send(checker, "news", "s"))
    assert problem_kinds(checker) == ["lost", "lost"]


def test_a_message_without_response_may_be_missing(checker: TransferChecker) -> None:
    send(checker, "before")
    assert checker.finish() == []


def test_a_message_that_arrives_twice_is_doubled(checker: TransferChecker) -> None:
    _, body = accepted_send(checker, "head")
    checker.message_received_at("end", 1, body)
    checker.message_received_at("end", 2, body)
    assert checker.problems == ["doubled: from end came, as number 2, message 0, which had been number 1"]


def test_two_messages_under_one_number_are_doubled(checker: TransferChecker) -> None:
    for _ in range(2):
        checker.message_received_at("end", 1, accepted_send(checker, "head")[1])
    assert checker.problems[0].startswith("doubled: ")


def test_a_completed_message_that_is_redelivered_is_back(checker: TransferChecker) -> None:
    number, body = accepted_send(checker, "head")
    receive_and_complete(checker, "end", number, body)
    checker.message_received_at("end", 1, body)
    assert checker.problems == ["back: from end came, as number 1, message 0, which is completed"]


def test_a_message_at_a_wrong_destination_is_strange(checker: TransferChecker) -> None:
    _, body = accepted_send(checker, "road", session="s")
    checker.message_received_at(REFUSED, 1, body)
    assert checker.problems[0].startswith("strange: ")


def test_messages_of_one_source_with_decreasing_numbers_are_out_of_order(checker: TransferChecker) -> None:
    for sequence_number in (2, 1):
        number, body = accepted_send(checker, "road")
        receive_and_complete(checker, REFUSED, number, body, sequence_number)
    assert problem_kinds(checker) == ["order"]


def test_a_dead_letter_that_is_delivered_from_its_queue_is_back(checker: TransferChecker) -> None:
    number, body = accepted_send(checker, "work")
    checker.message_received_at("work", 1, body)
    checker.settlement_requested("work", number, State.DEAD_LETTERED)
    checker.message_received_at("graves", 7, body)
    assert checker.problems == []
    checker.message_received_at("work", 1, body)
    assert checker.problems == ["back: from work came, as number 1, message 0, which is dead-lettered"]


def test_a_late_confirmation_does_not_affect_later_requests(checker: TransferChecker) -> None:
    number, body = accepted_send(checker, "work")
    checker.message_received_at("work", 1, body)
    receipt = checker.receipt_count_of("work", number)
    checker.settlement_requested("work", number, State.DEAD_LETTERED)
    checker.message_received_at("graves", 1, body)
    checker.settlement_requested("work", number, State.COMPLETED)
    checker.settlement_confirmed("work", number, receipt, State.DEAD_LETTERED)
    assert checker.finish() == []


# --- transactions -----------------------------------------------------------------------------------------------------


def begin(checker: TransferChecker, what: ActionKind = ActionKind.COMPLETE) -> tuple[Transaction, bytes, bytes]:
    """Begin a transaction that settles one message of `work` and sends another; return it and both bodies."""
    old, old_body = accepted_send(checker, "work")
    checker.message_received_at("work", 1, old_body)
    transaction = checker.begin_transaction()
    checker.transaction_settles(transaction, "work", old, checker.receipt_count_of("work", old), what)
    new, new_body = send(checker, "work")
    checker.transaction_sends(transaction, new)
    return transaction, old_body, new_body


def end(checker: TransferChecker, transaction: Transaction, answer: str) -> None:
    if answer == "rolled back":
        checker.rolled_back(transaction)
    elif answer != "vanished":
        checker.commit_requested(transaction)
    if answer == "committed":
        checker.committed(transaction)


@pytest.mark.parametrize(
    ("answer", "comes_back", "is_sent", "problems"),
    [
        ("committed", False, True, []),
        ("committed", True, True, ["back", "torn"]),
        ("committed", False, False, ["lost", "torn"]),
        ("rolled back", True, False, []),
        ("rolled back", True, True, ["torn"]),
        ("rolled back", False, False, ["lost"]),
        ("vanished", True, False, []),
        ("vanished", True, True, ["torn"]),
        ("vanished", False, False, ["lost"]),
        ("unanswered", False, True, []),
        ("unanswered", True, False, []),
        ("unanswered", True, True, ["torn"]),
        ("unanswered", False, False, ["torn"]),
    ],
)
def test_a_transaction_takes_effect_completely_or_not_at_all(
    checker: TransferChecker, answer: str, *, comes_back: bool, is_sent: bool, problems: list[str]
) -> None:
    transaction, old_body, new_body = begin(checker)
    end(checker, transaction, answer)
    if comes_back:
        receive_and_complete(checker, "work", 0, old_body, 1)
    if is_sent:
        receive_and_complete(checker, "work", 1, new_body, 2)
    assert problem_kinds(checker) == problems


@pytest.mark.parametrize("is_done", [False, True])
@pytest.mark.parametrize("is_sent", [False, True])
@pytest.mark.parametrize("what", [ActionKind.ABANDON, ActionKind.DEFER, ActionKind.DEAD_LETTER])
def test_every_kind_of_settlement_shows_whether_the_transaction_took_effect(
    checker: TransferChecker, what: ActionKind, *, is_done: bool, is_sent: bool
) -> None:
    transaction, old_body, new_body = begin(checker, what)
    end(checker, transaction, "unanswered")
    if what is ActionKind.ABANDON:
        checker.message_received_at("work", 1, old_body, abandon_mark=transaction.number if is_done else None)
    elif is_done:
        address, state = ("graves", State.DEAD_LETTERED) if what is ActionKind.DEAD_LETTER else ("work", State.DEFERRED)
        checker.message_received_at(address, 1, old_body, state=state)
    else:
        checker.message_received_at("work", 1, old_body)
    checker.settlement_confirmed("work", 0, checker.receipt_count_of("work", 0), State.COMPLETED)
    if is_sent:
        receive_and_complete(checker, "work", 1, new_body, 2)
    assert problem_kinds(checker) == ["torn"] * (is_done != is_sent)


def test_a_transaction_cannot_settle_a_message_that_was_redelivered(checker: TransferChecker) -> None:
    number, body = accepted_send(checker, "work")
    checker.message_received_at("work", 1, body)
    receipt = checker.receipt_count_of("work", number)
    receive_and_complete(checker, "work", number, body)
    transaction = checker.begin_transaction()
    checker.transaction_settles(transaction, "work", number, receipt, ActionKind.COMPLETE)
    checker.commit_requested(transaction)
    checker.committed(transaction)
    assert problem_kinds(checker) == ["torn"]


# --- remaining records in the stores ----------------------------------------------------------------------------------


def test_only_remaining_messages_and_bodies_are_reported(tmp_path: Path) -> None:
    database, batch, prefix = RocksDatabase(tmp_path / "0", RocksTuning()), ChangeBatch(), area_prefix(1, 0, Area.MAIN)
    for kind in (COUNTERS, DUPLICATE_IDS, FORWARDED_UP_TO, BODY_CHECK):
        batch.put(prefix + kind, b"", Table.INDEX)
    for kind in (ACTIVE, SHARED_BODY):
        batch.put(prefix + kind + bytes(8), b"")
    database.write(batch)
    assert database.release(10)
    assert [problem.split(",")[0] for problem in remaining_records(tmp_path)] == [
        "leftovers: store 0 has 1 messages",
        "leftovers: store 0 has 1 bodies",
        "leftovers: store 0 has 1 bodies to be looked at",
    ]
