"""Memory use is bounded by windows and locks, not by the number of messages that pass."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.broker.consumers import Results
from tests.broker.harness import BrokerHarness
from twinbus.broker.fragment import dispatcher, window

if TYPE_CHECKING:
    import pytest


def test_a_message_locked_for_long_does_not_keep_later_messages_in_memory() -> None:
    harness = BrokerHarness()
    harness.send_stored(b"held")
    consumer = harness.consumer(1)
    for _ in range(50):
        harness.send_stored(*[b"passes"] * 100)
        passing = harness.consumer(100)
        harness.main_fragment.settlement.complete(passing.lock_numbers(), Results())
        harness.run_until_idle()
        passing.leave()
    assert harness.main_fragment.active_count == 1
    assert len(harness.main_fragment.in_flight._heap) < 1_000  # noqa: SLF001  # one message is in flight
    assert harness.main_fragment.settlement.complete(consumer.lock_numbers(), Results()) == []


def test_a_message_released_many_times_is_kept_in_memory_once() -> None:
    harness = BrokerHarness()
    harness.send_stored(b"held", b"released")
    harness.consumer(1)
    for _ in range(2_000):
        consumer = harness.consumer(1)
        harness.main_fragment.settlement.release(consumer.lock_numbers(), Results())
        consumer.leave()
        harness.run_until_idle()
    assert len(harness.main_fragment.in_flight._heap) < 1_000  # noqa: SLF001


def test_the_window_holds_no_more_than_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (window, dispatcher):
        monkeypatch.setattr(module, "WINDOW_MESSAGES", 10)
    monkeypatch.setattr(window, "_REFILL_BELOW", 5)
    harness = BrokerHarness()
    harness.send_stored(*[b"%d" % number for number in range(100)])
    consumer = harness.consumer(1)
    assert len(harness.window.ready) <= 10
    consumer.grant(99)
    harness.run_until_idle()
    assert consumer.bodies == [b"%d" % number for number in range(100)]


def test_the_window_is_empty_without_consumers() -> None:
    harness = BrokerHarness()
    harness.send_stored(b"1", b"2")
    harness.consumer(1).leave()
    harness.send_stored(b"3")
    assert not harness.window.ready
    assert harness.consumer(10).bodies == [b"2", b"3"]
