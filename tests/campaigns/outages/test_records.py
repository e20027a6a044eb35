"""The checks detect every broken guarantee; otherwise a campaign without problems would prove nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.campaigns.outages.records import ArrivalRecord, DeadLetterRecord, SendRecord, check_deliveries
from tests.campaigns.outages.sender_program import SendLog, read_send_log
from tests.campaigns.outages.streams import STREAMS, differences, make_message
from tests.support.delivery_checker.pair_checker import PairDeliveryChecker, stored_positions_of
from tests.support.delivery_checker.problems import MAX_PER_KIND
from twinbus.client.pairing import EventKind, PairingEvent
from twinbus.model.errors import PartlyStored, QuotaExceeded

if TYPE_CHECKING:
    from pathlib import Path

QUEUE = "contoso/x-servicebus-transfer/0"


def sent(number: int, stream: str = "orders-a", *, queue: str | None = None, failure: str | None = None) -> SendRecord:
    return SendRecord(stream, number, 101.0, 101.1, failure, queue)


def arrived(
    number: int,
    stream: str = "orders-a",
    *,
    at: int | None = None,
    parked_at_ms: int | None = None,
    is_marked: bool = False,
) -> ArrivalRecord:
    (destination,) = STREAMS[stream].destinations
    return ArrivalRecord(destination, stream, number, number if at is None else at, parked_at_ms, is_marked)


def test_a_message_that_arrived_once_as_it_was_sent_is_no_problem() -> None:
    verdict = check_deliveries([sent(1), sent(2, queue=QUEUE)], [arrived(1), arrived(2, parked_at_ms=5)])
    assert verdict.problems == []
    assert not verdict.duplicates


# --- loss and errors --------------------------------------------------------------------------------------------------


def test_a_sent_message_that_did_not_arrive_is_lost() -> None:
    (problem,) = check_deliveries([sent(1), sent(2, queue=QUEUE)], [arrived(1)]).problems
    assert problem == f"lost: orders-a/2 of orders, which was parked in {QUEUE}"


def test_a_message_missing_in_one_subscription_is_lost() -> None:
    arrival = ArrivalRecord("news/Subscriptions/one", "news-a", 1, 1, None, is_marked_duplicate=False)
    (problem,) = check_deliveries([SendRecord("news-a", 1, 0.0, 0.1)], [arrival]).problems
    assert problem.startswith("lost: news-a/1 of news at news/Subscriptions/other")


@pytest.mark.parametrize("arrivals", [[], [arrived(1)]])
def test_a_message_whose_send_is_uncertain_may_arrive_or_not(
    arrivals: list[ArrivalRecord],
) -> None:
    send = SendRecord("orders-a", 1, 0.0, 0.1, "ConnectionLost", may_have_happened=True)
    assert check_deliveries([send], arrivals).problems == []


def test_a_message_whose_error_says_not_sent_must_not_arrive() -> None:
    send = sent(1, failure="EntityDisabled")
    assert check_deliveries([send], []).problems == []
    (problem,) = check_deliveries([send], [arrived(1)]).problems
    assert problem == (
        "untruthful: orders-a/1 failed with EntityDisabled, which says that nothing was sent, and is at orders"
    )


def test_a_message_that_was_not_sent_is_strange() -> None:
    (problem,) = check_deliveries([], [arrived(1)]).problems
    assert problem == "strange: orders-a/1 at orders was never sent"


# --- copies -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("copies", "way"),
    [
        ([arrived(1), arrived(1, is_marked=True)], "sent twice"),
        ([arrived(1), arrived(1, parked_at_ms=5, is_marked=True)], "parked again"),
        ([arrived(1, parked_at_ms=5, is_marked=True), arrived(1, parked_at_ms=6)], "parked again"),
        ([arrived(1, parked_at_ms=5), arrived(1, parked_at_ms=5, is_marked=True)], "moved again"),
    ],
)
def test_all_copies_but_one_must_be_marked_as_possible_duplicates(copies: list[ArrivalRecord], way: str) -> None:
    sends = [sent(1, queue=QUEUE)]
    verdict = check_deliveries(sends, copies)
    assert verdict.problems == []
    assert verdict.duplicates == {way: 1}
    unmarked = [arrived(1, parked_at_ms=copy.parked_at_ms) for copy in copies]
    (problem,) = check_deliveries(sends, unmarked).problems
    assert problem == f"unmarked: orders-a/1 is at orders 2 times, 2 of them unmarked ({way} 1)"


def test_one_marked_copy_does_not_excuse_two_unmarked_copies() -> None:
    copies = [arrived(1), arrived(1, parked_at_ms=5), arrived(1, parked_at_ms=5, is_marked=True)]
    (problem,) = check_deliveries([sent(1, queue=QUEUE)], copies).problems
    assert problem == "unmarked: orders-a/1 is at orders 3 times, 2 of them unmarked (parked again 1, moved again 1)"


def test_a_mark_on_the_only_copy_is_allowed_and_counted() -> None:
    verdict = check_deliveries([sent(1), sent(2)], [arrived(1, is_marked=True), arrived(2)])
    assert (verdict.problems, verdict.marked_count, verdict.marked_single_count) == ([], 1, 1)


def test_two_copies_are_never_allowed_with_duplicate_detection() -> None:
    stream = "payments-a"
    copies = [arrived(1, stream), arrived(1, stream, parked_at_ms=5, is_marked=True)]
    (problem,) = check_deliveries([sent(1, stream, queue=QUEUE)], copies).problems
    assert problem.endswith("where duplicates are detected")


# --- order, dead letters, properties ----------------------------------------------------------------------------------


def test_parked_messages_of_a_session_from_one_backlog_queue_must_be_in_order() -> None:
    stream = "baskets-a0"
    sends = [sent(number, stream, queue=QUEUE) for number in (1, 2)]
    in_order = [arrived(1, stream, at=7, parked_at_ms=5), arrived(2, stream, at=8, parked_at_ms=6)]
    verdict = check_deliveries(sends, in_order)
    assert (verdict.problems, verdict.order_checks) == ([], 1)
    out_of_order = [arrived(1, stream, at=8, parked_at_ms=5), arrived(2, stream, at=7, parked_at_ms=6)]
    (problem,) = check_deliveries(sends, out_of_order).problems
    assert problem == "order: baskets-a0/2 of baskets has number 7, below number 8 of baskets-a0/1 before it"
    elsewhere = [sends[0], sent(2, stream, queue=f"{QUEUE}7")]
    assert check_deliveries(elsewhere, out_of_order).problems == []


@pytest.mark.parametrize("is_once", [True, False])
def test_a_parked_message_may_be_a_duplicate_in_a_queue_that_was_deleted(*, is_once: bool) -> None:
    """Both were moved twice, in order. The first is in the deleted queue, and its send had no response."""
    checker = PairDeliveryChecker()
    for name in ("p/1", "p/2"):
        message = checker.send_started(name, "payments", ["payments"], "a session", detects_duplicates=is_once)
        message.parked_in.append(QUEUE)
        checker.send_ended(message, None)
    checker.found_at_destination("p/1", "payments", 80, is_marked_duplicate=False)
    for name, at in (("p/2", 86), ("p/1", 131), ("p/2", 132)):
        parked_at_ms, incarnation = int(name[-1]), int(at > 100)
        checker.found_at_destination(
            name, "payments", at, is_marked_duplicate=True, parked_at_ms=parked_at_ms, incarnation=incarnation
        )
    assert [problem.partition(":")[0] for problem in checker.finish()] == ([] if is_once else ["order"])


def test_session_messages_must_follow_all_messages_that_the_primary_confirmed() -> None:
    stream = "baskets-a0"
    out_of_order = [arrived(1, stream, at=8), arrived(2, stream, at=7)]
    (problem,) = check_deliveries([sent(1, stream), sent(2, stream)], out_of_order).problems
    assert problem == (
        "order: baskets-a0/2 of baskets has number 7, below number 8 of baskets-a0/1, which the primary had confirmed"
        " before"
    )
    parked = [arrived(1, stream, at=8, parked_at_ms=5), arrived(2, stream, at=7)]
    assert check_deliveries([sent(1, stream, queue=QUEUE), sent(2, stream)], parked).problems == []


def test_a_sequence_number_belongs_to_one_message_until_its_queue_is_deleted() -> None:
    sends = [sent(1, "drafts-a"), sent(2, "drafts-a")]
    same = [arrived(1, "drafts-a", at=7), arrived(2, "drafts-a", at=7)]
    (problem,) = check_deliveries(sends, same).problems
    assert problem == "doubled: at drafts is, as number 7, drafts-a/2, where message 0 had been"
    assert check_deliveries(sends, [same[0], replace(same[1], incarnation=1)]).problems == []


def test_a_dead_lettered_message_without_a_fault_is_a_problem() -> None:
    letter = DeadLetterRecord(QUEUE, "orders-a", 1, "Unauthorized: the key is not valid")
    problems = check_deliveries([sent(1, queue=QUEUE)], [], [letter]).problems
    assert problems == [
        "lost: orders-a/1 of orders, which was dead-lettered",
        f"dead-lettered: orders-a/1, which has no fault, in {QUEUE}: Unauthorized: the key is not valid",
    ]


def test_a_parked_message_with_a_fault_must_be_dead_lettered() -> None:
    stray = sent(1, "strays-a", queue=QUEUE)
    assert check_deliveries([stray], [], [DeadLetterRecord(QUEUE, "strays-a", 1, "InvalidOperation")]).problems == []
    (problem,) = check_deliveries([stray], []).problems
    assert problem == f"lost: strays-a/1 of baskets at the dead letters of the backlog, which was parked in {QUEUE}"


def test_a_change_of_any_property_is_detected() -> None:
    stream = STREAMS["baskets-a0"]
    message = make_message(stream, 12)
    assert differences(make_message(stream, 12), message) == []
    message.properties["x-ms-parked-at"] = 1
    assert differences(make_message(stream, 12), message) == []
    message.label, message.properties["ratio"] = "other", 2.0
    message.properties["more"] = 1
    changes = differences(make_message(stream, 12), message)
    assert sorted(difference.partition(" is ")[0] for difference in changes) == [
        "label",
        "property more",
        "property ratio",
    ]


def test_a_changed_message_is_a_problem() -> None:
    changed = ArrivalRecord("orders", "orders-a", 1, 1, None, is_marked_duplicate=False, differences=("label is 'x'",))
    assert check_deliveries([sent(1)], [changed]).problems == ["changed: orders-a/1 at orders: label is 'x'"]


def test_many_problems_of_one_kind_do_not_hide_those_of_another() -> None:
    verdict = check_deliveries([sent(number) for number in range(100)], [arrived(100)])
    assert verdict.problems[0] == "strange: orders-a/100 at orders was never sent"
    assert len(verdict.problems) == 1 + MAX_PER_KIND + 1
    assert verdict.problems[-1] == f"lost: {100 - MAX_PER_KIND} more of these"
    assert verdict.problem_counts == {"lost": 100, "strange": 1}


# --- the send log of a program ----------------------------------------------------------------------------------------


def event(kind: EventKind, number: int, queue: str | None = None) -> PairingEvent:
    return PairingEvent(kind=kind, at_ms=0, message_id=f"orders-b/{number}", backlog_queue=queue)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Return the send log of a program that was restarted once and then killed, with several sends under way."""
    file = tmp_path / "ledger.json"
    for first in (0, 10):
        with file.open("a", buffering=1) as opened:
            send_log = SendLog(opened)
            send_log.write("BEGUN", "orders-b", first, 3, 1.0)
            send_log.listen(event(EventKind.PARKED, first + 1, QUEUE))
            if first == 0:
                send_log.write("ENDED", "orders-b", first, 2.0, "NotSent", *(True, [0, 1]))
            send_log.write("BEGUN", "orders-b", first + 5, 1, 3.0)
            send_log.listen(event(EventKind.SPOOLED, first + 5))
    return file


def test_a_send_of_a_killed_program_is_uncertain_unless_the_message_was_parked_or_spooled(file: Path) -> None:
    outcomes = {send.number: (send.failure, send.may_have_happened) for send in read_send_log(file)}
    safe, unknown = (None, False), ("killed", True)
    assert outcomes == {
        0: safe, 1: safe, 2: ("NotSent", True), 5: safe,
        10: unknown, 11: safe, 12: unknown, 15: safe,
    }  # fmt: skip
    parked = [send.number for send in read_send_log(file) if send.backlog_queue == QUEUE]
    spooled = [send.number for send in read_send_log(file) if send.is_spooled]
    assert (parked, spooled) == ([1, 11], [5, 15])


def test_the_stored_messages_of_a_failed_batch_are_known() -> None:
    partly = PartlyStored("two are stored")
    partly.stored = [0, 3]
    assert stored_positions_of(partly) == [0, 3]
    assert stored_positions_of(QuotaExceeded("full")) == []
