"""Timers call due callbacks in order, and no others."""

from __future__ import annotations

from twinbus.broker.clock import Timers
from twinbus.testing.clock import FakeClock


def test_calls_are_made_in_the_order_in_which_they_are_due() -> None:
    clock = FakeClock(monotonic_s=0.0)
    timers, called = Timers(clock), []
    for when_s in (3.0, 1.0, 2.0, 1.0):
        timers.call_at(when_s, lambda when_s=when_s: called.append(when_s))  # type: ignore[misc]
    assert timers.due_in_s() == 1.0
    clock.advance(2.0)
    timers.run_due()
    assert called == [1.0, 1.0, 2.0]
    assert timers.due_in_s() == 1.0


def test_an_overdue_call_is_due_now() -> None:
    clock = FakeClock()
    timers = Timers(clock)
    assert timers.due_in_s() is None
    timers.call_at(0.0, lambda: None)
    assert timers.due_in_s() == 0.0


def test_a_cancelled_call_is_not_made() -> None:
    clock = FakeClock(monotonic_s=0.0)
    timers, called = Timers(clock), []
    timers.call_at(1.0, lambda: called.append(1)).cancel()
    clock.advance(1.0)
    timers.run_due()
    assert called == []


def test_the_loop_is_notified_of_an_earlier_deadline() -> None:
    timers, notified = Timers(FakeClock(monotonic_s=0.0)), []
    timers.on_earlier_deadline = lambda: notified.append(timers.due_in_s())
    for when_s in (5.0, 6.0, 4.0):
        timers.call_at(when_s, lambda: None)
    assert notified == [5.0, 4.0]


def test_a_call_may_schedule_another_call() -> None:
    clock = FakeClock(monotonic_s=0.0)
    timers, called = Timers(clock), []

    def first() -> None:
        called.append(1)
        timers.call_at(1.5, lambda: called.append(2))

    timers.call_at(1.0, first)
    clock.advance(2.0)
    timers.run_due()
    assert called == [1, 2]


def test_a_fake_clock_has_a_monotonic_and_a_wall_time() -> None:
    clock = FakeClock(monotonic_s=1.0, wall_ms=5)
    clock.advance(0.5)
    assert (clock.monotonic_s(), clock.wall_ms()) == (1.5, 505)
    clock.set_wall_ms(3)
    assert (clock.monotonic_s(), clock.wall_ms()) == (1.5, 3)
