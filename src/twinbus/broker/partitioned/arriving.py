"""Messages that other entities forward to a partitioned one.

Owns: which part each goes to. Where a message has no key its number in its source says so: in turn, and the same if it
is offered again after a crash, since each part remembers only what came to itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twinbus.broker.arrivals import key_of
from twinbus.broker.partitioned.sending import all_of
from twinbus.model.errors import ServiceBusError
from twinbus.model.hashing import fragment_of

if TYPE_CHECKING:
    from twinbus.broker.journal import Answered
    from twinbus.broker.partitioned.queue import PartitionedQueue
    from twinbus.broker.partitioned.topic import PartitionedTopic


def take(
    target: PartitionedQueue | PartitionedTopic, source: bytes, items: list[tuple[int, bytes]], answer: Answered
) -> None:
    """Store those messages of a source that were not seen before; `answer` hears when all are on disk."""
    groups: dict[int, list[tuple[int, bytes]]] = {}
    for number, record in items:
        key = key_of(record, looks_for_duplicates=target.terms.detects_duplicates)
        groups.setdefault(fragment_of(key) if key is not None else number % len(target.parts), []).append(
            (number, record)
        )
    told = all_of(len(groups), answer)  # if one failed all are offered again; the others have seen theirs
    for part, group in groups.items():
        try:
            target.parts[part].take_arrivals(source, group, told)
        except ServiceBusError as error:
            told(error)
