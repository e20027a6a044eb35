"""Captured files as rows of Spark: the data source behind a replay.

Owns: how tasks read the files that they are told of. The files of a fragment are read one after the other by one task,
so that what was in order stays in order. They are read where they lie, by pyarrow, as they were written.
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
    """What is in the files, a partition for each fragment: all, or what was enqueued from a time on, or before one."""
    register_data_source(spark, CapturedDataSource)
    times = {name: time.isoformat() for name, time in (("since", since), ("until", until)) if time is not None}
    listed = json.dumps([(one.fragment, one.file, one.eventCount, source_name_of(one)) for one in files])
    return spark.read.format(SOURCE_NAME).options(uri=uri, files=listed, **times).load()


@dataclass
class FilePartition(InputPartition):
    """Of one fragment, in order, each with the number of its messages and the entity that these were read from."""

    files: list[tuple[str, int, str]]


class CapturedDataSource(DataSource):
    """Some captured files."""

    @classmethod
    def name(cls) -> str:
        """What Spark knows it by."""
        return SOURCE_NAME

    def schema(self) -> str:
        """The columns of messages that were read."""
        return DDL

    def reader(self, schema: StructType) -> CapturedReader:  # noqa: ARG002
        """For all files."""
        return CapturedReader(dict(self.options))


class CapturedReader(DataSourceReader):
    """Reads files in tasks: of each no more than a row group is in memory."""

    def __init__(self, options: dict[str, str]) -> None:
        """As `read_files` gives them."""
        self._uri = options["uri"]
        self._files = [
            (int(fragment), str(file), int(count), str(source))
            for fragment, file, count, source in json.loads(options["files"])
        ]
        self._since = _parse_time(options.get("since"))
        self._until = _parse_time(options.get("until"))

    def partitions(self) -> list[InputPartition]:
        """One for each fragment."""
        by_fragment = groupby(self._files, lambda one: one[0])
        return [FilePartition([(file, count, source) for _, file, count, source in some]) for _, some in by_fragment]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """In a task: PipelineError if a file is not what its manifest says."""
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
    """What the messages of a captured file were read from: the first part of their source ids."""
    return source_name(manifest.namespace, manifest.entity, manifest.entityId)


def _read_file(folder: Folder, file: str, count: int, source: str) -> Iterator[pa.RecordBatch]:
    try:
        with folder.open_input(file) as stream:
            parquet = pq.ParquetFile(stream)
            if parquet.metadata.num_rows != count:
                found = f"{parquet.metadata.num_rows} messages, and its manifest says {count}"
                raise PipelineError(f"{folder.uri_of(file)} has {found}: it was changed")
            for batch in parquet.iter_batches(BATCH_ROWS):
                yield _with_source_ids(batch, source)
    except (OSError, KeyError, pa.ArrowException) as error:
        raise PipelineError(f"{folder.uri_of(file)} cannot be read: {error}") from error


def _with_source_ids(batch: pa.RecordBatch, source: str) -> pa.RecordBatch:
    """The columns of messages. Files of earlier versions have no source ids: they are made of what the files have."""
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
