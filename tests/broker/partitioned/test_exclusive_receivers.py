"""A claim is on all fragments together: who takes a place gets what the one before had in any of them."""

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
    """As the gateway does it."""
    claim = harness.queue.exclusive_receiver_of(SubQueue.MAIN)
    others = any(main.dispatcher.consumers for main in harness.main_fragments)
    claim.check_epoch("orders", epoch, has_other_receivers=others)
    claim.displace("orders", epoch, harness.main_fragments)
    consumer = harness.consumer()
    claim.assign(consumer, epoch, harness.main_fragments)
    consumer.grant(credit)
    harness.run_until_idle()
    return consumer


def test_what_the_first_has_in_all_fragments_is_the_seconds() -> None:
    rig = BrokerHarness(PARTITIONED)
    rig.store_messages(*[message(b"%d" % number) for number in range(2 * FRAGMENT_COUNT)])
    first = attach_exclusive(rig, 1, 2 * FRAGMENT_COUNT)
    assert len(first.deliveries) == 2 * FRAGMENT_COUNT
    first.leave()
    rig.queue.exclusive_receiver_of(SubQueue.MAIN).release(first)
    second = attach_exclusive(rig, 2, 100)
    assert sorted(second.bodies) == sorted(first.bodies)


def test_a_lower_epoch_is_refused_and_a_higher_one_takes_the_place() -> None:
    rig = BrokerHarness(PARTITIONED)
    rig.store_messages(*[message() for _ in range(FRAGMENT_COUNT)])
    first = attach_exclusive(rig, 5, FRAGMENT_COUNT)
    with pytest.raises(EntityClaimed):
        rig.queue.exclusive_receiver_of(SubQueue.MAIN).check_epoch("orders", 4, has_other_receivers=True)
    second = attach_exclusive(rig, 6, FRAGMENT_COUNT)
    assert isinstance(first.errors[0], LinkStolen)
    assert len(second.deliveries) == FRAGMENT_COUNT


def test_a_store_that_was_lost_meanwhile_has_no_locks_to_free_and_the_others_have() -> None:
    rig = BrokerHarness(PARTITIONED)
    rig.store_messages(*[message(b"%d" % number) for number in range(FRAGMENT_COUNT)])
    first = attach_exclusive(rig, 1, FRAGMENT_COUNT)
    first.leave()
    rig.fail_stores(0)
    rig.queue.exclusive_receiver_of(SubQueue.MAIN).release(first)
    second = attach_exclusive(rig, 2, 100)
    assert len(second.deliveries) == FRAGMENT_COUNT - FRAGMENT_COUNT // 4
    rig.recover()
    assert sorted(second.bodies) == sorted(first.bodies)


def test_whoever_receives_from_any_fragment_keeps_a_claim_away() -> None:
    rig = BrokerHarness(PARTITIONED)
    rig.consumer()
    with pytest.raises(EntityClaimed):
        attach_exclusive(rig, 1, 1)
