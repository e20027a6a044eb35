"""Client journals as Spark rows: the outcome of every message that applications sent or settled.

    frame = read_journals(spark, "audit", "/mnt/shops/journals")
    frame.where("kind = 'send' and outcome = 'parked'").groupBy("entity").count()

Owns finding journal files in folders and reading the files in batches; a killed process's file is read up to its last
complete batch. The columns are the journal's columns (`docs/observing-a-pair.md`) and `file`, the name of the row's
file. Columns missing from an older journal are null. Spark workers read the folders, so on a cluster all machines must
have access to the folders. Interpreting the rows is left to callers.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from twinbus.client.journal_file import SCHEMA, SUFFIX, batches, has_end
from twinbus.pipeline.errors import PipelineError
from twinbus.pipeline.spark import register_data_source

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

SOURCE_NAME: Final = "twinbus-journal"
PARTITION_BYTES: Final = 64 * 1024 * 1024
"""Size of a partition: smaller files share a partition, and a larger file has its own partition."""
_SPARK_TYPES: Final = {pa.string(): "string", pa.int64(): "bigint"}
_TIMESTAMP_TYPE: Final = pa.timestamp("us", tz="UTC")
"""Spark's timestamp type, in microseconds. Times in journals are in milliseconds, and are converted to this type."""
ROW_SCHEMA: Final = pa.schema(
    [pa.field(field.name, _TIMESTAMP_TYPE if pa.types.is_timestamp(field.type) else field.type) for field in SCHEMA]
    + [pa.field("file", pa.string())]
)


@dataclass(frozen=True, slots=True)
class JournalFile:
    """A journal file, described by its name, size and last bytes."""

    path: Path
    run_id: str
    """Id of the process that wrote the file, and of the journal within this process."""
    file_number: int
    """Number of the file in its run, starting at 1."""
    size: int
    is_complete: bool
    """Whether the file was closed properly. If not, its process was killed or is still writing."""

    @classmethod
    def from_path(cls, path: Path) -> JournalFile:
        """Inspect the name, size and last bytes of a file."""
        _, _, run_and_number = path.name.removesuffix(SUFFIX).partition("-")
        run_id, _, number = run_and_number.rpartition("-")
        has_number = bool(run_id) and number.isdecimal()
        return cls(path, run_id or path.name, int(number) if has_number else 0, path.stat().st_size, has_end(path))


def find_journal_files(folders: Iterable[Path | str]) -> list[JournalFile]:
    """Find journal files in folders and their subfolders. If files have the same name, return only the largest."""
    files: dict[str, JournalFile] = {}
    for folder in map(Path, folders):
        if not folder.exists():
            raise PipelineError(f"there are no journals in {folder}: no such folder")
        paths = [folder] if folder.is_file() else sorted(folder.rglob(f"*{SUFFIX}"))
        for path in paths:
            file = JournalFile.from_path(path)
            other = files.get(path.name)
            if other is None or file.size > other.size:  # the smaller copy was made before the file was complete
                files[path.name] = file
    return [files[name] for name in sorted(files)]


def read_journals(spark: SparkSession, *folders: Path | str) -> DataFrame:
    """Return all rows in the journals in these folders. Raise PipelineError if a folder or its journals are missing."""
    files = find_journal_files(folders)
    if not files:
        raise PipelineError(f"there are no journals in {', '.join(map(str, folders))}: no file ends in {SUFFIX}")
    return read_journal_files(spark, files)


def read_journal_files(spark: SparkSession, files: Sequence[JournalFile]) -> DataFrame:
    """Return all rows in the given files."""
    register_data_source(spark, JournalDataSource)
    return (
        spark.read.format(SOURCE_NAME)
        .option("files", json.dumps([(str(file.path), file.size) for file in files]))
        .load()
    )


class JournalDataSource(DataSource):
    """The data source behind `read_journals`."""

    @classmethod
    def name(cls) -> str:
        """Return the name for `format(...)`."""
        return SOURCE_NAME

    def schema(self) -> str:
        """Return the columns of a journal row."""
        return ", ".join(f"{field.name} {_SPARK_TYPES.get(field.type, 'timestamp')}" for field in ROW_SCHEMA)

    def reader(self, schema: StructType) -> JournalReader:  # noqa: ARG002
        """Return a reader for the files in the option `files`."""
        return JournalReader([(path, size) for path, size in json.loads(self.options["files"])])


@dataclass
class JournalPartition(InputPartition):
    """Files that one task reads, one after the other."""

    paths: list[str]


class JournalReader(DataSourceReader):
    """A reader that holds no more than one batch of a file in memory."""

    def __init__(self, files: Sequence[tuple[str, int]]) -> None:
        """Create a reader for `files`, given as paths and sizes."""
        self._files = files

    def partitions(self) -> list[InputPartition]:
        """Return partitions of consecutive files, each up to `PARTITION_BYTES` unless a single file is larger."""
        parts: list[InputPartition] = []
        paths: list[str] = []
        partition_bytes = 0
        for path, size in self._files:
            if paths and partition_bytes + size > PARTITION_BYTES:
                parts.append(JournalPartition(paths))
                paths, partition_bytes = [], 0
            paths.append(path)
            partition_bytes += size
        return [*parts, JournalPartition(paths)] if paths else parts

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the complete batches of the partition's files."""
        assert isinstance(partition, JournalPartition)
        for path in partition.paths:
            for batch in batches(path):
                yield _with_row_schema(batch, Path(path).name)


def _with_row_schema(batch: pa.RecordBatch, file_name: str) -> pa.RecordBatch:
    columns = []
    for field in ROW_SCHEMA:
        column_index = batch.schema.get_field_index(field.name)
        if field.name == "file":
            columns.append(pa.repeat(pa.scalar(file_name), batch.num_rows))
        elif column_index < 0:
            columns.append(pa.nulls(batch.num_rows, field.type))
        else:
            columns.append(batch.column(column_index).cast(field.type))
    return pa.record_batch(columns, schema=ROW_SCHEMA)
