"""Captured files as Spark rows: the data source behind a replay.

Owns the reading of files in tasks. One task reads all files of a fragment in sequence, so that messages stay in order.
Tasks read the files with pyarrow from their original location.
"""

from __future__ import annotations

import datetime as dt
import json
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from twinbus.pipeline.capture.folder import Folder
from twinbus.pipeline.columns import DDL, SCHEMA, SOURCE_ID, source_ids, source_name
from twinbus.pipeline.errors import PipelineError
from twinbus.pipeline.spark import register_data_source

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from twinbus.pipeline.capture.manifest import Manifest

SOURCE_NAME: Final = "twinbus-captured"
BATCH_ROWS: Final = 4_000


def read_captured_files(
    spark: SparkSession, uri: str, files: Sequence[Manifest], since: dt.datetime | None, until: dt.datetime | None
) -> DataFrame:
    """Read files as rows, one partition per fragment, limited to messages enqueued between `since` and `until`."""
    register_data_source(spark, CapturedDataSource)
    times = {name: time.isoformat() for name, time in (("since", since), ("until", until)) if time is not None}
    file_list = json.dumps(
        [(manifest.fragment, manifest.file, manifest.eventCount, source_name_of(manifest)) for manifest in files]
    )
    return spark.read.format(SOURCE_NAME).options(uri=uri, files=file_list, **times).load()


@dataclass
class FilePartition(InputPartition):
    """Files of one fragment in order, each with its message count and the first part of its source ids."""

    files: list[tuple[str, int, str]]


class CapturedDataSource(DataSource):
    """Data source for captured files."""

    @classmethod
    def name(cls) -> str:
        """Return the name for `format(...)`."""
        return SOURCE_NAME

    def schema(self) -> str:
        """Return the message columns."""
        return DDL

    def reader(self, schema: StructType) -> CapturedReader:  # noqa: ARG002
        """Return a reader for the files in the option `files`."""
        return CapturedReader(dict(self.options))


class CapturedReader(DataSourceReader):
    """A reader that holds no more than one row group of a file in memory."""

    def __init__(self, options: dict[str, str]) -> None:
        """Create a reader from the options that `read_captured_files` sets."""
        self._uri = options["uri"]
        self._files = [
            (int(fragment), str(file), int(count), str(source))
            for fragment, file, count, source in json.loads(options["files"])
        ]
        self._since = _parse_time(options.get("since"))
        self._until = _parse_time(options.get("until"))

    def partitions(self) -> list[InputPartition]:
        """Return one partition per fragment."""
        by_fragment = groupby(self._files, lambda file: file[0])
        return [FilePartition([(file, count, source) for _, file, count, source in files]) for _, files in by_fragment]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read a partition, in a task. Raise PipelineError if a file does not match its manifest."""
        assert isinstance(partition, FilePartition)
        folder = Folder(self._uri)
        for file, count, source in partition.files:
            for batch in _read_file(folder, file, count, source):
                rows = _in_period(batch, self._since, self._until)
                if rows.num_rows:
                    yield rows


def _parse_time(text: str | None) -> dt.datetime | None:
    return None if text is None else dt.datetime.fromisoformat(text)


def source_name_of(manifest: Manifest) -> str:
    """Return the first part of the source ids of a captured file's messages."""
    return source_name(manifest.namespace, manifest.entity, manifest.entityId)


def _read_file(folder: Folder, file: str, count: int, source: str) -> Iterator[pa.RecordBatch]:
    try:
        with folder.open_input(file) as stream:
            parquet = pq.ParquetFile(stream)
            if parquet.metadata.num_rows != count:
                counts = f"{parquet.metadata.num_rows} messages, but {count} according to its manifest"
                raise PipelineError(f"{folder.uri_of(file)} has {counts}: the file was changed")
            for batch in parquet.iter_batches(BATCH_ROWS):
                yield _with_source_ids(batch, source)
    except (OSError, KeyError, pa.ArrowException) as error:
        raise PipelineError(f"{folder.uri_of(file)} cannot be read: {error}") from error


def _with_source_ids(batch: pa.RecordBatch, source: str) -> pa.RecordBatch:
    """Return the message columns. Compute the source ids for files from earlier versions, which have none."""
    columns = {
        field.name: batch.column(field.name).cast(field.type) for field in SCHEMA if field.name in batch.schema.names
    }
    if SOURCE_ID not in columns:
        columns[SOURCE_ID] = source_ids(source, columns["sequenceNumber"], columns["enqueuedTime"])
    return pa.RecordBatch.from_arrays([columns[name] for name in SCHEMA.names], schema=SCHEMA)


def _in_period(batch: pa.RecordBatch, since: dt.datetime | None, until: dt.datetime | None) -> pa.RecordBatch:
    kind = SCHEMA.field("enqueuedTime").type
    if since is not None:
        batch = batch.filter(pc.greater_equal(batch.column("enqueuedTime"), pa.scalar(since, kind)))
    if until is not None:
        batch = batch.filter(pc.less(batch.column("enqueuedTime"), pa.scalar(until, kind)))
    return batch
