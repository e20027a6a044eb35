"""A backlog queue, as it is seen from outside: how many messages lie in it, how old, and for whom.

Owns: the questions to the secondary and their answers. Whatever cannot be asked now is unknown (None), never an error:
whoever looks wants to see the rest.
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
"""Messages of a queue that are looked at."""
PEEK_BATCH_SIZE: Final = 250
MAX_PEEKED_BYTES: Final = 16_000_000
"""Of messages of a queue that are looked at: they come with their bodies."""


class QueueRuntimeReader(Protocol):
    """What is needed of a NamespaceManager."""

    async def get_queue_runtime(self, path: str) -> QueueRuntime:
        """What a queue holds now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BacklogQueueContents:
    """What lies in a backlog queue. None is: it could not be asked."""

    parked: int | None = None
    size_bytes: int | None = None
    dead_lettered: int | None = None
    oldest: dt.datetime | None = None
    """When the oldest parked message was parked; None also where there is none."""
    oldest_number: int | None = None
    """Its sequence number."""
    for_entities: Mapping[str, int] | None = None
    """How many messages for which entity of the primary."""
    without_destination: int = 0
    """How many from which nobody can tell where they belong."""
    is_sample: bool = False
    """`for_entities` counts the oldest messages only: there are more, or may be."""


async def inspect(
    secondary: MessagingFactory, manager: QueueRuntimeReader, path: str, *, sample: int, limit_s: float
) -> BacklogQueueContents:
    """Look into a queue, at up to `sample` of its messages; for no longer than `limit_s`."""
    deadline_s = asyncio.get_running_loop().time() + limit_s
    counts = await _count(manager, path, deadline_s - limit_s / 2)
    parked = None if counts is None else counts.active_count + counts.deferred_count + counts.scheduled_count
    tally = _PeekSummary(is_complete=True) if parked == 0 else await _peek(secondary, path, sample, deadline_s)
    return BacklogQueueContents(
        parked=parked,
        size_bytes=None if counts is None else counts.size_bytes,
        dead_lettered=None if counts is None else counts.dead_letter_count,
        oldest=tally.oldest,
        oldest_number=tally.oldest_number,
        for_entities=tally.count_by_entity if tally.is_complete or tally.message_count else None,
        without_destination=tally.without_destination,
        is_sample=tally.message_count > 0 and not tally.is_complete and tally.message_count != parked,
    )


async def _count(manager: QueueRuntimeReader, path: str, deadline_s: float) -> QueueRuntime | None:
    try:
        async with asyncio.timeout_at(deadline_s):
            return await manager.get_queue_runtime(path)
    except Exception as error:  # noqa: BLE001  # whatever it is: the rest can be seen
        log.debug("'%s' was not counted: %r", path, error)
        return None


async def _peek(secondary: MessagingFactory, path: str, sample: int, deadline_s: float) -> _PeekSummary:
    """Peek at the oldest messages, page by page: what was counted before a failure counts."""
    tally = _PeekSummary()
    try:
        async with asyncio.timeout_at(deadline_s), secondary.create_message_receiver(path) as receiver:
            start = 0
            while tally.message_count < sample and tally.byte_count < MAX_PEEKED_BYTES:
                page = await receiver.peek_batch(min(PEEK_BATCH_SIZE, sample - tally.message_count), start)
                if not page:  # a short page is not the end: its messages may be large
                    tally.is_complete = True
                    break
                tally.add(page)
                start = page[-1].sequence_number + 1
    except Exception as error:  # noqa: BLE001  # whatever it is: what was peeked at is known
        log.debug("'%s' was not peeked at: %r", path, error)
    return tally


@dataclass(slots=True)
class _PeekSummary:
    """What is remembered of messages that were peeked at."""

    message_count: int = 0
    byte_count: int = 0
    is_complete: bool = False
    oldest: dt.datetime | None = None
    oldest_number: int | None = None
    count_by_entity: dict[str, int] = field(default_factory=dict)
    without_destination: int = 0
    _path_by_key: dict[str, str] = field(default_factory=dict)

    def add(self, page: Sequence[BrokeredMessage]) -> None:
        """Count them by destination, however its path is spelled."""
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
