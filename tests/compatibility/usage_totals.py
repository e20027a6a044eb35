"""Total usage of a folder by entity: journals, partial minutes and Parquet files together.

totals(data / "usage")      # {"orders": {"sends": 40, ...}, ...}
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow.parquet as pq

from twinbus.model.usage import COUNTS, UsageRow, add_rows, journals_without_parquet, read_journal

if TYPE_CHECKING:
    from pathlib import Path


def totals(usage: Path) -> dict[str, dict[str, int]]:
    """Return the counts of each entity that are not 0."""
    rows = [row for path in journals_without_parquet(usage) for _, row in read_journal(path)]
    for path in usage.rglob("*.parquet"):
        table = pq.read_table(path, columns=["entity", *COUNTS], partitioning=None)
        rows += [UsageRow(minute=0, **row) for row in table.to_pylist()]
    by_entity = {}
    for entity in sorted({row.entity for row in rows if row.entity}):
        total = add_rows([UsageRow(minute=0), *[row for row in rows if row.entity == entity]])
        by_entity[entity] = {name: count for name in COUNTS if (count := getattr(total, name))}
    return by_entity
