"""The ledger finds what it has to find: without these, a campaign without problems would say nothing."""

from __future__ import annotations

import pytest

from tests.outages.ledger import Arrival, Send, Span, judge
from tests.outages.scene import STREAMS, differences, message_of

QUEUE = "contoso/x-servicebus-transfer/0"
OUTAGE = Span(100.0, 105.0)


def sent(number: int, stream: str = "orders-a", *, queue: str | None = None, failure: str | None = None) -> Send:
    return Send(stream, number, 101.0, 101.1, failure, queue)


def arrived(
    number: int,
    stream: str = "orders-a",
    *,
    at: int | None = None,
    parked_at_ms: int | None = None,
    is_marked: bool = False,
) -> Arrival:
    (destination,) = STREAMS[stream].arrives_at
    return Arrival(destination, stream, number, number if at is None else at, parked_at_ms, is_marked)


def test_what_arrived_once_as_it_was_sent_is_no_problem() -> None:
    verdict = judge([sent(1), sent(2, queue=QUEUE)], [arrived(1), arrived(2, parked_at_ms=5)], [OUTAGE])
    assert verdict.problems == []
    assert not verdict.duplicates


def test_what_was_reported_sent_and_is_not_there_is_lost() -> None:
    (problem,) = judge([sent(1), sent(2, queue=QUEUE)], [arrived(1)], [OUTAGE]).problems
    assert problem == f"lost: orders-a/2 is not at orders, and was parked in {QUEUE}"


def test_every_subscription_has_to_have_it() -> None:
    send = Send("news-a", 1, 0.0, 0.1, None, None)
    arrival = Arrival("news/Subscriptions/one", "news-a", 1, 1, None, is_possible_duplicate=False)
    (problem,) = judge([send], [arrival], [OUTAGE]).problems
    assert problem.startswith("lost: news-a/1 is not at news/Subscriptions/other")


@pytest.mark.parametrize("arrivals", [[], [arrived(1)]])
def test_what_was_not_reported_sent_may_be_there_or_not(arrivals: list[Arrival]) -> None:
    assert judge([sent(1, failure="NotSent")], arrivals, [OUTAGE]).problems == []


def test_what_nobody_sent_is_strange() -> None:
    (problem,) = judge([], [arrived(1)], [OUTAGE]).problems
    assert problem == "strange: orders-a/1 at orders was never sent"


def test_twice_is_allowed_where_it_is_marked() -> None:
    sends, marked = [sent(1, queue=QUEUE)], arrived(1, parked_at_ms=5, is_marked=True)
    verdict = judge(sends, [arrived(1), marked], [OUTAGE])
    assert verdict.problems == []
    assert verdict.duplicates == {"marked as possible duplicates": 1}
    (problem,) = judge(sends, [arrived(1), arrived(1, parked_at_ms=5)], [OUTAGE]).problems
    assert "none is marked" in problem


def test_twice_parked_has_to_be_marked_and_moved_again_has_not() -> None:
    sends = [sent(1, queue=QUEUE)]
    (problem,) = judge(sends, [arrived(1, parked_at_ms=5), arrived(1, parked_at_ms=6)], [OUTAGE]).problems
    assert "none is marked" in problem
    verdict = judge(sends, [arrived(1, parked_at_ms=5), arrived(1, parked_at_ms=5)], [OUTAGE])
    assert verdict.problems == []
    assert verdict.duplicates == {"moved again": 1}


def test_sent_again_is_allowed_in_an_outage_only() -> None:
    twice = [arrived(1), arrived(1)]
    assert judge([sent(1)], twice, [OUTAGE]).problems == []
    (problem,) = judge([sent(1)], twice, [Span(1.0, 2.0), Span(200.0, 201.0)]).problems
    assert "there was no outage" in problem


def test_twice_is_never_allowed_where_duplicates_are_detected() -> None:
    stream = "payments-a"
    copies = [arrived(1, stream), arrived(1, stream, parked_at_ms=5, is_marked=True)]
    (problem,) = judge([sent(1, stream, queue=QUEUE)], copies, [OUTAGE]).problems
    assert problem.endswith("where duplicates are detected")


def test_parked_messages_of_a_session_come_in_order_from_one_backlog_queue() -> None:
    stream = "baskets-a0"
    sends = [sent(number, stream, queue=QUEUE) for number in (1, 2)]
    in_order = [arrived(1, stream, at=7, parked_at_ms=5), arrived(2, stream, at=8, parked_at_ms=6)]
    verdict = judge(sends, in_order, [OUTAGE])
    assert (verdict.problems, verdict.ordered) == ([], 1)
    turned = [arrived(1, stream, at=8, parked_at_ms=5), arrived(2, stream, at=7, parked_at_ms=6)]
    (problem,) = judge(sends, turned, [OUTAGE]).problems
    assert problem == f"order: at baskets, baskets-a0/1 came after baskets-a0/2, through {QUEUE}"
    elsewhere = [sends[0], sent(2, stream, queue=f"{QUEUE}7")]
    assert judge(elsewhere, turned, [OUTAGE]).problems == []


def test_a_change_of_any_property_is_found() -> None:
    stream = STREAMS["baskets-a0"]
    message = message_of(stream, 12)
    assert differences(message_of(stream, 12), message) == []
    message.properties["x-ms-parked-at"] = 1
    assert differences(message_of(stream, 12), message) == []
    message.label, message.properties["ratio"] = "other", 2.0
    message.properties["more"] = 1
    found = differences(message_of(stream, 12), message)
    assert sorted(difference.partition(" is ")[0] for difference in found) == [
        "label",
        "property more",
        "property ratio",
    ]


def test_a_change_is_a_problem() -> None:
    changed = Arrival("orders", "orders-a", 1, 1, None, is_possible_duplicate=False, differences=("label is 'x'",))
    assert judge([sent(1)], [changed], [OUTAGE]).problems == ["changed: orders-a/1 at orders: label is 'x'"]
