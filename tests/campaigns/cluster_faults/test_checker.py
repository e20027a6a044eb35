"""The ledger finds what it has to find: without these, a campaign without problems would say nothing."""

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
HOLDER, LINK, OTHER_LINK = 100, 1, 2


class ManualClockChecker(ClusterChecker):
    """With a clock that is set by hand."""

    def __init__(self) -> None:
        self.at_s = 10.0
        super().__init__(random.Random(1), lambda: self.at_s)
        self.bodies: list[bytes] = []

    def sent(self, stream: Stream, key: str | None = None, *, is_accepted: bool = True) -> int:
        number, body = self.send_started(stream, key, HOLDER, 10)
        self.bodies.append(body)
        if is_accepted:
            self.send_accepted(number)
        return number

    def got(self, number: int, count: int, destination: str | None = None, *, link: int = LINK) -> int:
        """The message came as the count-th of its key's fragment, or of fragment 0."""
        send = self.sends[number]
        sequence_number = ((send.fragment or 0) << FRAGMENT_SHIFT) + count
        where = destination or send.stream.path
        index = self.message_delivered(
            where, sequence_number, self.bodies[number], link=link, process=HOLDER, until_s=self.at_s + 30
        )
        assert index is not None
        return index

    def completed_at(self, number: int, count: int, destination: str | None = None) -> None:
        index = self.got(number, count, destination)
        self.settlement_requested(index, completes=True)
        self.settlement_ended(index, is_done=True)


@pytest.fixture
def checker() -> ManualClockChecker:
    return ManualClockChecker()


def test_what_was_accepted_and_completed_is_no_problem(checker: ManualClockChecker) -> None:
    for stream, key in ((LOOSE, None), (KEYED, "a"), (BASKETS, "b")):
        checker.completed_at(checker.sent(stream, key), 1)
    assert checker.finish() == []
    assert not checker.duplicates()


def test_what_was_accepted_and_never_came_is_lost(checker: ManualClockChecker) -> None:
    number = checker.sent(LOOSE)
    checker.sent(LOOSE, is_accepted=False)
    assert checker.finish() == [f"lost: message {number} of loose, which was accepted"]


def test_every_subscription_has_to_have_it(checker: ManualClockChecker) -> None:
    checker.completed_at(checker.sent(NEWS), 1, "news/Subscriptions/one")
    assert checker.finish() == ["lost: message 0 of news at news/Subscriptions/other, which was accepted"]


def test_a_completion_without_an_answer_may_have_been_done_and_one_whose_lock_was_lost_not(
    checker: ManualClockChecker,
) -> None:
    index = checker.got(checker.sent(LOOSE), 1)
    checker.settlement_requested(index, completes=True)
    assert checker.finish() == []
    checker.settlement_ended(index, is_done=False, reason="com.microsoft:message-lock-lost: it expired")
    assert checker.finish() == ["lost: message 0 of loose, which was accepted"]


def test_what_was_completed_does_not_come_back(checker: ManualClockChecker) -> None:
    number = checker.sent(LOOSE)
    checker.completed_at(number, 1)
    index = checker.got(number, 1, link=OTHER_LINK)
    assert [problem.partition(":")[0] for problem in checker.problems] == ["back"]
    checker.settlement_requested(index, completes=True)
    checker.settlement_ended(index, is_done=True)
    assert "completed twice" in checker.problems[-1]


def test_what_is_elsewhere_or_nobodys_is_strange(checker: ManualClockChecker) -> None:
    loose, keyed = checker.sent(LOOSE), checker.sent(KEYED, "a")
    checker.message_delivered("keyed", 1, checker.bodies[loose], link=LINK, process=HOLDER, until_s=99)
    wrong = (checker.sends[keyed].fragment or 0) + 1
    sequence_number = (wrong << FRAGMENT_SHIFT) + 1
    checker.message_delivered("keyed", sequence_number, checker.bodies[keyed], link=LINK, process=HOLDER, until_s=99)
    checker.message_delivered("loose", 7, b"?", link=LINK, process=HOLDER, until_s=99)
    assert [problem.partition(":")[0] for problem in checker.problems] == ["strange"] * 3


def test_a_place_has_one_message(checker: ManualClockChecker) -> None:
    first, second = checker.sent(LOOSE), checker.sent(LOOSE)
    checker.got(first, 1)
    checker.got(second, 1)
    (problem,) = checker.problems
    assert problem.endswith("message 1, where message 0 had been")


def test_who_gets_what_another_holds_is_noted_until_the_lock_is_over(checker: ManualClockChecker) -> None:
    number = checker.sent(LOOSE)
    checker.got(number, 1)
    checker.at_s += 29
    checker.got(number, 1, link=OTHER_LINK)
    (hold,) = checker.double_locks
    assert (hold.earlier.link, hold.later.link) == (LINK, OTHER_LINK)
    checker.at_s += 31
    checker.got(number, 1)
    assert len(checker.double_locks) == 1


def test_nobody_holds_what_was_given_back_or_went_with_its_link(checker: ManualClockChecker) -> None:
    number = checker.sent(LOOSE)
    checker.settlement_requested(checker.got(number, 1), completes=False)
    checker.got(number, 1, link=OTHER_LINK)
    checker.link_ended(OTHER_LINK)
    checker.got(number, 1)
    assert not checker.double_locks


def test_accepted_messages_of_a_key_have_growing_numbers(checker: ManualClockChecker) -> None:
    first, lost, last = checker.sent(KEYED, "a"), checker.sent(KEYED, "a", is_accepted=False), checker.sent(KEYED, "a")
    checker.completed_at(first, 2)
    checker.completed_at(last, 3)
    checker.completed_at(lost, 4)
    assert checker.finish() == [], "nobody has promised a place to what was not accepted"
    checker.completed_at(checker.sent(KEYED, "a"), 1)
    (problem,) = checker.finish()
    assert problem.startswith("order: message 3 of keyed has number ")


def test_a_message_of_a_session_does_not_overtake_one_that_is_there(checker: ManualClockChecker) -> None:
    first, second = checker.sent(BASKETS, "b"), checker.sent(BASKETS, "b")
    checker.got(second, 2)
    (problem,) = checker.problems
    assert problem.endswith(f"message {second}, before message {first} of its session")


def test_it_may_come_after_one_that_the_same_link_has_or_that_is_gone(checker: ManualClockChecker) -> None:
    numbers = [checker.sent(BASKETS, "b") for _ in range(4)]
    checker.completed_at(numbers[0], 1)
    checker.got(numbers[1], 2, link=OTHER_LINK)
    checker.got(numbers[2], 3, link=OTHER_LINK)
    assert checker.problems == []
    checker.link_ended(OTHER_LINK)
    checker.got(numbers[3], 4, link=3)
    assert len(checker.problems) == 2, "the link that had the two before it is gone"


def test_a_link_has_a_session_in_order(checker: ManualClockChecker) -> None:
    first, second = checker.sent(BASKETS, "b"), checker.sent(BASKETS, "b")
    checker.got(first, 1)
    checker.got(second, 2)
    assert not checker.session_redeliveries
    checker.got(first, 1)
    (pair,) = checker.session_redeliveries
    assert (pair.earlier.copy.number, pair.later.copy.number) == (second, first)


def test_a_message_in_two_places_is_told(checker: ManualClockChecker) -> None:
    number = checker.sent(LOOSE)
    checker.completed_at(number, 1)
    checker.completed_at(number, 2)
    assert [(send.number, destination) for send, destination in checker.duplicates()] == [(number, "loose")]
    assert checker.finish() == []
