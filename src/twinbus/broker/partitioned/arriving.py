"""Messages that other entities forward to a partitioned one.

Owns: which part each goes to. Where a message has no key its number in its source says so: in turn, and the same if it
is offered again after a crash, since each part remembers only what came to itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from twinbus.amqp.message import Message, Section
from twinbus.broker.intake import PARTITION_KEY, partition_key
from twinbus.broker.partitioned.hashing import fragment_of
from twinbus.broker.partitioned.sending import all_of
from twinbus.broker.record import annotation_pairs_of, session_in, take_apart
from twinbus.model.errors import ServiceBusError

if TYPE_CHECKING:
    from twinbus.broker.journal import Answered
    from twinbus.broker.partitioned.queue import PartitionedQueue
    from twinbus.broker.partitioned.topic import PartitionedTopic

_MESSAGE_ID: Final = 0


def take(
    target: PartitionedQueue | PartitionedTopic, source: bytes, items: list[tuple[int, bytes]], answer: Answered
) -> None:
    """Store those messages of a source that were not seen before; `answer` hears when all are on disk."""
    groups: dict[int, list[tuple[int, bytes]]] = {}
    for number, record in items:
        key = _key_of(record, looks_for_duplicates=target.terms.detects_duplicates)
        groups.setdefault(fragment_of(key) if key is not None else number % len(target.parts), []).append(
            (number, record)
        )
    told = all_of(len(groups), answer)  # if one failed all are offered again; the others have seen theirs
    for part, group in groups.items():
        try:
            target.parts[part].take_arrivals(source, group, told)
        except ServiceBusError as error:
            told(error)


def _key_of(record: bytes, *, looks_for_duplicates: bool) -> bytes | None:
    parts = take_apart(record)
    session = session_in(parts.bare)
    key = next((value for name, value, _ in annotation_pairs_of(parts) if name == PARTITION_KEY), None)
    message_id = Message(parts.bare).field(Section.PROPERTIES, _MESSAGE_ID) if looks_for_duplicates else None
    return partition_key(
        session.decode() if session is not None else None, str(key) if isinstance(key, str) else None, message_id
    )
