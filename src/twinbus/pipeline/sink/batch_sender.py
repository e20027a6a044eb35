"""The sender in one task: a factory, paired if the options require it, with many batches in flight.

Owns the task's connection from the first row to the last, the number of batches in flight, the order within sessions,
and the counts of sent, parked and spooled messages. Knows nothing of Spark: rows arrive as record batches from any
iterator.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import uvloop

from twinbus.client import MessagingFactory, NamespaceManager
from twinbus.client.journal import Journal
from twinbus.client.pairing import (
    POSSIBLE_DUPLICATE,
    EventKind,
    PairingFailed,
    SendAvailabilityPairedNamespaceOptions,
    SpoolFailed,
)
from twinbus.model.errors import FailureClass, ServiceBusError
from twinbus.model.partition_key import explicit_key
from twinbus.pipeline.errors import PipelineError
from twinbus.pipeline.sink.messages import to_messages

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Iterator

    import pyarrow as pa

    from twinbus.client import BrokeredMessage, MessageSender
    from twinbus.client.pairing import Pairing, PairingEvent
    from twinbus.pipeline.sink.message_ids import RowIds
    from twinbus.pipeline.sink.messages import OutgoingMessage
    from twinbus.pipeline.sink.options import PairOptions, SinkOptions

MAX_BATCHES_IN_FLIGHT: Final = 16
"""Maximum number of unacknowledged batches per task."""
SPOOL_POLL_INTERVAL_S: Final = 0.05
MAX_SPOOLS: Final = 64
"""Maximum number of tasks on a machine that have a spool at the same time."""


@dataclass(slots=True)
class SendCounts:
    """Number of messages by outcome."""

    sent: int = 0
    """Messages that the destination namespace accepted."""
    parked: int = 0
    """Messages in a backlog queue of the secondary."""
    spooled: int = 0
    """Messages on the local disk of the task's machine, because both namespaces were down."""


def send_all(
    options: SinkOptions, batches: Iterator[pa.RecordBatch], ids: RowIds | None, *, may_have_been_sent: bool = False
) -> SendCounts:
    """Send all rows and count the outcomes. PipelineError names the row or the namespace that caused a failure.

    `ids` derives message ids for rows without a message id. If `may_have_been_sent`, messages are marked as possible
    duplicates.
    """
    try:
        return uvloop.run(_send_all(options, batches, ids, may_have_been_sent=may_have_been_sent))
    except BaseExceptionGroup as group:
        raise _as_pipeline_error(_first_error(group)) from None
    except ServiceBusError as error:
        raise _as_pipeline_error(error) from error


async def _send_all(
    options: SinkOptions, batches: Iterator[pa.RecordBatch], ids: RowIds | None, *, may_have_been_sent: bool
) -> SendCounts:
    counts = SendCounts()
    async with _open_factory(options, counts) as factory, asyncio.TaskGroup() as group:
        sender = _BatchSender(factory, group)
        async for batch in _prefetched(batches):
            for send_batch in group_into_batches(to_messages(batch, options.entity, ids)):
                if may_have_been_sent:
                    _mark_possible_duplicates(send_batch)
                await sender.send(send_batch)
                counts.sent += len(send_batch.messages)
    counts.parked = min(counts.parked, counts.sent - counts.spooled)  # parked messages may come from an earlier spool
    counts.sent -= counts.parked + counts.spooled
    return counts


async def _prefetched(batches: Iterator[pa.RecordBatch]) -> AsyncIterator[pa.RecordBatch]:
    """Yield the batches. A thread reads the next batch, because Spark's iterator blocks."""
    reading = asyncio.ensure_future(asyncio.to_thread(next, batches, None))
    try:
        while (batch := await reading) is not None:
            reading = asyncio.ensure_future(asyncio.to_thread(next, batches, None))
            yield batch
    finally:
        reading.cancel()


