"""A receiver takes messages from all fragments, in turn, and never more than it has room for."""

from __future__ import annotations

import pytest

from tests.broker.consumers import FakeConsumer, Results
from tests.broker.harness import PARTITIONED, STORES, BrokerHarness
from tests.broker.messages import key_for_fragment, message
from twinbus.broker.fragment.dispatcher import Dispatcher
from twinbus.model.description import FRAGMENT_COUNT
from twinbus.model.errors import EntityDeleted

EVERY = list(range(FRAGMENT_COUNT))


def fragments_of(consumer: FakeConsumer) -> list[int]:
    return [consumer.multi_fragment_receiver.fragment_of_tag(tag).number for _, tag in consumer.deliveries]


def fill(harness: BrokerHarness, count: int) -> None:
    """So many messages in each fragment."""
    harness.store_messages(*[message(b"%d" % number) for number in range(count * FRAGMENT_COUNT)])


@pytest.mark.parametrize("deletes", [False, True])
def test_q29_it_gets_what_any_fragment_has_and_no_more_than_it_asked_for(*, deletes: bool) -> None:
    rig = BrokerHarness(PARTITIONED)
    fill(rig, 3)
    consumer = rig.consumer(7, deletes=deletes)
    assert len(consumer.deliveries) == 7
    assert sum(len(main.in_flight.locks) for main in rig.main_fragments) == (0 if deletes else 7)
    consumer.grant(1_000)
    rig.run_until_idle()
    assert len(consumer.deliveries) == 3 * FRAGMENT_COUNT


def test_one_at_a_time_comes_from_each_fragment_in_turn() -> None:
    rig = BrokerHarness(PARTITIONED)
    fill(rig, 2)
    consumer = rig.consumer(1)  # the first that has looked gives the first
    consumer.deliveries.clear()
    for _ in range(FRAGMENT_COUNT):
        consumer.grant(1)
        rig.run_until_idle()
    assert sorted(fragments_of(consumer)) == EVERY


def test_who_drains_for_one_at_a_time_gets_them_from_each_in_turn_too() -> None:
    rig = BrokerHarness(PARTITIONED)
    fill(rig, 4)
    consumer = rig.consumer(1)
    consumer.deliveries.clear()
    for _ in range(FRAGMENT_COUNT):
        consumer.drain(1)
        rig.run_until_idle()
    assert consumer.drain_count == FRAGMENT_COUNT
    assert sorted(fragments_of(consumer)) == EVERY


def test_receivers_that_take_one_message_and_go_take_it_from_each_in_turn() -> None:
    rig = BrokerHarness(PARTITIONED)
    fill(rig, 8)
    seen = []
    for _ in range(FRAGMENT_COUNT):
        consumer = rig.consumer(1)
        seen += fragments_of(consumer)
        consumer.leave()
    assert len(set(seen)) >= STORES  # the store that answers first is the first; none is it always
    assert max(seen.count(number) for number in set(seen)) <= FRAGMENT_COUNT // STORES


def test_two_receivers_share_what_each_fragment_has() -> None:
    rig = BrokerHarness(PARTITIONED)
    one, other = rig.consumer(), rig.consumer()
    one.grant(1_000)
    other.grant(1_000)
    rig.run_until_idle()
    fill(rig, 10)
    assert len(one.deliveries) + len(other.deliveries) == 10 * FRAGMENT_COUNT
    assert min(len(one.deliveries), len(other.deliveries)) >= 3 * FRAGMENT_COUNT
    assert not set(one.bodies) & set(other.bodies)


def test_a_drain_ends_at_once_where_all_fragments_are_empty() -> None:
    rig = BrokerHarness(PARTITIONED)
    consumer = rig.consumer()
    consumer.drain(5)
    rig.run_until_idle()
    assert consumer.drain_count == 1


def test_a_drain_with_a_sick_fragment_gives_what_the_others_have_and_ends_after_a_tenth_of_a_second() -> None:
    rig = BrokerHarness(PARTITIONED)
    fill(rig, 1)
    rig.fail_stores(0)
    consumer = rig.consumer()
    consumer.drain(100)
    rig.run_until_idle()
    assert len(consumer.deliveries) == FRAGMENT_COUNT - FRAGMENT_COUNT // STORES
    assert consumer.drain_count == 0
    rig.advance(0.11)
    assert consumer.drain_count == 1


