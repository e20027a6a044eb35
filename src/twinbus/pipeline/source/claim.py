"""The claim of a query that completes messages: nobody else receives from the entity while it runs.

Owns: the link that is the claim. It is taken with the time as its epoch, so a query that is started anew has it and the
one before it, if it still runs somewhere, has lost it and may complete nothing any more. A link that was lost with its
connection is made again. An entity with sessions is claimed by a session of our own, which has no messages.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from twinbus.client.message_session import MessageSession
from twinbus.client.receiver import ReceiveMode
from twinbus.model.errors import EntityClaimed, LinkStolen, NotAllowed, SessionCannotBeLocked, SessionLockLost
from twinbus.pipeline.errors import PipelineError

if TYPE_CHECKING:
    from twinbus.client.factory import MessagingFactory
    from twinbus.client.receiver import MessageReceiver
    from twinbus.client.receiving_link import ReceivingLink

SESSION: Final = "twinbus-pipeline-claim"
SILENCE_LIMIT_S: Final = 30.0
"""After which others may receive from the entity when the driver's machine has gone. A driver that is busy for some
seconds keeps its claim."""
_FOREVER_S: Final = 10.0 * 365 * 86_400


class Claim:
    """On one entity."""

    def __init__(self, factory: MessagingFactory, path: str) -> None:
        """Nothing is claimed yet."""
        self.epoch = time.time_ns() // 1_000_000
        self._factory = factory
        self._path = path
        self._receiver: MessageReceiver | None = None
        self._link: ReceivingLink | None = None

    async def hold(self) -> None:
        """Have it, again if the link was lost. PipelineError if somebody else has it, or receives from the entity."""
        if self._link is not None and isinstance(self._link.failure, LinkStolen):
            raise PipelineError(f"{self._link.failure}: another query reads '{self._path}' now, and this one ends")
        if self._link is not None and self._link.failure is None:
            return
        try:
            self._link = await self._attach()
        except (EntityClaimed, SessionCannotBeLocked) as error:
            raise PipelineError(
                f"'{self._path}' cannot be had alone: {error}; end the other receivers, or let them be with the option "
                "exclusive=false"
            ) from error

    async def _attach(self) -> ReceivingLink:
        if self._receiver is None:
            self._receiver = self._factory.create_message_receiver(
                self._path, epoch=self.epoch, silence_limit=SILENCE_LIMIT_S
            )
        try:
            return await self._receiver.link()
        except (NotAllowed, SessionLockLost):  # it requires sessions, or had one and lost it
            await self._receiver.close()
        mode = ReceiveMode.PEEK_LOCK
        self._receiver = await MessageSession.accept(
            self._factory,
            self._path,
            mode,
            SESSION,
            auto_renew=_FOREVER_S,
            epoch=self.epoch,
            silence_limit=SILENCE_LIMIT_S,
        )
        return await self._receiver.link()
