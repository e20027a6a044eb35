"""Every verdict of the audit, from real journals: one set of inputs with a message for each case."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, NamedTuple

import pytest

from tests.pipeline.audit.audit_inputs import MINUTE_S, AuditInputs, message
from twinbus.client.errors import ConnectionFailed, ConnectionLost
from twinbus.client.events import (
    FROM_SPOOL,
    ReceiverOpened,
    ScheduleCancelled,
    SendFailed,
    SettledInBulk,
    TransactionEnded,
)
from twinbus.client.pairing.observe.events import EventKind
from twinbus.pipeline.audit.report import EXIT_LOST, EXIT_UNKNOWN

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import Row, SparkSession

    from twinbus.pipeline.audit.report import AuditResult

ORDERS = (
    "completed",
    "deleted",
    "waiting",
    "lost",
    "tried",
    "tried and here",
    "dead",
    "dead by hand",
    "seen",
    "expired",
    "perhaps expired",
    "twice",
    "again under one number",
    "resubmitted",
    "sent twice",
    "sent twice, one lost",
)
PARKED = ("parked", "parked and moved", "parked and moved unseen", "parked and lost", "parked and dead")
HOUR = dt.timedelta(hours=1)


class Audited(NamedTuple):
    outcome: AuditResult
    rows: dict[tuple[str, str], Row]

    def verdict(self, name: str, destination: str = "orders") -> str:
        return str(self.rows[destination, name].verdict)

    def reason(self, name: str, destination: str = "orders") -> str:
        return str(self.rows[destination, name].reason)


@pytest.fixture(scope="module")
def audited(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Audited:
    inputs = AuditInputs(tmp_path_factory.mktemp("world"))
    for path in ("orders", "unseen", "blind", "cut", "bulk"):
        inputs.add_queue(path)
    inputs.add_queue("young", created_ms=inputs.clock.wall_ms() + 30 * 60_000)
    inputs.add_queue("once", exists=False)
    inputs.add_destination("payments", "payments", detects_duplicates=True, duplicate_window_ms=600_000)
    inputs.add_destination("ledger", "ledger")
    inputs.add_subscription("news", "all")
    inputs.add_subscription("news", "some", is_filtered=True)
    inputs.add_subscription("news", "late", created_ms=inputs.clock.wall_ms() + 30 * 60_000)
    inputs.failures["blind"] = "StoreUnavailable: no"
    write_sends(inputs)
    inputs.clock.advance(MINUTE_S)
    write_settlements(inputs)
    inputs.clock.advance(3 * 3600)
    with inputs.run_program() as shop:  # the queue was recreated, and its numbers start again
        shop.sent("orders", "sent after its number was cancelled", scheduled_sequence_numbers=[77])
    add_contents(inputs)
    until = inputs.now
    inputs.clock.advance(MINUTE_S)
    with inputs.run_program() as shop:
        shop.sent("orders", "too young", "before and after")
        shop.sent("orders", "spooled, and sent after the look", is_from_spool=True)
    inputs.clock.set_wall_ms(round(until.timestamp() * 1_000))
    return Audited(*inputs.audit(spark, covered_entities=["[!u]*"]))


def write_sends(inputs: AuditInputs) -> None:
    with inputs.run_program() as shop:
        for name in ORDERS:
            time_to_live = HOUR if "expired" in name else None
            shop.sent("orders", name, time_to_live=time_to_live)
        shop.sent("Orders", "sent twice", "sent twice, one lost")
        for path in ("unseen", "blind", "cut", "bulk", "young", "once"):
            shop.sent(path, "gone")
        shop.parked("orders", *PARKED)
        shop.event(EventKind.SPOOLED, "orders", "spooled")
        shop.event(EventKind.SPOOLED, "orders", "spooled, and sent after the look")
        shop.event(EventKind.SPOOLED, "orders", "spooled and sent")
        shop.sent("orders", "spooled and sent", is_from_spool=True)
        shop.event(EventKind.SPOOLED, "orders", "spooled and parked")
        shop.parked("orders", "spooled and parked", reason=FROM_SPOOL)
        shop.event(EventKind.SPOOL_REFUSED, "orders", "refused")
        shop.event(EventKind.SPOOLED, "orders", "refused")
        shop.sent("orders", "cancelled", scheduled_sequence_numbers=[77])
        shop.on_event(ScheduleCancelled("orders", [77]))
        for name in ("unanswered", "unanswered and there"):
            shop.on_event(SendFailed("orders", [message(name)], ConnectionLost("no answer")))
        shop.on_event(SendFailed("orders", [message("failed")], ConnectionFailed("refused")))
        for name, outcome in (("committed", "committed"), ("rolled back", "rolled back"), ("in doubt", "unknown")):
            shop.sent("orders", name, transaction_key=name)
            shop.on_event(TransactionEnded(name, outcome))
        shop.sent("orders", "never over", transaction_key="never over")
        shop.sent("payments", "paid")
        shop.sent("payments", "paid")
        shop.sent("ledger", "noted")
        shop.sent("ledger", "noted")
        shop.sent("news", "flash", "half")
        shop.sent("orders", "before and after")
        shop.sent("orders", "same id", session="a")
        shop.sent("orders", "same id of another", session="b")


def write_settlements(inputs: AuditInputs) -> None:
    with inputs.run_program() as till:
        for number, name in enumerate(("completed", "committed", "spooled and sent", "parked and moved"), start=1):
            till.settled("orders", name, number)
        till.settled("ORDERS", "deleted", 5, "received and deleted")
        till.settled("orders", "parked and moved unseen", 6)
        till.settled("orders", "tried", 7, error=ConnectionLost("no answer"))
        till.settled("orders", "tried and here", 8, error=ConnectionLost("no answer"))
        till.settled("orders", "dead", 9, "dead-lettered")
        till.settled("orders/$DeadLetterQueue", "dead by hand", 1)
        for name in ("seen", "expired"):
            till.settled("orders", name, 10 if name == "seen" else 11, "abandoned")
        till.settled("orders", "twice", 12)
        till.settled("orders", "twice", 13)
        till.settled("orders", "again under one number", 14)
        till.settled("orders", "again under one number", 14)
        till.settled("orders", "resubmitted", 15, "dead-lettered")
        till.settled("orders", "resubmitted", 16)
        for name, number in (("sent twice", 17), ("sent twice", 18), ("sent twice, one lost", 19)):
            till.settled("orders", name, number)
        till.settled("orders", "unanswered and there", 20)
        till.settled("orders", "same id", 21, session="a")
        till.settled("orders", "before and after", 22)
        till.settled("orders", "before and after", 23)
        till.settled("payments", "paid", 1)
        till.settled("ledger", "noted", 1)
        till.settled("news/Subscriptions/All", "flash", 1)
        till.settled("news/Subscriptions/some", "flash", 1)
        till.on_event(SettledInBulk("bulk", "deleted in bulk", 5))
    with inputs.run_program() as syphon:
        syphon.event(EventKind.MOVED, "orders", "parked and moved")
    with inputs.run_program(is_killed=True) as shift:
        shift.on_event(ReceiverOpened("cut"))
        shift.settled("cut", "another", 1)


def add_contents(inputs: AuditInputs) -> None:
    inputs.add_message("orders", "waiting", 30)
    inputs.add_message("orders", "tried and here", 8)
    inputs.add_message("orders/$deadletterqueue", "dead", 4)
    inputs.add_parked_message("orders", "parked")
    inputs.add_parked_message("orders", "spooled and parked")
    inputs.add_parked_message("orders", "parked and dead", is_dead=True)


@pytest.mark.parametrize(
    ("name", "verdict", "reason"),
    [
        ("completed", "delivered", "a receiver or a capture received it"),
        ("deleted", "delivered", "a receiver or a capture received it"),
        ("waiting", "delivered", "it is in its entity"),
        ("tried", "delivered", "tried to complete it, and it is gone"),
        ("tried and here", "delivered", "it is in its entity"),
        ("parked", "parked", "it is in contoso/x-servicebus-transfer/0"),
        ("parked and moved", "delivered", ""),
        ("parked and moved unseen", "delivered", ""),
        ("parked and lost", "lost", "copies are missing: sent 1 times, found 0 times"),
        ("parked and dead", "dead-lettered", ""),
        ("dead", "dead-lettered", ""),
        ("dead by hand", "dead-lettered", ""),
        ("refused", "dead-lettered", ""),
        ("expired", "expired", "its time to live has expired"),
        ("perhaps expired", "unknown", "it may have expired"),
        ("seen", "lost", "copies are missing"),
        ("lost", "lost", "copies are missing: sent 1 times, found 0 times"),
        ("cancelled", "cancelled", "then cancelled"),
        ("sent after its number was cancelled", "lost", "copies are missing"),
        ("spooled", "unknown", "the spool of its sender"),
        ("spooled and sent", "delivered", ""),
        ("spooled, and sent after the look", "unknown", "the spool of its sender"),
        ("before and after", "delivered", ""),
        ("spooled and parked", "parked", ""),
        ("failed", "not sent", "its send failed"),
        ("rolled back", "not sent", "its send failed or was rolled back"),
        ("committed", "delivered", ""),
        ("unanswered", "not sent", "its send had no answer, and it was not found"),
        ("in doubt", "not sent", "its send had no answer, and it was not found"),
        ("never over", "not sent", "its send had no answer, and it was not found"),
        ("unanswered and there", "delivered", ""),
        ("twice", "delivered", ""),
        ("resubmitted", "delivered", ""),
        ("sent twice", "delivered", ""),
        ("sent twice, one lost", "lost", "sent 2 times, found 1 times"),
        ("same id", "delivered", ""),
        ("same id of another", "lost", ""),
    ],
)
def test_each_message_has_its_verdict_if_all_receivers_write_journals(
    audited: Audited, name: str, verdict: str, reason: str
) -> None:
    assert (audited.verdict(name), audited.reason(name)) == (verdict, audited.reason(name))
    assert reason in audited.reason(name)


@pytest.mark.parametrize(
    ("destination", "reason"),
    [
        ("unseen", "receivers without a journal may have received it"),
        ("blind", "the entity was not inspected: blind: StoreUnavailable: no"),
        ("cut", "did not end: its last row is from 2023-11-14 22:14:20 UTC"),
        ("bulk", "messages of 'bulk' were deleted or completed in bulk"),
        ("young", "the entity was created after the send"),
        ("once", "the entity does not exist"),
    ],
)
def test_a_message_is_unknown_if_an_input_that_may_show_it_is_missing(
    audited: Audited, destination: str, reason: str
) -> None:
    assert audited.verdict("gone", destination) == "unknown"
    assert reason in audited.reason("gone", destination)


def test_a_duplicate_dropped_by_its_entity_is_not_missing(audited: Audited) -> None:
    assert audited.verdict("paid", "payments") == "delivered"
    assert not audited.rows["payments", "paid"].is_doubled


def test_one_copy_of_two_is_unknown_if_duplicate_detection_is_unknown(audited: Audited) -> None:
    assert audited.verdict("noted", "ledger") == "unknown"


def test_each_subscription_needs_a_copy_unless_it_is_filtered_or_newer(audited: Audited) -> None:
    verdicts = {key: row.verdict for key, row in audited.rows.items() if key[0].startswith("news")}
    assert verdicts == {
        ("news/subscriptions/all", "flash"): "delivered",
        ("news/subscriptions/some", "flash"): "delivered",
        ("news/subscriptions/all", "half"): "lost",
    }


def test_a_message_that_no_subscription_must_have_is_unknown(spark: SparkSession, tmp_path: Path) -> None:
    inputs = AuditInputs(tmp_path)
    for name in ("red", "green"):
        inputs.add_subscription("news", name, is_filtered=True)
    inputs.add_subscription("later", "all", created_ms=inputs.clock.wall_ms() + 30_000)
    with inputs.run_program() as shop:
        shop.sent("News", "red", "blue")
        shop.sent("later", "early")
    inputs.clock.advance(MINUTE_S)
    inputs.add_message("news/subscriptions/red", "red", 1)
    outcome, rows = inputs.audit(spark)
    assert {key: row.verdict for key, row in rows.items()} == {
        ("news/subscriptions/red", "red"): "delivered",
        ("news/subscriptions/green", "blue"): "unknown",
        ("later/subscriptions/all", "early"): "unknown",
    }
    assert "no subscription must have it" in rows["news/subscriptions/green", "blue"].reason
    assert outcome.exit_code == EXIT_UNKNOWN


def test_a_message_that_arrives_more_often_than_sent_is_duplicated(audited: Audited) -> None:
    duplicated = {name for (_, name), row in audited.rows.items() if row.is_doubled}
    assert duplicated == {"twice", "again under one number"}
    assert {message.message_id: message.sequence_numbers for message in audited.outcome.duplicated} == {
        "twice": (12, 13),
        "again under one number": (14,),
    }


def test_sends_after_the_start_of_the_inspection_are_not_audited(audited: Audited) -> None:
    assert ("orders", "too young") not in audited.rows
    assert not audited.rows["orders", "before and after"].is_doubled


def test_repeated_sends_of_the_application_are_marked(audited: Audited) -> None:
    sent_again = {name for (_, name), row in audited.rows.items() if row.is_sent_again}
    assert sent_again == {"sent twice", "sent twice, one lost", "paid", "noted"}


def test_a_copy_may_be_from_an_earlier_send_with_the_same_id(spark: SparkSession, tmp_path: Path) -> None:
    inputs = AuditInputs(tmp_path)
    inputs.add_queue("orders")
    with inputs.run_program() as shop:
        shop.sent("orders", "one copy", "both copies", "no copy")
        shop.on_event(SendFailed("orders", [message("failed before")], ConnectionFailed("refused")))
    with inputs.run_program() as till:
        till.settled("orders", "one copy", 1)
        till.settled("orders", "both copies", 2)
    inputs.clock.advance(MINUTE_S)
    since = inputs.now
    with inputs.run_program() as shop:
        shop.sent("orders", "one copy", "both copies", "no copy", "failed before")
    with inputs.run_program() as till:
        till.settled("orders", "both copies", 3)
        till.settled("orders", "failed before", 4)
    inputs.clock.advance(MINUTE_S)
    _, rows = inputs.audit(spark, since=since)
    assert {name: row.verdict for (_, name), row in rows.items()} == {
        "one copy": "unknown",
        "both copies": "delivered",
        "no copy": "lost",
        "failed before": "delivered",
    }
    assert "the copies found may be from those sends" in rows["orders", "one copy"].reason


def test_each_message_has_its_parked_duration(audited: Audited) -> None:
    rows = audited.rows
    assert rows["orders", "parked and moved"].parked_for_ms == 60_000
    assert rows["orders", "parked and moved unseen"].parked_for_ms == 59_000  # until its destination accepted it
    assert rows["orders", "parked"].parked_for_ms == 60_000 + 3 * 3_600_000
    assert rows["orders", "parked and lost"].parked_for_ms is None
    (orders,) = audited.outcome.parked_durations
    assert (orders.destination, orders.count, orders.max_ms) == ("orders", 4, 60_000 + 3 * 3_600_000)


def test_lost_messages_are_named_and_decide_the_exit_code(audited: Audited) -> None:
    names = {message.message_id for message in audited.outcome.lost}
    assert names == {
        "lost",
        "parked and lost",
        "seen",
        "sent after its number was cancelled",
        "sent twice, one lost",
        "same id of another",
        "half",
    }
    assert audited.outcome.exit_code == EXIT_LOST
