"""Q17: an exclusive receiver can tell by the delivery count whether a message may have been delivered before."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.broker.consumers import Answers, TestConsumer
from tests.broker.rig import Rig
from twinbus.amqp.message import Message
from twinbus.broker.keys import DELIVERED
from twinbus.broker.redelivery import BLOCK, FORGET_S, MAX_RANGES, _merged
from twinbus.model.errors import StoreUnavailable
from twinbus.model.path import SubQueue

if TYPE_CHECKING:
    from collections.abc import Iterable

    from twinbus.model.errors import ServiceBusError


def claimed(rig: Rig, epoch: int, credit: int) -> TestConsumer:
    """An exclusive receiver, as the gateway makes it."""
    consumer = claimed_at_once(rig, epoch)
    consumer.grant(credit)
    rig.settle()
    return consumer


def claimed_at_once(rig: Rig, epoch: int) -> TestConsumer:
    """The same before anything is written or delivered."""
    claim = rig.queue.claim_of(SubQueue.MAIN)
    claim.check("orders", epoch, others=False)
    claim.displace("orders", epoch, [rig.main])
    consumer = TestConsumer(rig.main)
    claim.take(consumer, epoch, [rig.main])
    return consumer


def gone(rig: Rig, consumer: TestConsumer) -> None:
    """Its connection was lost."""
    consumer.leave()
    rig.queue.claim_of(SubQueue.MAIN).give_up(consumer)


def counts(payloads: Iterable[bytes]) -> list[int]:
    found = [Message(payload).header for payload in payloads]
    return [header.delivery_count if header is not None else 0 for header in found]


def counts_of(consumer: TestConsumer) -> list[int]:
    return counts(payload for payload, _ in consumer.deliveries)


def peeked(rig: Rig) -> list[int]:
    pages: list[list[bytes] | ServiceBusError] = []
    rig.main.browsing.peek(1, 100, 1_000_000, pages.append)
    rig.settle()
    (page,) = pages
    assert isinstance(page, list)
    return counts(page)


def received_by_number(rig: Rig, *numbers: int) -> list[int]:
    found: list[list[tuple[bytes, bytes]] | ServiceBusError] = []
    rig.main.deferral.receive(list(numbers), found.append, deletes=False)
    rig.settle()
    (page,) = found
    assert isinstance(page, list), page
    return counts(payload for payload, _ in page)


def test_q17_what_a_displaced_receiver_had_comes_first_and_with_a_delivery_on_its_count() -> None:
    rig = Rig()
    rig.stored(*[b"%d" % number for number in range(6)])
    first = claimed(rig, 1, 4)
    rig.main.settlement.release(first.numbers()[3:], Answers())
    rig.settle()
    gone(rig, first)
    second = claimed(rig, 2, 10)
    assert second.bodies == [b"0", b"1", b"2", b"3", b"4", b"5"]
    assert counts_of(second) == [1, 1, 1, 0, 0, 0]


def test_q17_the_count_stays_when_the_next_receiver_releases_or_is_displaced_and_goes_with_a_dead_letter() -> None:
    rig = Rig()
    rig.stored(b"a", b"b")
    first = claimed(rig, 1, 2)
    gone(rig, first)
    second = claimed(rig, 2, 1)
    rig.main.settlement.release(second.numbers(), Answers())
    rig.settle()
    third = claimed(rig, 3, 2)
    assert counts_of(third) == [1, 1]
    rig.main.settlement.dead_letter(third.numbers()[:1], Answers())
    rig.settle()
    dead = rig.consumer(1, of=rig.dead_letters)
    assert counts_of(dead) == [1]


def test_q17_a_deferred_message_that_a_displaced_receiver_had_taken_back_says_so() -> None:
    rig = Rig()
    rig.stored(b"a", b"b")
    first = claimed(rig, 1, 2)
    rig.main.settlement.defer(first.numbers(), Answers())
    rig.settle()
    assert received_by_number(rig, 1) == [0]
    gone(rig, first)
    claimed(rig, 2, 10)
    assert received_by_number(rig, 1, 2) == [1, 0]


def test_q17_locks_that_a_killed_server_had_given_are_remembered_by_the_next() -> None:
    rig = Rig()
    rig.stored(*[b"%d" % number for number in range(BLOCK + 20)])
    first = claimed(rig, 1, 10)
    rig.main.settlement.complete(first.numbers()[:3], Answers())
    rig.settle()
    gone(rig, first)
    rig.restart()
    found = claimed(rig, 2, BLOCK + 20)
    seen = dict(zip(found.bodies, counts_of(found), strict=True))
    assert all(seen[b"%d" % number] == 1 for number in range(3, 10)), "these had been delivered"
    assert seen[b"%d" % (BLOCK + 10)] == 0, "one more block is suspected at most"
    assert found.bodies == [b"%d" % number for number in range(3, BLOCK + 20)]


def test_q17_peeked_deferred_and_deleted_messages_say_so_too_and_the_stored_count_is_unchanged() -> None:
    rig = Rig()
    rig.stored(b"a", b"b", b"c")
    first = claimed(rig, 1, 3)
    rig.main.settlement.defer(first.numbers()[:1], Answers())
    rig.settle()
    gone(rig, first)
    rig.restart()
    assert peeked(rig) == [1, 1, 1]
    plain = rig.consumer(1)
    rig.main.settlement.abandon(plain.numbers(), Answers())
    rig.settle()
    assert peeked(rig) == [1, 1, 1], "abandoned once, not twice"
    plain.leave()
    assert counts_of(rig.consumer(1, deletes=True)) == [1]


def test_q17_a_message_is_handed_out_only_when_it_is_on_disk_that_it_is() -> None:
    rig = Rig()
    rig.stored(b"a")
    claim = rig.queue.claim_of(SubQueue.MAIN)
    consumer = TestConsumer(rig.main)
    claim.take(consumer, 1, [rig.main])
    consumer.grant(1)
    rig.settle_reads()
    assert (consumer.deliveries, rig.rows(DELIVERED)) == ([], 0)
    rig.settle()
    assert (len(consumer.deliveries), rig.rows(DELIVERED)) == (1, 1)


def test_a_receiver_that_is_not_exclusive_writes_nothing() -> None:
    rig = Rig()
    rig.stored(b"a", b"b")
    plain = rig.consumer(1)
    assert len(plain.deliveries) == 1
    assert rig.rows() == 0


def test_q17_when_nothing_is_out_nothing_is_suspected_after_a_while() -> None:
    rig = Rig()
    rig.stored(b"a")
    first = claimed(rig, 1, 1)
    rig.main.settlement.complete(first.numbers(), Answers())
    rig.settle()
    assert rig.rows(DELIVERED) == 1
    for _ in range(3):
        rig.wait(FORGET_S)
    assert rig.rows(DELIVERED) == 0
    rig.stored(b"b")
    gone(rig, first)
    rig.restart()
    assert counts_of(claimed(rig, 2, 1)) == [0]


def test_messages_that_came_after_a_crash_are_not_suspected_after_the_next() -> None:
    rig = Rig()
    rig.stored(b"a")
    first = claimed(rig, 1, 1)
    gone(rig, first)
    rig.restart()
    rig.wait(FORGET_S)
    rig.stored(b"b")
    rig.restart()
    assert counts_of(claimed(rig, 2, 2)) == [1, 0]


def test_q18_what_is_given_back_comes_before_what_is_behind_it() -> None:
    rig = Rig()
    rig.stored(*[b"%d" % number for number in range(6)])
    first = claimed(rig, 1, 3)
    rig.main.settlement.abandon(first.numbers()[:2], Answers())
    rig.main.settlement.release(first.numbers()[2:], Answers())
    gone(rig, first)
    second = claimed(rig, 2, 10)  # the others are not on disk yet
    assert second.bodies == [b"0", b"1", b"2", b"3", b"4", b"5"]
    assert counts_of(second) == [1, 1, 0, 0, 0, 0]


def test_q18_a_receiver_that_comes_while_the_disk_hangs_frees_what_the_one_before_it_had() -> None:
    rig = Rig()
    rig.stored(*[b"%d" % number for number in range(4)])
    first = claimed(rig, 1, 3)
    rig.main.settlement.defer(first.numbers()[:1], Answers())
    rig.settle()
    assert received_by_number(rig, 1) == [0]
    rig.store.hang()
    rig.send(b"4")
    rig.settle()
    rig.wait(10.1)
    with pytest.raises(StoreUnavailable):
        rig.main.settlement.abandon(first.numbers()[1:], Answers())
    gone(rig, first)
    gone(rig, claimed(rig, 2, 10))  # its link was ended: the store was unavailable
    rig.store.resume()
    rig.settle()
    third = claimed(rig, 3, 10)
    assert third.bodies == [b"1", b"2", b"3", b"4"]
    assert counts_of(third) == [1, 1, 0, 0]
    assert received_by_number(rig, 1) == [1]


def test_q17_a_deferral_that_is_refused_because_the_queue_is_full_leaves_a_delivery_on_the_count() -> None:
    rig = Rig()
    rig.stored(b"a")
    first = claimed(rig, 1, 1)
    rig.journal.refusal = "the disk is full"
    answers = Answers()
    rig.main.settlement.defer(first.numbers(), answers, {"note": "x" * 100})
    rig.settle()
    assert answers[0] is not None
    first.grant(1)
    rig.settle()
    assert counts_of(first) == [0, 1]


def test_q18_q19_a_deferral_with_a_mark_is_taken_by_a_full_disk_too() -> None:
    rig = Rig()
    rig.stored(b"a")
    first = claimed(rig, 1, 1)
    rig.journal.refusal = "the disk is full"
    answers = Answers()
    rig.main.settlement.defer(first.numbers(), answers, {"x-ms-possible-duplicate": True})
    rig.settle()
    assert answers == [None]
    assert received_by_number(rig, 1) == [0]


def test_ranges_of_many_crashes_become_few() -> None:
    ranges = [(number * 10_000, number * 10_000 + number) for number in range(3 * MAX_RANGES)]
    merged = _merged(ranges)
    assert len(merged) == MAX_RANGES
    assert all(any(first <= low and high <= last for first, last in merged) for low, high in ranges)


def test_q18_q19_a_receiver_that_takes_the_place_of_another_finds_what_that_one_was_about_to_defer() -> None:
    rig = Rig()
    rig.stored(b"0", b"1", b"2")
    first = claimed(rig, 1, 3)
    rig.main.settlement.defer(first.numbers()[:1], Answers())  # ... which is not on disk yet
    second = claimed_at_once(rig, 2)
    pages: list[list[bytes] | ServiceBusError] = []
    rig.main.browsing.peek(1, 100, 1_000_000, pages.append, deferred_only=True)
    rig.settle()
    (page,) = pages
    assert isinstance(page, list)
    assert len(page) == 1, "else it would come behind the messages that are delivered now"
    second.grant(3)
    rig.settle()
    assert len(second.deliveries) == 2
