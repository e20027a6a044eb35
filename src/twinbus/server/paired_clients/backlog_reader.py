"""Statistics about this namespace's backlog queues: how many messages they hold, for which entities, and how old.

Owns: the statistics and their limits. A queue's counts come from its counters and are exact. Destinations and ages are
read from the messages, the oldest first, up to a limit that all queues of a request share, so that a backlog of
millions of messages costs no more than a backlog of ten thousand. Reading does not lock, change or meter messages.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from twinbus.amqp.errors import DecodeError
from twinbus.amqp.message import Message, Section
from twinbus.model.annotations import ENQUEUED_TIME, PATH, SEQUENCE_NUMBER
from twinbus.model.errors import EntityNotFound, ServiceBusError
from twinbus.model.info import QueueInfo
from twinbus.model.limits import ENTITY_PATH_MAX_CHARACTERS
from twinbus.model.path import SubQueue, canonical_key
from twinbus.model.times import datetime_of
from twinbus.server.paired_clients.report_store import BACKLOG_QUEUE_PATH

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable, Iterable

    from twinbus.broker.namespace import Namespace
    from twinbus.broker.ports.fragment import FragmentPort
    from twinbus.server.catalogue.administration import Administration

MAX_MESSAGES: Final = 10_000
"""The maximum number of messages that one request reads, from all backlog queues together."""
MAX_BYTES: Final = 67_108_864
"""The maximum size of the messages that one request reads. The store reads messages with their bodies."""
PAGE_MESSAGES: Final = 250
PAGE_BYTES: Final = 524_288
MAX_CONCURRENT_QUEUES: Final = 8


@dataclass(slots=True)
class Destination:
    """The parked messages for one entity in the primary, in one backlog queue."""

    path: str
    messages: int
    oldest: dt.datetime


@dataclass(slots=True)
class BacklogQueue:
    """The statistics of one backlog queue. The JSON response has the same field names."""

    path: str
    primary: str
    parked: int
    """The number of active, deferred and scheduled messages."""
    dead_lettered: int
    size_bytes: int
    is_available: bool
    """False if the queue's store is down and the counts may be wrong."""
    read: int = 0
    """The number of messages read (oldest first) for the following fields; less than `parked` at a limit."""
    oldest: dt.datetime | None = None
    """The time at which the oldest message was parked."""
    destinations: list[Destination] = field(default_factory=list)
    unknown: int = 0
    """The number of messages without a valid destination."""
    error: str | None = None
    """The reason why the messages could not be read."""


