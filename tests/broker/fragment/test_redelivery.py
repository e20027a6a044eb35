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
    """Attach an exclusive receiver, as the gateway does, and run until idle."""
    consumer = attach_exclusive_immediately(harness, epoch)
    consumer.grant(credit)
    harness.run_until_idle()
    return consumer


def attach_exclusive_immediately(harness: BrokerHarness, epoch: int) -> FakeConsumer:
    """Attach an exclusive receiver before anything is written or delivered."""
    claim = harness.queue.exclusive_receiver_of(SubQueue.MAIN)
    claim.check_epoch("orders", epoch, has_other_receivers=False)
    claim.displace("orders", epoch, [harness.main_fragment])
    consumer = FakeConsumer(harness.main_fragment)
    claim.assign(consumer, epoch, [harness.main_fragment])
    return consumer


def detach(harness: BrokerHarness, consumer: FakeConsumer) -> None:
    """Detach a receiver whose connection was lost."""
    consumer.leave()
    harness.queue.exclusive_receiver_of(SubQueue.MAIN).release(consumer)


def delivery_counts(payloads: Iterable[bytes]) -> list[int]:
    headers = [Message(payload).header for payload in payloads]
    return [header.delivery_count if header is not None else 0 for header in headers]


def delivery_counts_of(consumer: FakeConsumer) -> list[int]:
    return delivery_counts(payload for payload, _ in consumer.deliveries)


def peeked_counts(harness: BrokerHarness) -> list[int]:
    pages: list[list[bytes] | ServiceBusError] = []
    harness.main_fragment.browser.peek(1, 100, 1_000_000, pages.append)
    harness.run_until_idle()
    (page,) = pages
    assert isinstance(page, list)
    return delivery_counts(page)


def counts_received_by_number(harness: BrokerHarness, *numbers: int) -> list[int]:
    replies: list[list[tuple[bytes, bytes]] | ServiceBusError] = []
    harness.main_fragment.deferral.receive(list(numbers), replies.append, receive_and_delete=False)
    harness.run_until_idle()
    (page,) = replies
    assert isinstance(page, list), page
    return delivery_counts(payload for payload, _ in page)


def test_q17_messages_of_a_displaced_receiver_come_first_with_a_delivery_count() -> None:
    harness = BrokerHarness()
    harness.send_stored(*[b"%d" % number for number in range(6)])
    first = attach_exclusive(harness, 1, 4)
    harness.main_fragment.settlement.release(first.lock_numbers()[3:], Results())
    harness.run_until_idle()
    detach(harness, first)
    second = attach_exclusive(harness, 2, 10)
    assert second.bodies == [b"0", b"1", b"2", b"3", b"4", b"5"]
    assert delivery_counts_of(second) == [1, 1, 1, 0, 0, 0]


def test_q17_the_count_survives_release_displacement_and_dead_lettering() -> None:
    harness = BrokerHarness()
    harness.send_stored(b"a", b"b")
    first = attach_exclusive(harness, 1, 2)
    detach(harness, first)
    second = attach_exclusive(harness, 2, 1)
    harness.main_fragment.settlement.release(second.lock_numbers(), Results())
    harness.run_until_idle()
    third = attach_exclusive(harness, 3, 2)
    assert delivery_counts_of(third) == [1, 1]
    harness.main_fragment.settlement.dead_letter(third.lock_numbers()[:1], Results())
    harness.run_until_idle()
    dead = harness.consumer(1, of=harness.dead_letters)
    assert delivery_counts_of(dead) == [1]


def test_q17_a_deferred_message_locked_by_a_displaced_receiver_has_a_count() -> None:
    harness = BrokerHarness()
    harness.send_stored(b"a", b"b")
    first = attach_exclusive(harness, 1, 2)
    harness.main_fragment.settlement.defer(first.lock_numbers(), Results())
    harness.run_until_idle()
    assert counts_received_by_number(harness, 1) == [0]
    detach(harness, first)
    attach_exclusive(harness, 2, 10)
    assert counts_received_by_number(harness, 1, 2) == [1, 0]


