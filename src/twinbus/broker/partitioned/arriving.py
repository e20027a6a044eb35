"""Messages that other entities forward to an entity.

Owns: which part each message goes to. A message without a key goes to the part that its number in its source says: in
turn, and to the same part if it is offered again after a crash, since each part remembers only its own arrivals.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twinbus.broker.arrivals import key_of
from twinbus.broker.ports.callbacks import all_of
from twinbus.model.errors import ServiceBusError
from twinbus.model.partition_key import fragment_of

if TYPE_CHECKING:
    from twinbus.broker.ports.callbacks import Answered
    from twinbus.broker.queue import Queue
    from twinbus.broker.topic import Topic


def take(target: Queue | Topic, source: bytes, items: list[tuple[int, bytes]], answer: Answered) -> None:
    """Store those messages of a source that were not seen before; `answer` is called when all are on disk."""
    if not target.is_partitioned:
        target.parts[0].take_arrivals(source, items, answer)
        return
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
