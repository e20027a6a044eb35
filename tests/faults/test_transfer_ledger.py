"""Every promise of transfers and transactions that can be broken is told when it is, and none that is kept."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from tests.faults.transfers.ledger import TransferLedger, What
from tests.faults.transfers.leftovers import leftovers
from tests.faults.transfers.places import END, NEWS, REFUSED
from tests.ledger.messages import State
from twinbus.amqp.message import Message
from twinbus.broker.keys import ACTIVE, BODY, CHECK, IDS, MARKS, SEEN, Area, area_prefix
from twinbus.store.changes import Changes
from twinbus.store.database import Database
from twinbus.store.protocol import Table
from twinbus.store.tuning import Tuning

if TYPE_CHECKING:
    from pathlib import Path

    from tests.faults.transfers.ledger import Transaction


@pytest.fixture
def ledger() -> TransferLedger:
    return TransferLedger(random.Random(1))


def written(ledger: TransferLedger, head: str, session: str | None = None) -> tuple[int, bytes]:
    """A message that was sent, with its body: nobody has answered yet."""
    number, payload = ledger.write_to(head, 1, 10, session)
    return number, b"".join(Message(payload).data)


def accepted(ledger: TransferLedger, head: str, session: str | None = None) -> tuple[int, bytes]:
    number, body = written(ledger, head, session)
    ledger.accepted(number)
    return number, body


def take_out(ledger: TransferLedger, home: str, number: int, body: bytes, sequence_number: int = 1) -> None:
    """Receive it and complete it."""
    ledger.receive_at(home, sequence_number, body)
    ledger.asks(home, number, State.GONE)
    ledger.answered(home, number, ledger.receipt_of(home, number), State.GONE)


def kinds(ledger: TransferLedger) -> list[str]:
    return [problem.split(":")[0] for problem in ledger.close()]


# --- forwarding and copies --------------------------------------------------------------------------------------------


def test_a_message_that_arrives_everywhere_once_is_no_problem(ledger: TransferLedger) -> None:
    number, body = accepted(ledger, "before")
    for home in END:
        take_out(ledger, home, number, body)
    assert ledger.waiting == set()
    assert ledger.close() == []


def test_a_message_that_does_not_arrive_in_one_of_its_places_is_lost(ledger: TransferLedger) -> None:
    number, body = accepted(ledger, "before")
    for home in END[:2]:
        take_out(ledger, home, number, body)
    assert ledger.close() == [f"lost: message 0 of before at {END[2]}, which was accepted"]


def test_so_is_one_without_an_answer_that_was_seen_elsewhere(ledger: TransferLedger) -> None:
    take_out(ledger, NEWS[0], *written(ledger, "news", "s"))
    assert kinds(ledger) == ["lost", "lost"]


def test_one_without_an_answer_may_be_nowhere(ledger: TransferLedger) -> None:
    written(ledger, "before")
    assert ledger.close() == []


def test_a_message_that_arrives_twice_is_doubled(ledger: TransferLedger) -> None:
    _, body = accepted(ledger, "head")
    ledger.receive_at("end", 1, body)
    ledger.receive_at("end", 2, body)
    assert ledger.problems == ["doubled: from end came, as number 2, message 0, which had been number 1"]


def test_two_messages_under_one_number_are_doubled(ledger: TransferLedger) -> None:
    for _ in range(2):
        ledger.receive_at("end", 1, accepted(ledger, "head")[1])
    assert ledger.problems[0].startswith("doubled: ")


def test_a_message_that_was_completed_and_comes_again_is_back(ledger: TransferLedger) -> None:
    number, body = accepted(ledger, "head")
    take_out(ledger, "end", number, body)
    ledger.receive_at("end", 1, body)
    assert ledger.problems == ["back: from end came, as number 1, message 0, which is completed"]


def test_a_message_in_a_place_that_is_not_on_its_way_is_strange(ledger: TransferLedger) -> None:
    _, body = accepted(ledger, "road", session="s")
    ledger.receive_at(REFUSED, 1, body)
    assert ledger.problems[0].startswith("strange: ")


def test_messages_of_one_source_that_change_places_are_out_of_order(ledger: TransferLedger) -> None:
    for sequence_number in (2, 1):
        number, body = accepted(ledger, "road")
        take_out(ledger, REFUSED, number, body, sequence_number)
    assert kinds(ledger) == ["order"]


def test_a_dead_letter_is_not_active_any_more(ledger: TransferLedger) -> None:
    number, body = accepted(ledger, "work")
    ledger.receive_at("work", 1, body)
    ledger.asks("work", number, State.DEAD)
    ledger.receive_at("graves", 7, body)
    assert ledger.problems == []
    ledger.receive_at("work", 1, body)
    assert ledger.problems == ["back: from work came, as number 1, message 0, which is dead-lettered"]


def test_an_answer_that_is_heard_late_tells_nothing_of_what_was_asked_for_since(ledger: TransferLedger) -> None:
    number, body = accepted(ledger, "work")
    ledger.receive_at("work", 1, body)
    receipt = ledger.receipt_of("work", number)
    ledger.asks("work", number, State.DEAD)
    ledger.receive_at("graves", 1, body)
    ledger.asks("work", number, State.GONE)
    ledger.answered("work", number, receipt, State.DEAD)
    assert ledger.close() == []


# --- transactions -----------------------------------------------------------------------------------------------------


def begun(ledger: TransferLedger, what: What = What.COMPLETE) -> tuple[Transaction, bytes, bytes]:
    """A transaction that settles one message of `work` and sends another, and the bodies of both."""
    old, old_body = accepted(ledger, "work")
    ledger.receive_at("work", 1, old_body)
    transaction = ledger.begin()
    ledger.settles(transaction, "work", old, ledger.receipt_of("work", old), what)
    new, new_body = written(ledger, "work")
    ledger.sends(transaction, new)
    return transaction, old_body, new_body


def end(ledger: TransferLedger, transaction: Transaction, answer: str) -> None:
    if answer == "rolled back":
        ledger.rolled_back(transaction)
    elif answer != "vanished":
        ledger.commit_requested(transaction)
    if answer == "committed":
        ledger.committed(transaction)


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
    ledger: TransferLedger, answer: str, *, comes_back: bool, is_sent: bool, problems: list[str]
) -> None:
    transaction, old_body, new_body = begun(ledger)
    end(ledger, transaction, answer)
    if comes_back:
        take_out(ledger, "work", 0, old_body, 1)
    if is_sent:
        take_out(ledger, "work", 1, new_body, 2)
    assert kinds(ledger) == problems


@pytest.mark.parametrize("is_done", [False, True])
@pytest.mark.parametrize("is_sent", [False, True])
@pytest.mark.parametrize("what", [What.ABANDON, What.DEFER, What.DEAD_LETTER])
def test_every_way_of_settling_tells_what_became_of_it(
    ledger: TransferLedger, what: What, *, is_done: bool, is_sent: bool
) -> None:
    transaction, old_body, new_body = begun(ledger, what)
    end(ledger, transaction, "unanswered")
    if what is What.ABANDON:
        ledger.receive_at("work", 1, old_body, touched=transaction.number if is_done else None)
    elif is_done:
        address, state = ("graves", State.DEAD) if what is What.DEAD_LETTER else ("work", State.DEFERRED)
        ledger.receive_at(address, 1, old_body, state=state)
    else:
        ledger.receive_at("work", 1, old_body)
    ledger.answered("work", 0, ledger.receipt_of("work", 0), State.GONE)
    if is_sent:
        take_out(ledger, "work", 1, new_body, 2)
    assert kinds(ledger) == ["torn"] * (is_done != is_sent)


def test_a_message_that_another_has_got_since_cannot_be_settled_in_it(ledger: TransferLedger) -> None:
    number, body = accepted(ledger, "work")
    ledger.receive_at("work", 1, body)
    receipt = ledger.receipt_of("work", number)
    take_out(ledger, "work", number, body)
    transaction = ledger.begin()
    ledger.settles(transaction, "work", number, receipt, What.COMPLETE)
    ledger.commit_requested(transaction)
    ledger.committed(transaction)
    assert kinds(ledger) == ["torn"]


# --- what is left in the stores ---------------------------------------------------------------------------------------


def test_messages_and_bodies_that_are_left_are_found_and_what_stays_is_not(tmp_path: Path) -> None:
    database, batch, prefix = Database(tmp_path / "0", Tuning()), Changes(), area_prefix(1, 0, Area.MAIN)
    for kind in (MARKS, IDS, SEEN, CHECK):
        batch.put(prefix + kind, b"", Table.INDEX)
    for kind in (ACTIVE, BODY):
        batch.put(prefix + kind + bytes(8), b"")
    database.write(batch)
    assert database.release(10)
    assert [problem.split(",")[0] for problem in leftovers(tmp_path)] == [
        "leftovers: store 0 has 1 messages",
        "leftovers: store 0 has 1 bodies",
        "leftovers: store 0 has 1 bodies to be looked at",
    ]
