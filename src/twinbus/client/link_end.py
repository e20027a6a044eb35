"""Our end of a link: what sending and receiving ones have in common.

Owns: whether it is attached, refused, or over and why. What flows on it is its subclasses' affair.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from twinbus.amqp.states import Role
from twinbus.client.deadlines import Deadlines
from twinbus.client.errors import ConnectionLost, from_peer

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinbus.amqp.events import LinkDetached
    from twinbus.amqp.link import Link
    from twinbus.amqp.performatives import Attach
    from twinbus.model.errors import ServiceBusError


class LinkEnd:
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
        self.on_over: Callable[[ServiceBusError], None] | None = None
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

    async def ready(self) -> Attach:
        """Wait until it is attached, or raise why it was refused. Whoever gives up waiting ends it."""
        try:
            return await asyncio.shield(self.attached)
        except asyncio.CancelledError:
            self.detach()
            raise

    def confirmed(self, attach: Attach) -> None:
        """The peer has attached, too. Without our target, or its source, it refuses, and will say why."""
        is_refusal = (attach.target if self._link.role is Role.SENDER else attach.source) is None
        if not is_refusal and not self.attached.done():
            self.attached.set_result(attach)

    def detached(self, event: LinkDetached) -> None:
        """The link is over, whoever ended it."""
        self.fail(from_peer(event.error))

    def fail(self, error: ServiceBusError) -> None:
        """It is over, for this reason; the first reason counts."""
        if self.failure is not None:
            return
        self.failure = error
        if not self.attached.done():
            self.attached.set_exception(error)
            self.attached.exception()  # if nobody waits for it any more, it is no news
        elif self.on_over is not None:
            self.on_over(error)

    def detach(self) -> None:
        """End it in good order. It is over at once: a peer that does not answer keeps nobody waiting."""
        if self.failure is None:
            self._link.detach()
            self.fail(ConnectionLost(f"the link {self.name!r} was ended here"))
