"""On a FakeTimeLoop, waiting takes no real time, and events keep the order of their times."""

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


def test_a_thousand_hours_of_polling_take_less_than_a_second_of_real_time() -> None:
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
async def test_events_happen_in_the_order_of_their_times() -> None:
    happened: list[float] = []

    async def wait(seconds: float) -> None:
        await asyncio.sleep(seconds)
        happened.append(seconds)

    await asyncio.gather(*[wait(seconds) for seconds in (3 * HOUR_S, 0.001, 24 * HOUR_S, 5.0)])
    assert happened == [0.001, 5.0, 3 * HOUR_S, 24 * HOUR_S]


@in_virtual_time
async def test_a_timeout_expires_exactly_on_time() -> None:
    loop = asyncio.get_running_loop()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(HOUR_S):
            await asyncio.Event().wait()
    assert loop.time() == ALMOST(START_S + HOUR_S)


@in_virtual_time
async def test_no_time_passes_while_callbacks_are_ready() -> None:
    for _ in range(1_000):
        await asyncio.sleep(0)
    assert asyncio.get_running_loop().time() == START_S


@in_virtual_time
async def test_to_thread_runs_in_the_same_thread() -> None:
    assert await asyncio.to_thread(threading.get_ident) == threading.get_ident()
    with pytest.raises(ZeroDivisionError):
        await asyncio.to_thread(lambda: 1 / 0)


@in_virtual_time
async def test_the_loop_waits_for_another_thread() -> None:
    loop, notified = asyncio.get_running_loop(), asyncio.Event()
    thread = threading.Thread(target=lambda: loop.call_soon_threadsafe(notified.set))
    loop.call_soon(thread.start)
    await notified.wait()
    thread.join()
    assert loop.time() == START_S


def test_waiting_for_ever_raises_an_error() -> None:
    async def wait() -> None:
        await asyncio.Event().wait()

    with pytest.raises(TookTooLong, match="exceeded its limit of real time after 0 s of virtual time"):
        run(wait(), wall_limit_s=0.05)


def test_polling_for_ever_raises_an_error() -> None:
    async def poll() -> None:
        while True:  # noqa: ASYNC110  # the fault under test
            await asyncio.sleep(HOUR_S)

    with pytest.raises(TookTooLong, match=r"after [\d,]+,\d\d\d s of virtual time"):
        run(poll(), wall_limit_s=0.05)


@in_virtual_time
async def test_a_clock_follows_the_loop() -> None:
    clock = LoopClock()
    assert (clock.monotonic_s(), clock.wall_ms()) == (START_S, WALL_MS)
    await asyncio.sleep(90.0)
    assert clock.monotonic_s() == ALMOST(START_S + 90.0)
    assert clock.wall_ms() == WALL_MS + 90_000
    assert clock.now().timestamp() == (WALL_MS + 90_000) / 1000


@in_virtual_time
async def test_setting_the_wall_clock_does_not_change_the_monotonic_clock() -> None:
    clock = LoopClock()
    clock.set_wall_ms(5_000)
    await asyncio.sleep(1.0)
    assert clock.wall_ms() == 6_000
    assert clock.monotonic_s() == ALMOST(START_S + 1.0)


@pytest.mark.parametrize("name", ["one", "two"])
@in_virtual_time
async def test_a_test_in_virtual_time_gets_its_arguments_and_fixtures(
    name: str, request: pytest.FixtureRequest
) -> None:
    await asyncio.sleep(HOUR_S)
    assert request.node.name.endswith(f"[{name}]")
