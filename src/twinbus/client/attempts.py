"""One operation, with its retries.

Owns: trying, waiting and trying again within the operation's time. What is tried again is for the policy to say.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

from twinbus.client.errors import TimedOut
from twinbus.client.retry import Pauses
from twinbus.model.errors import ServiceBusError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from twinbus.client.doubt import Doubt
    from twinbus.client.retry import RetryPolicy

T = TypeVar("T")


async def run(
    what: str,
    attempt: Callable[[], Awaitable[T]],
    *,
    limit_s: float,
    policy: RetryPolicy,
    check_open: Callable[[], None],
    doubt: Doubt | None = None,
) -> T:
    """Try, and try again as the policy says. `check_open` raises where it should not even be tried.

    `doubt` knows whether a request has left; without one, an operation that timed out may have been carried out.
    """
    loop = asyncio.get_running_loop()
    deadline, pauses = loop.time() + limit_s, Pauses(policy)
    last: ServiceBusError | None = None
    while True:
        check_open()
        try:
            async with asyncio.timeout_at(deadline):
                return await attempt()
        except TimeoutError:
            reason = f"; before that: {last}" if last is not None else ""
            may_have_happened = True if doubt is None else doubt.may_have_happened
            text = f"{what} took longer than {limit_s:g} s{reason}"
            raise TimedOut(text, may_have_happened=may_have_happened) from last
        except ServiceBusError as error:
            pause_s = pauses.next_s(error, deadline - loop.time())
            if pause_s is None:
                raise
            last = error
        await asyncio.sleep(pause_s)
