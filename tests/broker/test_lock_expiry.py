"""A lock that expires gives its message back, with a delivery more on its count, whatever other locks there are."""

from __future__ import annotations

import pytest

from tests.broker.consumers import Answers
from tests.broker.rig import Rig
from twinbus.model.errors import MessageLockLost
from twinbus.model.queue import QueueDescription


def shorten(rig: Rig, duration_ms: int) -> None:
    rig.namespace.update_queue(rig.path, QueueDescription(lock_duration_ms=duration_ms), updated_ms=0)


def test_the_message_comes_back_counted() -> None:
    rig = Rig(QueueDescription(lock_duration_ms=5_000))
    rig.stored(b"1")
    consumer = rig.consumer(1)
    rig.wait(4.9)
    consumer.grant(1)
    assert len(consumer.deliveries) == 1
    rig.wait(0.2)
    assert [message.header.delivery_count for message in consumer.messages if message.header] == [0, 1]


def test_a_jump_of_the_wall_clock_expires_no_lock() -> None:
    rig = Rig(QueueDescription(lock_duration_ms=5_000))
    rig.stored(b"1")
    consumer = rig.consumer(1)
    rig.clock.set_wall_ms(rig.clock.wall_ms() + 86_400_000)
    rig.wait(1)
    answers = Answers()
    assert rig.main.settlement.complete(consumer.numbers(), answers) == []
    rig.settle()
    assert answers == [None]


def test_a_lock_of_a_duration_that_was_made_shorter_expires_before_older_ones() -> None:
    rig = Rig(QueueDescription(lock_duration_ms=300_000))
    rig.stored(b"long", b"short")
    consumer = rig.consumer(1)
    shorten(rig, 5_000)
    consumer.grant(1)
    consumer.grant(1)
    rig.wait(5.1)
    assert consumer.bodies == [b"long", b"short", b"short"]


def test_a_lock_renewed_for_a_duration_that_was_made_shorter_expires_then() -> None:
    rig = Rig(QueueDescription(lock_duration_ms=300_000))
    rig.stored(b"1")
    consumer = rig.consumer(1)
    shorten(rig, 5_000)
    rig.main.settlement.renew(consumer.numbers()[0])
    consumer.grant(1)
    rig.wait(5.1)
    assert consumer.bodies == [b"1", b"1"]


def test_a_renewed_lock_lasts_its_duration_from_then() -> None:
    rig = Rig(QueueDescription(lock_duration_ms=5_000))
    rig.stored(b"1")
    consumer = rig.consumer(1)
    rig.wait(4)
    assert rig.main.settlement.renew(consumer.numbers()[0]) == rig.clock.wall_ms() + 5_000
    rig.wait(4)
    assert rig.main.settlement.holds(consumer.numbers()[0])
    rig.wait(2)
    with pytest.raises(MessageLockLost):
        rig.main.settlement.renew(consumer.numbers()[0])


def test_many_locks_expire_a_few_in_each_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("twinbus.broker.settlement.EXPIRE_AT_ONCE", 2)
    rig = Rig(QueueDescription(lock_duration_ms=5_000))
    rig.stored(*[b"%d" % number for number in range(5)])
    consumer = rig.consumer(5)
    consumer.credit = 100
    rig.wait(5)
    rig.main.line.feed(consumer)
    assert len(consumer.deliveries) == 7
    rig.wait(0.02)
    rig.wait(0.02)
    assert len(consumer.deliveries) == 10
