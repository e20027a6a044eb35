"""The driver's view of an entity: its positions, its exclusive receiver, and the completion of processed messages.

Owns one connection for the lifetime of a query, on the client's background thread, because Spark's driver has no event
loop. Knows nothing of reading messages: tasks read messages on their own connections.
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
"""Time after which other receivers may attach if the driver's machine is gone.

The limit is long enough for a driver that is busy for some seconds to stay the exclusive receiver.
"""
_FOREVER_S: Final = 10.0 * 365 * 86_400


class ExclusiveReceiver:
    """The exclusive receiver of a query that completes messages: no other receiver can attach to the entity.

    The exclusive receiver is a link with the current time as its epoch, so a restarted query takes over the entity. If
    the previous run is still active, it loses its link and can no longer complete messages. A link that was lost with
    its connection is attached again. If the entity requires sessions, the link accepts the session
    `EXCLUSIVE_SESSION_ID`, which has no messages.
    """

    def __init__(self, factory: MessagingFactory, path: str) -> None:
        """Create an exclusive receiver without attaching its link."""
        self.epoch = time.time_ns() // 1_000_000
        self._factory = factory
        self._path = path
        self._receiver: MessageReceiver | None = None
        self._link: ReceiverLink | None = None

    async def acquire(self) -> None:
        """Attach the link, or reattach a lost link. Raise PipelineError if the entity has other receivers."""
        if self._link is not None and isinstance(self._link.failure, LinkStolen):
            raise PipelineError(f"{self._link.failure}: another query reads '{self._path}' now; this query ends")
        if self._link is not None and self._link.failure is None:
            return
        try:
            self._link = await self._attach()
        except (EntityClaimed, SessionCannotBeLocked) as error:
            raise PipelineError(
                f"'{self._path}' cannot be received from exclusively: {error}; stop the other receivers, or set the "
                "option exclusive=false to allow them"
            ) from error

    async def _attach(self) -> ReceiverLink:
        if self._receiver is None:
            self._receiver = self._factory.create_message_receiver(
                self._path, epoch=self.epoch, silence_limit=SILENCE_LIMIT_S
            )
        try:
            return await self._receiver.link()
        except (NotAllowed, SessionLockLost):  # the entity requires sessions, or the session lock was lost
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
    """An entity, as used by the driver of one query."""

    def __init__(self, options: SourceOptions) -> None:
        """Prepare the connection, which opens with the first request."""
        self._options = options
        self._factory = call_blocking(lambda: connect(options))
        self._exclusive_receiver = (
            ExclusiveReceiver(self._factory, options.entity)
            if options.completes_processed and options.is_exclusive
            else None
        )
        self._completed_up_to: dict[int, tuple[int, int]] = {}
        """Entity id and next sequence number of each fragment's last completion."""

    def positions(self) -> Positions:
        """Return the positions of all fragments."""
        return run_blocking(lambda: request_positions(self._factory, self._options))

    def acquire(self) -> None:
        """Become the exclusive receiver if the options require it. Raise PipelineError if other receivers exist."""
        receiver = self._exclusive_receiver
        if receiver is not None:
            run_blocking(receiver.acquire)

    def complete(self, offsets: Offsets) -> None:
        """Complete all messages before these offsets.

        An unavailable fragment is skipped: the next completion includes its messages.
        """
        for fragment, number in offsets.fragments.items():
            target = (offsets.entity_id, number)
            if target != self._completed_up_to.get(fragment):  # may be lower, if the entity was recreated or restored
                try:
                    run_blocking(partial(self._complete, fragment, number - 1, offsets.entity_id))
                except EntityClaimed as error:
                    raise PipelineError(f"processed messages cannot be completed: {error}") from error
                except EntityNotFound as error:
                    if self._options.fails_on_data_loss:
                        raise PipelineError(f"data was lost: {error}") from error
                    log.warning("data was lost: %s", error)
                except ServiceBusError as error:
                    if not error.is_retriable:
                        raise
                    log.warning(
                        "fragment %d of '%s' is unavailable and will be completed later: %s",
                        fragment,
                        offsets.entity,
                        error,
                    )
                else:
                    self._completed_up_to[fragment] = target

    async def _complete(self, fragment: int, last_sequence_number: int, entity_id: int) -> None:
        """Complete messages, with retries. The entity id prevents completion in a recreated entity with that name."""
        path, limit_s = self._options.entity, self._options.operation_timeout_s
        body: dict[str, object] = {
            "sequence-number": last_sequence_number,
            "fragment": Int(fragment),
            "entity-id": entity_id,
        }
        if self._exclusive_receiver is not None:
            body["epoch"] = self._exclusive_receiver.epoch

        async def request() -> object:
            return await self._factory.request(path, "twinbus:complete-up-to", body, timeout_s=limit_s)

        await self._factory.run_with_retries(f"completing '{path}'", request, timeout_s=limit_s)

    def close(self) -> None:
        """Close the connection."""
        run_blocking(self._factory.close)