def test_q17_locks_granted_by_a_killed_server_are_remembered_by_the_next() -> None:
    harness = BrokerHarness()
    harness.send_stored(*[b"%d" % number for number in range(BLOCK_SIZE + 20)])
    first = attach_exclusive(harness, 1, 10)
    harness.main_fragment.settlement.complete(first.lock_numbers()[:3], Results())
    harness.run_until_idle()
    detach(harness, first)
    harness.restart()
    second = attach_exclusive(harness, 2, BLOCK_SIZE + 20)
    counts_by_body = dict(zip(second.bodies, delivery_counts_of(second), strict=True))
    assert all(counts_by_body[b"%d" % number] == 1 for number in range(3, 10)), "messages that had been delivered"
    assert counts_by_body[b"%d" % (BLOCK_SIZE + 10)] == 0, "at most one more block is marked"
    assert second.bodies == [b"%d" % number for number in range(3, BLOCK_SIZE + 20)]


def test_q17_peeked_and_deleted_messages_have_the_count_and_the_stored_one_is_unchanged() -> None:
    harness = BrokerHarness()
    harness.send_stored(b"a", b"b", b"c")
    first = attach_exclusive(harness, 1, 3)
    harness.main_fragment.settlement.defer(first.lock_numbers()[:1], Results())
    harness.run_until_idle()
    detach(harness, first)
    harness.restart()
    assert peeked_counts(harness) == [1, 1, 1]
    plain = harness.consumer(1)
    harness.main_fragment.settlement.abandon(plain.lock_numbers(), Results())
    harness.run_until_idle()
    assert peeked_counts(harness) == [1, 1, 1], "abandoned once, not twice"
    plain.leave()
    assert delivery_counts_of(harness.consumer(1, deletes=True)) == [1]


def test_q17_a_message_is_delivered_only_after_its_delivery_is_recorded_on_disk() -> None:
    harness = BrokerHarness()
    harness.send_stored(b"a")
    claim = harness.queue.exclusive_receiver_of(SubQueue.MAIN)
    consumer = FakeConsumer(harness.main_fragment)
    claim.assign(consumer, 1, [harness.main_fragment])
    consumer.grant(1)
    harness.run_until_commit()
    assert (consumer.deliveries, harness.index_row_count(MAYBE_DELIVERED)) == ([], 0)
    harness.run_until_idle()
    assert (len(consumer.deliveries), harness.index_row_count(MAYBE_DELIVERED)) == (1, 1)


def test_a_receiver_that_is_not_exclusive_records_no_deliveries() -> None:
    harness = BrokerHarness()
    harness.send_stored(b"a", b"b")
    plain = harness.consumer(1)
    assert len(plain.deliveries) == 1
    assert harness.index_row_count() == 0


def test_q17_records_are_deleted_some_time_after_all_messages_are_settled() -> None:
    harness = BrokerHarness()
    harness.send_stored(b"a")
    first = attach_exclusive(harness, 1, 1)
    harness.main_fragment.settlement.complete(first.lock_numbers(), Results())
    harness.run_until_idle()
    assert harness.index_row_count(MAYBE_DELIVERED) == 1
    for _ in range(3):
        harness.advance(CLEANUP_DELAY_S)
    assert harness.index_row_count(MAYBE_DELIVERED) == 0
    harness.send_stored(b"b")
    detach(harness, first)
    harness.restart()
    assert delivery_counts_of(attach_exclusive(harness, 2, 1)) == [0]


def test_messages_sent_after_a_crash_have_no_count_after_the_next_crash() -> None:
    harness = BrokerHarness()
    harness.send_stored(b"a")
    first = attach_exclusive(harness, 1, 1)
    detach(harness, first)
    harness.restart()
    harness.advance(CLEANUP_DELAY_S)
    harness.send_stored(b"b")
    harness.restart()
    assert delivery_counts_of(attach_exclusive(harness, 2, 2)) == [1, 0]


