"""What a namespace in memory has counted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from twinbus.model.usage import COUNTS, UsageRow, add_rows

if TYPE_CHECKING:
    from collections.abc import Iterable

    from twinbus.testing import InMemoryNamespace


def used(namespace: InMemoryNamespace, entity: str | None = None) -> UsageRow:
    """By all clients, of one entity or of all."""
    rows = [row for row in namespace.usage() if entity is None or row.entity == entity]
    return add_rows(rows or [UsageRow(minute=0)])


def counted(row: UsageRow, *, but: Iterable[str] = ("send_bytes", "receive_bytes")) -> dict[str, int]:
    """What is not 0 of it."""
    return {name: number for name in COUNTS if name not in but and (number := getattr(row, name))}
