"""Scheduled messages become active once, when they are due and not before, unless they are cancelled."""

from __future__ import annotations

import pytest

from tests.broker.consumers import Results
from tests.broker.harness import BrokerHarness
from tests.broker.messages import annotation_of
from twinbus.model.errors import MessageNotFound
from twinbus.model.queue import QueueDescription


def ms_from_now(harness: BrokerHarness, seconds: float) -> int:
    return harness.clock.wall_ms() + round(seconds * 1000)


def test_a_scheduled_message_is_active_when_it_is_due_and_not_before() -> None:
    harness = BrokerHarness()
    harness.send_stored(b"later", due_ms=ms_from_now(harness, 10))
    harness.send_stored(b"now")
    consumer = harness.consumer(9)
    assert consumer.bodies == [b"now"]
    assert harness.counts() == (1, 0, 1, 0)
    harness.advance(9.99)
    assert harness.counts() == (1, 0, 1, 0)
    harness.advance(0.01)
    assert consumer.bodies == [b"now", b"later"]
    assert harness.counts() == (2, 0, 0, 0)
    assert annotation_of(consumer.messages[1], "x-opt-sequence-number") == 3
    assert annotation_of(consumer.messages[1], "x-opt-enqueued-time") == harness.clock.wall_ms()


def test_a_message_scheduled_in_the_past_is_active_at_once() -> None:
    harness = BrokerHarness()
    harness.send_stored(b"late", due_ms=ms_from_now(harness, -10))
    assert harness.counts() == (1, 0, 0, 0)
    assert harness.consumer(1).bodies == [b"late"]


def test_the_time_to_live_begins_when_the_message_becomes_active() -> None:
    harness = BrokerHarness()
    harness.send_stored(b"later", due_ms=ms_from_now(harness, 10), ttl_ms=5_000)
    harness.advance(10)
    harness.advance(4)
    assert harness.counts() == (1, 0, 0, 0)
    harness.advance(2)
    assert harness.counts() == (0, 0, 0, 0)


def test_messages_become_active_in_the_order_of_their_times() -> None:
    harness = BrokerHarness()
    for seconds in (30, 10, 20):
        harness.send_stored(b"%d" % seconds, due_ms=ms_from_now(harness, seconds))
    harness.advance(60)
    assert harness.consumer(9).bodies == [b"10", b"20", b"30"]


def test_many_messages_become_active_a_few_per_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("twinbus.broker.fragment.time_index.SCAN_BATCH_SIZE", 3)
    harness = BrokerHarness()
    for number in range(10):
        harness.send_stored(b"%d" % number, due_ms=ms_from_now(harness, 5))
    for _ in range(6):
        harness.advance(1)
    for _ in range(6):
        harness.advance(0.01)
    assert harness.consumer(20).bodies == [b"%d" % number for number in range(10)]


def test_a_cancelled_message_is_never_delivered() -> None:
    harness = BrokerHarness()
    harness.send_stored(b"a", due_ms=ms_from_now(harness, 10))
    harness.send_stored(b"b", due_ms=ms_from_now(harness, 10))
    results = Results()
    harness.main_fragment.schedule.cancel([1], results)
    harness.run_until_idle()
    assert results == [None]
    assert harness.counts() == (0, 0, 1, 0)
    harness.advance(20)
    assert harness.consumer(9).bodies == [b"b"]


def test_either_all_messages_are_cancelled_or_none() -> None:
    harness = BrokerHarness()
    harness.send_stored(b"a", due_ms=ms_from_now(harness, 10))
    results = Results()
    harness.send_stored(b"active")
    harness.main_fragment.schedule.cancel([1, 2], results)
    harness.run_until_idle()
    assert isinstance(results[0], MessageNotFound)
    assert harness.counts() == (1, 0, 1, 0)
    harness.advance(20)
    assert harness.consumer(9).bodies == [b"active", b"a"]


def test_a_failed_cancellation_does_not_hold_back_a_due_message() -> None:
    harness = BrokerHarness()
    harness.send_stored(b"a", due_ms=ms_from_now(harness, 10))
    harness.send_stored(b"active")
    harness.clock.advance(10)
    harness.namespace.timers.run_due()
    harness.main_fragment.schedule.cancel([1, 2], Results())
    harness.run_until_idle()
    harness.advance(1)
    assert harness.consumer(9).bodies == [b"active", b"a"]


def test_active_and_cancelled_messages_cannot_be_cancelled() -> None:
    harness = BrokerHarness()
    harness.send_stored(b"a", due_ms=ms_from_now(harness, 10))
    harness.send_stored(b"b", due_ms=ms_from_now(harness, 10))
    harness.main_fragment.schedule.cancel([1], Results())
    with pytest.raises(MessageNotFound):
        harness.main_fragment.schedule.cancel([1], Results())
    harness.run_until_idle()
    harness.advance(11)
    for number in (1, 2, 3):
        results = Results()
        harness.main_fragment.schedule.cancel([number], results)
        harness.run_until_idle()
        assert isinstance(results[0], MessageNotFound)
    with pytest.raises(MessageNotFound):
        harness.main_fragment.schedule.cancel([99], Results())


def test_the_schedule_survives_a_restart() -> None:
    harness = BrokerHarness()
    harness.send_stored(b"later", due_ms=ms_from_now(harness, 10))
    harness.restart()
    assert harness.counts() == (0, 0, 1, 0)
    harness.advance(11)
    assert harness.consumer(9).bodies == [b"later"]


def test_a_scheduled_duplicate_is_dropped() -> None:
    harness = BrokerHarness(QueueDescription(requires_duplicate_detection=True))
    harness.send_stored(b"a", due_ms=ms_from_now(harness, 10))
    harness.send_stored(b"b", due_ms=ms_from_now(harness, 20))
    harness.send_stored(b"c")
    assert harness.counts() == (0, 0, 1, 0)
