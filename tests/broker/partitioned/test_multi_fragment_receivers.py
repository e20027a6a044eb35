"""A receiver gets messages from all fragments in turn, and never more than its credit."""

from __future__ import annotations

import pytest

from tests.broker.consumers import FakeConsumer, Results
from tests.broker.harness import PARTITIONED, STORES, BrokerHarness
from tests.broker.messages import key_for_fragment, message
from twinbus.broker.fragment.dispatcher import Dispatcher
from twinbus.model.description import FRAGMENT_COUNT
from twinbus.model.errors import EntityDeleted

ALL_FRAGMENTS = list(range(FRAGMENT_COUNT))


def fragments_of(consumer: FakeConsumer) -> list[int]:
    return [consumer.multi_fragment_receiver.fragment_of_tag(tag).number for _, tag in consumer.deliveries]


def fill(harness: BrokerHarness, count: int) -> None:
    """Store `count` messages in each fragment."""
    harness.store_messages(*[message(b"%d" % number) for number in range(count * FRAGMENT_COUNT)])


@pytest.mark.parametrize("deletes", [False, True])
def test_q29_a_receiver_gets_messages_of_all_fragments_within_its_credit(*, deletes: bool) -> None:
    harness = BrokerHarness(PARTITIONED)
    fill(harness, 3)
    consumer = harness.consumer(7, deletes=deletes)
    assert len(consumer.deliveries) == 7
    assert sum(len(main.in_flight.locks) for main in harness.main_fragments) == (0 if deletes else 7)
    consumer.grant(1_000)
    harness.run_until_idle()
    assert len(consumer.deliveries) == 3 * FRAGMENT_COUNT


def test_single_messages_come_from_each_fragment_in_turn() -> None:
    harness = BrokerHarness(PARTITIONED)
    fill(harness, 2)
    consumer = harness.consumer(1)  # comes from the fragment that was read first
    consumer.deliveries.clear()
    for _ in range(FRAGMENT_COUNT):
        consumer.grant(1)
        harness.run_until_idle()
    assert sorted(fragments_of(consumer)) == ALL_FRAGMENTS


def test_drained_single_messages_come_from_each_fragment_in_turn() -> None:
    harness = BrokerHarness(PARTITIONED)
    fill(harness, 4)
    consumer = harness.consumer(1)
    consumer.deliveries.clear()
    for _ in range(FRAGMENT_COUNT):
        consumer.drain(1)
        harness.run_until_idle()
    assert consumer.drain_count == FRAGMENT_COUNT
    assert sorted(fragments_of(consumer)) == ALL_FRAGMENTS


def test_receivers_of_one_message_get_it_from_each_fragment_in_turn() -> None:
    harness = BrokerHarness(PARTITIONED)
    fill(harness, 8)
    seen = []
    for _ in range(FRAGMENT_COUNT):
        consumer = harness.consumer(1)
        seen += fragments_of(consumer)
        consumer.leave()
    assert len(set(seen)) >= STORES  # the first store to respond delivers, and not always the same one
    assert max(seen.count(number) for number in set(seen)) <= FRAGMENT_COUNT // STORES


def test_two_receivers_share_the_messages_of_each_fragment() -> None:
    harness = BrokerHarness(PARTITIONED)
    first, second = harness.consumer(), harness.consumer()
    first.grant(1_000)
    second.grant(1_000)
    harness.run_until_idle()
    fill(harness, 10)
    assert len(first.deliveries) + len(second.deliveries) == 10 * FRAGMENT_COUNT
    assert min(len(first.deliveries), len(second.deliveries)) >= 3 * FRAGMENT_COUNT
    assert not set(first.bodies) & set(second.bodies)


def test_a_drain_ends_at_once_if_all_fragments_are_empty() -> None:
    harness = BrokerHarness(PARTITIONED)
    consumer = harness.consumer()
    consumer.drain(5)
    harness.run_until_idle()
    assert consumer.drain_count == 1


def test_a_drain_with_a_failed_store_delivers_the_rest_and_ends_after_a_tenth_of_a_second() -> None:
    harness = BrokerHarness(PARTITIONED)
    fill(harness, 1)
    harness.fail_stores(0)
    consumer = harness.consumer()
    consumer.drain(100)
    harness.run_until_idle()
    assert len(consumer.deliveries) == FRAGMENT_COUNT - FRAGMENT_COUNT // STORES
    assert consumer.drain_count == 0
    harness.advance(0.11)
    assert consumer.drain_count == 1


