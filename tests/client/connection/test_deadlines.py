"""Many answers are waited for by one timer, each for as long as it was given."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from twinbus.client.amqp.link_endpoint import Deadlines
from twinbus.testing import in_virtual_time

if TYPE_CHECKING:
    from collections.abc import Callable


def made() -> tuple[Deadlines, asyncio.AbstractEventLoop]:
    loop = asyncio.get_running_loop()
    return Deadlines(loop), loop


@in_virtual_time
async def test_one_that_is_not_answered_ends_at_its_time_and_not_before() -> None:
    deadlines, loop = made()
    waiting = loop.create_future()
    deadlines.add(waiting, 5.0)
    await asyncio.sleep(4.9)
    assert not waiting.done()
    await asyncio.sleep(0.2)
    assert isinstance(waiting.exception(), TimeoutError)


@in_virtual_time
async def test_each_has_its_own_time() -> None:
    deadlines, loop = made()
    early, late, short = loop.create_future(), loop.create_future(), loop.create_future()
    deadlines.add(early, 5.0)
    await asyncio.sleep(3.0)
    deadlines.add(late, 5.0)
    deadlines.add(short, 1.0)
    await asyncio.sleep(2.1)
    assert (early.done(), late.done(), short.done()) == (True, False, True)
    await asyncio.sleep(3.0)
    assert all(isinstance(one.exception(), TimeoutError) for one in (early, late, short))


@in_virtual_time
async def test_what_was_answered_and_what_nobody_waits_for_stay_as_they_are() -> None:
    deadlines, loop = made()
    answered, left = loop.create_future(), loop.create_future()
    deadlines.add(answered, 5.0)
    deadlines.add(left, 5.0)
    answered.set_result("accepted")
    deadlines.remove(left, 5.0)
    await asyncio.sleep(100.0)
    assert answered.result() == "accepted"
    assert not left.done()


@in_virtual_time
async def test_those_that_come_after_a_time_was_over_are_waited_for_too() -> None:
    deadlines, loop = made()
    first, second = loop.create_future(), loop.create_future()
    deadlines.add(first, 5.0)
    await asyncio.sleep(5.1)
    assert isinstance(first.exception(), TimeoutError)
    deadlines.add(second, 5.0)  # before whoever waits for the first has taken it away
    deadlines.remove(first, 5.0)
    await asyncio.sleep(5.1)
    assert isinstance(second.exception(), TimeoutError)


@in_virtual_time
async def test_a_hundred_have_one_timer_and_it_ends_with_the_last_of_them() -> None:
    deadlines, loop = made()
    timers: list[asyncio.TimerHandle] = []
    call_at = loop.call_at

    def counted(when: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        timers.append(call_at(when, callback))
        return timers[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "call_at", counted)
        many = [loop.create_future() for _ in range(100)]
        for one in many:
            deadlines.add(one, 5.0)
        for one in many[1:]:
            deadlines.remove(one, 5.0)
        assert [timer.cancelled() for timer in timers] == [False]
        deadlines.remove(many[0], 5.0)
        assert [timer.cancelled() for timer in timers] == [True]
