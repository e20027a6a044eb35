"""The inbox of a receiver: its link, and what has come on it and was not handed out yet.

Owns: how many messages may be on their way, and that none is left locked when nobody waits for it any more. With a
prefetch of n at most n messages wait here; without, none: credit that a receive did not use is asked back before it
returns. What a message is, and what becomes of it, is the receiver's.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from twinbus.amqp.outcomes import RELEASED
from twinbus.client.retry import Backoff, SharedAttempt
from twinbus.model.errors import ServiceBusError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any

    from twinbus.amqp.delivery import IncomingDelivery
    from twinbus.client.amqp.receiver_link import ReceiverLink
    from twinbus.client.retry import RetryPolicy

DRAIN_TIMEOUT_S: Final = 5.0
"""How long a server may take to give unused credit back. Then the link is ended, and its messages are free."""


class ReceiveBuffer:
    """Of one receiver."""

    def __init__(
        self,
        description: str,
        attach: Callable[[], Coroutine[Any, Any, ReceiverLink]],
        *,
        prefetch: int,
        is_presettled: bool,
        policy: RetryPolicy,
        attach_limit_s: float,
    ) -> None:
        """`attach` makes a link, now and after each loss. `is_settled`: what has come is nowhere else any more."""
        self.link: ReceiverLink | None = None
        """The last one; it may be over."""
        self._attach = attach
        self._attach_attempt = SharedAttempt(f"attaching {description}", self._reattach, attach_limit_s)
        self._prefetch = prefetch
        self._is_presettled = is_presettled
        self._policy = policy
        self._receive_lock = asyncio.Lock()
        self._arrival: asyncio.Future[None] | None = None
        self._surplus_release: asyncio.Task[None] | None = None
        self._closing = asyncio.Event()

    # --- the link -----------------------------------------------------------------------------------------------------

    async def attached_link(self) -> ReceiverLink:
        """The link; one attach for all who want it now."""
        link = self.link
        return link if link is not None and link.failure is None else await self._attach_attempt.result()

    async def _reattach(self) -> ReceiverLink:
        self.link = link = await self._attach()
        link.on_arrival = self._wake_waiter
        if self._prefetch:
            link.grant(self._prefetch)
        return link

    def _wake_waiter(self) -> None:
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)

    # --- taking -------------------------------------------------------------------------------------------------------

    async def take(self, max_count: int, limit_s: float) -> list[tuple[ReceiverLink, IncomingDelivery]]:
        """Up to `max_count` messages, as soon as there are any; none if none came in that time, or it was closed."""
        if not self._receive_lock.locked() and self._surplus_release is None:
            taken = self._take_buffered(max_count)
            if taken:
                return taken
        deadline = asyncio.get_running_loop().time() + limit_s
        try:
            async with asyncio.timeout_at(deadline):
                await self._receive_lock.acquire()
        except TimeoutError:
            return []
        try:
            return await self._receive_until(max_count, deadline)
        except asyncio.CancelledError:
            self._release_surplus_soon()
            raise
        finally:
            self._receive_lock.release()

    def _take_buffered(self, max_count: int) -> list[tuple[ReceiverLink, IncomingDelivery]]:
        link = self.link
        if link is None or (link.failure is not None and not self._is_presettled):  # then they are no longer ours
            return []
        arrived = link.arrived
        taken = [(link, arrived.popleft()) for _ in range(min(max_count, len(arrived)))]
        if self._prefetch and (link.credit + len(arrived)) * 2 <= self._prefetch:
            link.grant(self._prefetch - len(arrived))
        return taken

    async def _receive_until(self, max_count: int, deadline: float) -> list[tuple[ReceiverLink, IncomingDelivery]]:
        loop = asyncio.get_running_loop()
        last: ServiceBusError | None = None
        pauses = Backoff(self._policy)
        while not self._closing.is_set():
            try:
                link = await self._wait_for_link(deadline)
                if link is None:
                    if last is not None:
                        raise last
                    return []
                await self._wait_for_messages(link, max_count, deadline)
            except ServiceBusError as error:
                last = error
                await self._pause_before_retry(error, pauses, deadline)
                continue
            taken = [] if self._closing.is_set() else self._take_buffered(max_count)
            if taken or loop.time() >= deadline:
                return taken
        return []

    async def _pause_before_retry(self, error: ServiceBusError, backoff: Backoff, deadline: float) -> None:
        """Wait before the next try; raise the error if there is none."""
        if self._closing.is_set():
            return
        pause_s = backoff.next_pause_s(error, deadline - asyncio.get_running_loop().time())
        if pause_s is None:
            raise error
        try:
            async with asyncio.timeout(pause_s):
                await self._closing.wait()
        except TimeoutError:
            pass

    async def _wait_for_link(self, deadline: float) -> ReceiverLink | None:
        """The link, when there is time enough for it. If there is not, it is there for the next who asks."""
        try:
            async with asyncio.timeout_at(deadline):
                if self._surplus_release is not None:
                    await asyncio.shield(self._surplus_release)
                if self._is_presettled and self.link is not None and self.link.arrived:
                    return self.link  # also if it is over: what came on it is nowhere else
                return await self.attached_link()
        except TimeoutError:
            return None

    async def _wait_for_messages(self, link: ReceiverLink, max_count: int, deadline: float) -> None:
        """Have something in `link.arrived`, or nothing and the time over; then no more credit out than prefetched."""
        if not link.arrived:
            wanted = max(max_count, self._prefetch)
            if link.credit < wanted:
                link.grant(wanted)
            await self._wait_for_arrival(link, deadline)
        if link.credit > self._prefetch:
            await self._drain_credit(link)
        if link.failure is not None and not (self._is_presettled and link.arrived):
            raise link.failure

    async def _wait_for_arrival(self, link: ReceiverLink, deadline: float) -> None:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout_at(deadline):
                while not link.arrived and link.failure is None and not self._closing.is_set():
                    self._arrival = loop.create_future()
                    await self._arrival
        except TimeoutError:
            pass

    # --- giving back --------------------------------------------------------------------------------------------------

    async def _drain_credit(self, link: ReceiverLink) -> None:
        """Get unused credit back: what came with it is received, what comes later is for others."""
        if not link.is_draining and not link.drain():
            return
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(DRAIN_TIMEOUT_S):
                while link.is_draining and link.failure is None:
                    self._arrival = loop.create_future()
                    await self._arrival
        except TimeoutError:
            link.detach()

    def _release_surplus_soon(self) -> None:
        """Whoever waited has given up: what was asked for comes all the same, and is not to stay locked here."""
        link = self.link
        if link is None or link.failure is not None or self._closing.is_set() or self._surplus_release is not None:
            return
        if link.credit > self._prefetch or link.is_draining or len(link.arrived) > self._prefetch:
            self._surplus_release = asyncio.ensure_future(self._release_surplus(link))

    async def _release_surplus(self, link: ReceiverLink) -> None:
        try:
            await self._drain_credit(link)
            if not self._is_presettled:
                surplus = [link.arrived.pop() for _ in range(len(link.arrived) - self._prefetch)]
                link.release(surplus[::-1], RELEASED)
        finally:
            self._surplus_release = None

    async def close(self) -> None:
        """Whoever waits gets nothing; what waits here under locks is free for others."""
        self._closing.set()
        self._wake_waiter()
        self._attach_attempt.cancel()
        async with self._receive_lock:
            if self._surplus_release is not None:
                await asyncio.shield(self._surplus_release)
            link = self.link
            if link is None or link.failure is not None:
                return
            if not self._is_presettled:
                await self._drain_credit(link)
                link.release(list(link.arrived), RELEASED)
                link.arrived.clear()
            link.detach()
