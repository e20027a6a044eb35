"""An expired lock returns its message with a higher delivery count, independently of other locks."""

from __future__ import annotations

import pytest

from tests.broker.consumers import FakeConsumer, Results
from tests.broker.harness import BrokerHarness
from twinbus.model.errors import MessageLockLost, StoreUnavailable
from twinbus.model.queue import QueueDescription


def shorten(harness: BrokerHarness, duration_ms: int) -> None:
    harness.namespace.update_queue(harness.path, QueueDescription(lock_duration_ms=duration_ms), updated_ms=0)


def test_a_message_returns_with_a_higher_delivery_count() -> None:
    harness = BrokerHarness(QueueDescription(lock_duration_ms=5_000))
    harness.send_stored(b"1")
    consumer = harness.consumer(1)
    harness.advance(4.9)
    consumer.grant(1)
    assert len(consumer.deliveries) == 1
    harness.advance(0.2)
    assert [message.header.delivery_count for message in consumer.messages if message.header] == [0, 1]


def consumer_of_hanging_disk(harness: BrokerHarness) -> FakeConsumer:
    """Return a consumer that holds a message of a disk that stopped responding."""
    harness.send_stored(b"1")
    consumer = harness.consumer(1)
    harness.store.hang()
    harness.send(b"2")
    harness.run_until_idle()
    harness.advance(10.1)
    return consumer


def test_a_release_during_a_disk_hang_returns_the_message_uncounted() -> None:
    harness = BrokerHarness()
    consumer, results = consumer_of_hanging_disk(harness), Results()
    assert harness.main_fragment.settlement.release(consumer.lock_numbers(), results) == []
    assert harness.main_fragment.settlement.release(consumer.lock_numbers(), results) == consumer.lock_numbers()
    consumer.grant(2)
    harness.advance(61)
    assert (consumer.bodies, results) == ([b"1"], [])
    harness.store.resume()
    harness.run_until_idle()
    assert (consumer.bodies, results) == ([b"1", b"2", b"1"], [None])
    assert [message.header.delivery_count for message in consumer.messages if message.header] == [0, 0, 0]


def test_a_release_during_a_disk_hang_frees_the_message_if_the_disk_fails() -> None:
    harness = BrokerHarness()
    consumer, results = consumer_of_hanging_disk(harness), Results()
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
    harness = BrokerHarness(QueueDescription(lock_duration_ms=5_000))
    harness.send_stored(b"1")
    consumer = harness.consumer(1)
    harness.clock.set_wall_ms(harness.clock.wall_ms() + 86_400_000)
    harness.advance(1)
    results = Results()
    assert harness.main_fragment.settlement.complete(consumer.lock_numbers(), results) == []
    harness.run_until_idle()
    assert results == [None]


def test_a_lock_of_a_reduced_duration_expires_before_older_locks() -> None:
    harness = BrokerHarness(QueueDescription(lock_duration_ms=300_000))
    harness.send_stored(b"long", b"short")
    consumer = harness.consumer(1)
    shorten(harness, 5_000)
    consumer.grant(1)
    consumer.grant(1)
    harness.advance(5.1)
    assert consumer.bodies == [b"long", b"short", b"short"]


def test_a_lock_renewed_after_the_duration_was_reduced_expires_earlier() -> None:
    harness = BrokerHarness(QueueDescription(lock_duration_ms=300_000))
    harness.send_stored(b"1")
    consumer = harness.consumer(1)
    shorten(harness, 5_000)
    harness.main_fragment.settlement.renew(consumer.lock_numbers()[0])
    consumer.grant(1)
    harness.advance(5.1)
    assert consumer.bodies == [b"1", b"1"]


def test_a_renewed_lock_lasts_its_duration_from_the_renewal() -> None:
    harness = BrokerHarness(QueueDescription(lock_duration_ms=5_000))
    harness.send_stored(b"1")
    consumer = harness.consumer(1)
    harness.advance(4)
    assert harness.main_fragment.settlement.renew(consumer.lock_numbers()[0]) == harness.clock.wall_ms() + 5_000
    harness.advance(4)
    assert harness.main_fragment.settlement.is_lock_valid(consumer.lock_numbers()[0])
    harness.advance(2)
    with pytest.raises(MessageLockLost):
        harness.main_fragment.settlement.renew(consumer.lock_numbers()[0])


def test_many_locks_expire_a_few_per_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("twinbus.broker.fragment.settlement.EXPIRY_BATCH_SIZE", 2)
    harness = BrokerHarness(QueueDescription(lock_duration_ms=5_000))
    harness.send_stored(*[b"%d" % number for number in range(5)])
    consumer = harness.consumer(5)
    consumer.credit = 100
    harness.advance(5)
    harness.main_fragment.dispatcher.dispatch_to(consumer)
    assert len(consumer.deliveries) == 7
    harness.advance(0.02)
    harness.advance(0.02)
    assert len(consumer.deliveries) == 10
