"""SharedAttempt: concurrent callers share one attempt and its outcome; a cancelled caller does not cancel it."""

from __future__ import annotations

import asyncio

import pytest

from twinbus.client.errors import ConnectionFailed, TimedOut
from twinbus.client.retry import SharedAttempt


class CountedOperation:
    """Operation that counts its calls and ends when the test sets `ends`."""

    def __init__(self) -> None:
        self.count = 0
        self.ends: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def __call__(self) -> int:
        self.count += 1
        return await asyncio.shield(self.ends)


async def test_one_attempt_serves_all_waiters_and_survives_a_cancelled_waiter() -> None:
    operation = CountedOperation()
    shared = SharedAttempt("it", operation, 10)
    waiters = [asyncio.ensure_future(shared.result()) for _ in range(3)]
    await asyncio.sleep(0)
    waiters[0].cancel()
    operation.ends.set_result(7)
    outcomes = await asyncio.gather(*waiters, return_exceptions=True)
    assert isinstance(outcomes[0], asyncio.CancelledError)
    assert outcomes[1:] == [7, 7]
    assert operation.count == 1
    assert await shared.result() == 7
    assert operation.count == 2, "the next caller starts a new attempt"


async def test_cancelling_the_attempt_raises_connection_failed_in_all_waiters() -> None:
    operation = CountedOperation()
    shared = SharedAttempt("connecting", operation, 10)
    waiters = [asyncio.ensure_future(shared.result()) for _ in range(2)]
    await asyncio.sleep(0)
    shared.cancel()
    for waiter in waiters:
        with pytest.raises(ConnectionFailed, match="connecting was cancelled"):
            await waiter


async def test_an_attempt_times_out_at_its_limit() -> None:
    with pytest.raises(TimedOut) as raised:
        await SharedAttempt("it", CountedOperation(), 0.01).result()
    assert not raised.value.was_sent


async def test_an_error_without_waiters_is_not_reported_to_the_loop() -> None:
    reported: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    operation = CountedOperation()
    waiter = asyncio.ensure_future(SharedAttempt("it", operation, 10).result())
    await asyncio.sleep(0)
    waiter.cancel()
    operation.ends.set_exception(LookupError())
    await asyncio.gather(waiter, return_exceptions=True)
    await asyncio.sleep(0.01)
    del operation, waiter
    assert not reported
