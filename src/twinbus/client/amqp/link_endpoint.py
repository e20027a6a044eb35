"""Base class of sender links and receiver links: the client's end of an AMQP link.

Owns the state of the link (attaching, attached, or ended with a reason) and the deadlines of pending responses. The
subclasses own transfers and dispositions.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from twinbus.amqp.states import Role
from twinbus.client.errors import ConnectionLost, error_from_peer

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinbus.amqp.codec.performatives import Attach
    from twinbus.amqp.events import LinkDetached
    from twinbus.amqp.link import Link
    from twinbus.model.errors import ServiceBusError


class LinkEndpoint:
    """The client's end of one link, from the attach until the link ends. An ended link is not reused."""

    def __init__(self, link: Link) -> None:
        """Take over a link whose attach was sent. `attached` is done when the peer has responded."""
        self.failure: ServiceBusError | None = None
        """Why the link ended; None until it ends."""
        self.loop = asyncio.get_running_loop()
        self.attached: asyncio.Future[Attach] = self.loop.create_future()
        """The peer's attach, or the error with which the peer refused the link."""
        self.deadlines = Deadlines(self.loop)
        """Deadlines of the pending responses on this link."""
        self.on_ended: Callable[[ServiceBusError], None] | None = None
        """Called when the link ends after it was attached."""
        self._link = link
        link.context = self

    @property
    def is_open(self) -> bool:
        """Whether the link can be used."""
        return self.failure is None and self.attached.done()

    @property
    def name(self) -> str:
        """Name of the link, unique between the two peers."""
        return self._link.name

    async def wait_attached(self) -> Attach:
        """Wait for the peer's attach. Raise the error if the peer refuses; detach if the caller is cancelled."""
        try:
            return await asyncio.shield(self.attached)
        except asyncio.CancelledError:
            self.detach()
            raise

    def on_attach_confirmed(self, attach: Attach) -> None:
        """Handle the peer's attach. An attach without target or source is a refusal; the detach has the reason."""
        is_refusal = (attach.target if self._link.role is Role.SENDER else attach.source) is None
        if not is_refusal and not self.attached.done():
            self.attached.set_result(attach)

    def on_link_detached(self, event: LinkDetached) -> None:
        """Handle a detach of the link by either peer."""
        self.fail(error_from_peer(event.error))

    def fail(self, error: ServiceBusError) -> None:
        """Mark the link as ended with this error, unless it has already ended."""
        if self.failure is not None:
            return
        self.failure = error
        if not self.attached.done():
            self.attached.set_exception(error)
            self.attached.exception()  # asyncio logs an exception that nobody retrieves
        elif self.on_ended is not None:
            self.on_ended(error)

    def detach(self) -> None:
        """Detach. The link counts as ended at once, without waiting for the peer's detach."""
        if self.failure is None:
            self._link.detach()
            self.fail(ConnectionLost(f"the link {self.name!r} was detached by the client"))


# --- deadlines --------------------------------------------------------------------------------------------------------


class Deadlines:
    """Deadlines of the pending responses on one link, with one timer for each limit.

        deadlines.add(future, limit_s)      # fails with TimeoutError after limit_s
        deadlines.remove(future, limit_s)   # when the caller stops waiting

    One `asyncio.timeout` per response would cost more than a send.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start without deadlines."""
        self._loop = loop
        self._queues: dict[float, _DeadlineQueue] = {}
        """Futures by their limit. Futures with the same limit expire in the order in which they were added."""

    def add(self, future: asyncio.Future[Any], limit_s: float) -> None:
        """Fail the future with TimeoutError unless it is done or removed within `limit_s`."""
        queue = self._queues.get(limit_s)
        if queue is None:
            queue = self._queues[limit_s] = _DeadlineQueue(self._loop)
        queue.add(future, self._loop.time() + limit_s)

    def remove(self, future: asyncio.Future[Any], limit_s: float) -> None:
        """Remove the deadline of a future that is done or no longer awaited."""
        queue = self._queues.get(limit_s)
        if queue is not None and queue.remove(future):
            del self._queues[limit_s]


class _DeadlineQueue:
    """Futures with the same limit, in the order of their deadlines."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._due_s_by_future: dict[asyncio.Future[Any], float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, future: asyncio.Future[Any], due_s: float) -> None:
        self._due_s_by_future[future] = due_s
        if self._timer is None:
            self._timer = self._loop.call_at(due_s, self._expire)

    def remove(self, future: asyncio.Future[Any]) -> bool:
        """Remove a future; return whether the queue is empty now."""
        self._due_s_by_future.pop(future, None)
        if self._due_s_by_future:
            return False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        return True

    def _expire(self) -> None:
        """Fail the futures that are due, and set the timer for the next one. The callers remove expired futures."""
        self._timer = None
        now_s = self._loop.time()
        for future, due_s in self._due_s_by_future.items():
            if due_s > now_s:
                self._timer = self._loop.call_at(due_s, self._expire)
                return
            if not future.done():
                future.set_exception(TimeoutError())
