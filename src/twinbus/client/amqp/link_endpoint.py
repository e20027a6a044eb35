"""Our end of a link: what sending and receiving ones have in common.

Owns: whether it is attached, refused, or over and why; the deadlines of its answers. What flows on it is its
subclasses' affair.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from twinbus.amqp.states import Role
from twinbus.client.errors import ConnectionLost, error_from_peer

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinbus.amqp.events import LinkDetached
    from twinbus.amqp.link import Link
    from twinbus.amqp.performatives import Attach
    from twinbus.model.errors import ServiceBusError


class LinkEndpoint:
    """One link, from the wish for it to its end. Once over, it stays so: whoever needs one makes another."""

    def __init__(self, link: Link) -> None:
        """`link` was asked for; `attached` tells the answer."""
        self.failure: ServiceBusError | None = None
        """Why it is over; None while it is not."""
        self.loop = asyncio.get_running_loop()
        self.attached: asyncio.Future[Attach] = self.loop.create_future()
        """The peer's attach, or why it refused."""
        self.deadlines = Deadlines(self.loop)
        """For the answers that are waited for here."""
        self.on_ended: Callable[[ServiceBusError], None] | None = None
        """Told when it ends after it was attached."""
        self._link = link
        link.context = self

    @property
    def is_open(self) -> bool:
        """It can be used."""
        return self.failure is None and self.attached.done()

    @property
    def name(self) -> str:
        """By which the peer knows it, too."""
        return self._link.name

    async def wait_attached(self) -> Attach:
        """Wait until it is attached, or raise why it was refused. Whoever gives up waiting ends it."""
        try:
            return await asyncio.shield(self.attached)
        except asyncio.CancelledError:
            self.detach()
            raise

    def on_attach_confirmed(self, attach: Attach) -> None:
        """The peer has attached, too. Without our target, or its source, it refuses, and will say why."""
        is_refusal = (attach.target if self._link.role is Role.SENDER else attach.source) is None
        if not is_refusal and not self.attached.done():
            self.attached.set_result(attach)

    def on_link_detached(self, event: LinkDetached) -> None:
        """The link is over, whoever ended it."""
        self.fail(error_from_peer(event.error))

    def fail(self, error: ServiceBusError) -> None:
        """It is over, for this reason; the first reason counts."""
        if self.failure is not None:
            return
        self.failure = error
        if not self.attached.done():
            self.attached.set_exception(error)
            self.attached.exception()  # if nobody waits for it any more, it is no news
        elif self.on_ended is not None:
            self.on_ended(error)

    def detach(self) -> None:
        """End it in good order. It is over at once: a peer that does not answer keeps nobody waiting."""
        if self.failure is None:
            self._link.detach()
            self.fail(ConnectionLost(f"the link {self.name!r} was ended here"))


# --- deadlines --------------------------------------------------------------------------------------------------------


class Deadlines:
    """How long each of many answers on one link is waited for: one timer for all that are given as long.

        deadlines.add(future, limit_s)      # without an outcome by then, TimeoutError is its outcome
        deadlines.remove(future, limit_s)   # nobody waits for it any more

    `asyncio.timeout` does the same for one, and costs more than a send.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        """Nothing is waited for."""
        self._loop = loop
        self._queues: dict[float, _DeadlineQueue] = {}
        """By how long they wait: whoever came first in a line is due first."""

    def add(self, future: asyncio.Future[Any], limit_s: float) -> None:
        """Wait so long for it."""
        line = self._queues.get(limit_s)
        if line is None:
            line = self._queues[limit_s] = _DeadlineQueue(self._loop)
        line.add(future, self._loop.time() + limit_s)

    def remove(self, future: asyncio.Future[Any], limit_s: float) -> None:
        """It is answered, or nobody wants to know."""
        line = self._queues.get(limit_s)
        if line is not None and line.remove(future):
            del self._queues[limit_s]


class _DeadlineQueue:
    """Those that wait equally long, in the order in which they are due."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._due_s_by_future: dict[asyncio.Future[Any], float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, future: asyncio.Future[Any], due_s: float) -> None:
        self._due_s_by_future[future] = due_s
        if self._timer is None:
            self._timer = self._loop.call_at(due_s, self._expire)

    def remove(self, future: asyncio.Future[Any]) -> bool:
        """Whether it was the last."""
        self._due_s_by_future.pop(future, None)
        if self._due_s_by_future:
            return False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        return True

    def _expire(self) -> None:
        """End those that are due; look again when the next one is. Whoever waits removes them."""
        self._timer = None
        now_s = self._loop.time()
        for future, due_s in self._due_s_by_future.items():
            if due_s > now_s:
                self._timer = self._loop.call_at(due_s, self._expire)
                return
            if not future.done():
                future.set_exception(TimeoutError())