def test_a_drain_with_a_store_that_hangs_ends_after_a_tenth_of_a_second_and_what_comes_later_stays_free() -> None:
    rig = BrokerHarness(PARTITIONED)
    fill(rig, 1)
    rig.stores[0].hang()
    consumer = rig.consumer()
    consumer.drain(100)
    rig.run_until_idle()
    rig.advance(0.11)
    assert consumer.drain_count == 1
    rig.stores[0].resume()
    rig.run_until_idle()
    assert len(consumer.deliveries) == FRAGMENT_COUNT - FRAGMENT_COUNT // STORES
    assert sum(len(main.in_flight.locks) for main in rig.main_fragments) == len(consumer.deliveries)


def test_a_second_drain_while_the_first_waits_is_answered_once() -> None:
    rig = BrokerHarness(PARTITIONED)
    rig.fail_stores(0)
    consumer = rig.consumer()
    consumer.drain(1)
    rig.advance(0.05)
    consumer.drain(1)
    rig.advance(0.06)
    assert consumer.drain_count == 0
    rig.advance(0.06)
    assert consumer.drain_count == 1


def test_who_has_gone_is_known_to_no_fragment() -> None:
    rig = BrokerHarness(PARTITIONED)
    fill(rig, 1)
    rig.fail_stores(0)
    consumer = rig.consumer(3)
    consumer.drain(100)
    consumer.leave()
    rig.recover()
    rig.run_until_idle()
    rig.advance(1.0)
    for main in rig.main_fragments:
        assert isinstance(main.dispatcher, Dispatcher)
        assert not main.dispatcher.consumers
        assert not main.dispatcher._waiting_consumers  # noqa: SLF001
        assert not main.dispatcher._drain_callbacks  # noqa: SLF001
        assert not main.dispatcher.window.ready
    assert consumer.drain_count == 0


def test_a_store_that_comes_back_feeds_who_is_still_hungry() -> None:
    rig = BrokerHarness(PARTITIONED)
    fill(rig, 1)
    rig.fail_stores(0, 1)
    consumer = rig.consumer(100)
    assert len(consumer.deliveries) == FRAGMENT_COUNT // 2
    rig.recover()
    assert sorted(fragments_of(consumer)) == EVERY


def test_q29_room_that_a_failed_store_gives_back_is_filled_by_the_others() -> None:
    """A store fails while it deletes a message for a receiver, for which another fragment has one, too."""
    rig = BrokerHarness(PARTITIONED)
    rig.store_messages(message(b"a", key=key_for_fragment(0)), message(b"b", key=key_for_fragment(1)))
    consumer = rig.consumer(deletes=True)
    consumer.grant(1)
    while not consumer.reserved:
        rig.step()
    rig.stores[0].hang()
    rig.run_until_idle()
    assert consumer.deliveries == []
    rig.fail_next_sync(0)
    rig.stores[0].resume()
    rig.run_until_idle()
    assert rig.failed_logs
    assert consumer.bodies == [b"b"]
    rig.reopen()
    consumer.grant(1)
    rig.run_until_idle()
    assert consumer.bodies == [b"b", b"a"]


def test_what_was_locked_in_a_store_that_failed_is_given_again_and_the_old_lock_settles_nothing() -> None:
    rig = BrokerHarness(PARTITIONED)
    rig.store_messages(message(b"a", key=key_for_fragment(0)), message(b"b", key=key_for_fragment(1)))
    consumer = rig.consumer(10)
    rig.fail_stores(0)
    rig.recover()
    assert sorted(consumer.bodies) == [b"a", b"a", b"b"]
    stale = next(tag for (_, tag), body in zip(consumer.deliveries, consumer.bodies, strict=True) if body == b"a")
    fragment = consumer.multi_fragment_receiver.fragment_of_tag(stale)
    numbers, answers = fragment.lock_numbers([stale]), Results()
    assert fragment.settlement.complete(numbers, answers) == numbers
    rig.run_until_idle()
    assert answers == []
    assert rig.counts_by_fragment()[0] == 1


def test_all_that_is_completed_is_gone_after_a_crash_and_all_else_is_there() -> None:
    rig = BrokerHarness(PARTITIONED)
    fill(rig, 2)
    consumer = rig.consumer(FRAGMENT_COUNT + 3)
    answers = Results()
    consumer.complete(answers)
    rig.run_until_idle()
    assert set(answers) == {None}
    rig.crash()
    left = rig.consumer(1_000)
    assert len(left.deliveries) == FRAGMENT_COUNT - 3
    assert not set(left.bodies) & set(consumer.bodies)


def test_who_receives_from_a_queue_that_is_deleted_is_told_once() -> None:
    rig = BrokerHarness(PARTITIONED)
    consumer = rig.consumer(1)

    def leave(error: Exception) -> None:
        assert isinstance(error, EntityDeleted)
        consumer.errors.append(error)
        consumer.leave()

    consumer.force_detach = leave  # type: ignore[method-assign]
    rig.namespace.remove("orders")
    assert len(consumer.errors) == 1