class _BatchSender:
    """Sender that keeps several batches in flight."""

    def __init__(self, factory: MessagingFactory, group: asyncio.TaskGroup) -> None:
        self._factory = factory
        self._group = group
        self._slots = asyncio.Semaphore(MAX_BATCHES_IN_FLIGHT)
        self._senders: dict[str, MessageSender] = {}
        self._last_send_by_session: dict[tuple[str, str], asyncio.Task[None]] = {}
        """Latest send in flight for each session."""

    async def send(self, batch: SendBatch) -> None:
        """Start sending a batch, once fewer than `MAX_BATCHES_IN_FLIGHT` are in flight."""
        await self._slots.acquire()
        sender = self._senders.get(batch.entity)
        if sender is None:
            sender = self._senders[batch.entity] = self._factory.create_message_sender(batch.entity)
        if batch.session_id is None:
            self._group.create_task(self._run(sender, batch, None))
            return
        # Each batch in a session waits for the previous batch, so that messages stay in order even if some are resent.
        key = (batch.entity, batch.session_id)
        task = self._group.create_task(self._run(sender, batch, self._last_send_by_session.get(key)))
        self._last_send_by_session[key] = task
        task.add_done_callback(lambda finished: self._remove_finished(key, finished))

    def _remove_finished(self, key: tuple[str, str], task: asyncio.Task[None]) -> None:
        if self._last_send_by_session.get(key) is task:
            del self._last_send_by_session[key]

    async def _run(self, sender: MessageSender, batch: SendBatch, previous: asyncio.Task[None] | None) -> None:
        try:
            if previous is not None:
                await asyncio.shield(previous)
            await _send_batch(sender, batch)
        finally:
            self._slots.release()


def _mark_possible_duplicates(batch: SendBatch) -> None:
    """Mark all messages in a batch as possible duplicates."""
    for message in batch.messages:
        message.properties[POSSIBLE_DUPLICATE] = True


async def _send_batch(sender: MessageSender, batch: SendBatch) -> None:
    """Send a batch. If the namespace rejects the batch, send each message separately to find the faulty message."""
    messages = batch.messages
    if len(messages) > 1:
        try:
            await sender.send_batch(messages)
        except ServiceBusError as error:
            if error.failure_class is not FailureClass.CALLER:
                raise
            if error.may_have_happened and sender.factory.pairing is not None:
                _mark_possible_duplicates(batch)
        else:
            return
    for message in messages:
        try:
            await sender.send(message)
        except ServiceBusError as error:
            if error.failure_class is not FailureClass.CALLER:
                raise
            row_key = batch.keys.get(message.message_id) or f"messageId {message.message_id!r:.140}"
            raise PipelineError(f"the row with {row_key} cannot be sent to '{sender.path}': {error}") from error


# --- the factory ------------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def _open_factory(options: SinkOptions, counts: SendCounts) -> AsyncIterator[MessagingFactory]:
    """Open a factory that counts parked and spooled messages. The factory is paired if the options require it."""
    factory = _create_factory(options, options.connection_string)
    if options.pair is not None:
        async with _open_pair(factory, options, options.pair, counts):
            yield factory
        return
    journal = None if options.journal_dir is None else Journal(options.journal_dir)
    if journal is not None:
        journal.attach(factory)
    try:
        async with factory:
            yield factory
    finally:
        if journal is not None:
            await journal.close()


def _create_factory(options: SinkOptions, connection_string: str) -> MessagingFactory:
    return MessagingFactory.from_connection_string(
        connection_string, operation_timeout=options.operation_timeout_s, ca_file=options.ca_file
    )


@contextlib.asynccontextmanager
async def _open_pair(
    primary: MessagingFactory, options: SinkOptions, pair: PairOptions, counts: SendCounts
) -> AsyncIterator[None]:
    async with NamespaceManager.from_connection_string(
        pair.admin_connection_string, ca_file=options.ca_file
    ) as manager:
        pairing_options = SendAvailabilityPairedNamespaceOptions(
            secondary_factory=_create_factory(options, pair.connection_string),
            secondary_namespace_manager=manager,
            backlog_queue_count=pair.backlog_queue_count,
            ping_primary_interval=pair.ping_interval_s,
            failover_interval=pair.failover_interval_s,
            hold_during_failover_interval=True,  # otherwise an outage would fail the task
            primary_namespace_name=pair.primary_name,
            spool_dir=pair.spool_dir,
            journal_dir=options.journal_dir,
        )
        try:
            pairing = await _pair_with_free_spool(primary, pairing_options)
        except BaseException:
            await asyncio.gather(primary.close(), pairing_options.secondary_factory.close())
            raise

        def count(event: PairingEvent) -> None:
            if event.kind is EventKind.PARKED:
                counts.parked += event.count
            else:
                counts.spooled += event.count

        pairing.on_event(count, (EventKind.PARKED, EventKind.SPOOLED))
        async with pairing:
            yield
            if pairing.spool_status is not None:
                remaining = await _wait_for_empty_spool(pairing, options.operation_timeout_s)
                counts.spooled = min(counts.spooled, remaining)


