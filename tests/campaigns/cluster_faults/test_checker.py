"""The checker of cluster faults detects each kind of problem; otherwise a campaign without problems proves nothing."""

from __future__ import annotations

import random

import pytest

from tests.campaigns.cluster_faults.checker import ClusterChecker
from tests.campaigns.cluster_faults.scenario import Stream
from tests.support.delivery_checker.messages import FRAGMENT_SHIFT

LOOSE = Stream("loose-0", "loose")
KEYED = Stream("keyed-0", "keyed", has_keys=True)
BASKETS = Stream("baskets-0", "baskets", has_keys=True)
NEWS = Stream("news-0", "news")
PROCESS, LINK, OTHER_LINK = 100, 1, 2


class ManualClockChecker(ClusterChecker):
    """Checker whose clock the test sets."""

    def __init__(self) -> None:
        self.at_s = 10.0
        super().__init__(random.Random(1), lambda: self.at_s)
        self.bodies: list[bytes] = []

    def send_message(self, stream: Stream, key: str | None = None, *, is_accepted: bool = True) -> int:
        number, body = self.send_started(stream, key, PROCESS, 10)
        self.bodies.append(body)
        if is_accepted:
            self.send_accepted(number)
        return number

    def deliver(self, number: int, count: int, destination: str | None = None, *, link: int = LINK) -> int:
        """Record a delivery as the count-th message of its key's fragment, or of fragment 0."""
        send = self.sends[number]
        sequence_number = ((send.fragment or 0) << FRAGMENT_SHIFT) + count
        where = destination or send.stream.path
        index = self.message_delivered(
            where, sequence_number, self.bodies[number], link=link, process=PROCESS, until_s=self.at_s + 30
        )
        assert index is not None
        return index

    def complete(self, number: int, count: int, destination: str | None = None) -> None:
        index = self.deliver(number, count, destination)
        self.settlement_requested(index, completes=True)
        self.settlement_ended(index, is_done=True)


@pytest.fixture
def checker() -> ManualClockChecker:
    return ManualClockChecker()


def test_accepted_and_completed_messages_are_no_problem(checker: ManualClockChecker) -> None:
    for stream, key in ((LOOSE, None), (KEYED, "a"), (BASKETS, "b")):
        checker.complete(checker.send_message(stream, key), 1)
    assert checker.finish() == []
    assert not checker.duplicates()


def test_an_accepted_message_that_is_never_received_is_lost(checker: ManualClockChecker) -> None:
    number = checker.send_message(LOOSE)
    checker.send_message(LOOSE, is_accepted=False)
    assert checker.finish() == [f"lost: message {number} of loose, which was accepted"]


def test_a_message_missing_in_one_subscription_is_lost(checker: ManualClockChecker) -> None:
    checker.complete(checker.send_message(NEWS), 1, "news/Subscriptions/one")
    assert checker.finish() == ["lost: message 0 of news at news/Subscriptions/other, which was accepted"]


def test_a_completion_without_response_is_uncertain_and_one_with_a_lost_lock_failed(
    checker: ManualClockChecker,
) -> None:
    index = checker.deliver(checker.send_message(LOOSE), 1)
    checker.settlement_requested(index, completes=True)
    assert checker.finish() == []
    checker.settlement_ended(index, is_done=False, reason="com.microsoft:message-lock-lost: it expired")
    assert checker.finish() == ["lost: message 0 of loose, which was accepted"]


def test_a_completed_message_that_is_redelivered_is_a_problem(checker: ManualClockChecker) -> None:
    number = checker.send_message(LOOSE)
    checker.complete(number, 1)
    index = checker.deliver(number, 1, link=OTHER_LINK)
    assert [problem.partition(":")[0] for problem in checker.problems] == ["back"]
    checker.settlement_requested(index, completes=True)
    checker.settlement_ended(index, is_done=True)
    assert "completed twice" in checker.problems[-1]


