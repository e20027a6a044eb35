"""One task's sends: a factory, paired where that is wanted, and many batches under way at a time.

Owns: the connection of a task from its first row to its last, how much is under way, the order within a session, and
the counts of what became of the messages. Knows nothing of Spark: rows come as record batches from any iterator.
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
"""Batches that a task has sent and heard nothing of yet."""
SPOOL_POLL_INTERVAL_S: Final = 0.05
MAX_SPOOLS: Final = 64
"""Tasks of one machine that can have a spool at a time."""


@dataclass(slots=True)
class SendCounts:
    """What became of messages."""

    sent: int = 0
    """The namespace that was meant has them."""
    parked: int = 0
    """They are in a backlog queue of the secondary."""
    spooled: int = 0
    """They are on the disk of the machine that the task ran on: both namespaces were down."""


def send_all(
    options: SinkOptions, batches: Iterator[pa.RecordBatch], ids: RowIds | None, *, may_have_been_sent: bool = False
) -> SendCounts:
    """Send all rows; what became of them. PipelineError names the row, or the namespace, that is in the way.

    `ids` gives message ids to rows that have none. Rows that may have been sent before are marked as such.
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
        sends = _BatchSender(factory, group)
        async for batch in _prefetched(batches):
            for parcel in group_into_batches(to_messages(batch, options.entity, ids)):
                if may_have_been_sent:
                    _mark_possible_duplicates(parcel)
                await sends.send(parcel)
                counts.sent += len(parcel.messages)
    counts.parked = min(counts.parked, counts.sent - counts.spooled)  # what was spooled before may be among them
    counts.sent -= counts.parked + counts.spooled
    return counts


async def _prefetched(batches: Iterator[pa.RecordBatch]) -> AsyncIterator[pa.RecordBatch]:
    """The same, while the next one is waited for on a thread: Spark hands them over by a blocking call."""
    reading = asyncio.ensure_future(asyncio.to_thread(next, batches, None))
    try:
        while (batch := await reading) is not None:
            reading = asyncio.ensure_future(asyncio.to_thread(next, batches, None))
            yield batch
    finally:
        reading.cancel()


class _BatchSender:
    """What is under way."""

    def __init__(self, factory: MessagingFactory, group: asyncio.TaskGroup) -> None:
        self._factory = factory
        self._group = group
        self._slots = asyncio.Semaphore(MAX_BATCHES_IN_FLIGHT)
        self._senders: dict[str, MessageSender] = {}
        self._last_send_by_session: dict[tuple[str, str], asyncio.Task[None]] = {}
        """The newest send of each session that is under way."""

    async def send(self, batch: SendBatch) -> None:
        """Have it sent as soon as there is room."""
        await self._slots.acquire()
        sender = self._senders.get(batch.entity)
        if sender is None:
            sender = self._senders[batch.entity] = self._factory.create_message_sender(batch.entity)
        if batch.session_id is None:
            self._group.create_task(self._run(sender, batch, None))
            return
        # A session's messages stay in order, also where some have to be sent again: a batch waits for the one before.
        key = (batch.entity, batch.session_id)
        task = self._group.create_task(self._run(sender, batch, self._last_send_by_session.get(key)))
        self._last_send_by_session[key] = task
        task.add_done_callback(lambda done: self._remove_finished(key, done))

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
    """Some of it may have been sent before."""
    for message in batch.messages:
        message.properties[POSSIBLE_DUPLICATE] = True


async def _send_batch(sender: MessageSender, batch: SendBatch) -> None:
    """A batch; where it is refused, one by one: then it is known which of them is to blame."""
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
            name = batch.keys.get(message.message_id) or f"messageId {message.message_id!r:.140}"
            raise PipelineError(f"the row with {name} cannot be sent to '{sender.path}': {error}") from error


