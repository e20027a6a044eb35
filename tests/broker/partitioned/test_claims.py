"""A claim is on all fragments together: who takes a place gets what the one before had in any of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.broker.messages import message
from tests.broker.rig import PARTITIONED, Rig
from twinbus.model.description import FRAGMENTS
from twinbus.model.errors import EntityClaimed, LinkStolen
from twinbus.model.path import SubQueue

if TYPE_CHECKING:
    from tests.broker.consumers import TestConsumer


def claimed(rig: Rig, epoch: int, credit: int) -> TestConsumer:
    """As the gateway does it."""
    claim = rig.queue.claim_of(SubQueue.MAIN)
    others = any(main.line.consumers for main in rig.mains)
    claim.check("orders", epoch, others=others)
    claim.displace("orders", epoch, rig.mains)
    consumer = rig.consumer()
    claim.take(consumer, epoch, rig.mains)
    consumer.grant(credit)
    rig.settle()
    return consumer


def test_what_the_first_has_in_all_fragments_is_the_seconds() -> None:
    rig = Rig(PARTITIONED)
    rig.store_messages(*[message(b"%d" % number) for number in range(2 * FRAGMENTS)])
    first = claimed(rig, 1, 2 * FRAGMENTS)
    assert len(first.deliveries) == 2 * FRAGMENTS
    first.leave()
    rig.queue.claim_of(SubQueue.MAIN).give_up(first)
    second = claimed(rig, 2, 100)
    assert sorted(second.bodies) == sorted(first.bodies)


def test_a_lower_epoch_is_refused_and_a_higher_one_takes_the_place() -> None:
    rig = Rig(PARTITIONED)
    rig.store_messages(*[message() for _ in range(FRAGMENTS)])
    first = claimed(rig, 5, FRAGMENTS)
    with pytest.raises(EntityClaimed):
        rig.queue.claim_of(SubQueue.MAIN).check("orders", 4, others=True)
    second = claimed(rig, 6, FRAGMENTS)
    assert isinstance(first.errors[0], LinkStolen)
    assert len(second.deliveries) == FRAGMENTS


def test_a_store_that_was_lost_meanwhile_has_no_locks_to_free_and_the_others_have() -> None:
    rig = Rig(PARTITIONED)
    rig.store_messages(*[message(b"%d" % number) for number in range(FRAGMENTS)])
    first = claimed(rig, 1, FRAGMENTS)
    first.leave()
    rig.break_down(0)
    rig.queue.claim_of(SubQueue.MAIN).give_up(first)
    second = claimed(rig, 2, 100)
    assert len(second.deliveries) == FRAGMENTS - FRAGMENTS // 4
    rig.recover()
    assert sorted(second.bodies) == sorted(first.bodies)


def test_whoever_receives_from_any_fragment_keeps_a_claim_away() -> None:
    rig = Rig(PARTITIONED)
    rig.consumer()
    with pytest.raises(EntityClaimed):
        claimed(rig, 1, 1)
