"""Both kinds of files of a usage folder, read so that no hour is missed or comes twice.

A server turns the journal of an hour into a Parquet file while we read. So the journals are read first, and only then
the Parquet files are listed: of an hour that is in both, the Parquet file is whole, and its journal is left out. Of a
journal that was gone when its turn came, the Parquet file is there.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from twinbus.model.usage import (
    COLUMNS,
    COUNTS,
    JOURNAL_SUFFIX,
    PARQUET_SUFFIX,
    JournalUnreadable,
    read_head,
    read_journal,
)
from twinbus.pipeline.errors import PipelineError
from twinbus.pipeline.spark import make_known

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Iterator, Sequence

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from twinbus.model.usage import Head, UsageRow

USAGE: Final = "usage"
"""The folder in a server's data folder."""
_TYPES: Final = {"minute": "timestamp", "process": "bigint", **dict.fromkeys(COUNTS, "bigint")}
SCHEMA: Final = ", ".join(f"{name} {_TYPES.get(name, 'string')}" for name in COLUMNS)
"""Of what `read_usage` gives."""
_IN_FILES: Final = ", ".join(f"{name} {_TYPES.get(name, 'string')}" for name in COLUMNS if name != "namespace")
_PARTITIONS: Final = "namespace string, date date"


def read_usage(
    spark: SparkSession,
    places: Sequence[str | Path],
    *,
    since: dt.datetime | None = None,
    until: dt.datetime | None = None,
) -> DataFrame:
    """Of servers' data folders, or of their folders `usage`, or of an address that Spark reads (then no journals).

    From `since` on, and before `until`; all of it without. PipelineError where there is nothing at all.
    """
    if not places:
        raise PipelineError("no usage: name the data folder of a server, as given to `twinbus serve --data`")
    folders = dict.fromkeys(_folder(str(place)) for place in places)  # one that is named twice counts once
    parts = [part for folder in folders for part in _parts(spark, folder)]
    usage = parts[0]
    for part in parts[1:]:
        usage = usage.unionByName(part)
    return _between(usage, since, until).select(*COLUMNS)


def _between(usage: DataFrame, since: dt.datetime | None, until: dt.datetime | None) -> DataFrame:
    """By the date, too: it is in the names of folders, of which the others are not looked into."""
    if since is not None:
        usage = usage.where((usage.date >= since.date()) & (usage.minute >= since))
    if until is not None:
        usage = usage.where((usage.date <= until.date()) & (usage.minute < until))
    return usage


def _folder(place: str) -> str | Path:
    if "://" in place:
        return place
    folder = Path(place)
    if (folder / USAGE).is_dir():
        folder /= USAGE
    if not folder.is_dir():
        raise PipelineError(
            f"{place} is no folder: name the data folder of a server, as given to `twinbus serve --data`"
        )
    return folder.resolve()


def _parts(spark: SparkSession, folder: str | Path) -> list[DataFrame]:
    if isinstance(folder, str):
        return [_parquet(spark, folder)]
    journals = {name: place for path in sorted(folder.glob(f"*{JOURNAL_SUFFIX}")) for name, place in _places(path)}
    rows = _read_journals(spark, list(journals)) if journals else None
    has_parquet = next(folder.glob(f"namespace=*/date=*/*{PARQUET_SUFFIX}"), None) is not None
    if rows is None and not has_parquet:
        raise PipelineError(f"no usage is in {folder}: has a server with metering run there?")
    parts = []
    rolled = set()
    if has_parquet:
        parquet = _parquet(spark, str(folder))
        parts.append(parquet)
        if rows is not None:
            listed = {"/".join(file.split("/")[-3:]) for file in parquet.inputFiles()}
            rolled = {name for name, parquet_place in journals.items() if parquet_place in listed}
    if rows is not None:
        parts.append(rows.where(~rows.journal.isin(*rolled)).drop("journal") if rolled else rows.drop("journal"))
    return parts


def _places(path: Path) -> Iterator[tuple[str, str]]:
    """A journal, and where the Parquet file will be that takes its place."""
    try:
        yield str(path.resolve()), read_head(path).parquet_place.as_posix()
    except (JournalUnreadable, FileNotFoundError):  # it has no rows, or it was rolled since
        return


def _parquet(spark: SparkSession, place: str) -> DataFrame:
    return spark.read.schema(f"{_IN_FILES}, {_PARTITIONS}").parquet(place)


def _read_journals(spark: SparkSession, journals: Sequence[str]) -> DataFrame:
    """Read now, and kept: later they may be gone."""
    make_known(spark, UsageJournals)
    found = spark.read.format(UsageJournals.name()).schema(f"{SCHEMA}, journal string")
    rows = found.option("journals", json.dumps(journals)).load().persist(StorageLevel.DISK_ONLY)
    rows.count()
    return rows.withColumn("date", rows.minute.cast("date"))


# --- journals of hours that are no Parquet files yet ------------------------------------------------------------------

ROWS: Final = 20_000
"""In a batch: a journal of the largest size has thirty times as many."""
_OF_HEAD: Final = frozenset({"namespace", "process", "life"})
_ARROW_TYPES: Final = {
    "minute": pa.timestamp("us", tz="UTC"),
    "process": pa.int64(),
    **dict.fromkeys(COUNTS, pa.int64()),
}
_ARROW_COLUMNS: Final = [(name, _ARROW_TYPES.get(name, pa.string())) for name in COLUMNS]
_SCHEMA: Final = pa.schema([*_ARROW_COLUMNS, ("journal", pa.string())])
_SECOND_US: Final = 1_000_000


class UsageJournals(DataSource):
    """The journals of the option `journals`, a JSON list of paths. The schema is given to it."""

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
    """Reads journals in tasks, each of them no more than some thousand rows at a time."""

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
