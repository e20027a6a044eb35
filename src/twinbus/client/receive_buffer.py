"""The buffer of a receiver: its link, and the deliveries that arrived and were not handed out yet.

Owns the credit of the link, and releases messages that no caller waits for any more. With a prefetch of n the buffer
holds at most n messages. Without prefetch, the buffer holds no messages, because each receive drains its unused credit
before it returns. Decoding and settlement belong to the receiver.
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
"""How long a server may take to respond to a drain before the link is detached, which unlocks its messages."""


class ReceiveBuffer:
    """Buffer and link of one receiver."""

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
        """Create an empty buffer. `attach` creates a link, on first use and whenever the link was lost.

        `is_presettled` is True if messages arrive settled, so that the buffer holds their only copy.
        """
        self.link: ReceiverLink | None = None
        """The last link attached; it may have ended."""
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
        """Return the link. Attach it if necessary; concurrent callers share one attempt."""
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

    # --- receiving ----------------------------------------------------------------------------------------------------

    async def take(self, max_count: int, limit_s: float) -> list[tuple[ReceiverLink, IncomingDelivery]]:
        """Return up to `max_count` deliveries, as soon as at least one arrives.

        Return an empty list after `limit_s` or `close`.
        """
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
        if link is None or (link.failure is not None and not self._is_presettled):  # the locks ended with the link
            return []
        arrived = link.arrived
        taken = [(link, arrived.popleft()) for _ in range(min(max_count, len(arrived)))]
        if self._prefetch and (link.credit + len(arrived)) * 2 <= self._prefetch:
            link.grant(self._prefetch - len(arrived))
        return taken

    async def _receive_until(self, max_count: int, deadline: float) -> list[tuple[ReceiverLink, IncomingDelivery]]:
        loop = asyncio.get_running_loop()
        last_error: ServiceBusError | None = None
        backoff = Backoff(self._policy)
        while not self._closing.is_set():
            try:
                link = await self._wait_for_link(deadline)
                if link is None:
                    if last_error is not None:
                        raise last_error
                    return []
                await self._wait_for_messages(link, max_count, deadline)
            except ServiceBusError as error:
                last_error = error
                await self._pause_before_retry(error, backoff, deadline)
                continue
            taken = [] if self._closing.is_set() else self._take_buffered(max_count)
            if taken or loop.time() >= deadline:
                return taken
        return []

    async def _pause_before_retry(self, error: ServiceBusError, backoff: Backoff, deadline: float) -> None:
        """Wait before the next attempt; raise the error if there is no retry."""
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
        """Return the link, or None at the deadline. The attach continues for the next caller."""
        try:
            async with asyncio.timeout_at(deadline):
                if self._surplus_release is not None:
                    await asyncio.shield(self._surplus_release)
                if self._is_presettled and self.link is not None and self.link.arrived:
                    return self.link  # even if the link has ended, because the buffer holds the only copy
                return await self.attached_link()
        except TimeoutError:
            return None

    async def _wait_for_messages(self, link: ReceiverLink, max_count: int, deadline: float) -> None:
        """Wait until messages arrive or the deadline passes, then drain the credit beyond the prefetch."""
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

    # --- releasing ----------------------------------------------------------------------------------------------------

    async def _drain_credit(self, link: ReceiverLink) -> None:
        """Drain unused credit.

        Messages that arrive during the drain are received; later messages go to other receivers.
        """
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
        """Start releasing messages that still arrive after a cancelled receive, and that must not stay locked here."""
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
        """Detach. Waiting callers get an empty list, and buffered messages are released for other receivers."""
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
