"""Usage folders as Spark rows: hourly Parquet files, and journals for hours that have no Parquet file yet.

The server converts journals to Parquet files while a job reads. Journals are therefore read first and Parquet files
listed afterwards, so that no hour is missed or counted twice: if an hour has both files, its journal is skipped, and if
a journal disappears before it is read, its Parquet file exists.

Owns reading both kinds of files. Knows nothing of costs.
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
"""Name of the usage folder in a server's data folder."""
_SPARK_TYPES: Final = {"minute": "timestamp", "process": "bigint", **dict.fromkeys(COUNTS, "bigint")}
SCHEMA: Final = ", ".join(f"{name} {_SPARK_TYPES.get(name, 'string')}" for name in COLUMNS)
"""Schema of `read_usage`."""
_FILE_SCHEMA: Final = ", ".join(f"{name} {_SPARK_TYPES.get(name, 'string')}" for name in COLUMNS if name != "namespace")
_PARTITION_SCHEMA: Final = "namespace string, date date"


def read_usage(
    spark: SparkSession,
    locations: Sequence[str | Path],
    *,
    since: dt.datetime | None = None,
    until: dt.datetime | None = None,
) -> DataFrame:
    """Read the usage that servers counted. Raise PipelineError if no usage is found.

    A location is a server's data folder, its folder `usage`, or a URL that Spark can read (Parquet files only). If
    `since` or `until` (exclusive) is given, only rows in this period are returned.
    """
    if not locations:
        raise PipelineError("no usage: name the data folder of a server, as given to `twinbus serve --data`")
    folders = dict.fromkeys(_resolve_folder(str(location)) for location in locations)  # read each folder once
    parts = [part for folder in folders for part in _read_folder(spark, folder)]
    usage = parts[0]
    for part in parts[1:]:
        usage = usage.unionByName(part)
    return _in_period(usage, since, until).select(*COLUMNS)


def _in_period(usage: DataFrame, since: dt.datetime | None, until: dt.datetime | None) -> DataFrame:
    """Filter by minute and by date. The filter by date lets Spark skip the folders of other dates."""
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
            f"{location} is not a folder: name the data folder of a server, as given to `twinbus serve --data`"
        )
    return folder.resolve()


def _read_folder(spark: SparkSession, folder: str | Path) -> list[DataFrame]:
    if isinstance(folder, str):
        return [_read_parquet(spark, folder)]
    journals = {
        name: parquet_path
        for path in sorted(folder.glob(f"*{JOURNAL_SUFFIX}"))
        for name, parquet_path in _parquet_path_of_journal(path)
    }
    rows = _read_journals(spark, list(journals)) if journals else None
    has_parquet = next(folder.glob(f"namespace=*/date=*/*{PARQUET_SUFFIX}"), None) is not None
    if rows is None and not has_parquet:
        raise PipelineError(f"no usage in {folder}: run a server with metering on its data folder")
    parts = []
    rolled = set()
    if has_parquet:
        parquet = _read_parquet(spark, str(folder))
        parts.append(parquet)
        if rows is not None:
            listed = {"/".join(file.split("/")[-3:]) for file in parquet.inputFiles()}
            rolled = {name for name, target in journals.items() if target in listed}
    if rows is not None:
        parts.append(rows.where(~rows.journal.isin(*rolled)).drop("journal") if rolled else rows.drop("journal"))
    return parts


def _parquet_path_of_journal(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the path of a journal, and the path that its Parquet file will have."""
    try:
        yield str(path.resolve()), read_head(path).parquet_path.as_posix()
    except (JournalUnreadable, FileNotFoundError):  # the journal has no rows, or was converted in the meantime
        return


def _read_parquet(spark: SparkSession, location: str) -> DataFrame:
    return spark.read.schema(f"{_FILE_SCHEMA}, {_PARTITION_SCHEMA}").parquet(location)


def _read_journals(spark: SparkSession, journals: Sequence[str]) -> DataFrame:
    """Read journals now and persist the rows, because the files may be deleted at any time."""
    register_data_source(spark, UsageJournalDataSource)
    reader = spark.read.format(UsageJournalDataSource.name()).schema(f"{SCHEMA}, journal string")
    rows = reader.option("journals", json.dumps(journals)).load().persist(StorageLevel.DISK_ONLY)
    rows.count()
    return rows.withColumn("date", rows.minute.cast("date"))


# --- journals of hours without a Parquet file -------------------------------------------------------------------------

BATCH_ROWS: Final = 20_000
"""Rows in a batch. A journal of maximum size has about 30 times as many rows."""
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
    """Data source for usage journals. The option `journals` is a JSON list of journal paths."""

    @classmethod
    def name(cls) -> str:
        """Return the name for `format(...)`."""
        return "twinbus-usage-journals"

    def reader(self, schema: StructType) -> UsageJournalReader:  # noqa: ARG002
        """Return a reader for the journals in the option `journals`."""
        return UsageJournalReader(json.loads(self.options["journals"]))


@dataclass
class UsageJournalPartition(InputPartition):
    """A journal that one task reads."""

    path: str


class UsageJournalReader(DataSourceReader):
    """A reader that holds no more than `BATCH_ROWS` rows of a journal in memory."""

    def __init__(self, paths: list[str]) -> None:
        """Create a reader for the journals at `paths`."""
        self._paths = paths

    def partitions(self) -> list[InputPartition]:
        """Return one partition per journal."""
        return [UsageJournalPartition(path) for path in self._paths]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the complete rows of the partition's journal."""
        assert isinstance(partition, UsageJournalPartition)
        yield from read_batches(Path(partition.path))


def read_batches(path: Path) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a journal with its path, or nothing if the journal is gone or has no header."""
    try:
        rows = read_journal(path)
        while batch := list(islice(rows, BATCH_ROWS)):
            yield _to_record_batch(batch, str(path))
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
