"""The usage of a namespace in memory, and messages of a given size."""

from __future__ import annotations

from typing import TYPE_CHECKING

from twinbus.amqp.message import Message
from twinbus.client import BrokeredMessage
from twinbus.model.usage import COUNTS, UsageRow, add_rows

if TYPE_CHECKING:
    from collections.abc import Iterable

    from twinbus.testing import InMemoryNamespace


def total_usage(namespace: InMemoryNamespace, entity: str | None = None) -> UsageRow:
    """The usage of all clients, for one entity or for all entities."""
    rows = [row for row in namespace.usage() if entity is None or row.entity == entity]
    return add_rows(rows or [UsageRow(minute=0)])


def nonzero_counts(row: UsageRow, *, excluded: Iterable[str] = ("send_bytes", "receive_bytes")) -> dict[str, int]:
    """The counts that are not 0."""
    return {name: number for name in COUNTS if name not in excluded and (number := getattr(row, name))}


def message_of_size(size: int) -> BrokeredMessage:
    """A message whose properties and body have `size` bytes together."""
    overhead = len(Message(BrokeredMessage(b"x" * 300, message_id="1").encode(0)).bare()) - 300
    return BrokeredMessage(b"x" * (size - overhead), message_id="1")
