"""A receiver with an epoch has the fragments of all processes for itself."""

from __future__ import annotations

import pytest

from tests.broker.consumers import FakeConsumer
from tests.broker.harness import PARTITIONED, BrokerHarness, Process
from tests.broker.messages import key_for_fragment, message
from twinbus.model.description import FRAGMENT_COUNT
from twinbus.model.errors import EntityClaimed, LinkStolen
from twinbus.model.path import SubQueue

FRAGMENT = 1
KEY = key_for_fragment(FRAGMENT)


def remote(harness: BrokerHarness, epoch: int | None = None, *, of: Process | None = None) -> FakeConsumer:
    """A receiver of the fragments that the other process has."""
    process = of or harness.first_process
    fragments = [part.main for part in process.queue.parts if part.main.number % 2 != process.number]
    return harness.start_consumer(FakeConsumer(*fragments, epoch=epoch), 10)


def connected_to(harness: BrokerHarness, process: Process, epoch: int) -> FakeConsumer:
    """A receiver of all fragments, as the process that it is connected to makes it."""
    fragments = process.fragments
    claim = process.queue.exclusive_receiver_of(SubQueue.MAIN)
    claim.check_epoch("orders", epoch, has_other_receivers=False)
    claim.displace("orders", epoch, fragments)
    receiver = FakeConsumer(*fragments, epoch=epoch)
    claim.assign(receiver, epoch, fragments)
    return harness.start_consumer(receiver, 100)


def left(harness: BrokerHarness, process: Process, receiver: FakeConsumer) -> None:
    """It has gone, and has settled nothing."""
    receiver.leave()
    process.queue.exclusive_receiver_of(SubQueue.MAIN).release(receiver)
    harness.run_until_idle()


def test_who_has_no_epoch_is_refused_while_one_has_the_entity() -> None:
    rig = BrokerHarness(PARTITIONED, processes=2)
    holder = remote(rig, 1)
    other = remote(rig)
    assert not holder.errors
    assert isinstance(other.errors[0], EntityClaimed)
    holder.leave()
    rig.run_until_idle()
    assert not remote(rig).errors


def test_a_higher_epoch_displaces_and_a_lower_one_is_refused() -> None:
    rig = BrokerHarness(PARTITIONED, processes=2)
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
    rig = BrokerHarness(PARTITIONED, processes=2)
    rig.store_messages(message(b"one", key=KEY), message(b"two", key=KEY))
    assert remote(rig, 1).bodies == [b"one", b"two"]
    assert remote(rig, 2).bodies == [b"one", b"two"]


def test_a_claim_goes_with_the_process_that_its_holder_is_connected_to() -> None:
    rig = BrokerHarness(PARTITIONED, processes=2)
    remote(rig, 1)
    rig.disconnect()
    rig.connect()
    claim = rig.last_process.queue.exclusive_receiver_of(SubQueue.MAIN)
    assert claim.holder is not None  # it came back with its process, and so did its claim
    assert claim.epoch == 1


@pytest.mark.parametrize("is_near_first", [True, False])
def test_who_comes_by_another_process_gets_what_one_that_has_gone_had_under_locks(*, is_near_first: bool) -> None:
    rig = BrokerHarness(PARTITIONED, processes=2)
    bodies = [b"%d" % number for number in range(FRAGMENT_COUNT)]
    rig.store_messages(*[message(body, key=key_for_fragment(number)) for number, body in enumerate(bodies)])
    first, second = (rig.first_process, rig.last_process) if is_near_first else (rig.last_process, rig.first_process)
    gone = connected_to(rig, first, 1)
    assert sorted(gone.bodies) == sorted(bodies)
    left(rig, first, gone)
    assert sorted(connected_to(rig, second, 2).bodies) == sorted(bodies)
