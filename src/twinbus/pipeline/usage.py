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
from twinbus.pipeline.spark import register_data_source

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Iterator, Sequence

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from twinbus.model.usage import JournalHead, UsageRow

USAGE_FOLDER: Final = "usage"
"""The folder in a server's data folder."""
_SPARK_TYPES: Final = {"minute": "timestamp", "process": "bigint", **dict.fromkeys(COUNTS, "bigint")}
SCHEMA: Final = ", ".join(f"{name} {_SPARK_TYPES.get(name, 'string')}" for name in COLUMNS)
"""Of what `read_usage` gives."""
_FILE_SCHEMA: Final = ", ".join(f"{name} {_SPARK_TYPES.get(name, 'string')}" for name in COLUMNS if name != "namespace")
_PARTITION_SCHEMA: Final = "namespace string, date date"


def read_usage(
    spark: SparkSession,
    locations: Sequence[str | Path],
    *,
    since: dt.datetime | None = None,
    until: dt.datetime | None = None,
) -> DataFrame:
    """Of servers' data folders, or of their folders `usage`, or of an address that Spark reads (then no journals).

    From `since` on, and before `until`; all of it without. PipelineError where there is nothing at all.
    """
    if not locations:
        raise PipelineError("no usage: name the data folder of a server, as given to `twinbus serve --data`")
    folders = dict.fromkeys(_resolve_folder(str(place)) for place in locations)  # one that is named twice counts once
    parts = [part for folder in folders for part in _read_folder(spark, folder)]
    usage = parts[0]
    for part in parts[1:]:
        usage = usage.unionByName(part)
    return _in_period(usage, since, until).select(*COLUMNS)


def _in_period(usage: DataFrame, since: dt.datetime | None, until: dt.datetime | None) -> DataFrame:
    """By the date, too: it is in the names of folders, of which the others are not looked into."""
    if since is not None:
        usage = usage.where((usage.date >= since.date()) & (usage.minute >= since))
    if until is not None:
        usage = usage.where((usage.date <= until.date()) & (usage.minute < until))
    return usage


def _resolve_folder(location: str) -> str | Path:
    if "://" in location:
        return location
    folder = Path(location)
    if (folder / USAGE_FOLDER).is_dir():
        folder /= USAGE_FOLDER
    if not folder.is_dir():
        raise PipelineError(
            f"{location} is no folder: name the data folder of a server, as given to `twinbus serve --data`"
        )
    return folder.resolve()


def _read_folder(spark: SparkSession, folder: str | Path) -> list[DataFrame]:
    if isinstance(folder, str):
        return [_read_parquet(spark, folder)]
    journals = {
        name: place
        for path in sorted(folder.glob(f"*{JOURNAL_SUFFIX}"))
        for name, place in _parquet_path_of_journal(path)
    }
    rows = _read_journals(spark, list(journals)) if journals else None
    has_parquet = next(folder.glob(f"namespace=*/date=*/*{PARQUET_SUFFIX}"), None) is not None
    if rows is None and not has_parquet:
        raise PipelineError(f"no usage is in {folder}: has a server with metering run there?")
    parts = []
    rolled = set()
    if has_parquet:
        parquet = _read_parquet(spark, str(folder))
        parts.append(parquet)
        if rows is not None:
            listed = {"/".join(file.split("/")[-3:]) for file in parquet.inputFiles()}
            rolled = {name for name, parquet_place in journals.items() if parquet_place in listed}
    if rows is not None:
        parts.append(rows.where(~rows.journal.isin(*rolled)).drop("journal") if rolled else rows.drop("journal"))
    return parts


def _parquet_path_of_journal(path: Path) -> Iterator[tuple[str, str]]:
    """A journal, and where the Parquet file will be that takes its place."""
    try:
        yield str(path.resolve()), read_head(path).parquet_path.as_posix()
    except (JournalUnreadable, FileNotFoundError):  # it has no rows, or it was rolled since
        return


def _read_parquet(spark: SparkSession, location: str) -> DataFrame:
    return spark.read.schema(f"{_FILE_SCHEMA}, {_PARTITION_SCHEMA}").parquet(location)


def _read_journals(spark: SparkSession, journals: Sequence[str]) -> DataFrame:
    """Read now, and kept: later they may be gone."""
    register_data_source(spark, UsageJournalDataSource)
    found = spark.read.format(UsageJournalDataSource.name()).schema(f"{SCHEMA}, journal string")
    rows = found.option("journals", json.dumps(journals)).load().persist(StorageLevel.DISK_ONLY)
    rows.count()
    return rows.withColumn("date", rows.minute.cast("date"))


# --- journals of hours that are no Parquet files yet ------------------------------------------------------------------

BATCH_ROWS: Final = 20_000
"""In a batch: a journal of the largest size has thirty times as many."""
_HEAD_COLUMNS: Final = frozenset({"namespace", "process", "life"})
_ARROW_TYPES: Final = {
    "minute": pa.timestamp("us", tz="UTC"),
    "process": pa.int64(),
    **dict.fromkeys(COUNTS, pa.int64()),
}
_ARROW_COLUMNS: Final = [(name, _ARROW_TYPES.get(name, pa.string())) for name in COLUMNS]
_ARROW_SCHEMA: Final = pa.schema([*_ARROW_COLUMNS, ("journal", pa.string())])
_SECOND_US: Final = 1_000_000


class UsageJournalDataSource(DataSource):
    """The journals of the option `journals`, a JSON list of paths. The schema is given to it."""

    @classmethod
    def name(cls) -> str:
        """What Spark knows it by."""
        return "twinbus-usage-journals"

    def reader(self, schema: StructType) -> UsageJournalReader:  # noqa: ARG002
        """For all of them."""
        return UsageJournalReader(json.loads(self.options["journals"]))


@dataclass
class UsageJournalPartition(InputPartition):
    """What a task reads."""

    path: str


class UsageJournalReader(DataSourceReader):
    """Reads journals in tasks, each of them no more than some thousand rows at a time."""

    def __init__(self, paths: list[str]) -> None:
        """`journals` are paths."""
        self._paths = paths

    def partitions(self) -> list[InputPartition]:
        """One for each journal."""
        return [UsageJournalPartition(path) for path in self._paths]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """What is whole of it."""
        assert isinstance(partition, UsageJournalPartition)
        yield from read_batches(Path(partition.path))


def read_batches(path: Path) -> Iterator[pa.RecordBatch]:
    """Its rows, each with the path of the journal; none of one that is gone, or that has no beginning."""
    try:
        rows = read_journal(path)
        while some := list(islice(rows, BATCH_ROWS)):
            yield _to_record_batch(some, str(path))
    except (FileNotFoundError, JournalUnreadable):
        return


def _to_record_batch(rows: list[tuple[JournalHead, UsageRow]], path: str) -> pa.RecordBatch:
    columns: dict[str, list[object]] = {name: [getattr(head, name) for head, _ in rows] for name in _HEAD_COLUMNS}
    columns["minute"] = [row.minute * _SECOND_US for _, row in rows]
    columns["journal"] = [path] * len(rows)
    for name in COLUMNS:
        if name not in columns:
            columns[name] = [getattr(row, name) for _, row in rows]
    return pa.record_batch([pa.array(columns[field.name], field.type) for field in _ARROW_SCHEMA], schema=_ARROW_SCHEMA)
