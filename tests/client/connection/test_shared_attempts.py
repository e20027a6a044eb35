"""One attempt for all who want it: whoever gives up takes nothing from the others, and all hear how it ends."""

from __future__ import annotations

import asyncio

import pytest

from twinbus.client.errors import ConnectionFailed, TimedOut
from twinbus.client.retry import SharedAttempt


class Attempted:
    """Counts, and ends when it is told to."""

    def __init__(self) -> None:
        self.count = 0
        self.ends: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def __call__(self) -> int:
        self.count += 1
        return await asyncio.shield(self.ends)


async def test_one_attempt_serves_all_and_survives_who_gives_up() -> None:
    attempted = Attempted()
    shared = SharedAttempt("it", attempted, 10)
    waiters = [asyncio.ensure_future(shared.result()) for _ in range(3)]
    await asyncio.sleep(0)
    waiters[0].cancel()
    attempted.ends.set_result(7)
    outcomes = await asyncio.gather(*waiters, return_exceptions=True)
    assert isinstance(outcomes[0], asyncio.CancelledError)
    assert outcomes[1:] == [7, 7]
    assert attempted.count == 1
    assert await shared.result() == 7
    assert attempted.count == 2, "the next who wants it begins anew"


async def test_when_it_is_given_up_all_are_told_and_none_is_cancelled() -> None:
    attempted = Attempted()
    shared = SharedAttempt("connecting", attempted, 10)
    waiters = [asyncio.ensure_future(shared.result()) for _ in range(2)]
    await asyncio.sleep(0)
    shared.cancel()
    for waiter in waiters:
        with pytest.raises(ConnectionFailed, match="connecting was given up"):
            await waiter


async def test_it_takes_no_longer_than_its_limit() -> None:
    with pytest.raises(TimedOut) as raised:
        await SharedAttempt("it", Attempted(), 0.01).result()
    assert not raised.value.was_sent


async def test_an_error_that_nobody_waits_for_any_more_is_no_news() -> None:
    unheard: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unheard.append(context))
    attempted = Attempted()
    waiter = asyncio.ensure_future(SharedAttempt("it", attempted, 10).result())
    await asyncio.sleep(0)
    waiter.cancel()
    attempted.ends.set_exception(LookupError())
    await asyncio.gather(waiter, return_exceptions=True)
    await asyncio.sleep(0.01)
    del attempted, waiter
    assert not unheard
