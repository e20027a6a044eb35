"""Clients' journals as rows: what became of every message that programs sent or settled.

    frame = journals(spark, "audit", "/mnt/shops/journals")
    frame.where("kind = 'send' and outcome = 'parked'").groupBy("entity").count()

Owns: finding the files of folders, and reading them batch by batch, those of killed processes up to their last whole
batch. Columns are the journal's (`docs/observing-a-pair.md`) and `file`, the name of the file a row is from; those that
an older journal does not have are null. Folders are read by Spark's workers: on a cluster all machines see them.
What rows mean is for whoever asks.
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
"""Small files are read together, up to so much; a larger one by itself."""
_SPARK_TYPES: Final = {pa.string(): "string", pa.int64(): "bigint"}
_TIMESTAMP_TYPE: Final = pa.timestamp("us", tz="UTC")
"""Spark's own; a journal has milliseconds."""
ROW_SCHEMA: Final = pa.schema(
    [pa.field(one.name, _TIMESTAMP_TYPE if pa.types.is_timestamp(one.type) else one.type) for one in SCHEMA]
    + [pa.field("file", pa.string())]
)


@dataclass(frozen=True, slots=True)
class JournalFile:
    """A file of a journal, by what its name and its end tell."""

    path: Path
    run_id: str
    """Which process, and which journal of it, wrote the file."""
    file_number: int
    """The files of a life are numbered from 1 on."""
    size: int
    is_complete: bool
    """In good order; else its process was killed, or is writing still."""

    @classmethod
    def from_path(cls, path: Path) -> JournalFile:
        """Look at a file."""
        _, _, rest = path.name.removesuffix(SUFFIX).partition("-")
        life, _, part = rest.rpartition("-")
        is_named_so = bool(life) and part.isdecimal()
        return cls(path, life or path.name, int(part) if is_named_so else 0, path.stat().st_size, has_end(path))


def find_journal_files(folders: Iterable[Path | str]) -> list[JournalFile]:
    """The files of folders and of all folders below; one that is there several times counts once."""
    found: dict[str, JournalFile] = {}
    for folder in map(Path, folders):
        if not folder.exists():
            raise PipelineError(f"there are no journals in {folder}: no such folder")
        paths = [folder] if folder.is_file() else sorted(folder.rglob(f"*{SUFFIX}"))
        for path in paths:
            one = JournalFile.from_path(path)
            known = found.get(path.name)
            if known is None or one.size > known.size:  # a copy that was made before the file was whole
                found[path.name] = one
    return [found[name] for name in sorted(found)]


def read_journals(spark: SparkSession, *folders: Path | str) -> DataFrame:
    """All rows of the journals in folders. PipelineError if a folder is not there, or none of them has a journal."""
    files = find_journal_files(folders)
    if not files:
        raise PipelineError(f"there are no journals in {', '.join(map(str, folders))}: no file ends in {SUFFIX}")
    return read_journal_files(spark, files)


def read_journal_files(spark: SparkSession, files: Sequence[JournalFile]) -> DataFrame:
    """All rows of these files."""
    register_data_source(spark, JournalDataSource)
    return (
        spark.read.format(SOURCE_NAME).option("files", json.dumps([(str(one.path), one.size) for one in files])).load()
    )


class JournalDataSource(DataSource):
    """The data source behind `journals`."""

    @classmethod
    def name(cls) -> str:
        """What Spark knows it by."""
        return SOURCE_NAME

    def schema(self) -> str:
        """The columns."""
        return ", ".join(f"{one.name} {_SPARK_TYPES.get(one.type, 'timestamp')}" for one in ROW_SCHEMA)

    def reader(self, schema: StructType) -> JournalReader:  # noqa: ARG002
        """For all files."""
        return JournalReader([(path, size) for path, size in json.loads(self.options["files"])])


@dataclass
class JournalPartition(InputPartition):
    """Files that one task reads, one after the other."""

    paths: list[str]


class JournalReader(DataSourceReader):
    """Reads files in tasks: of each no more than a batch is in memory."""

    def __init__(self, files: Sequence[tuple[str, int]]) -> None:
        """`files` are paths and sizes."""
        self._files = files

    def partitions(self) -> list[InputPartition]:
        """As few as files of `PARTITION_BYTES` would make."""
        parts: list[InputPartition] = []
        paths: list[str] = []
        held = 0
        for path, size in self._files:
            if paths and held + size > PARTITION_BYTES:
                parts.append(JournalPartition(paths))
                paths, held = [], 0
            paths.append(path)
            held += size
        return [*parts, JournalPartition(paths)] if paths else parts

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """What is whole of each file."""
        assert isinstance(partition, JournalPartition)
        for path in partition.paths:
            for batch in batches(path):
                yield _with_row_schema(batch, Path(path).name)


def _with_row_schema(batch: pa.RecordBatch, file_name: str) -> pa.RecordBatch:
    columns = []
    for one in ROW_SCHEMA:
        place = batch.schema.get_field_index(one.name)
        if one.name == "file":
            columns.append(pa.repeat(pa.scalar(file_name), batch.num_rows))
        elif place < 0:
            columns.append(pa.nulls(batch.num_rows, one.type))
        else:
            columns.append(batch.column(place).cast(one.type))
    return pa.record_batch(columns, schema=ROW_SCHEMA)
