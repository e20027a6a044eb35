"""Messages whose time to live is over: dropped or dead-lettered, once, and never handed out."""

from __future__ import annotations

import pytest

from tests.broker.consumers import Answers
from tests.broker.messages import property_of
from tests.broker.rig import Rig
from twinbus.model.queue import QueueDescription

DEAD_LETTERING = QueueDescription(dead_lettering_on_expiration=True, lock_duration_ms=10_000)
DROPPING = QueueDescription(lock_duration_ms=10_000)


def test_an_expired_message_is_dropped_by_itself() -> None:
    rig = Rig(DROPPING)
    rig.stored(b"short", ttl_ms=2_000)
    rig.stored(b"long", ttl_ms=60_000)
    rig.stored(b"for ever")
    rig.wait(4)
    assert rig.counts() == (2, 0, 0, 0)
    assert rig.consumer(9).bodies == [b"long", b"for ever"]
    assert rig.rows() == 1


def test_an_expired_message_is_dead_lettered_with_its_reason() -> None:
    rig = Rig(DEAD_LETTERING)
    rig.stored(b"short", ttl_ms=2_000)
    rig.wait(4)
    assert rig.counts() == (0, 0, 0, 1)
    [dead] = rig.consumer(9, of=rig.dead_letters).messages
    assert property_of(dead, "DeadLetterReason") == "TTLExpiredException"
    rig.wait(100)
    assert rig.counts() == (0, 0, 0, 1)


def test_the_queue_says_how_long_a_message_lives_at_most() -> None:
    rig = Rig(QueueDescription(default_time_to_live_ms=5_000, dead_lettering_on_expiration=True))
    for ttl_ms in (1_000, 60_000, None):
        rig.stored(b"x", ttl_ms=ttl_ms)
    rig.wait(3)
    assert rig.counts() == (2, 0, 0, 1)
    headers = [message.header for message in rig.consumer(9).messages]
    assert [header.ttl for header in headers if header] == [5_000, 5_000]


def test_a_message_that_is_over_is_not_handed_out_even_before_it_is_looked_for() -> None:
    rig = Rig(DEAD_LETTERING)
    rig.stored(b"short", ttl_ms=1_000)
    rig.stored(b"long")
    rig.clock.advance(1.001)
    assert rig.consumer(9).bodies == [b"long"]
    assert rig.counts() == (1, 0, 0, 1)


def test_who_has_a_message_may_settle_it_after_its_time() -> None:
    rig = Rig(DEAD_LETTERING)
    rig.stored(b"short", ttl_ms=2_000)
    consumer = rig.consumer(1)
    rig.wait(5)
    assert rig.counts() == (1, 0, 0, 0)
    answers = Answers()
    assert rig.main.settlement.complete(consumer.numbers(), answers) == []
    rig.settle()
    assert answers == [None]
    rig.wait(30)
    assert rig.counts() == (0, 0, 0, 0)
    assert rig.rows() == 0


@pytest.mark.parametrize("how", ["abandoned", "released", "lock expired"])
def test_a_message_that_comes_back_after_its_time_is_over(how: str) -> None:
    rig = Rig(DEAD_LETTERING)
    rig.stored(b"short", ttl_ms=2_000)
    consumer = rig.consumer(1)
    rig.wait(3)
    if how == "lock expired":
        rig.wait(8)
    else:
        settle = rig.main.settlement.abandon if how == "abandoned" else rig.main.settlement.release
        settle(consumer.numbers(), Answers())
        rig.settle()
    consumer.grant(5)
    rig.settle()
    rig.wait(15)
    assert len(consumer.deliveries) == 1
    assert rig.counts() == (0, 0, 0, 1)
    rig.wait(15)
    assert rig.rows() == 0


def test_many_expire_a_few_in_each_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("twinbus.broker.agenda.AT_ONCE", 3)
    rig = Rig(DEAD_LETTERING)
    for number in range(10):
        rig.stored(b"%d" % number, ttl_ms=1_000)
    rig.wait(3)
    for _ in range(5):
        rig.wait(0.01)
    assert rig.counts() == (0, 0, 0, 10)
    assert rig.consumer(20, of=rig.dead_letters).bodies == [b"%d" % number for number in range(10)]


def test_expiry_is_remembered_over_a_restart() -> None:
    rig = Rig(DEAD_LETTERING)
    rig.stored(b"short", ttl_ms=30_000)
    rig.restart()
    assert rig.counts() == (1, 0, 0, 0)
    rig.wait(31)
    rig.wait(11)
    assert rig.counts() == (0, 0, 0, 1)


def test_more_times_than_are_remembered_are_found_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("twinbus.broker.agenda.REMEMBERED", 4)
    rig = Rig(DROPPING)
    for number in range(20):
        rig.stored(b"x", ttl_ms=1_000 * (20 - number))
    for _ in range(40):
        rig.wait(1)
    assert rig.counts() == (0, 0, 0, 0)


def test_deferred_messages_and_dead_letters_do_not_expire() -> None:
    rig = Rig(DEAD_LETTERING)
    rig.stored(b"deferred", ttl_ms=2_000)
    rig.stored(b"dead", ttl_ms=2_000)
    first, second = rig.consumer(2).numbers()
    rig.main.settlement.defer([first], Answers())
    rig.main.settlement.dead_letter([second], Answers())
    rig.settle()
    rig.wait(100)
    assert rig.counts() == (0, 1, 0, 1)
