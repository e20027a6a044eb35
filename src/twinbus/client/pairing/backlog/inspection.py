"""The contents of a backlog queue: the number of parked messages, their age, and their destinations.

Owns: the requests to the secondary and their results. A value that cannot be read is unknown (None), never an error, so
that the caller still gets the other values.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

from twinbus.model.annotations import PATH
from twinbus.model.path import canonical_key

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Mapping, Sequence

    from twinbus.client.factory import MessagingFactory
    from twinbus.model.message import BrokeredMessage
    from twinbus.model.queue import QueueRuntime

log: Final = logging.getLogger(__name__)

SAMPLE_SIZE: Final = 1_000
"""The default number of messages to peek at in a queue."""
PEEK_BATCH_SIZE: Final = 250
MAX_PEEKED_BYTES: Final = 16_000_000
"""The maximum total size of the messages to peek at in a queue. Peeked messages include their bodies."""


class QueueRuntimeReader(Protocol):
    """The method of NamespaceManager that inspection needs."""

    async def get_queue_runtime(self, path: str) -> QueueRuntime:
        """Return the current counts of a queue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BacklogQueueContents:
    """The contents of a backlog queue. None means that the value could not be read."""

    parked: int | None = None
    size_bytes: int | None = None
    dead_lettered: int | None = None
    oldest: dt.datetime | None = None
    """The time when the oldest parked message was parked; also None if there are no messages."""
    oldest_number: int | None = None
    """The sequence number of the oldest parked message."""
    for_entities: Mapping[str, int] | None = None
    """The number of messages for each entity of the primary."""
    without_destination: int = 0
    """The number of messages whose destination cannot be read."""
    is_sample: bool = False
    """Whether `for_entities` counts only the oldest messages, because the queue has more, or may have more."""


async def inspect(
    secondary: MessagingFactory, manager: QueueRuntimeReader, path: str, *, sample: int, limit_s: float
) -> BacklogQueueContents:
    """Inspect a queue within `limit_s`, peeking at up to `sample` of its messages."""
    deadline_s = asyncio.get_running_loop().time() + limit_s
    counts = await _count(manager, path, deadline_s - limit_s / 2)
    parked = None if counts is None else counts.active_count + counts.deferred_count + counts.scheduled_count
    summary = _PeekSummary(is_complete=True) if parked == 0 else await _peek(secondary, path, sample, deadline_s)
    return BacklogQueueContents(
        parked=parked,
        size_bytes=None if counts is None else counts.size_bytes,
        dead_lettered=None if counts is None else counts.dead_letter_count,
        oldest=summary.oldest,
        oldest_number=summary.oldest_number,
        for_entities=summary.count_by_entity if summary.is_complete or summary.message_count else None,
        without_destination=summary.without_destination,
        is_sample=summary.message_count > 0 and not summary.is_complete and summary.message_count != parked,
    )


async def _count(manager: QueueRuntimeReader, path: str, deadline_s: float) -> QueueRuntime | None:
    try:
        async with asyncio.timeout_at(deadline_s):
            return await manager.get_queue_runtime(path)
    except Exception as error:  # noqa: BLE001  # after any error, the other values can still be read
        log.debug("cannot count the messages of '%s': %r", path, error)
        return None


async def _peek(secondary: MessagingFactory, path: str, sample: int, deadline_s: float) -> _PeekSummary:
    """Peek at the oldest messages, page by page; pages read before a failure still count."""
    summary = _PeekSummary()
    try:
        async with asyncio.timeout_at(deadline_s), secondary.create_message_receiver(path) as receiver:
            start = 0
            while summary.message_count < sample and summary.byte_count < MAX_PEEKED_BYTES:
                page = await receiver.peek_batch(min(PEEK_BATCH_SIZE, sample - summary.message_count), start)
                if not page:  # only an empty page marks the end, because a page of large messages may be short
                    summary.is_complete = True
                    break
                summary.add(page)
                start = page[-1].sequence_number + 1
    except Exception as error:  # noqa: BLE001  # after any error, the earlier pages still count
        log.debug("cannot peek at the messages of '%s': %r", path, error)
    return summary


@dataclass(slots=True)
class _PeekSummary:
    """Totals of the messages that were peeked at."""

    message_count: int = 0
    byte_count: int = 0
    is_complete: bool = False
    oldest: dt.datetime | None = None
    oldest_number: int | None = None
    count_by_entity: dict[str, int] = field(default_factory=dict)
    without_destination: int = 0
    _path_by_key: dict[str, str] = field(default_factory=dict)

    def add(self, page: Sequence[BrokeredMessage]) -> None:
        """Count messages by destination; different spellings of a path count as one destination."""
        if self.oldest_number is None:
            self.oldest, self.oldest_number = page[0].enqueued_time_utc, page[0].sequence_number
        for message in page:
            self.message_count += 1
            self.byte_count += message.size
            path = message.properties.get(PATH)
            if isinstance(path, str):
                name = self._path_by_key.setdefault(canonical_key(path), path)
                self.count_by_entity[name] = self.count_by_entity.get(name, 0) + 1
            else:
                self.without_destination += 1