# --- the factory ------------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def _open_factory(options: SinkOptions, counts: SendCounts) -> AsyncIterator[MessagingFactory]:
    """A factory as the options want it. What is parked or spooled is counted."""
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
        told = SendAvailabilityPairedNamespaceOptions(
            secondary_factory=_create_factory(options, pair.connection_string),
            secondary_namespace_manager=manager,
            backlog_queue_count=pair.backlog_queue_count,
            ping_primary_interval=pair.ping_interval_s,
            failover_interval=pair.failover_interval_s,
            hold_during_failover_interval=True,  # else the task would fail, and with it the job
            primary_namespace_name=pair.primary_name,
            spool_dir=pair.spool_dir,
            journal_dir=options.journal_dir,
        )
        try:
            pairing = await _pair_with_free_spool(primary, told)
        except BaseException:
            await asyncio.gather(primary.close(), told.secondary_factory.close())
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
                left = await _wait_for_empty_spool(pairing, options.operation_timeout_s)
                counts.spooled = min(counts.spooled, left)


async def _wait_for_empty_spool(pairing: Pairing, idle_timeout_s: float) -> int:
    """Wait while what is in the spool goes out: nobody may come to this machine again. How many are left."""
    loop = asyncio.get_running_loop()
    left, moved_s = -1, loop.time()
    while (status := pairing.spool_status) is not None and status.count and loop.time() - moved_s < idle_timeout_s:
        if status.count != left:
            left, moved_s = status.count, loop.time()
        await asyncio.sleep(SPOOL_POLL_INTERVAL_S)
    return 0 if status is None else status.count


async def _pair_with_free_spool(primary: MessagingFactory, options: SendAvailabilityPairedNamespaceOptions) -> Pairing:
    """Pair them. The spool's folder has one folder for each task that runs on this machine: the first that is free."""
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
    """One of them, however deep."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _as_pipeline_error(error: BaseException) -> BaseException:
    return PipelineError(f"rows were not sent: {error}") if isinstance(error, ServiceBusError) else error


# --- batches ----------------------------------------------------------------------------------------------------------

MAX_BATCH_MESSAGES: Final = 100
MAX_BATCH_BYTES: Final = 128 * 1024
"""Half of what a namespace of the Standard tier, and a backlog queue, takes at once."""
MAX_OPEN_BATCHES: Final = 256
"""Batches that are being filled at a time."""


class SendBatch:
    """One batch: messages of one entity and one key, few and small enough for any namespace, and for a backlog queue.

    A namespace takes a batch as a whole only if all of it leads to one place.
    """

    __slots__ = ("entity", "keys", "messages", "session_id", "size")

    def __init__(self, entity: str, session_id: str | None) -> None:
        """Nothing in it yet."""
        self.entity = entity
        self.session_id = session_id
        """Of all its messages."""
        self.messages: list[BrokeredMessage] = []
        self.keys: dict[object, str] = {}
        """By message id: what identifies the row, where the id was derived from that."""
        self.size = 0


def group_into_batches(outgoing: Iterable[OutgoingMessage]) -> Iterator[SendBatch]:
    """All of them, each batch as soon as it is full; what is left at the end."""
    filling: dict[tuple[str, str | None], SendBatch] = {}
    for entity, message, size, row_key in outgoing:
        session_id = message.session_id
        key = (entity, explicit_key(session_id, message.partition_key))
        parcel = filling.get(key)
        if parcel is not None and parcel.size + size > MAX_BATCH_BYTES:
            yield filling.pop(key)
            parcel = None
        if parcel is None:
            if len(filling) >= MAX_OPEN_BATCHES:
                yield filling.pop(next(iter(filling)))
            parcel = filling[key] = SendBatch(entity, session_id)
        parcel.messages.append(message)
        if row_key is not None:
            parcel.keys[message.message_id] = row_key
        parcel.size += size
        if len(parcel.messages) >= MAX_BATCH_MESSAGES:
            yield filling.pop(key)
    yield from filling.values()
