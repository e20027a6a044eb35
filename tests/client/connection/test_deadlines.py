"""Deadlines: one timer for many pending responses, each with its own timeout."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from twinbus.client.amqp.link_endpoint import Deadlines
from twinbus.testing import in_virtual_time

if TYPE_CHECKING:
    from collections.abc import Callable


def make_deadlines() -> tuple[Deadlines, asyncio.AbstractEventLoop]:
    loop = asyncio.get_running_loop()
    return Deadlines(loop), loop


@in_virtual_time
async def test_a_future_without_a_result_times_out_at_its_deadline_and_not_before() -> None:
    deadlines, loop = make_deadlines()
    waiting = loop.create_future()
    deadlines.add(waiting, 5.0)
    await asyncio.sleep(4.9)
    assert not waiting.done()
    await asyncio.sleep(0.2)
    assert isinstance(waiting.exception(), TimeoutError)


@in_virtual_time
async def test_each_future_has_its_own_deadline() -> None:
    deadlines, loop = make_deadlines()
    early, late, short = loop.create_future(), loop.create_future(), loop.create_future()
    deadlines.add(early, 5.0)
    await asyncio.sleep(3.0)
    deadlines.add(late, 5.0)
    deadlines.add(short, 1.0)
    await asyncio.sleep(2.1)
    assert (early.done(), late.done(), short.done()) == (True, False, True)
    await asyncio.sleep(3.0)
    assert all(isinstance(future.exception(), TimeoutError) for future in (early, late, short))


@in_virtual_time
async def test_finished_and_removed_futures_do_not_time_out() -> None:
    deadlines, loop = make_deadlines()
    answered, removed = loop.create_future(), loop.create_future()
    deadlines.add(answered, 5.0)
    deadlines.add(removed, 5.0)
    answered.set_result("accepted")
    deadlines.remove(removed, 5.0)
    await asyncio.sleep(100.0)
    assert answered.result() == "accepted"
    assert not removed.done()


@in_virtual_time
async def test_a_future_added_after_a_timeout_times_out_too() -> None:
    deadlines, loop = make_deadlines()
    first, second = loop.create_future(), loop.create_future()
    deadlines.add(first, 5.0)
    await asyncio.sleep(5.1)
    assert isinstance(first.exception(), TimeoutError)
    deadlines.add(second, 5.0)  # before the waiter of the first future has removed it
    deadlines.remove(first, 5.0)
    await asyncio.sleep(5.1)
    assert isinstance(second.exception(), TimeoutError)


@in_virtual_time
async def test_a_hundred_futures_share_one_timer_that_ends_with_the_last_of_them() -> None:
    deadlines, loop = make_deadlines()
    timers: list[asyncio.TimerHandle] = []
    call_at = loop.call_at

    def recorded_call_at(when: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        timers.append(call_at(when, callback))
        return timers[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "call_at", recorded_call_at)
        futures = [loop.create_future() for _ in range(100)]
        for future in futures:
            deadlines.add(future, 5.0)
        for future in futures[1:]:
            deadlines.remove(future, 5.0)
        assert [timer.cancelled() for timer in timers] == [False]
        deadlines.remove(futures[0], 5.0)
        assert [timer.cancelled() for timer in timers] == [True]
