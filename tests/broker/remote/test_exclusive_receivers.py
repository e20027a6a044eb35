"""An exclusive receiver owns the fragments of all processes."""

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


def receive_remotely(harness: BrokerHarness, epoch: int | None = None, *, of: Process | None = None) -> FakeConsumer:
    """Attach a receiver of the fragments that the other process owns."""
    process = of or harness.first_process
    fragments = [part.main for part in process.queue.parts if part.main.number % 2 != process.number]
    return harness.start_consumer(FakeConsumer(*fragments, epoch=epoch), 10)


def attach_exclusive(harness: BrokerHarness, process: Process, epoch: int) -> FakeConsumer:
    """Attach an exclusive receiver of all fragments, as the process it is connected to does."""
    fragments = process.fragments
    exclusive_receiver = process.queue.exclusive_receiver_of(SubQueue.MAIN)
    exclusive_receiver.check_epoch("orders", epoch, has_other_receivers=False)
    exclusive_receiver.displace("orders", epoch, fragments)
    receiver = FakeConsumer(*fragments, epoch=epoch)
    exclusive_receiver.assign(receiver, epoch, fragments)
    return harness.start_consumer(receiver, 100)


def detach(harness: BrokerHarness, process: Process, receiver: FakeConsumer) -> None:
    """Detach a receiver that has settled nothing."""
    receiver.leave()
    process.queue.exclusive_receiver_of(SubQueue.MAIN).release(receiver)
    harness.run_until_idle()


def test_a_receiver_without_an_epoch_is_refused_while_there_is_an_exclusive_one() -> None:
    harness = BrokerHarness(PARTITIONED, processes=2)
    holder = receive_remotely(harness, 1)
    other = receive_remotely(harness)
    assert not holder.errors
    assert isinstance(other.errors[0], EntityClaimed)
    holder.leave()
    harness.run_until_idle()
    assert not receive_remotely(harness).errors


def test_a_higher_epoch_displaces_and_a_lower_one_is_refused() -> None:
    harness = BrokerHarness(PARTITIONED, processes=2)
    first = receive_remotely(harness, 5)
    lower = receive_remotely(harness, 4)
    assert isinstance(lower.errors[0], EntityClaimed)
    assert not first.errors
    second = receive_remotely(harness, 6)
    assert isinstance(first.errors[0], LinkStolen)
    harness.store_messages(message(b"one", key=KEY))
    assert second.bodies == [b"one"]
    assert first.bodies == []


def test_a_new_receiver_gets_the_messages_locked_by_its_predecessor() -> None:
    harness = BrokerHarness(PARTITIONED, processes=2)
    harness.store_messages(message(b"one", key=KEY), message(b"two", key=KEY))
    assert receive_remotely(harness, 1).bodies == [b"one", b"two"]
    assert receive_remotely(harness, 2).bodies == [b"one", b"two"]


def test_an_exclusive_receiver_is_restored_when_its_process_reconnects() -> None:
    harness = BrokerHarness(PARTITIONED, processes=2)
    receive_remotely(harness, 1)
    harness.disconnect()
    harness.connect()
    exclusive_receiver = harness.last_process.queue.exclusive_receiver_of(SubQueue.MAIN)
    assert exclusive_receiver.holder is not None  # the receiver and its epoch came back with its process
    assert exclusive_receiver.epoch == 1


@pytest.mark.parametrize("is_near_first", [True, False])
def test_a_receiver_of_another_process_gets_the_messages_of_a_detached_one(*, is_near_first: bool) -> None:
    harness = BrokerHarness(PARTITIONED, processes=2)
    bodies = [b"%d" % number for number in range(FRAGMENT_COUNT)]
    harness.store_messages(*[message(body, key=key_for_fragment(number)) for number, body in enumerate(bodies)])
    first, second = (
        (harness.first_process, harness.last_process)
        if is_near_first
        else (harness.last_process, harness.first_process)
    )
    gone = attach_exclusive(harness, first, 1)
    assert sorted(gone.bodies) == sorted(bodies)
    detach(harness, first, gone)
    assert sorted(attach_exclusive(harness, second, 2).bodies) == sorted(bodies)
