"""An exclusive receiver owns all fragments of a queue: its successor gets the messages it had locked in any of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.broker.harness import PARTITIONED, BrokerHarness
from tests.broker.messages import message
from twinbus.model.description import FRAGMENT_COUNT
from twinbus.model.errors import EntityClaimed, LinkStolen
from twinbus.model.path import SubQueue

if TYPE_CHECKING:
    from tests.broker.consumers import FakeConsumer


def attach_exclusive(harness: BrokerHarness, epoch: int, credit: int) -> FakeConsumer:
    """Attach an exclusive receiver, as the gateway does."""
    exclusive_receiver = harness.queue.exclusive_receiver_of(SubQueue.MAIN)
    has_other_receivers = any(main.dispatcher.consumers for main in harness.main_fragments)
    exclusive_receiver.check_epoch("orders", epoch, has_other_receivers=has_other_receivers)
    exclusive_receiver.displace("orders", epoch, harness.main_fragments)
    consumer = harness.consumer()
    exclusive_receiver.assign(consumer, epoch, harness.main_fragments)
    consumer.grant(credit)
    harness.run_until_idle()
    return consumer


def test_a_new_receiver_gets_the_messages_of_its_predecessor_in_all_fragments() -> None:
    harness = BrokerHarness(PARTITIONED)
    harness.store_messages(*[message(b"%d" % number) for number in range(2 * FRAGMENT_COUNT)])
    first = attach_exclusive(harness, 1, 2 * FRAGMENT_COUNT)
    assert len(first.deliveries) == 2 * FRAGMENT_COUNT
    first.leave()
    harness.queue.exclusive_receiver_of(SubQueue.MAIN).release(first)
    second = attach_exclusive(harness, 2, 100)
    assert sorted(second.bodies) == sorted(first.bodies)


def test_a_lower_epoch_is_refused_and_a_higher_one_displaces_the_receiver() -> None:
    harness = BrokerHarness(PARTITIONED)
    harness.store_messages(*[message() for _ in range(FRAGMENT_COUNT)])
    first = attach_exclusive(harness, 5, FRAGMENT_COUNT)
    with pytest.raises(EntityClaimed):
        harness.queue.exclusive_receiver_of(SubQueue.MAIN).check_epoch("orders", 4, has_other_receivers=True)
    second = attach_exclusive(harness, 6, FRAGMENT_COUNT)
    assert isinstance(first.errors[0], LinkStolen)
    assert len(second.deliveries) == FRAGMENT_COUNT


def test_locks_are_freed_in_available_stores_if_one_store_failed() -> None:
    harness = BrokerHarness(PARTITIONED)
    harness.store_messages(*[message(b"%d" % number) for number in range(FRAGMENT_COUNT)])
    first = attach_exclusive(harness, 1, FRAGMENT_COUNT)
    first.leave()
    harness.fail_stores(0)
    harness.queue.exclusive_receiver_of(SubQueue.MAIN).release(first)
    second = attach_exclusive(harness, 2, 100)
    assert len(second.deliveries) == FRAGMENT_COUNT - FRAGMENT_COUNT // 4
    harness.recover()
    assert sorted(second.bodies) == sorted(first.bodies)


def test_an_exclusive_receiver_is_refused_while_there_are_other_receivers() -> None:
    harness = BrokerHarness(PARTITIONED)
    harness.consumer()
    with pytest.raises(EntityClaimed):
        attach_exclusive(harness, 1, 1)