def test_q18_returned_messages_come_before_later_ones() -> None:
    harness = BrokerHarness()
    harness.send_stored(*[b"%d" % number for number in range(6)])
    first = attach_exclusive(harness, 1, 3)
    harness.main_fragment.settlement.abandon(first.lock_numbers()[:2], Results())
    harness.main_fragment.settlement.release(first.lock_numbers()[2:], Results())
    detach(harness, first)
    second = attach_exclusive(harness, 2, 10)  # the abandoned messages are not on disk yet
    assert second.bodies == [b"0", b"1", b"2", b"3", b"4", b"5"]
    assert delivery_counts_of(second) == [1, 1, 0, 0, 0, 0]


def test_q18_attaching_while_the_disk_hangs_frees_the_messages_of_the_previous_receiver() -> None:
    harness = BrokerHarness()
    harness.send_stored(*[b"%d" % number for number in range(4)])
    first = attach_exclusive(harness, 1, 3)
    harness.main_fragment.settlement.defer(first.lock_numbers()[:1], Results())
    harness.run_until_idle()
    assert counts_received_by_number(harness, 1) == [0]
    harness.store.hang()
    harness.send(b"4")
    harness.run_until_idle()
    harness.advance(10.1)
    with pytest.raises(StoreUnavailable):
        harness.main_fragment.settlement.abandon(first.lock_numbers()[1:], Results())
    detach(harness, first)
    detach(harness, attach_exclusive(harness, 2, 10))  # the link was closed because the store was unavailable
    harness.store.resume()
    harness.run_until_idle()
    third = attach_exclusive(harness, 3, 10)
    assert third.bodies == [b"1", b"2", b"3", b"4"]
    assert delivery_counts_of(third) == [1, 1, 0, 0]
    assert counts_received_by_number(harness, 1) == [1]


def test_q17_a_deferral_refused_by_a_full_queue_counts_as_a_delivery() -> None:
    harness = BrokerHarness()
    harness.send_stored(b"a")
    first = attach_exclusive(harness, 1, 1)
    harness.commit_log.disk_full_reason = "the disk is full"
    results = Results()
    harness.main_fragment.settlement.defer(first.lock_numbers(), results, {"note": "x" * 100})
    harness.run_until_idle()
    assert results[0] is not None
    first.grant(1)
    harness.run_until_idle()
    assert delivery_counts_of(first) == [0, 1]


def test_q18_q19_a_full_disk_accepts_a_deferral_with_a_possible_duplicate_mark() -> None:
    harness = BrokerHarness()
    harness.send_stored(b"a")
    first = attach_exclusive(harness, 1, 1)
    harness.commit_log.disk_full_reason = "the disk is full"
    results = Results()
    harness.main_fragment.settlement.defer(first.lock_numbers(), results, {"x-ms-possible-duplicate": True})
    harness.run_until_idle()
    assert results == [None]
    assert counts_received_by_number(harness, 1) == [0]


def test_the_ranges_of_many_crashes_are_merged() -> None:
    ranges = [(number * 10_000, number * 10_000 + number) for number in range(3 * MAX_RANGES)]
    merged = _merge_ranges(ranges)
    assert len(merged) == MAX_RANGES
    assert all(any(first <= low and high <= last for first, last in merged) for low, high in ranges)


def test_q18_q19_a_new_receiver_finds_messages_the_previous_one_was_deferring() -> None:
    harness = BrokerHarness()
    harness.send_stored(b"0", b"1", b"2")
    first = attach_exclusive(harness, 1, 3)
    harness.main_fragment.settlement.defer(first.lock_numbers()[:1], Results())  # not on disk yet
    second = attach_exclusive_immediately(harness, 2)
    pages: list[list[bytes] | ServiceBusError] = []
    harness.main_fragment.browser.peek(1, 100, 1_000_000, pages.append, deferred_only=True)
    harness.run_until_idle()
    (page,) = pages
    assert isinstance(page, list)
    assert len(page) == 1, "otherwise it would come after the messages that are delivered now"
    second.grant(3)
    harness.run_until_idle()
    assert len(second.deliveries) == 2