def test_messages_in_a_wrong_destination_or_fragment_or_unknown_messages_are_strange(
    checker: ManualClockChecker,
) -> None:
    loose, keyed = checker.send_message(LOOSE), checker.send_message(KEYED, "a")
    checker.message_delivered("keyed", 1, checker.bodies[loose], link=LINK, process=PROCESS, until_s=99)
    wrong_fragment = (checker.sends[keyed].fragment or 0) + 1
    sequence_number = (wrong_fragment << FRAGMENT_SHIFT) + 1
    checker.message_delivered("keyed", sequence_number, checker.bodies[keyed], link=LINK, process=PROCESS, until_s=99)
    checker.message_delivered("loose", 7, b"?", link=LINK, process=PROCESS, until_s=99)
    assert [problem.partition(":")[0] for problem in checker.problems] == ["strange"] * 3


def test_two_messages_with_one_sequence_number_are_a_problem(checker: ManualClockChecker) -> None:
    first, second = checker.send_message(LOOSE), checker.send_message(LOOSE)
    checker.deliver(first, 1)
    checker.deliver(second, 1)
    (problem,) = checker.problems
    assert problem.endswith("message 1, where message 0 had been")


def test_a_delivery_of_a_message_locked_by_another_receiver_is_recorded(checker: ManualClockChecker) -> None:
    number = checker.send_message(LOOSE)
    checker.deliver(number, 1)
    checker.at_s += 29
    checker.deliver(number, 1, link=OTHER_LINK)
    (pair,) = checker.double_locks
    assert (pair.earlier.link, pair.later.link) == (LINK, OTHER_LINK)
    checker.at_s += 31
    checker.deliver(number, 1)
    assert len(checker.double_locks) == 1


def test_abandoned_messages_and_messages_of_ended_links_are_not_locked(checker: ManualClockChecker) -> None:
    number = checker.send_message(LOOSE)
    checker.settlement_requested(checker.deliver(number, 1), completes=False)
    checker.deliver(number, 1, link=OTHER_LINK)
    checker.link_ended(OTHER_LINK)
    checker.deliver(number, 1)
    assert not checker.double_locks


def test_accepted_messages_of_a_key_have_increasing_sequence_numbers(checker: ManualClockChecker) -> None:
    first, lost, last = (
        checker.send_message(KEYED, "a"),
        checker.send_message(KEYED, "a", is_accepted=False),
        checker.send_message(KEYED, "a"),
    )
    checker.complete(first, 2)
    checker.complete(last, 3)
    checker.complete(lost, 4)
    assert checker.finish() == [], "the order of messages that were not accepted is not guaranteed"
    checker.complete(checker.send_message(KEYED, "a"), 1)
    (problem,) = checker.finish()
    assert problem.startswith("order: message 3 of keyed has number ")


def test_a_session_message_that_overtakes_an_existing_one_is_a_problem(checker: ManualClockChecker) -> None:
    first, second = checker.send_message(BASKETS, "b"), checker.send_message(BASKETS, "b")
    checker.deliver(second, 2)
    (problem,) = checker.problems
    assert problem.endswith(f"message {second}, before message {first} of its session")


def test_a_session_message_may_follow_completed_ones_and_those_of_the_same_link(checker: ManualClockChecker) -> None:
    numbers = [checker.send_message(BASKETS, "b") for _ in range(4)]
    checker.complete(numbers[0], 1)
    checker.deliver(numbers[1], 2, link=OTHER_LINK)
    checker.deliver(numbers[2], 3, link=OTHER_LINK)
    assert checker.problems == []
    checker.link_ended(OTHER_LINK)
    checker.deliver(numbers[3], 4, link=3)
    assert len(checker.problems) == 2, "the link with the two earlier messages has ended"


def test_a_redelivery_of_an_earlier_session_message_on_one_link_is_recorded(checker: ManualClockChecker) -> None:
    first, second = checker.send_message(BASKETS, "b"), checker.send_message(BASKETS, "b")
    checker.deliver(first, 1)
    checker.deliver(second, 2)
    assert not checker.session_redeliveries
    checker.deliver(first, 1)
    (pair,) = checker.session_redeliveries
    assert (pair.earlier.copy.number, pair.later.copy.number) == (second, first)


def test_a_message_with_two_sequence_numbers_is_a_duplicate(checker: ManualClockChecker) -> None:
    number = checker.send_message(LOOSE)
    checker.complete(number, 1)
    checker.complete(number, 2)
    assert [(send.number, destination) for send, destination in checker.duplicates()] == [(number, "loose")]
    assert checker.finish() == []
