"""Every promise of transfers and transactions that can be broken is told when it is, and none that is kept."""

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


def written(checker: TransferChecker, head: str, session: str | None = None) -> tuple[int, bytes]:
    """A message that was sent, with its body: nobody has answered yet."""
    number, payload = checker.record_send_to(head, 1, 10, session)
    return number, b"".join(Message(payload).data)


def accepted(checker: TransferChecker, head: str, session: str | None = None) -> tuple[int, bytes]:
    number, body = written(checker, head, session)
    checker.send_accepted(number)
    return number, body


def take_out(checker: TransferChecker, home: str, number: int, body: bytes, sequence_number: int = 1) -> None:
    """Receive it and complete it."""
    checker.message_received_at(home, sequence_number, body)
    checker.settlement_requested(home, number, State.COMPLETED)
    checker.settlement_confirmed(home, number, checker.receipt_count_of(home, number), State.COMPLETED)


def kinds(checker: TransferChecker) -> list[str]:
    return [problem.split(":")[0] for problem in checker.finish()]


# --- forwarding and copies --------------------------------------------------------------------------------------------


def test_a_message_that_arrives_everywhere_once_is_no_problem(checker: TransferChecker) -> None:
    number, body = accepted(checker, "before")
    for home in CHAIN_END:
        take_out(checker, home, number, body)
    assert checker.pending == set()
    assert checker.finish() == []


def test_a_message_that_does_not_arrive_in_one_of_its_places_is_lost(checker: TransferChecker) -> None:
    number, body = accepted(checker, "before")
    for home in CHAIN_END[:2]:
        take_out(checker, home, number, body)
    assert checker.finish() == [f"lost: message 0 of before at {CHAIN_END[2]}, which was accepted"]


def test_so_is_one_without_an_answer_that_was_seen_elsewhere(checker: TransferChecker) -> None:
    take_out(checker, NEWS[0], *written(checker, "news", "s"))
    assert kinds(checker) == ["lost", "lost"]


def test_one_without_an_answer_may_be_nowhere(checker: TransferChecker) -> None:
    written(checker, "before")
    assert checker.finish() == []


def test_a_message_that_arrives_twice_is_doubled(checker: TransferChecker) -> None:
    _, body = accepted(checker, "head")
    checker.message_received_at("end", 1, body)
    checker.message_received_at("end", 2, body)
    assert checker.problems == ["doubled: from end came, as number 2, message 0, which had been number 1"]


def test_two_messages_under_one_number_are_doubled(checker: TransferChecker) -> None:
    for _ in range(2):
        checker.message_received_at("end", 1, accepted(checker, "head")[1])
    assert checker.problems[0].startswith("doubled: ")


def test_a_message_that_was_completed_and_comes_again_is_back(checker: TransferChecker) -> None:
    number, body = accepted(checker, "head")
    take_out(checker, "end", number, body)
    checker.message_received_at("end", 1, body)
    assert checker.problems == ["back: from end came, as number 1, message 0, which is completed"]


def test_a_message_in_a_place_that_is_not_on_its_way_is_strange(checker: TransferChecker) -> None:
    _, body = accepted(checker, "road", session="s")
    checker.message_received_at(REFUSED, 1, body)
    assert checker.problems[0].startswith("strange: ")


def test_messages_of_one_source_that_change_places_are_out_of_order(checker: TransferChecker) -> None:
    for sequence_number in (2, 1):
        number, body = accepted(checker, "road")
        take_out(checker, REFUSED, number, body, sequence_number)
    assert kinds(checker) == ["order"]


def test_a_dead_letter_is_not_active_any_more(checker: TransferChecker) -> None:
    number, body = accepted(checker, "work")
    checker.message_received_at("work", 1, body)
    checker.settlement_requested("work", number, State.DEAD_LETTERED)
    checker.message_received_at("graves", 7, body)
    assert checker.problems == []
    checker.message_received_at("work", 1, body)
    assert checker.problems == ["back: from work came, as number 1, message 0, which is dead-lettered"]


def test_an_answer_that_is_heard_late_tells_nothing_of_what_was_asked_for_since(checker: TransferChecker) -> None:
    number, body = accepted(checker, "work")
    checker.message_received_at("work", 1, body)
    receipt = checker.receipt_count_of("work", number)
    checker.settlement_requested("work", number, State.DEAD_LETTERED)
    checker.message_received_at("graves", 1, body)
    checker.settlement_requested("work", number, State.COMPLETED)
    checker.settlement_confirmed("work", number, receipt, State.DEAD_LETTERED)
    assert checker.finish() == []


# --- transactions -----------------------------------------------------------------------------------------------------


def begun(checker: TransferChecker, what: ActionKind = ActionKind.COMPLETE) -> tuple[Transaction, bytes, bytes]:
    """A transaction that settles one message of `work` and sends another, and the bodies of both."""
    old, old_body = accepted(checker, "work")
    checker.message_received_at("work", 1, old_body)
    transaction = checker.begin_transaction()
    checker.transaction_settles(transaction, "work", old, checker.receipt_count_of("work", old), what)
    new, new_body = written(checker, "work")
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
def test_a_transaction_is_done_or_not(
    checker: TransferChecker, answer: str, *, comes_back: bool, is_sent: bool, problems: list[str]
) -> None:
    transaction, old_body, new_body = begun(checker)
    end(checker, transaction, answer)
    if comes_back:
        take_out(checker, "work", 0, old_body, 1)
    if is_sent:
        take_out(checker, "work", 1, new_body, 2)
    assert kinds(checker) == problems


@pytest.mark.parametrize("is_done", [False, True])
@pytest.mark.parametrize("is_sent", [False, True])
@pytest.mark.parametrize("what", [ActionKind.ABANDON, ActionKind.DEFER, ActionKind.DEAD_LETTER])
def test_every_way_of_settling_tells_what_became_of_it(
    checker: TransferChecker, what: ActionKind, *, is_done: bool, is_sent: bool
) -> None:
    transaction, old_body, new_body = begun(checker, what)
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
        take_out(checker, "work", 1, new_body, 2)
    assert kinds(checker) == ["torn"] * (is_done != is_sent)


def test_a_message_that_another_has_got_since_cannot_be_settled_in_it(checker: TransferChecker) -> None:
    number, body = accepted(checker, "work")
    checker.message_received_at("work", 1, body)
    receipt = checker.receipt_count_of("work", number)
    take_out(checker, "work", number, body)
    transaction = checker.begin_transaction()
    checker.transaction_settles(transaction, "work", number, receipt, ActionKind.COMPLETE)
    checker.commit_requested(transaction)
    checker.committed(transaction)
    assert kinds(checker) == ["torn"]


# --- what is left in the stores ---------------------------------------------------------------------------------------


def test_messages_and_bodies_that_are_left_are_found_and_what_stays_is_not(tmp_path: Path) -> None:
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