def test_a_drain_with_a_hanging_store_ends_and_later_messages_stay_unlocked() -> None:
    harness = BrokerHarness(PARTITIONED)
    fill(harness, 1)
    harness.stores[0].hang()
    consumer = harness.consumer()
    consumer.drain(100)
    harness.run_until_idle()
    harness.advance(0.11)
    assert consumer.drain_count == 1
    harness.stores[0].resume()
    harness.run_until_idle()
    assert len(consumer.deliveries) == FRAGMENT_COUNT - FRAGMENT_COUNT // STORES
    assert sum(len(main.in_flight.locks) for main in harness.main_fragments) == len(consumer.deliveries)


def test_two_overlapping_drains_end_once() -> None:
    harness = BrokerHarness(PARTITIONED)
    harness.fail_stores(0)
    consumer = harness.consumer()
    consumer.drain(1)
    harness.advance(0.05)
    consumer.drain(1)
    harness.advance(0.06)
    assert consumer.drain_count == 0
    harness.advance(0.06)
    assert consumer.drain_count == 1


def test_no_fragment_keeps_a_detached_receiver() -> None:
    harness = BrokerHarness(PARTITIONED)
    fill(harness, 1)
    harness.fail_stores(0)
    consumer = harness.consumer(3)
    consumer.drain(100)
    consumer.leave()
    harness.recover()
    harness.run_until_idle()
    harness.advance(1.0)
    for main in harness.main_fragments:
        assert isinstance(main.dispatcher, Dispatcher)
        assert not main.dispatcher.consumers
        assert not main.dispatcher._waiting_consumers  # noqa: SLF001
        assert not main.dispatcher._drain_callbacks  # noqa: SLF001
        assert not main.dispatcher.window.ready
    assert consumer.drain_count == 0


def test_a_recovered_store_delivers_to_receivers_with_credit() -> None:
    harness = BrokerHarness(PARTITIONED)
    fill(harness, 1)
    harness.fail_stores(0, 1)
    consumer = harness.consumer(100)
    assert len(consumer.deliveries) == FRAGMENT_COUNT // 2
    harness.recover()
    assert sorted(fragments_of(consumer)) == ALL_FRAGMENTS


def test_q29_credit_returned_by_a_failed_store_is_used_by_the_others() -> None:
    """A store fails while it deletes a message for a receiver; another fragment has a message, too."""
    harness = BrokerHarness(PARTITIONED)
    harness.store_messages(message(b"a", key=key_for_fragment(0)), message(b"b", key=key_for_fragment(1)))
    consumer = harness.consumer(deletes=True)
    consumer.grant(1)
    while not consumer.reserved:
        harness.step()
    harness.stores[0].hang()
    harness.run_until_idle()
    assert consumer.deliveries == []
    harness.fail_next_sync(0)
    harness.stores[0].resume()
    harness.run_until_idle()
    assert harness.failed_logs
    assert consumer.bodies == [b"b"]
    harness.reopen()
    consumer.grant(1)
    harness.run_until_idle()
    assert consumer.bodies == [b"b", b"a"]


def test_messages_locked_in_a_failed_store_are_redelivered_and_old_locks_are_invalid() -> None:
    harness = BrokerHarness(PARTITIONED)
    harness.store_messages(message(b"a", key=key_for_fragment(0)), message(b"b", key=key_for_fragment(1)))
    consumer = harness.consumer(10)
    harness.fail_stores(0)
    harness.recover()
    assert sorted(consumer.bodies) == [b"a", b"a", b"b"]
    stale = next(tag for (_, tag), body in zip(consumer.deliveries, consumer.bodies, strict=True) if body == b"a")
    fragment = consumer.multi_fragment_receiver.fragment_of_tag(stale)
    numbers, results = fragment.lock_numbers([stale]), Results()
    assert fragment.settlement.complete(numbers, results) == numbers
    harness.run_until_idle()
    assert results == []
    assert harness.counts_by_fragment()[0] == 1


def test_after_a_crash_only_completed_messages_are_gone() -> None:
    harness = BrokerHarness(PARTITIONED)
    fill(harness, 2)
    consumer = harness.consumer(FRAGMENT_COUNT + 3)
    results = Results()
    consumer.complete(results)
    harness.run_until_idle()
    assert set(results) == {None}
    harness.crash()
    left = harness.consumer(1_000)
    assert len(left.deliveries) == FRAGMENT_COUNT - 3
    assert not set(left.bodies) & set(consumer.bodies)


def test_a_receiver_of_a_deleted_queue_gets_one_error() -> None:
    harness = BrokerHarness(PARTITIONED)
    consumer = harness.consumer(1)

    def leave(error: Exception) -> None:
        assert isinstance(error, EntityDeleted)
        consumer.errors.append(error)
        consumer.leave()

    consumer.force_detach = leave  # type: ignore[method-assign]
    harness.namespace.remove("orders")
    assert len(consumer.errors) == 1
