"""Memory is bounded by windows and locks, not by how many messages pass."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.broker.consumers import Results
from tests.broker.harness import BrokerHarness
from twinbus.broker.fragment import dispatcher, window

if TYPE_CHECKING:
    import pytest


def test_a_message_that_is_held_for_long_does_not_keep_what_passes_it() -> None:
    rig = BrokerHarness()
    rig.send_stored(b"held")
    consumer = rig.consumer(1)
    for _ in range(50):
        rig.send_stored(*[b"passes"] * 100)
        passing = rig.consumer(100)
        rig.main_fragment.settlement.complete(passing.lock_numbers(), Results())
        rig.run_until_idle()
        passing.leave()
    assert rig.main_fragment.active_count == 1
    assert len(rig.main_fragment.in_flight._heap) < 1_000  # noqa: SLF001  # what is out is one message
    assert rig.main_fragment.settlement.complete(consumer.lock_numbers(), Results()) == []


def test_a_message_that_goes_out_and_comes_back_is_kept_once() -> None:
    rig = BrokerHarness()
    rig.send_stored(b"held", b"released")
    rig.consumer(1)
    for _ in range(2_000):
        consumer = rig.consumer(1)
        rig.main_fragment.settlement.release(consumer.lock_numbers(), Results())
        consumer.leave()
        rig.run_until_idle()
    assert len(rig.main_fragment.in_flight._heap) < 1_000  # noqa: SLF001


def test_the_window_holds_no_more_than_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (window, dispatcher):
        monkeypatch.setattr(module, "WINDOW_MESSAGES", 10)
    monkeypatch.setattr(window, "_REFILL_BELOW", 5)
    rig = BrokerHarness()
    rig.send_stored(*[b"%d" % number for number in range(100)])
    consumer = rig.consumer(1)
    assert len(rig.window.ready) <= 10
    consumer.grant(99)
    rig.run_until_idle()
    assert consumer.bodies == [b"%d" % number for number in range(100)]


def test_without_consumers_nothing_is_kept() -> None:
    rig = BrokerHarness()
    rig.send_stored(b"1", b"2")
    rig.consumer(1).leave()
    rig.send_stored(b"3")
    assert not rig.window.ready
    assert rig.consumer(10).bodies == [b"2", b"3"]
