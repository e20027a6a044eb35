"""The journals of hours that are no Parquet files yet, as a data source.

Owns: that of a journal no more than some thousand rows are in memory. Spark's workers read them, a task for each.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from twinbus.model.usage import COLUMNS, COUNTS, JournalUnreadable, read_journal

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql.types import StructType

    from twinbus.model.usage import Head, UsageRow

ROWS: Final = 20_000
"""In a batch: a journal of the largest size has thirty times as many."""
_OF_HEAD: Final = frozenset({"namespace", "process", "life"})
_TYPES: Final = {
    "minute": pa.timestamp("us", tz="UTC"),
    "process": pa.int64(),
    **dict.fromkeys(COUNTS, pa.int64()),
}
_SCHEMA: Final = pa.schema([*((name, _TYPES.get(name, pa.string())) for name in COLUMNS), ("journal", pa.string())])
_SECOND_US: Final = 1_000_000


class UsageJournals(DataSource):
    """Of the option `journals`, a JSON list of paths. The schema is given to it."""

    @classmethod
    def name(cls) -> str:
        """What Spark knows it by."""
        return "twinbus-usage-journals"

    def reader(self, schema: StructType) -> JournalsReader:  # noqa: ARG002
        """For all of them."""
        return JournalsReader(json.loads(self.options["journals"]))


@dataclass
class OneJournal(InputPartition):
    """What a task reads."""

    path: str


class JournalsReader(DataSourceReader):
    """Reads journals in tasks."""

    def __init__(self, journals: list[str]) -> None:
        """`journals` are paths."""
        self._journals = journals

    def partitions(self) -> list[InputPartition]:
        """One for each journal."""
        return [OneJournal(path) for path in self._journals]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """What is whole of it."""
        assert isinstance(partition, OneJournal)
        yield from batches_of(Path(partition.path))


def batches_of(path: Path) -> Iterator[pa.RecordBatch]:
    """Its rows, each with the path of the journal; none of one that is gone, or that has no beginning."""
    try:
        rows = read_journal(path)
        while some := list(islice(rows, ROWS)):
            yield _batch(some, str(path))
    except (FileNotFoundError, JournalUnreadable):
        return


def _batch(rows: list[tuple[Head, UsageRow]], path: str) -> pa.RecordBatch:
    columns: dict[str, list[object]] = {name: [getattr(head, name) for head, _ in rows] for name in _OF_HEAD}
    columns["minute"] = [row.minute * _SECOND_US for _, row in rows]
    columns["journal"] = [path] * len(rows)
    for name in COLUMNS:
        if name not in columns:
            columns[name] = [getattr(row, name) for _, row in rows]
    return pa.record_batch([pa.array(columns[field.name], field.type) for field in _SCHEMA], schema=_SCHEMA)