class BacklogReader:
    """Reads the statistics of all backlog queues in a namespace."""

    def __init__(self, namespace: Namespace, administration: Administration) -> None:
        """Create a reader for the backlog queues in `namespace`."""
        self._namespace = namespace
        self._administration = administration
        self._read_lock = asyncio.Lock()
        """Admits one request at a time, because the limits apply to the namespace."""

    async def read(self, may_read: Callable[[str], bool], primary: str | None = None) -> list[BacklogQueue]:
        """Return the statistics of all backlog queues, or only of the backlog queues for `primary`.

        Only primaries for which `may_read` returns True are included.
        """
        primary_key = None if primary is None else canonical_key(primary)
        paths = sorted(
            key
            for key in self._namespace.entities
            if (match := BACKLOG_QUEUE_PATH.fullmatch(key)) and primary_key in (None, match[1]) and may_read(match[1])
        )
        if not paths:
            return []
        concurrency = asyncio.Semaphore(MAX_CONCURRENT_QUEUES)
        async with self._read_lock:
            queues = await asyncio.gather(*[self._read_queue(path, len(paths), concurrency) for path in paths])
        return [queue for queue in queues if queue is not None]

    async def _read_queue(self, path: str, queue_count: int, concurrency: asyncio.Semaphore) -> BacklogQueue | None:
        """Return the statistics of one of `queue_count` queues; None if the queue no longer exists, or is a topic."""
        async with concurrency:
            try:
                info = await self._administration.get(path)
            except EntityNotFound:
                return None
            if not isinstance(info, QueueInfo):
                return None
            runtime = info.runtime
            queue = BacklogQueue(
                path=info.path,
                primary=info.path.split("/", 1)[0],
                parked=runtime.active_count + runtime.deferred_count + runtime.scheduled_count,
                dead_lettered=runtime.dead_letter_count,
                size_bytes=runtime.size_bytes,
                is_available=runtime.is_available,
            )
            statistics = _QueueStatistics(MAX_MESSAGES // queue_count or 1, MAX_BYTES // queue_count)
            try:
                for fragment in self._namespace.find_receivable(path).fragments_of(SubQueue.MAIN):
                    await _read_fragment(fragment, statistics)
            except ServiceBusError as error:
                queue.error = str(error)
            queue.read, queue.oldest, queue.unknown = statistics.messages, statistics.oldest, statistics.unknown
            queue.destinations = list(statistics.destinations.values())
            return queue


async def _read_fragment(fragment: FragmentPort, statistics: _QueueStatistics) -> None:
    start = 0
    while not statistics.is_full:
        page = await _peek(fragment, start, min(PAGE_MESSAGES, statistics.messages_left))
        if not page:
            return
        start = statistics.add(page) + 1


async def _peek(fragment: FragmentPort, start: int, count: int) -> list[bytes]:
    reply: asyncio.Future[list[bytes] | ServiceBusError] = asyncio.get_running_loop().create_future()

    def on_peeked(payloads: list[bytes] | ServiceBusError) -> None:
        if not reply.done():  # the caller may have been cancelled
            reply.set_result(payloads)

    fragment.browser.peek(start, count, PAGE_BYTES, on_peeked)
    payloads = await reply
    if isinstance(payloads, ServiceBusError):
        raise payloads
    return payloads


class _QueueStatistics:
    """Counts and ages of one queue's messages."""

    def __init__(self, max_messages: int, max_bytes: int) -> None:
        """Create empty statistics that may read up to `max_messages` messages and `max_bytes` bytes."""
        self.messages = 0
        self.oldest: dt.datetime | None = None
        self.destinations: dict[str, Destination] = {}
        """Destinations by canonical path."""
        self.unknown = 0
        self.messages_left = max_messages
        self._bytes_left = max_bytes

    @property
    def is_full(self) -> bool:
        """Whether a limit is reached."""
        return self.messages_left <= 0 or self._bytes_left <= 0

    def add(self, payloads: Iterable[bytes]) -> int:
        """Add messages to the statistics; return the sequence number of the last message."""
        number = 0
        for payload in payloads:
            message = Message(payload)
            number = _int_annotation(message, SEQUENCE_NUMBER)
            parked = datetime_of(_int_annotation(message, ENQUEUED_TIME))
            self.oldest = parked if self.oldest is None else min(self.oldest, parked)
            self.messages += 1
            self.messages_left -= 1
            self._bytes_left -= len(payload)
            self._count_message(message, parked)
        return number

    def _count_message(self, message: Message, parked_at: dt.datetime) -> None:
        try:
            path = message.lookup(Section.APPLICATION_PROPERTIES, PATH)
        except DecodeError:
            path = None
        # Any client with the `Send` right can set this property, and its value is printed on terminals.
        if not isinstance(path, str) or not path.isprintable() or not 0 < len(path) <= ENTITY_PATH_MAX_CHARACTERS:
            self.unknown += 1
            return
        destination = self.destinations.setdefault(canonical_key(path), Destination(str(path), 0, parked_at))
        destination.messages += 1
        destination.oldest = min(destination.oldest, parked_at)


def _int_annotation(message: Message, name: str) -> int:
    value = message.lookup(Section.MESSAGE_ANNOTATIONS, name)
    assert isinstance(value, int)
    return int(value)
