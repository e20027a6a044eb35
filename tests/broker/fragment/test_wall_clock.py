"""The wall clock jumps a day, forwards and back: no lock is lost, and what goes by the wall goes by it."""

from __future__ import annotations

from tests.broker.consumers import Results
from tests.broker.harness import BrokerHarness
from tests.broker.messages import annotation_of
from twinbus.model.queue import QueueDescription

DAY_MS = 86_400_000
DEAD_LETTERING = QueueDescription(dead_lettering_on_expiration=True, lock_duration_ms=30_000)


def jump(harness: BrokerHarness, by_ms: int) -> None:
    harness.clock.set_wall_ms(harness.clock.wall_ms() + by_ms)
    harness.advance(1)


def test_no_lock_is_lost() -> None:
    rig = BrokerHarness(DEAD_LETTERING)
    rig.send_stored(b"a", b"b")
    consumer = rig.consumer(2)
    jump(rig, DAY_MS)
    assert all(rig.main_fragment.settlement.is_lock_valid(number) for number in consumer.lock_numbers())
    jump(rig, -2 * DAY_MS)
    answers = Results()
    assert rig.main_fragment.settlement.complete(consumer.lock_numbers(), answers) == []
    rig.run_until_idle()
    assert answers == [None]
    assert len(consumer.deliveries) == 2


def test_no_session_is_lost() -> None:
    rig = BrokerHarness(QueueDescription(requires_session=True, lock_duration_ms=30_000))
    rig.send_stored(b"a", session="s")
    consumer = rig.accept_session(credit=5)
    for by_ms in (DAY_MS, -2 * DAY_MS):
        jump(rig, by_ms)
        assert rig.main_fragment.find_session_lock(b"s", consumer) is consumer.session_lock
    assert consumer.errors == []
    assert len(consumer.deliveries) == 1


def test_times_to_live_and_schedules_go_by_the_wall() -> None:
    rig = BrokerHarness(DEAD_LETTERING)
    rig.send_stored(b"lives an hour", ttl_ms=3_600_000)
    rig.send_stored(b"due in an hour", due_ms=rig.clock.wall_ms() + 3_600_000)
    jump(rig, DAY_MS)
    assert rig.counts() == (1, 0, 0, 1)
    assert rig.consumer(9).bodies == [b"due in an hour"]


def test_set_back_they_wait_for_the_wall() -> None:
    rig = BrokerHarness(DEAD_LETTERING)
    rig.send_stored(b"lives an hour", ttl_ms=3_600_000)
    rig.send_stored(b"due in an hour", due_ms=rig.clock.wall_ms() + 3_600_000)
    jump(rig, -DAY_MS)
    rig.advance(4_000)
    assert rig.counts() == (1, 0, 1, 0)
    jump(rig, DAY_MS)
    rig.advance(11)
    assert rig.counts() == (1, 0, 0, 1)


def test_what_is_sent_after_the_clock_was_set_back_goes_by_the_new_time() -> None:
    rig = BrokerHarness(DEAD_LETTERING)
    rig.send_stored(b"before", ttl_ms=1_000)
    rig.advance(3)
    jump(rig, -DAY_MS)
    rig.send_stored(b"lives a minute", ttl_ms=60_000)
    rig.send_stored(b"due in a minute", due_ms=rig.clock.wall_ms() + 60_000)
    rig.advance(62)
    rig.advance(11)
    assert rig.counts() == (1, 0, 0, 2)
    assert rig.consumer(9).bodies == [b"due in a minute"]


def test_no_message_seems_older_than_one_before_it() -> None:
    rig = BrokerHarness()
    rig.send_stored(b"a")
    jump(rig, -DAY_MS)
    rig.send_stored(b"b")
    times = [annotation_of(message, "x-opt-enqueued-time") for message in rig.consumer(9).messages]
    assert times[0] <= times[1]


def test_nothing_is_delivered_twice() -> None:
    rig = BrokerHarness(DEAD_LETTERING)
    rig.send_stored(b"later", due_ms=rig.clock.wall_ms() + 60_000)
    consumer = rig.consumer(9)
    for by_ms in (DAY_MS, -DAY_MS, DAY_MS, -2 * DAY_MS):
        jump(rig, by_ms)
    assert consumer.bodies == [b"later"]
