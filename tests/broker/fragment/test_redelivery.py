"""Q17: an exclusive receiver can tell by the delivery count whether a message may have been delivered before."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.broker.consumers import FakeConsumer, Results
from tests.broker.harness import BrokerHarness
from twinbus.amqp.message import Message
from twinbus.broker.fragment.redelivery import BLOCK_SIZE, CLEANUP_DELAY_S, MAX_RANGES, _merge_ranges
from twinbus.broker.store_keys import MAYBE_DELIVERED
from twinbus.model.errors import StoreUnavailable
from twinbus.model.path import SubQueue

if TYPE_CHECKING:
    from collections.abc import Iterable

    from twinbus.model.errors import ServiceBusError


def attach_exclusive(harness: BrokerHarness, epoch: int, credit: int) -> FakeConsumer:
    """An exclusive receiver, as the gateway makes it."""
    consumer = attach_exclusive_immediately(harness, epoch)
    consumer.grant(credit)
    harness.run_until_idle()
    return consumer


def attach_exclusive_immediately(harness: BrokerHarness, epoch: int) -> FakeConsumer:
    """The same before anything is written or delivered."""
    claim = harness.queue.exclusive_receiver_of(SubQueue.MAIN)
    claim.check_epoch("orders", epoch, has_other_receivers=False)
    claim.displace("orders", epoch, [harness.main_fragment])
    consumer = FakeConsumer(harness.main_fragment)
    claim.assign(consumer, epoch, [harness.main_fragment])
    return consumer


def detach(harness: BrokerHarness, consumer: FakeConsumer) -> None:
    """Its connection was lost."""
    consumer.leave()
    harness.queue.exclusive_receiver_of(SubQueue.MAIN).release(consumer)


def counts(payloads: Iterable[bytes]) -> list[int]:
    found = [Message(payload).header for payload in payloads]
    return [header.delivery_count if header is not None else 0 for header in found]


def counts_of(consumer: FakeConsumer) -> list[int]:
    return counts(payload for payload, _ in consumer.deliveries)


def peeked(harness: BrokerHarness) -> list[int]:
    pages: list[list[bytes] | ServiceBusError] = []
    harness.main_fragment.browser.peek(1, 100, 1_000_000, pages.append)
    harness.run_until_idle()
    (page,) = pages
    assert isinstance(page, list)
    return counts(page)


def received_by_number(harness: BrokerHarness, *numbers: int) -> list[int]:
    found: list[list[tuple[bytes, bytes]] | ServiceBusError] = []
    harness.main_fragment.deferral.receive(list(numbers), found.append, receive_and_delete=False)
    harness.run_until_idle()
    (page,) = found
    assert isinstance(page, list), page
    return counts(payload for payload, _ in page)


def test_q17_what_a_displaced_receiver_had_comes_first_and_with_a_delivery_on_its_count() -> None:
    rig = BrokerHarness()
    rig.send_stored(*[b"%d" % number for number in range(6)])
    first = attach_exclusive(rig, 1, 4)
    rig.main_fragment.settlement.release(first.lock_numbers()[3:], Results())
    rig.run_until_idle()
    detach(rig, first)
    second = attach_exclusive(rig, 2, 10)
    assert second.bodies == [b"0", b"1", b"2", b"3", b"4", b"5"]
    assert counts_of(second) == [1, 1, 1, 0, 0, 0]


def test_q17_the_count_stays_when_the_next_receiver_releases_or_is_displaced_and_goes_with_a_dead_letter() -> None:
    rig = BrokerHarness()
    rig.send_stored(b"a", b"b")
    first = attach_exclusive(rig, 1, 2)
    detach(rig, first)
    second = attach_exclusive(rig, 2, 1)
    rig.main_fragment.settlement.release(second.lock_numbers(), Results())
    rig.run_until_idle()
    third = attach_exclusive(rig, 3, 2)
    assert counts_of(third) == [1, 1]
    rig.main_fragment.settlement.dead_letter(third.lock_numbers()[:1], Results())
    rig.run_until_idle()
    dead = rig.consumer(1, of=rig.dead_letters)
    assert counts_of(dead) == [1]


def test_q17_a_deferred_message_that_a_displaced_receiver_had_taken_back_says_so() -> None:
    rig = BrokerHarness()
    rig.send_stored(b"a", b"b")
    first = attach_exclusive(rig, 1, 2)
    rig.main_fragment.settlement.defer(first.lock_numbers(), Results())
    rig.run_until_idle()
    assert received_by_number(rig, 1) == [0]
    detach(rig, first)
    attach_exclusive(rig, 2, 10)
    assert received_by_number(rig, 1, 2) == [1, 0]


def test_q17_locks_that_a_killed_server_had_given_are_remembered_by_the_next() -> None:
    rig = BrokerHarness()
    rig.send_stored(*[b"%d" % number for number in range(BLOCK_SIZE + 20)])
    first = attach_exclusive(rig, 1, 10)
    rig.main_fragment.settlement.complete(first.lock_numbers()[:3], Results())
    rig.run_until_idle()
    detach(rig, first)
    rig.restart()
    found = attach_exclusive(rig, 2, BLOCK_SIZE + 20)
    seen = dict(zip(found.bodies, counts_of(found), strict=True))
    assert all(seen[b"%d" % number] == 1 for number in range(3, 10)), "these had been delivered"
    assert seen[b"%d" % (BLOCK_SIZE + 10)] == 0, "one more block is suspected at most"
    assert found.bodies == [b"%d" % number for number in range(3, BLOCK_SIZE + 20)]


def test_q17_peeked_deferred_and_deleted_messages_say_so_too_and_the_stored_count_is_unchanged() -> None:
    rig = BrokerHarness()
    rig.send_stored(b"a", b"b", b"c")
    first = attach_exclusive(rig, 1, 3)
    rig.main_fragment.settlement.defer(first.lock_numbers()[:1], Results())
    rig.run_until_idle()
    detach(rig, first)
    rig.restart()
    assert peeked(rig) == [1, 1, 1]
    plain = rig.consumer(1)
    rig.main_fragment.settlement.abandon(plain.lock_numbers(), Results())
    rig.run_until_idle()
    assert peeked(rig) == [1, 1, 1], "abandoned once, not twice"
    plain.leave()
    assert counts_of(rig.consumer(1, deletes=True)) == [1]


def test_q17_a_message_is_handed_out_only_when_it_is_on_disk_that_it_is() -> None:
    rig = BrokerHarness()
    rig.send_stored(b"a")
    claim = rig.queue.exclusive_receiver_of(SubQueue.MAIN)
    consumer = FakeConsumer(rig.main_fragment)
    claim.assign(consumer, 1, [rig.main_fragment])
    consumer.grant(1)
    rig.run_until_commit()
    assert (consumer.deliveries, rig.index_row_count(MAYBE_DELIVERED)) == ([], 0)
    rig.run_until_idle()
    assert (len(consumer.deliveries), rig.index_row_count(MAYBE_DELIVERED)) == (1, 1)


def test_a_receiver_that_is_not_exclusive_writes_nothing() -> None:
    rig = BrokerHarness()
    rig.send_stored(b"a", b"b")
    plain = rig.consumer(1)
    assert len(plain.deliveries) == 1
    assert rig.index_row_count() == 0


def test_q17_when_nothing_is_out_nothing_is_suspected_after_a_while() -> None:
    rig = BrokerHarness()
    rig.send_stored(b"a")
    first = attach_exclusive(rig, 1, 1)
    rig.main_fragment.settlement.complete(first.lock_numbers(), Results())
    rig.run_until_idle()
    assert rig.index_row_count(MAYBE_DELIVERED) == 1
    for _ in range(3):
        rig.advance(CLEANUP_DELAY_S)
    assert rig.index_row_count(MAYBE_DELIVERED) == 0
    rig.send_stored(b"b")
    detach(rig, first)
    rig.restart()
    assert counts_of(attach_exclusive(rig, 2, 1)) == [0]


def test_messages_that_came_after_a_crash_are_not_suspected_after_the_next() -> None:
    rig = BrokerHarness()
    rig.send_stored(b"a")
    first = attach_exclusive(rig, 1, 1)
    detach(rig, first)
    rig.restart()
    rig.advance(CLEANUP_DELAY_S)
    rig.send_stored(b"b")
    rig.restart()
    assert counts_of(attach_exclusive(rig, 2, 2)) == [1, 0]


def test_q18_what_is_given_back_comes_before_what_is_behind_it() -> None:
    rig = BrokerHarness()
    rig.send_stored(*[b"%d" % number for number in range(6)])
    first = attach_exclusive(rig, 1, 3)
    rig.main_fragment.settlement.abandon(first.lock_numbers()[:2], Results())
    rig.main_fragment.settlement.release(first.lock_numbers()[2:], Results())
    detach(rig, first)
    second = attach_exclusive(rig, 2, 10)  # the others are not on disk yet
    assert second.bodies == [b"0", b"1", b"2", b"3", b"4", b"5"]
    assert counts_of(second) == [1, 1, 0, 0, 0, 0]


def test_q18_a_receiver_that_comes_while_the_disk_hangs_frees_what_the_one_before_it_had() -> None:
    rig = BrokerHarness()
    rig.send_stored(*[b"%d" % number for number in range(4)])
    first = attach_exclusive(rig, 1, 3)
    rig.main_fragment.settlement.defer(first.lock_numbers()[:1], Results())
    rig.run_until_idle()
    assert received_by_number(rig, 1) == [0]
    rig.store.hang()
    rig.send(b"4")
    rig.run_until_idle()
    rig.advance(10.1)
    with pytest.raises(StoreUnavailable):
        rig.main_fragment.settlement.abandon(first.lock_numbers()[1:], Results())
    detach(rig, first)
    detach(rig, attach_exclusive(rig, 2, 10))  # its link was ended: the store was unavailable
    rig.store.resume()
    rig.run_until_idle()
    third = attach_exclusive(rig, 3, 10)
    assert third.bodies == [b"1", b"2", b"3", b"4"]
    assert counts_of(third) == [1, 1, 0, 0]
    assert received_by_number(rig, 1) == [1]


def test_q17_a_deferral_that_is_refused_because_the_queue_is_full_leaves_a_delivery_on_the_count() -> None:
    rig = BrokerHarness()
    rig.send_stored(b"a")
    first = attach_exclusive(rig, 1, 1)
    rig.commit_log.disk_full_reason = "the disk is full"
    answers = Results()
    rig.main_fragment.settlement.defer(first.lock_numbers(), answers, {"note": "x" * 100})
    rig.run_until_idle()
    assert answers[0] is not None
    first.grant(1)
    rig.run_until_idle()
    assert counts_of(first) == [0, 1]


def test_q18_q19_a_deferral_with_a_mark_is_taken_by_a_full_disk_too() -> None:
    rig = BrokerHarness()
    rig.send_stored(b"a")
    first = attach_exclusive(rig, 1, 1)
    rig.commit_log.disk_full_reason = "the disk is full"
    answers = Results()
    rig.main_fragment.settlement.defer(first.lock_numbers(), answers, {"x-ms-possible-duplicate": True})
    rig.run_until_idle()
    assert answers == [None]
    assert received_by_number(rig, 1) == [0]


def test_ranges_of_many_crashes_become_few() -> None:
    ranges = [(number * 10_000, number * 10_000 + number) for number in range(3 * MAX_RANGES)]
    merged = _merge_ranges(ranges)
    assert len(merged) == MAX_RANGES
    assert all(any(first <= low and high <= last for first, last in merged) for low, high in ranges)


def test_q18_q19_a_receiver_that_takes_the_place_of_another_finds_what_that_one_was_about_to_defer() -> None:
    rig = BrokerHarness()
    rig.send_stored(b"0", b"1", b"2")
    first = attach_exclusive(rig, 1, 3)
    rig.main_fragment.settlement.defer(first.lock_numbers()[:1], Results())  # ... which is not on disk yet
    second = attach_exclusive_immediately(rig, 2)
    pages: list[list[bytes] | ServiceBusError] = []
    rig.main_fragment.browser.peek(1, 100, 1_000_000, pages.append, deferred_only=True)
    rig.run_until_idle()
    (page,) = pages
    assert isinstance(page, list)
    assert len(page) == 1, "else it would come behind the messages that are delivered now"
    second.grant(3)
    rig.run_until_idle()
    assert len(second.deliveries) == 2
