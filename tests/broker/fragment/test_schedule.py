"""Messages for later: active when their time has come, once and not before; or cancelled."""

from __future__ import annotations

import pytest

from tests.broker.consumers import Results
from tests.broker.harness import BrokerHarness
from tests.broker.messages import annotation_of
from twinbus.model.errors import MessageNotFound
from twinbus.model.queue import QueueDescription


def later(harness: BrokerHarness, seconds: float) -> int:
    return harness.clock.wall_ms() + round(seconds * 1000)


def test_a_scheduled_message_is_active_when_it_is_due_and_not_before() -> None:
    rig = BrokerHarness()
    rig.send_stored(b"later", due_ms=later(rig, 10))
    rig.send_stored(b"now")
    consumer = rig.consumer(9)
    assert consumer.bodies == [b"now"]
    assert rig.counts() == (1, 0, 1, 0)
    rig.advance(9.99)
    assert rig.counts() == (1, 0, 1, 0)
    rig.advance(0.01)
    assert consumer.bodies == [b"now", b"later"]
    assert rig.counts() == (2, 0, 0, 0)
    assert annotation_of(consumer.messages[1], "x-opt-sequence-number") == 3
    assert annotation_of(consumer.messages[1], "x-opt-enqueued-time") == rig.clock.wall_ms()


def test_a_time_in_the_past_is_now() -> None:
    rig = BrokerHarness()
    rig.send_stored(b"late", due_ms=later(rig, -10))
    assert rig.counts() == (1, 0, 0, 0)
    assert rig.consumer(1).bodies == [b"late"]


def test_its_time_to_live_begins_when_it_is_active() -> None:
    rig = BrokerHarness()
    rig.send_stored(b"later", due_ms=later(rig, 10), ttl_ms=5_000)
    rig.advance(10)
    rig.advance(4)
    assert rig.counts() == (1, 0, 0, 0)
    rig.advance(2)
    assert rig.counts() == (0, 0, 0, 0)


def test_they_become_active_in_the_order_of_their_times() -> None:
    rig = BrokerHarness()
    for seconds in (30, 10, 20):
        rig.send_stored(b"%d" % seconds, due_ms=later(rig, seconds))
    rig.advance(60)
    assert rig.consumer(9).bodies == [b"10", b"20", b"30"]


def test_many_become_active_a_few_in_each_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("twinbus.broker.fragment.time_index.SCAN_BATCH_SIZE", 3)
    rig = BrokerHarness()
    for number in range(10):
        rig.send_stored(b"%d" % number, due_ms=later(rig, 5))
    for _ in range(6):
        rig.advance(1)
    for _ in range(6):
        rig.advance(0.01)
    assert rig.consumer(20).bodies == [b"%d" % number for number in range(10)]


def test_a_cancelled_message_never_comes() -> None:
    rig = BrokerHarness()
    rig.send_stored(b"a", due_ms=later(rig, 10))
    rig.send_stored(b"b", due_ms=later(rig, 10))
    answers = Results()
    rig.main_fragment.schedule.cancel([1], answers)
    rig.run_until_idle()
    assert answers == [None]
    assert rig.counts() == (0, 0, 1, 0)
    rig.advance(20)
    assert rig.consumer(9).bodies == [b"b"]


def test_of_several_all_are_cancelled_or_none() -> None:
    rig = BrokerHarness()
    rig.send_stored(b"a", due_ms=later(rig, 10))
    answers = Results()
    rig.send_stored(b"active")
    rig.main_fragment.schedule.cancel([1, 2], answers)
    rig.run_until_idle()
    assert isinstance(answers[0], MessageNotFound)
    assert rig.counts() == (1, 0, 1, 0)
    rig.advance(20)
    assert rig.consumer(9).bodies == [b"active", b"a"]


def test_a_failed_cancel_does_not_keep_a_message_that_is_due_meanwhile() -> None:
    rig = BrokerHarness()
    rig.send_stored(b"a", due_ms=later(rig, 10))
    rig.send_stored(b"active")
    rig.clock.advance(10)
    rig.namespace.timers.run_due()
    rig.main_fragment.schedule.cancel([1, 2], Results())
    rig.run_until_idle()
    rig.advance(1)
    assert rig.consumer(9).bodies == [b"active", b"a"]


def test_what_is_active_or_cancelled_cannot_be_cancelled() -> None:
    rig = BrokerHarness()
    rig.send_stored(b"a", due_ms=later(rig, 10))
    rig.send_stored(b"b", due_ms=later(rig, 10))
    rig.main_fragment.schedule.cancel([1], Results())
    with pytest.raises(MessageNotFound):
        rig.main_fragment.schedule.cancel([1], Results())
    rig.run_until_idle()
    rig.advance(11)
    for number in (1, 2, 3):
        answers = Results()
        rig.main_fragment.schedule.cancel([number], answers)
        rig.run_until_idle()
        assert isinstance(answers[0], MessageNotFound)
    with pytest.raises(MessageNotFound):
        rig.main_fragment.schedule.cancel([99], Results())


def test_the_schedule_is_remembered_over_a_restart() -> None:
    rig = BrokerHarness()
    rig.send_stored(b"later", due_ms=later(rig, 10))
    rig.restart()
    assert rig.counts() == (0, 0, 1, 0)
    rig.advance(11)
    assert rig.consumer(9).bodies == [b"later"]


def test_a_scheduled_duplicate_is_dropped_like_any() -> None:
    rig = BrokerHarness(QueueDescription(requires_duplicate_detection=True))
    rig.send_stored(b"a", due_ms=later(rig, 10))
    rig.send_stored(b"b", due_ms=later(rig, 20))
    rig.send_stored(b"c")
    assert rig.counts() == (0, 0, 1, 0)
