"""A jump of the wall clock by a day, forwards or back, loses no lock; expiry and schedules follow the wall clock."""

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


def test_no_message_lock_is_lost() -> None:
    harness = BrokerHarness(DEAD_LETTERING)
    harness.send_stored(b"a", b"b")
    consumer = harness.consumer(2)
    jump(harness, DAY_MS)
    assert all(harness.main_fragment.settlement.is_lock_valid(number) for number in consumer.lock_numbers())
    jump(harness, -2 * DAY_MS)
    results = Results()
    assert harness.main_fragment.settlement.complete(consumer.lock_numbers(), results) == []
    harness.run_until_idle()
    assert results == [None]
    assert len(consumer.deliveries) == 2


def test_no_session_lock_is_lost() -> None:
    harness = BrokerHarness(QueueDescription(requires_session=True, lock_duration_ms=30_000))
    harness.send_stored(b"a", session="s")
    consumer = harness.accept_session(credit=5)
    for by_ms in (DAY_MS, -2 * DAY_MS):
        jump(harness, by_ms)
        assert harness.main_fragment.find_session_lock(b"s", consumer) is consumer.session_lock
    assert consumer.errors == []
    assert len(consumer.deliveries) == 1


def test_expiry_and_schedules_follow_the_wall_clock() -> None:
    harness = BrokerHarness(DEAD_LETTERING)
    harness.send_stored(b"lives an hour", ttl_ms=3_600_000)
    harness.send_stored(b"due in an hour", due_ms=harness.clock.wall_ms() + 3_600_000)
    jump(harness, DAY_MS)
    assert harness.counts() == (1, 0, 0, 1)
    assert harness.consumer(9).bodies == [b"due in an hour"]


def test_expiry_and_schedules_wait_for_a_clock_that_was_set_back() -> None:
    harness = BrokerHarness(DEAD_LETTERING)
    harness.send_stored(b"lives an hour", ttl_ms=3_600_000)
    harness.send_stored(b"due in an hour", due_ms=harness.clock.wall_ms() + 3_600_000)
    jump(harness, -DAY_MS)
    harness.advance(4_000)
    assert harness.counts() == (1, 0, 1, 0)
    jump(harness, DAY_MS)
    harness.advance(11)
    assert harness.counts() == (1, 0, 0, 1)


def test_messages_sent_after_the_clock_was_set_back_use_the_new_time() -> None:
    harness = BrokerHarness(DEAD_LETTERING)
    harness.send_stored(b"before", ttl_ms=1_000)
    harness.advance(3)
    jump(harness, -DAY_MS)
    harness.send_stored(b"lives a minute", ttl_ms=60_000)
    harness.send_stored(b"due in a minute", due_ms=harness.clock.wall_ms() + 60_000)
    harness.advance(62)
    harness.advance(11)
    assert harness.counts() == (1, 0, 0, 2)
    assert harness.consumer(9).bodies == [b"due in a minute"]


def test_enqueued_times_never_decrease() -> None:
    harness = BrokerHarness()
    harness.send_stored(b"a")
    jump(harness, -DAY_MS)
    harness.send_stored(b"b")
    times = [annotation_of(message, "x-opt-enqueued-time") for message in harness.consumer(9).messages]
    assert times[0] <= times[1]


def test_no_scheduled_message_is_delivered_twice() -> None:
    harness = BrokerHarness(DEAD_LETTERING)
    harness.send_stored(b"later", due_ms=harness.clock.wall_ms() + 60_000)
    consumer = harness.consumer(9)
    for by_ms in (DAY_MS, -DAY_MS, DAY_MS, -2 * DAY_MS):
        jump(harness, by_ms)
    assert consumer.bodies == [b"later"]
