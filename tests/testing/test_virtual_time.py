"""On a FakeTimeLoop whoever waits has waited already, and in the right order."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from twinbus.testing import LoopClock, TookTooLong, in_virtual_time, run
from twinbus.testing.clock import WALL_MS
from twinbus.testing.loop import START_S

HOUR_S = 3_600.0
ALMOST = pytest.approx


def test_a_thousand_hours_of_polling_take_less_than_a_second() -> None:
    async def poll() -> float:
        loop, polls = asyncio.get_running_loop(), 0
        while loop.time() < START_S + 1_000 * HOUR_S:
            await asyncio.sleep(HOUR_S / 4)
            polls += 1
        assert polls == 4_000
        return loop.time()

    began_s = time.perf_counter()
    assert run(poll()) == ALMOST(START_S + 1_000 * HOUR_S)
    assert time.perf_counter() - began_s < 1.0


@in_virtual_time
async def test_the_loop_starts_at_a_round_number() -> None:
    assert asyncio.get_running_loop().time() == START_S


@in_virtual_time
async def test_things_happen_in_the_order_of_their_times() -> None:
    happened: list[float] = []

    async def wait(seconds: float) -> None:
        await asyncio.sleep(seconds)
        happened.append(seconds)

    await asyncio.gather(*[wait(seconds) for seconds in (3 * HOUR_S, 0.001, 24 * HOUR_S, 5.0)])
    assert happened == [0.001, 5.0, 3 * HOUR_S, 24 * HOUR_S]


@in_virtual_time
async def test_a_timeout_is_over_exactly_when_it_should_be() -> None:
    loop = asyncio.get_running_loop()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(HOUR_S):
            await asyncio.Event().wait()
    assert loop.time() == ALMOST(START_S + HOUR_S)


@in_virtual_time
async def test_no_time_passes_while_there_is_something_to_do() -> None:
    for _ in range(1_000):
        await asyncio.sleep(0)
    assert asyncio.get_running_loop().time() == START_S


@in_virtual_time
async def test_what_is_for_a_thread_runs_at_once() -> None:
    assert await asyncio.to_thread(threading.get_ident) == threading.get_ident()
    with pytest.raises(ZeroDivisionError):
        await asyncio.to_thread(lambda: 1 / 0)


@in_virtual_time
async def test_another_thread_is_really_waited_for() -> None:
    loop, told = asyncio.get_running_loop(), asyncio.Event()
    thread = threading.Thread(target=lambda: loop.call_soon_threadsafe(told.set))
    loop.call_soon(thread.start)
    await told.wait()
    thread.join()
    assert loop.time() == START_S


def test_who_waits_for_ever_is_told_so() -> None:
    async def wait() -> None:
        await asyncio.Event().wait()

    with pytest.raises(TookTooLong, match="it is not over, and 0 s have passed in it"):
        run(wait(), wall_limit_s=0.05)


def test_who_polls_for_ever_is_told_so() -> None:
    async def poll() -> None:
        while True:  # noqa: ASYNC110  # a fault to be found
            await asyncio.sleep(HOUR_S)

    with pytest.raises(TookTooLong, match=r"and [\d,]+,\d\d\d s have passed in it"):
        run(poll(), wall_limit_s=0.05)


@in_virtual_time
async def test_a_clock_goes_by_the_loop() -> None:
    clock = LoopClock()
    assert (clock.monotonic_s(), clock.wall_ms()) == (START_S, WALL_MS)
    await asyncio.sleep(90.0)
    assert clock.monotonic_s() == ALMOST(START_S + 90.0)
    assert clock.wall_ms() == WALL_MS + 90_000
    assert clock.now().timestamp() == (WALL_MS + 90_000) / 1000


@in_virtual_time
async def test_the_wall_clock_can_be_set_while_the_other_goes_on() -> None:
    clock = LoopClock()
    clock.set_wall_ms(5_000)
    await asyncio.sleep(1.0)
    assert clock.wall_ms() == 6_000
    assert clock.monotonic_s() == ALMOST(START_S + 1.0)


@pytest.mark.parametrize("name", ["one", "two"])
@in_virtual_time
async def test_a_test_has_its_arguments_and_fixtures(name: str, request: pytest.FixtureRequest) -> None:
    await asyncio.sleep(HOUR_S)
    assert request.node.name.endswith(f"[{name}]")
