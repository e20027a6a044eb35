"""Messages whose time to live is over: dropped or dead-lettered, once, and never handed out."""

from __future__ import annotations

import pytest

from tests.broker.consumers import Results
from tests.broker.harness import BrokerHarness
from tests.broker.messages import property_of
from twinbus.model.queue import QueueDescription

DEAD_LETTERING = QueueDescription(dead_lettering_on_expiration=True, lock_duration_ms=10_000)
DROPPING = QueueDescription(lock_duration_ms=10_000)


def test_an_expired_message_is_dropped_by_itself() -> None:
    rig = BrokerHarness(DROPPING)
    rig.send_stored(b"short", ttl_ms=2_000)
    rig.send_stored(b"long", ttl_ms=60_000)
    rig.send_stored(b"for ever")
    rig.advance(4)
    assert rig.counts() == (2, 0, 0, 0)
    assert rig.consumer(9).bodies == [b"long", b"for ever"]
    assert rig.index_row_count() == 1


def test_an_expired_message_is_dead_lettered_with_its_reason() -> None:
    rig = BrokerHarness(DEAD_LETTERING)
    rig.send_stored(b"short", ttl_ms=2_000)
    rig.advance(4)
    assert rig.counts() == (0, 0, 0, 1)
    [dead] = rig.consumer(9, of=rig.dead_letters).messages
    assert property_of(dead, "DeadLetterReason") == "TTLExpiredException"
    rig.advance(100)
    assert rig.counts() == (0, 0, 0, 1)


def test_the_queue_says_how_long_a_message_lives_at_most() -> None:
    rig = BrokerHarness(QueueDescription(default_time_to_live_ms=5_000, dead_lettering_on_expiration=True))
    for ttl_ms in (1_000, 60_000, None):
        rig.send_stored(b"x", ttl_ms=ttl_ms)
    rig.advance(3)
    assert rig.counts() == (2, 0, 0, 1)
    headers = [message.header for message in rig.consumer(9).messages]
    assert [header.ttl for header in headers if header] == [5_000, 5_000]


def test_a_message_that_is_over_is_not_handed_out_even_before_it_is_looked_for() -> None:
    rig = BrokerHarness(DEAD_LETTERING)
    rig.send_stored(b"short", ttl_ms=1_000)
    rig.send_stored(b"long")
    rig.clock.advance(1.001)
    assert rig.consumer(9).bodies == [b"long"]
    assert rig.counts() == (1, 0, 0, 1)


def test_who_has_a_message_may_settle_it_after_its_time() -> None:
    rig = BrokerHarness(DEAD_LETTERING)
    rig.send_stored(b"short", ttl_ms=2_000)
    consumer = rig.consumer(1)
    rig.advance(5)
    assert rig.counts() == (1, 0, 0, 0)
    answers = Results()
    assert rig.main_fragment.settlement.complete(consumer.lock_numbers(), answers) == []
    rig.run_until_idle()
    assert answers == [None]
    rig.advance(30)
    assert rig.counts() == (0, 0, 0, 0)
    assert rig.index_row_count() == 0


@pytest.mark.parametrize("how", ["abandoned", "released", "lock expired"])
def test_a_message_that_comes_back_after_its_time_is_over(how: str) -> None:
    rig = BrokerHarness(DEAD_LETTERING)
    rig.send_stored(b"short", ttl_ms=2_000)
    consumer = rig.consumer(1)
    rig.advance(3)
    if how == "lock expired":
        rig.advance(8)
    else:
        settle = rig.main_fragment.settlement.abandon if how == "abandoned" else rig.main_fragment.settlement.release
        settle(consumer.lock_numbers(), Results())
        rig.run_until_idle()
    consumer.grant(5)
    rig.run_until_idle()
    rig.advance(15)
    assert len(consumer.deliveries) == 1
    assert rig.counts() == (0, 0, 0, 1)
    rig.advance(15)
    assert rig.index_row_count() == 0


def test_many_expire_a_few_in_each_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("twinbus.broker.fragment.time_index.SCAN_BATCH_SIZE", 3)
    rig = BrokerHarness(DEAD_LETTERING)
    for number in range(10):
        rig.send_stored(b"%d" % number, ttl_ms=1_000)
    rig.advance(3)
    for _ in range(5):
        rig.advance(0.01)
    assert rig.counts() == (0, 0, 0, 10)
    assert rig.consumer(20, of=rig.dead_letters).bodies == [b"%d" % number for number in range(10)]


def test_expiry_is_remembered_over_a_restart() -> None:
    rig = BrokerHarness(DEAD_LETTERING)
    rig.send_stored(b"short", ttl_ms=30_000)
    rig.restart()
    assert rig.counts() == (1, 0, 0, 0)
    rig.advance(31)
    rig.advance(11)
    assert rig.counts() == (0, 0, 0, 1)


def test_more_times_than_are_remembered_are_found_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("twinbus.broker.fragment.time_index.MAX_REMEMBERED_SECONDS", 4)
    rig = BrokerHarness(DROPPING)
    for number in range(20):
        rig.send_stored(b"x", ttl_ms=1_000 * (20 - number))
    for _ in range(40):
        rig.advance(1)
    assert rig.counts() == (0, 0, 0, 0)


def test_deferred_messages_and_dead_letters_do_not_expire() -> None:
    rig = BrokerHarness(DEAD_LETTERING)
    rig.send_stored(b"deferred", ttl_ms=2_000)
    rig.send_stored(b"dead", ttl_ms=2_000)
    first, second = rig.consumer(2).lock_numbers()
    rig.main_fragment.settlement.defer([first], Results())
    rig.main_fragment.settlement.dead_letter([second], Results())
    rig.run_until_idle()
    rig.advance(100)
    assert rig.counts() == (0, 1, 0, 1)
