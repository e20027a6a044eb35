"""A lock that expires gives its message back, with a delivery more on its count, whatever other locks there are."""

from __future__ import annotations

import pytest

from tests.broker.consumers import FakeConsumer, Results
from tests.broker.harness import BrokerHarness
from twinbus.model.errors import MessageLockLost, StoreUnavailable
from twinbus.model.queue import QueueDescription


def shorten(harness: BrokerHarness, duration_ms: int) -> None:
    harness.namespace.update_queue(harness.path, QueueDescription(lock_duration_ms=duration_ms), updated_ms=0)


def test_the_message_comes_back_counted() -> None:
    rig = BrokerHarness(QueueDescription(lock_duration_ms=5_000))
    rig.send_stored(b"1")
    consumer = rig.consumer(1)
    rig.advance(4.9)
    consumer.grant(1)
    assert len(consumer.deliveries) == 1
    rig.advance(0.2)
    assert [message.header.delivery_count for message in consumer.messages if message.header] == [0, 1]


def consumer_of_silent_disk(harness: BrokerHarness) -> FakeConsumer:
    """Return a consumer that has a message of a disk that does not answer any more."""
    harness.send_stored(b"1")
    consumer = harness.consumer(1)
    harness.store.hang()
    harness.send(b"2")
    harness.run_until_idle()
    harness.advance(10.1)
    return consumer


def test_a_message_that_was_released_while_the_disk_was_silent_comes_back_uncounted_when_it_answers() -> None:
    harness = BrokerHarness()
    consumer, results = consumer_of_silent_disk(harness), Results()
    assert harness.main_fragment.settlement.release(consumer.lock_numbers(), results) == []
    assert harness.main_fragment.settlement.release(consumer.lock_numbers(), results) == consumer.lock_numbers()
    consumer.grant(2)
    harness.advance(61)
    assert (consumer.bodies, results) == ([b"1"], [])
    harness.store.resume()
    harness.run_until_idle()
    assert (consumer.bodies, results) == ([b"1", b"2", b"1"], [None])
    assert [message.header.delivery_count for message in consumer.messages if message.header] == [0, 0, 0]


def test_a_message_that_was_released_while_the_disk_was_silent_is_free_when_the_disk_fails() -> None:
    harness = BrokerHarness()
    consumer, results = consumer_of_silent_disk(harness), Results()
    harness.main_fragment.settlement.release(consumer.lock_numbers(), results)
    harness.fail_stores(0)
    assert [type(error) for error in results] == [StoreUnavailable]
    harness.store.resume()
    harness.recover()
    consumer.grant(1)
    harness.run_until_idle()
    assert consumer.bodies == [b"1", b"1"]
    assert len(results) == 1


def test_a_jump_of_the_wall_clock_expires_no_lock() -> None:
    rig = BrokerHarness(QueueDescription(lock_duration_ms=5_000))
    rig.send_stored(b"1")
    consumer = rig.consumer(1)
    rig.clock.set_wall_ms(rig.clock.wall_ms() + 86_400_000)
    rig.advance(1)
    answers = Results()
    assert rig.main_fragment.settlement.complete(consumer.lock_numbers(), answers) == []
    rig.run_until_idle()
    assert answers == [None]


def test_a_lock_of_a_duration_that_was_made_shorter_expires_before_older_ones() -> None:
    rig = BrokerHarness(QueueDescription(lock_duration_ms=300_000))
    rig.send_stored(b"long", b"short")
    consumer = rig.consumer(1)
    shorten(rig, 5_000)
    consumer.grant(1)
    consumer.grant(1)
    rig.advance(5.1)
    assert consumer.bodies == [b"long", b"short", b"short"]


def test_a_lock_renewed_for_a_duration_that_was_made_shorter_expires_then() -> None:
    rig = BrokerHarness(QueueDescription(lock_duration_ms=300_000))
    rig.send_stored(b"1")
    consumer = rig.consumer(1)
    shorten(rig, 5_000)
    rig.main_fragment.settlement.renew(consumer.lock_numbers()[0])
    consumer.grant(1)
    rig.advance(5.1)
    assert consumer.bodies == [b"1", b"1"]


def test_a_renewed_lock_lasts_its_duration_from_then() -> None:
    rig = BrokerHarness(QueueDescription(lock_duration_ms=5_000))
    rig.send_stored(b"1")
    consumer = rig.consumer(1)
    rig.advance(4)
    assert rig.main_fragment.settlement.renew(consumer.lock_numbers()[0]) == rig.clock.wall_ms() + 5_000
    rig.advance(4)
    assert rig.main_fragment.settlement.is_lock_valid(consumer.lock_numbers()[0])
    rig.advance(2)
    with pytest.raises(MessageLockLost):
        rig.main_fragment.settlement.renew(consumer.lock_numbers()[0])


def test_many_locks_expire_a_few_in_each_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("twinbus.broker.fragment.settlement.EXPIRY_BATCH_SIZE", 2)
    rig = BrokerHarness(QueueDescription(lock_duration_ms=5_000))
    rig.send_stored(*[b"%d" % number for number in range(5)])
    consumer = rig.consumer(5)
    consumer.credit = 100
    rig.advance(5)
    rig.main_fragment.dispatcher.dispatch_to(consumer)
    assert len(consumer.deliveries) == 7
    rig.advance(0.02)
    rig.advance(0.02)
    assert len(consumer.deliveries) == 10
