"""Expired messages are dropped or dead-lettered, once, and never delivered."""

from __future__ import annotations

import pytest

from tests.broker.consumers import Results
from tests.broker.harness import BrokerHarness
from tests.broker.messages import property_of
from twinbus.model.queue import QueueDescription

DEAD_LETTERING = QueueDescription(dead_lettering_on_expiration=True, lock_duration_ms=10_000)
DROPPING = QueueDescription(lock_duration_ms=10_000)


def test_an_expired_message_is_dropped_without_a_receiver() -> None:
    harness = BrokerHarness(DROPPING)
    harness.send_stored(b"short", ttl_ms=2_000)
    harness.send_stored(b"long", ttl_ms=60_000)
    harness.send_stored(b"for ever")
    harness.advance(4)
    assert harness.counts() == (2, 0, 0, 0)
    assert harness.consumer(9).bodies == [b"long", b"for ever"]
    assert harness.index_row_count() == 1


def test_an_expired_message_is_dead_lettered_with_its_reason() -> None:
    harness = BrokerHarness(DEAD_LETTERING)
    harness.send_stored(b"short", ttl_ms=2_000)
    harness.advance(4)
    assert harness.counts() == (0, 0, 0, 1)
    [dead] = harness.consumer(9, of=harness.dead_letters).messages
    assert property_of(dead, "DeadLetterReason") == "TTLExpiredException"
    harness.advance(100)
    assert harness.counts() == (0, 0, 0, 1)


def test_the_default_time_to_live_of_the_queue_is_the_maximum() -> None:
    harness = BrokerHarness(QueueDescription(default_time_to_live_ms=5_000, dead_lettering_on_expiration=True))
    for ttl_ms in (1_000, 60_000, None):
        harness.send_stored(b"x", ttl_ms=ttl_ms)
    harness.advance(3)
    assert harness.counts() == (2, 0, 0, 1)
    headers = [message.header for message in harness.consumer(9).messages]
    assert [header.ttl for header in headers if header] == [5_000, 5_000]


def test_an_expired_message_is_not_delivered_even_before_the_expiry_scan() -> None:
    harness = BrokerHarness(DEAD_LETTERING)
    harness.send_stored(b"short", ttl_ms=1_000)
    harness.send_stored(b"long")
    harness.clock.advance(1.001)
    assert harness.consumer(9).bodies == [b"long"]
    assert harness.counts() == (1, 0, 0, 1)


def test_a_locked_message_can_be_settled_after_its_expiry() -> None:
    harness = BrokerHarness(DEAD_LETTERING)
    harness.send_stored(b"short", ttl_ms=2_000)
    consumer = harness.consumer(1)
    harness.advance(5)
    assert harness.counts() == (1, 0, 0, 0)
    results = Results()
    assert harness.main_fragment.settlement.complete(consumer.lock_numbers(), results) == []
    harness.run_until_idle()
    assert results == [None]
    harness.advance(30)
    assert harness.counts() == (0, 0, 0, 0)
    assert harness.index_row_count() == 0


@pytest.mark.parametrize("how", ["abandoned", "released", "lock expired"])
def test_a_message_that_returns_after_its_expiry_is_dead_lettered(how: str) -> None:
    harness = BrokerHarness(DEAD_LETTERING)
    harness.send_stored(b"short", ttl_ms=2_000)
    consumer = harness.consumer(1)
    harness.advance(3)
    if how == "lock expired":
        harness.advance(8)
    else:
        settle = (
            harness.main_fragment.settlement.abandon if how == "abandoned" else harness.main_fragment.settlement.release
        )
        settle(consumer.lock_numbers(), Results())
        harness.run_until_idle()
    consumer.grant(5)
    harness.run_until_idle()
    harness.advance(15)
    assert len(consumer.deliveries) == 1
    assert harness.counts() == (0, 0, 0, 1)
    harness.advance(15)
    assert harness.index_row_count() == 0


def test_many_messages_expire_a_few_per_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("twinbus.broker.fragment.time_index.SCAN_BATCH_SIZE", 3)
    harness = BrokerHarness(DEAD_LETTERING)
    for number in range(10):
        harness.send_stored(b"%d" % number, ttl_ms=1_000)
    harness.advance(3)
    for _ in range(5):
        harness.advance(0.01)
    assert harness.counts() == (0, 0, 0, 10)
    assert harness.consumer(20, of=harness.dead_letters).bodies == [b"%d" % number for number in range(10)]


def test_messages_expire_after_a_restart() -> None:
    harness = BrokerHarness(DEAD_LETTERING)
    harness.send_stored(b"short", ttl_ms=30_000)
    harness.restart()
    assert harness.counts() == (1, 0, 0, 0)
    harness.advance(31)
    harness.advance(11)
    assert harness.counts() == (0, 0, 0, 1)


def test_messages_expire_even_if_their_times_exceed_the_memory_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("twinbus.broker.fragment.time_index.MAX_REMEMBERED_SECONDS", 4)
    harness = BrokerHarness(DROPPING)
    for number in range(20):
        harness.send_stored(b"x", ttl_ms=1_000 * (20 - number))
    for _ in range(40):
        harness.advance(1)
    assert harness.counts() == (0, 0, 0, 0)


def test_deferred_messages_and_dead_letters_do_not_expire() -> None:
    harness = BrokerHarness(DEAD_LETTERING)
    harness.send_stored(b"deferred", ttl_ms=2_000)
    harness.send_stored(b"dead", ttl_ms=2_000)
    first, second = harness.consumer(2).lock_numbers()
    harness.main_fragment.settlement.defer([first], Results())
    harness.main_fragment.settlement.dead_letter([second], Results())
    harness.run_until_idle()
    harness.advance(100)
    assert harness.counts() == (0, 1, 0, 1)
