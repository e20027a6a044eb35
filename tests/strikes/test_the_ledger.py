"""The ledger finds what it has to find: without these, a campaign without problems would say nothing."""

from __future__ import annotations

import random

import pytest

from tests.ledger.messages import FRAGMENT_SHIFT
from tests.strikes.ledger import StrikeLedger
from tests.strikes.scene import Stream

LOOSE = Stream("loose-0", "loose")
KEYED = Stream("keyed-0", "keyed", has_keys=True)
BASKETS = Stream("baskets-0", "baskets", has_keys=True)
NEWS = Stream("news-0", "news")
HOLDER, LINK, OTHER_LINK = 100, 1, 2


class Book(StrikeLedger):
    """With a clock that is set by hand."""

    def __init__(self) -> None:
        self.at_s = 10.0
        super().__init__(random.Random(1), lambda: self.at_s)
        self.bodies: list[bytes] = []

    def sent(self, stream: Stream, key: str | None = None, *, is_accepted: bool = True) -> int:
        number, body = self.compose(stream, key, HOLDER, 10)
        self.bodies.append(body)
        if is_accepted:
            self.accepted(number)
        return number

    def got(self, number: int, count: int, destination: str | None = None, *, link: int = LINK) -> int:
        """The message came as the count-th of its key's fragment, or of fragment 0."""
        send = self.sends[number]
        sequence_number = ((send.fragment or 0) << FRAGMENT_SHIFT) + count
        where = destination or send.stream.path
        index = self.deliver(
            where, sequence_number, self.bodies[number], link=link, holder=HOLDER, until_s=self.at_s + 30
        )
        assert index is not None
        return index

    def completed_at(self, number: int, count: int, destination: str | None = None) -> None:
        index = self.got(number, count, destination)
        self.settling(index, completes=True)
        self.settled(index, is_done=True)


@pytest.fixture
def book() -> Book:
    return Book()


def test_what_was_accepted_and_completed_is_no_problem(book: Book) -> None:
    for stream, key in ((LOOSE, None), (KEYED, "a"), (BASKETS, "b")):
        book.completed_at(book.sent(stream, key), 1)
    assert book.close() == []
    assert not book.doubles()


def test_what_was_accepted_and_never_came_is_lost(book: Book) -> None:
    number = book.sent(LOOSE)
    book.sent(LOOSE, is_accepted=False)
    assert book.close() == [f"lost: message {number} of loose, which was accepted"]


def test_every_subscription_has_to_have_it(book: Book) -> None:
    book.completed_at(book.sent(NEWS), 1, "news/Subscriptions/one")
    assert book.close() == ["lost: message 0 of news at news/Subscriptions/other, which was accepted"]


def test_a_completion_without_an_answer_may_have_been_done_and_one_whose_lock_was_lost_not(book: Book) -> None:
    index = book.got(book.sent(LOOSE), 1)
    book.settling(index, completes=True)
    assert book.close() == []
    book.settled(index, is_done=False, why="com.microsoft:message-lock-lost: it expired")
    assert book.close() == ["lost: message 0 of loose, which was accepted"]


def test_what_was_completed_does_not_come_back(book: Book) -> None:
    number = book.sent(LOOSE)
    book.completed_at(number, 1)
    index = book.got(number, 1, link=OTHER_LINK)
    assert [problem.partition(":")[0] for problem in book.problems] == ["back"]
    book.settling(index, completes=True)
    book.settled(index, is_done=True)
    assert "completed twice" in book.problems[-1]


def test_what_is_elsewhere_or_nobodys_is_strange(book: Book) -> None:
    loose, keyed = book.sent(LOOSE), book.sent(KEYED, "a")
    book.deliver("keyed", 1, book.bodies[loose], link=LINK, holder=HOLDER, until_s=99)
    wrong = (book.sends[keyed].fragment or 0) + 1
    sequence_number = (wrong << FRAGMENT_SHIFT) + 1
    book.deliver("keyed", sequence_number, book.bodies[keyed], link=LINK, holder=HOLDER, until_s=99)
    book.deliver("loose", 7, b"?", link=LINK, holder=HOLDER, until_s=99)
    assert [problem.partition(":")[0] for problem in book.problems] == ["strange"] * 3


def test_a_place_has_one_message(book: Book) -> None:
    first, second = book.sent(LOOSE), book.sent(LOOSE)
    book.got(first, 1)
    book.got(second, 1)
    (problem,) = book.problems
    assert problem.endswith("message 1, where message 0 had been")


def test_who_gets_what_another_holds_is_noted_until_the_lock_is_over(book: Book) -> None:
    number = book.sent(LOOSE)
    book.got(number, 1)
    book.at_s += 29
    book.got(number, 1, link=OTHER_LINK)
    (hold,) = book.holds
    assert (hold.earlier.link, hold.later.link) == (LINK, OTHER_LINK)
    book.at_s += 31
    book.got(number, 1)
    assert len(book.holds) == 1


def test_nobody_holds_what_was_given_back_or_went_with_its_link(book: Book) -> None:
    number = book.sent(LOOSE)
    book.settling(book.got(number, 1), completes=False)
    book.got(number, 1, link=OTHER_LINK)
    book.let_go(OTHER_LINK)
    book.got(number, 1)
    assert not book.holds


def test_accepted_messages_of_a_key_have_growing_numbers(book: Book) -> None:
    first, lost, last = book.sent(KEYED, "a"), book.sent(KEYED, "a", is_accepted=False), book.sent(KEYED, "a")
    book.completed_at(first, 2)
    book.completed_at(last, 3)
    book.completed_at(lost, 4)
    assert book.close() == [], "nobody has promised a place to what was not accepted"
    book.completed_at(book.sent(KEYED, "a"), 1)
    (problem,) = book.close()
    assert problem.startswith("order: message 3 of keyed has number ")


def test_a_message_of_a_session_does_not_overtake_one_that_is_there(book: Book) -> None:
    first, second = book.sent(BASKETS, "b"), book.sent(BASKETS, "b")
    book.got(second, 2)
    (problem,) = book.problems
    assert problem.endswith(f"message {second}, before message {first} of its session")


def test_it_may_come_after_one_that_the_same_link_has_or_that_is_gone(book: Book) -> None:
    numbers = [book.sent(BASKETS, "b") for _ in range(4)]
    book.completed_at(numbers[0], 1)
    book.got(numbers[1], 2, link=OTHER_LINK)
    book.got(numbers[2], 3, link=OTHER_LINK)
    assert book.problems == []
    book.let_go(OTHER_LINK)
    book.got(numbers[3], 4, link=3)
    assert len(book.problems) == 2, "the link that had the two before it is gone"


def test_a_link_has_a_session_in_order(book: Book) -> None:
    first, second = book.sent(BASKETS, "b"), book.sent(BASKETS, "b")
    book.got(first, 1)
    book.got(second, 2)
    assert not book.returns
    book.got(first, 1)
    (pair,) = book.returns
    assert (pair.earlier.copy.number, pair.later.copy.number) == (second, first)


def test_a_message_in_two_places_is_told(book: Book) -> None:
    number = book.sent(LOOSE)
    book.completed_at(number, 1)
    book.completed_at(number, 2)
    assert [(send.number, destination) for send, destination in book.doubles()] == [(number, "loose")]
    assert book.close() == []
