"""The sender of spooled messages: sends or parks each message, and then removes the message from the spool.

Owns: when messages are sent, and what happens after a failure. While the messages for an entity can be neither
delivered nor parked, one message at a time is retried, with increasing delays. After a success, many messages are in
flight at the same time. The index (`index`) decides the order.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import logging
from enum import Enum
from typing import TYPE_CHECKING, Final

from msgspec import structs

from twinbus.amqp.message import Message
from twinbus.client.errors import FactoryFaulted, ObjectClosed, may_have_happened
from twinbus.client.pairing.delivery_failure import RejectionPolicy, is_destination_refusal
from twinbus.client.pairing.errors import MessageCannotBeParked, NotSent, SpoolFailed
from twinbus.client.pairing.observe.events import EventKind
from twinbus.client.pairing.triggers import class_of
from twinbus.model.callbacks import ignore
from twinbus.model.errors import FailureClass, PartlyStored, ServiceBusError
from twinbus.model.message import BATCH_FORMAT, BrokeredMessage
from twinbus.model.path import canonical_key
from twinbus.model.times import duration_s

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twinbus.client.pairing.pairing import Pairing
    from twinbus.client.pairing.spool.index import EntityQueue
    from twinbus.client.pairing.spool.record import SpoolRecord
    from twinbus.client.pairing.spool.spool import Spool

log: Final = logging.getLogger(__name__)

FIRST_PAUSE_S: Final = 1.0
MAX_PAUSE_S: Final = 60.0
MAX_IN_FLIGHT: Final = 64
"""The maximum number of records for one entity that are sent at the same time."""


class FailureAction(Enum):
    """The consequence of a failed send, for the message and for later messages."""

    ENTITY_WAITS = "the entity accepts no messages now"
    MESSAGE_WAITS = "this message cannot be sent now, but others may"
    REFUSED = "the message will never be accepted"
    FACTORY_ENDED = "the factory has ended"


_ACTION_BY_ERROR: Final[dict[type[BaseException], FailureAction]] = {
    PartlyStored: FailureAction.ENTITY_WAITS,  # the other messages of the batch are sent later
    MessageCannotBeParked: FailureAction.MESSAGE_WAITS,  # the message is sent when the primary is back
    SpoolFailed: FailureAction.MESSAGE_WAITS,  # the record cannot be read or moved to `refused`
    OSError: FailureAction.MESSAGE_WAITS,
}


class SpoolSender:
    """The sender of one pairing's spool."""

    def __init__(self, pairing: Pairing, spool: Spool) -> None:
        """Create a sender; `start` starts sending."""
        self._pairing = pairing
        self._spool = spool
        self._entity_senders: dict[str, EntitySpoolSender] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Start sending the records in the spool, and records that are added later."""
        self._spool.on_added = self._on_added
        for queue in self._spool.entity_queues:
            self._start_entity_sender(queue, 0.0)

    async def close(self) -> None:
        """Stop sending. Messages that were not sent stay in the spool."""
        self._spool.on_added = ignore
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _on_added(self, queue: EntityQueue) -> None:
        entity_sender = self._entity_senders.get(canonical_key(queue.path))
        if (
            entity_sender is None or entity_sender.queue is not queue
        ):  # the previous sender is stopping, since its queue was empty
            self._start_entity_sender(queue, FIRST_PAUSE_S)  # both namespaces have just failed
        else:
            entity_sender.changed.set()

    def _start_entity_sender(self, queue: EntityQueue, pause_s: float) -> None:
        try:
            entity_sender = EntitySpoolSender(self._pairing, self._spool, queue)
        except (ObjectClosed, FactoryFaulted) as error:
            log.warning("messages for '%s' stay in the spool until the next start: %s", queue.path, error)
            return
        self._entity_senders[canonical_key(queue.path)] = entity_sender
        task = asyncio.ensure_future(self._run(entity_sender, queue, pause_s))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, entity_sender: EntitySpoolSender, queue: EntityQueue, pause_s: float) -> None:
        try:
            await entity_sender.run(pause_s)
        finally:
            if self._entity_senders[canonical_key(queue.path)] is entity_sender:
                del self._entity_senders[canonical_key(queue.path)]


class EntitySpoolSender:
    """The sender of the records that are spooled for one entity."""

    def __init__(self, pairing: Pairing, spool: Spool, queue: EntityQueue) -> None:
        """Create a sender for one entity's queue; `run` sends its records."""
        self.changed = asyncio.Event()
        """Set when a record was added, sent, or failed."""
        self.queue = queue
        self._pairing = pairing
        self._spool = spool
        self._sender = pairing.make_sender(queue.path)
        self._in_flight: set[asyncio.Task[None]] = set()
        self._max_in_flight = 1
        """The current limit of records in flight."""
        self._possible_duplicates: set[int] = set()
        """Positions of records that were sent earlier without a response."""
        self._stored_positions: dict[int, Sequence[int]] = {}
        """For each batch that was stored in part, the batch positions of the messages that are stored."""
        self._failures = 0
        """The number of consecutive failures of the entity."""
        self._rejection_policy = RejectionPolicy(duration_s(pairing.options.not_found_grace))
        self._refusal: ServiceBusError | None = None
        """The error with which the entity refuses all messages now: it is disabled or missing, or does not accept the
        key."""
        self._has_failed = False
        """Whether a send has failed since the last pause."""
        self._is_ended = False

    async def run(self, pause_s: float) -> None:
        """Send records until the queue is empty, starting after a pause."""
        try:
            await self._pause(pause_s)
            while self.queue and not self._is_ended:
                self._start_sends()
                self.changed.clear()
                await self.changed.wait()
                if self._has_failed:
                    await self._wait_for_in_flight()
                    await self._pause(min(FIRST_PAUSE_S * 2 ** (self._failures - 1), MAX_PAUSE_S))
        finally:
            for task in self._in_flight:
                task.cancel()
            await self._wait_for_in_flight()
            self._end_refusal()
            await self._sender.close()

    def _start_sends(self) -> None:
        """Start sends up to the limit of records in flight."""
        while len(self._in_flight) < self._max_in_flight:
            position = self.queue.take()
            if position is None:
                return
            task = asyncio.ensure_future(self._send_record(position))
            self._in_flight.add(task)
            task.add_done_callback(self._on_send_done)

    def _on_send_done(self, task: asyncio.Task[None]) -> None:
        self._in_flight.discard(task)
        self.changed.set()
        if not task.cancelled() and task.exception() is not None:
            log.error(
                "a spooled message for '%s' stays in the spool until the next start",
                self.queue.path,
                exc_info=task.exception(),
            )

    async def _wait_for_in_flight(self) -> None:
        """Wait until all sends in flight have finished."""
        if self._in_flight:
            await asyncio.wait(self._in_flight)
        self._has_failed = False

    async def _pause(self, pause_s: float) -> None:
        """Pause, but return early if the entity's state changes."""
        if pause_s > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._sender.health.state_changed.wait()

    async def _send_record(self, position: int) -> None:
        """Send a record and remove it, or handle its failure."""
        record: SpoolRecord | None = None
        try:
            record = await self._spool.read(position)
            messages = messages_of(record)
            await self._sender.send_spooled(
                record.payload,
                record.message_format,
                messages,
                may_have_arrived=self._is_possible_duplicate(position, record),
                stored=self._stored_positions.get(position, ()),
            )
        except Exception as error:  # noqa: BLE001  # after any error the message stays in the spool
            await self._on_failure(position, record, error)
        else:
            self._on_accepted()
            await self._spool.remove(position, record)
            self._possible_duplicates.discard(position)
            self._stored_positions.pop(position, None)
            self._emit(EventKind.UNSPOOLED, messages)

    def _is_possible_duplicate(self, position: int, record: SpoolRecord) -> bool:
        return (
            record.may_have_arrived
            or position in self._possible_duplicates
            or self._spool.is_possible_duplicate(position)
        )

    def _on_accepted(self) -> None:
        if self._failures:
            log.info("sending of messages spooled for '%s' has resumed", self.queue.path)
        self._failures, self._max_in_flight = 0, min(2 * self._max_in_flight, MAX_IN_FLIGHT)
        self._rejection_policy.note_accepted()
        self._end_refusal()

    # --- failures -----------------------------------------------------------------------------------------------------

    async def _on_failure(self, position: int, record: SpoolRecord | None, error: Exception) -> None:
        action = self._action_for(error)
        if isinstance(error, NotSent | PartlyStored) and error.stored:
            self._stored_positions[position] = error.stored
        if may_have_happened(error):
            self._possible_duplicates.add(position)
        if action is FailureAction.REFUSED and record is not None:
            try:
                await self._refuse(position, record, error)
            except (OSError, SpoolFailed) as failure:
                log.error("%s; the message could not be moved to `refused`: %s", error, failure)  # noqa: TRY400  # the traceback would not help
                action = FailureAction.MESSAGE_WAITS
            else:
                return
        # An outage is logged once, not with every attempt.
        level = logging.DEBUG if action is FailureAction.ENTITY_WAITS and self._failures else logging.WARNING
        log.log(level, "a spooled message for '%s' was not sent: %s: %s", self.queue.path, action.value, error)
        if action is FailureAction.MESSAGE_WAITS:
            asyncio.get_running_loop().call_later(MAX_PAUSE_S, self._put_back, position)
            return
        if action is FailureAction.FACTORY_ENDED:
            self._is_ended = True
        else:
            self._failures, self._max_in_flight, self._has_failed = self._failures + 1, 1, True
        self._put_back(position)

    def _put_back(self, position: int) -> None:
        self.queue.put_back(position)
        self.changed.set()

    def _action_for(self, error: Exception) -> FailureAction:
        if self._pairing.primary.ended.is_set():
            return FailureAction.FACTORY_ENDED  # a closed factory can cause any error
        for kind, action in _ACTION_BY_ERROR.items():
            if isinstance(error, kind):
                return action
        if isinstance(error, ServiceBusError):
            return self._action_for_service_error(error)
        log.error(
            "a spooled message for '%s' could not be sent because of a bug in twinbus", self.queue.path, exc_info=error
        )
        return FailureAction.MESSAGE_WAITS

    def _action_for_service_error(self, error: ServiceBusError) -> FailureAction:
        """Apply the syphon's rule (`delivery_failure`), unless the application classifies the error as an outage."""
        is_outage = class_of(error, self._pairing.options.triggers) is not FailureClass.CALLER
        if not is_outage and self._rejection_policy.is_permanent(error, asyncio.get_running_loop().time()):
            return FailureAction.REFUSED
        if is_destination_refusal(error) and type(error) is not type(self._refusal):
            self._end_refusal()
            self._refusal = error
            self._pairing.event_publisher.emit(EventKind.DESTINATION_REFUSES, path=self.queue.path, reason=str(error))
        return FailureAction.ENTITY_WAITS

    def _end_refusal(self) -> None:
        if self._refusal is not None:
            self._refusal = None
            self._pairing.event_publisher.emit(EventKind.DESTINATION_ACCEPTS, path=self.queue.path)

    async def _refuse(self, position: int, record: SpoolRecord, error: Exception) -> None:
        now = dt.datetime.fromtimestamp(self._pairing.primary.settings.clock.wall_ms() / 1000, dt.UTC)
        record = structs.replace(record, may_have_arrived=self._is_possible_duplicate(position, record))
        file = await self._spool.refuse(
            position,
            record,
            f"{now.isoformat(timespec='seconds')}: '{record.path}' refused the message\n"
            f"{type(error).__name__}: {error}\n"
            f"MessageId: {', '.join(record.message_ids)}\n",
        )
        self._possible_duplicates.discard(position)
        self._stored_positions.pop(position, None)
        log.error("'%s' refused a spooled message, which was moved to %s: %s", record.path, file, error)
        self._emit(EventKind.SPOOL_REFUSED, messages_of(record), reason=str(error))

    def _emit(self, kind: EventKind, messages: list[BrokeredMessage], reason: str | None = None) -> None:
        for message in messages:
            self._pairing.event_publisher.emit(
                kind,
                path=self.queue.path,
                message_id=message.message_id,
                session_id=message.session_id,
                reason=reason,
            )


def messages_of(record: SpoolRecord) -> list[BrokeredMessage]:
    """Return the messages in a record: one message, or all messages of a batch."""
    payloads = Message(record.payload).data if record.message_format == BATCH_FORMAT else [record.payload]
    return [BrokeredMessage.decode(payload) for payload in payloads]
