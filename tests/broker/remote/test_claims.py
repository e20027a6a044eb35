"""A receiver with an epoch has the fragments of all processes for itself."""

from __future__ import annotations

import pytest

from tests.broker.consumers import TestConsumer
from tests.broker.messages import key_for, message
from tests.broker.rig import PARTITIONED, Process, Rig
from twinbus.model.description import FRAGMENTS
from twinbus.model.errors import EntityClaimed, LinkStolen
from twinbus.model.path import SubQueue

FRAGMENT = 1
KEY = key_for(FRAGMENT)


def remote(rig: Rig, epoch: int | None = None, *, of: Process | None = None) -> TestConsumer:
    """A receiver of the fragments that the other process has."""
    process = of or rig.near
    fragments = [part.main for part in process.queue.parts if part.main.number % 2 != process.number]
    return rig.begun(TestConsumer(*fragments, epoch=epoch), 10)


def connected_to(rig: Rig, process: Process, epoch: int) -> TestConsumer:
    """A receiver of all fragments, as the process that it is connected to makes it."""
    fragments = process.fragments
    claim = process.queue.claim_of(SubQueue.MAIN)
    claim.check("orders", epoch, others=False)
    claim.displace("orders", epoch, fragments)
    receiver = TestConsumer(*fragments, epoch=epoch)
    claim.take(receiver, epoch, fragments)
    return rig.begun(receiver, 100)


def left(rig: Rig, process: Process, receiver: TestConsumer) -> None:
    """It has gone, and has settled nothing."""
    receiver.leave()
    process.queue.claim_of(SubQueue.MAIN).give_up(receiver)
    rig.settle()


def test_who_has_no_epoch_is_refused_while_one_has_the_entity() -> None:
    rig = Rig(PARTITIONED, processes=2)
    holder = remote(rig, 1)
    other = remote(rig)
    assert not holder.errors
    assert isinstance(other.errors[0], EntityClaimed)
    holder.leave()
    rig.settle()
    assert not remote(rig).errors


def test_a_higher_epoch_displaces_and_a_lower_one_is_refused() -> None:
    rig = Rig(PARTITIONED, processes=2)
    first = remote(rig, 5)
    lower = remote(rig, 4)
    assert isinstance(lower.errors[0], EntityClaimed)
    assert not first.errors
    second = remote(rig, 6)
    assert isinstance(first.errors[0], LinkStolen)
    rig.store_messages(message(b"one", key=KEY))
    assert second.bodies == [b"one"]
    assert first.bodies == []


def test_who_displaces_gets_what_the_one_before_had_under_locks() -> None:
    rig = Rig(PARTITIONED, processes=2)
    rig.store_messages(message(b"one", key=KEY), message(b"two", key=KEY))
    assert remote(rig, 1).bodies == [b"one", b"two"]
    assert remote(rig, 2).bodies == [b"one", b"two"]


def test_a_claim_goes_with_the_process_that_its_holder_is_connected_to() -> None:
    rig = Rig(PARTITIONED, processes=2)
    remote(rig, 1)
    rig.disconnect()
    rig.connect()
    claim = rig.far.queue.claim_of(SubQueue.MAIN)
    assert claim.holder is not None  # it came back with its process, and so did its claim
    assert claim.epoch == 1


@pytest.mark.parametrize("is_near_first", [True, False])
def test_who_comes_by_another_process_gets_what_one_that_has_gone_had_under_locks(*, is_near_first: bool) -> None:
    rig = Rig(PARTITIONED, processes=2)
    bodies = [b"%d" % number for number in range(FRAGMENTS)]
    rig.store_messages(*[message(body, key=key_for(number)) for number, body in enumerate(bodies)])
    first, second = (rig.near, rig.far) if is_near_first else (rig.far, rig.near)
    gone = connected_to(rig, first, 1)
    assert sorted(gone.bodies) == sorted(bodies)
    left(rig, first, gone)
    assert sorted(connected_to(rig, second, 2).bodies) == sorted(bodies)
