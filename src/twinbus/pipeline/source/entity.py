"""The entity, as the driver of a query has it: how far it reaches, whose it is, and what of it is done with.

Owns: one connection for as long as a query runs, on the client's own thread, since Spark's driver has no loop. Reading
is done by tasks, on connections of their own.
"""

from __future__ import annotations

import logging
import time
from functools import partial
from typing import TYPE_CHECKING, Final

from twinbus.amqp.types import Int
from twinbus.client.message_session import MessageSession
from twinbus.client.receiver import ReceiveMode
from twinbus.client.sync.background_loop import call_blocking, run_blocking
from twinbus.model.errors import (
    EntityClaimed,
    EntityNotFound,
    LinkStolen,
    NotAllowed,
    ServiceBusError,
    SessionCannotBeLocked,
    SessionLockLost,
)
from twinbus.pipeline.errors import PipelineError
from twinbus.pipeline.source.options import connect
from twinbus.pipeline.source.positions import request_positions

if TYPE_CHECKING:
    from twinbus.client.amqp.receiver_link import ReceiverLink
    from twinbus.client.factory import MessagingFactory
    from twinbus.client.receiver import MessageReceiver
    from twinbus.pipeline.source.offsets import Offsets
    from twinbus.pipeline.source.options import SourceOptions
    from twinbus.pipeline.source.positions import Positions

EXCLUSIVE_SESSION_ID: Final = "twinbus-pipeline-claim"
SILENCE_LIMIT_S: Final = 30.0
"""After which others may receive from the entity when the driver's machine has gone. A driver that is busy for some
seconds keeps its claim."""
_FOREVER_S: Final = 10.0 * 365 * 86_400


class ExclusiveReceiver:
    """The claim of a query that completes messages: nobody else receives from the entity while it runs.

    The claim is a link, taken with the time as its epoch: a query that is started anew has it, and the one before it,
    if it still runs somewhere, has lost it and may complete nothing any more. A link that was lost with its connection
    is made again. An entity with sessions is claimed by a session of our own, which has no messages.
    """

    def __init__(self, factory: MessagingFactory, path: str) -> None:
        """Nothing is claimed yet."""
        self.epoch = time.time_ns() // 1_000_000
        self._factory = factory
        self._path = path
        self._receiver: MessageReceiver | None = None
        self._link: ReceiverLink | None = None

    async def acquire(self) -> None:
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

    async def _attach(self) -> ReceiverLink:
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
            EXCLUSIVE_SESSION_ID,
            auto_renew=_FOREVER_S,
            epoch=self.epoch,
            silence_limit=SILENCE_LIMIT_S,
        )
        return await self._receiver.link()


log: Final = logging.getLogger(__name__)


class SourceEntity:
    """One entity, from one driver."""

    def __init__(self, options: SourceOptions) -> None:
        """Nothing is connected before it is needed."""
        self._options = options
        self._factory = call_blocking(lambda: connect(options))
        self._exclusive_receiver = (
            ExclusiveReceiver(self._factory, options.entity)
            if options.completes_processed and options.is_exclusive
            else None
        )
        self._completed_up_to: dict[int, tuple[int, int]] = {}
        """Of which entity of the name each fragment was completed last, and up to where."""

    def positions(self) -> Positions:
        """How far each fragment reaches."""
        return run_blocking(lambda: request_positions(self._factory, self._options))

    def acquire(self) -> None:
        """Have it alone, if that is wanted. PipelineError if it cannot be."""
        claim = self._exclusive_receiver
        if claim is not None:
            run_blocking(claim.acquire)

    def complete(self, offsets: Offsets) -> None:
        """What lies before these offsets was processed.

        A fragment that does not work now is left: what is completed later includes it.
        """
        for fragment, number in offsets.fragments.items():
            done = (offsets.entity_id, number)
            if done != self._completed_up_to.get(fragment):  # a lower number: the entity was created again, or restored
                try:
                    run_blocking(partial(self._complete, fragment, number - 1, offsets.entity_id))
                except EntityClaimed as error:
                    raise PipelineError(f"what was processed cannot be completed: {error}") from error
                except EntityNotFound as error:
                    if self._options.fails_on_data_loss:
                        raise PipelineError(f"data was lost: {error}") from error
                    log.warning("data was lost: %s", error)
                except ServiceBusError as error:
                    if not error.is_retriable:
                        raise
                    log.warning("fragment %d of '%s' is completed later: %s", fragment, offsets.entity, error)
                else:
                    self._completed_up_to[fragment] = done

    async def _complete(self, fragment: int, last_sequence_number: int, entity_id: int) -> None:
        """Complete, again if there is no answer: then the entity may be another one, and its numbers mean others."""
        path, limit_s = self._options.entity, self._options.operation_timeout_s
        body: dict[str, object] = {
            "sequence-number": last_sequence_number,
            "fragment": Int(fragment),
            "entity-id": entity_id,
        }
        if self._exclusive_receiver is not None:
            body["epoch"] = self._exclusive_receiver.epoch

        async def ask() -> object:
            return await self._factory.request(path, "twinbus:complete-up-to", body, timeout_s=limit_s)

        await self._factory.run_with_retries(f"completing '{path}'", ask, timeout_s=limit_s)

    def close(self) -> None:
        """Give it up."""
        run_blocking(self._factory.close)
