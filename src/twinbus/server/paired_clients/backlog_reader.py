"""The backlog queues of this namespace, as operators see them: how many messages, for which entities, how old.

Owns: counting, and the limits on it. The numbers of a queue come from its counters and are exact. Destinations and ages
are read from the messages themselves, the oldest first, up to a limit that all queues of a request share: a backlog of
millions costs no more than one of ten thousand. Nothing is locked, changed or metered.
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
"""Messages that one request reads, of all backlog queues together."""
MAX_BYTES: Final = 67_108_864
"""... and their bytes: the store reads messages with their bodies."""
PAGE_MESSAGES: Final = 250
PAGE_BYTES: Final = 524_288
MAX_CONCURRENT_QUEUES: Final = 8


@dataclass(slots=True)
class Destination:
    """The parked messages for one entity of the primary, in one backlog queue."""

    path: str
    messages: int
    oldest: dt.datetime


@dataclass(slots=True)
class BacklogQueue:
    """One backlog queue. As in the answer's JSON."""

    path: str
    primary: str
    parked: int
    """Active, deferred and scheduled messages."""
    dead_lettered: int
    size_bytes: int
    is_available: bool
    """False: its store does not work, and the counts may be wrong."""
    read: int = 0
    """How many messages were read for what follows, the oldest first; fewer than `parked` if there are too many."""
    oldest: dt.datetime | None = None
    """When the oldest message was parked."""
    destinations: list[Destination] = field(default_factory=list)
    unknown: int = 0
    """Messages without a valid destination."""
    error: str | None = None
    """Why the messages could not be read."""


class BacklogReader:
    """The backlog queues of a namespace."""

    def __init__(self, namespace: Namespace, administration: Administration) -> None:
        """Nothing is read yet."""
        self._namespace = namespace
        self._administration = administration
        self._read_lock = asyncio.Lock()
        """One request at a time: the limits are those of the namespace."""

    async def read(self, may_read: Callable[[str], bool], primary: str | None = None) -> list[BacklogQueue]:
        """The backlog queues of the primaries that the caller may see, or of one of them."""
        wanted = None if primary is None else canonical_key(primary)
        paths = sorted(
            key
            for key in self._namespace.entities
            if (found := BACKLOG_QUEUE_PATH.fullmatch(key)) and wanted in (None, found[1]) and may_read(found[1])
        )
        if not paths:
            return []
        at_once = asyncio.Semaphore(MAX_CONCURRENT_QUEUES)
        async with self._read_lock:
            read = await asyncio.gather(*[self._read_queue(path, len(paths), at_once) for path in paths])
        return [queue for queue in read if queue is not None]

    async def _read_queue(self, path: str, queue_count: int, concurrency: asyncio.Semaphore) -> BacklogQueue | None:
        """One of so many; None if it was deleted meanwhile, or is a topic."""
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
            tally = _QueueStatistics(MAX_MESSAGES // queue_count or 1, MAX_BYTES // queue_count)
            try:
                for fragment in self._namespace.find_receivable(path).fragments_of(SubQueue.MAIN):
                    await _read_fragment(fragment, tally)
            except ServiceBusError as error:
                queue.error = str(error)
            queue.read, queue.oldest, queue.unknown = tally.messages, tally.oldest, tally.unknown
            queue.destinations = list(tally.destinations.values())
            return queue


async def _read_fragment(fragment: FragmentPort, statistics: _QueueStatistics) -> None:
    start = 0
    while not statistics.is_full:
        page = await _peek(fragment, start, min(PAGE_MESSAGES, statistics.messages_left))
        if not page:
            return
        start = statistics.add(page) + 1


async def _peek(fragment: FragmentPort, start: int, count: int) -> list[bytes]:
    answer: asyncio.Future[list[bytes] | ServiceBusError] = asyncio.get_running_loop().create_future()

    def peeked(found: list[bytes] | ServiceBusError) -> None:
        if not answer.done():  # the caller may be gone
            answer.set_result(found)

    fragment.browser.peek(start, count, PAGE_BYTES, peeked)
    found = await answer
    if isinstance(found, ServiceBusError):
        raise found
    return found


class _QueueStatistics:
    """What was seen of one queue's messages."""

    def __init__(self, max_messages: int, max_bytes: int) -> None:
        """`messages` and `size` are how much may be read."""
        self.messages = 0
        self.oldest: dt.datetime | None = None
        self.destinations: dict[str, Destination] = {}
        """By path, in lower case."""
        self.unknown = 0
        self.messages_left = max_messages
        self._bytes_left = max_bytes

    @property
    def is_full(self) -> bool:
        """No more may be read."""
        return self.messages_left <= 0 or self._bytes_left <= 0

    def add(self, payloads: Iterable[bytes]) -> int:
        """Count some messages; the sequence number of the last one."""
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
        # Anybody with the right Send can write there whatever they like, and this ends on terminals.
        if not isinstance(path, str) or not path.isprintable() or not 0 < len(path) <= ENTITY_PATH_MAX_CHARACTERS:
            self.unknown += 1
            return
        found = self.destinations.setdefault(canonical_key(path), Destination(str(path), 0, parked_at))
        found.messages += 1
        found.oldest = min(found.oldest, parked_at)


def _int_annotation(message: Message, name: str) -> int:
    found = message.lookup(Section.MESSAGE_ANNOTATIONS, name)
    assert isinstance(found, int)
    return int(found)