async def _wait_for_empty_spool(pairing: Pairing, idle_timeout_s: float) -> int:
    """Wait until the spool is empty or makes no progress, because the spool might never be read again.

    Return the number of messages left in the spool.
    """
    loop = asyncio.get_running_loop()
    last_count, moved_s = -1, loop.time()
    while (status := pairing.spool_status) is not None and status.count and loop.time() - moved_s < idle_timeout_s:
        if status.count != last_count:
            last_count, moved_s = status.count, loop.time()
        await asyncio.sleep(SPOOL_POLL_INTERVAL_S)
    return 0 if status is None else status.count


async def _pair_with_free_spool(primary: MessagingFactory, options: SendAvailabilityPairedNamespaceOptions) -> Pairing:
    """Pair the namespaces. The spool uses the first free subfolder, because each task needs its own."""
    if options.spool_dir is None:
        return await primary.pair_namespace(options)
    folder = Path(options.spool_dir)
    for number in range(MAX_SPOOLS):
        options.spool_dir = folder / str(number)
        try:
            return await primary.pair_namespace(options)
        except PairingFailed as error:
            if number == MAX_SPOOLS - 1 or not isinstance(error.__cause__, SpoolFailed):
                raise
    raise AssertionError("the last try returns or raises")


def _first_error(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the first leaf exception of nested groups."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _as_pipeline_error(error: BaseException) -> BaseException:
    return PipelineError(f"rows were not sent: {error}") if isinstance(error, ServiceBusError) else error


# --- batches ----------------------------------------------------------------------------------------------------------

MAX_BATCH_MESSAGES: Final = 100
MAX_BATCH_BYTES: Final = 128 * 1024
"""Half the batch size that a Standard namespace and a backlog queue accept."""
MAX_OPEN_BATCHES: Final = 256
"""Maximum number of batches that are filled at the same time."""


class SendBatch:
    """A batch of messages with the same entity and key, small enough for any namespace and backlog queue.

    A namespace accepts a batch atomically only if all its messages have the same key.
    """

    __slots__ = ("entity", "keys", "messages", "session_id", "size")

    def __init__(self, entity: str, session_id: str | None) -> None:
        """Create an empty batch."""
        self.entity = entity
        self.session_id = session_id
        """Session id of all messages."""
        self.messages: list[BrokeredMessage] = []
        self.keys: dict[object, str] = {}
        """Row keys by message id, for ids that were derived from keys."""
        self.size = 0


def group_into_batches(outgoing: Iterable[OutgoingMessage]) -> Iterator[SendBatch]:
    """Group messages into batches. Yield a batch when it is full, and incomplete batches at the end."""
    open_batches: dict[tuple[str, str | None], SendBatch] = {}
    for entity, message, size, row_key in outgoing:
        session_id = message.session_id
        key = (entity, explicit_key(session_id, message.partition_key))
        batch = open_batches.get(key)
        if batch is not None and batch.size + size > MAX_BATCH_BYTES:
            yield open_batches.pop(key)
            batch = None
        if batch is None:
            if len(open_batches) >= MAX_OPEN_BATCHES:
                yield open_batches.pop(next(iter(open_batches)))
            batch = open_batches[key] = SendBatch(entity, session_id)
        batch.messages.append(message)
        if row_key is not None:
            batch.keys[message.message_id] = row_key
        batch.size += size
        if len(batch.messages) >= MAX_BATCH_MESSAGES:
            yield open_batches.pop(key)
    yield from open_batches.values()
