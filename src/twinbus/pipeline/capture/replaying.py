"""Replay: captured files back into an entity, through the data source's writing half.

    files = find_files(folder, place, since, until)
    rows = rows_of(spark, folder, files, since, until, "label = 'order'")

Owns: which files are read, and how: only those that have a manifest, and only those whose times are wanted. The files
of a fragment are read one after the other by one task, so that what was in order is sent in order.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from typing import TYPE_CHECKING, Final

from twinbus.pipeline.capture.folder import Folder
from twinbus.pipeline.capture.history import place_of
from twinbus.pipeline.capture.manifest import ENDING, Manifest
from twinbus.pipeline.errors import PipelineError

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

BATCH_ROWS: Final = 4_000
READ_AT_ONCE: Final = 16
"""Manifests: small files, and often far away."""
_ORDER_DDL: Final = "uri string, files string, since timestamp, until timestamp"


def find_place(folder: Folder, entity: str, namespace: str | None) -> str:
    """The folder of a captured entity; PipelineError says what there is instead."""
    names = [namespace] if namespace else [name for name in folder.names("") if not name.startswith(("_", "."))]
    found = [name for name in names if folder.names(place_of(name, entity))]
    if len(found) == 1:
        return place_of(found[0], entity)
    if found:
        raise PipelineError(f"'{entity}' was captured from {', '.join(found)}: say which, by --namespace")
    raise PipelineError(f"nothing of '{entity}' is in {folder.uri}; it has {', '.join(names) or 'nothing'}")


def find_files(
    folder: Folder, place: str, since: dt.datetime | None = None, until: dt.datetime | None = None
) -> list[Manifest]:
    """The manifests of an entity's files that have messages from `since` on and before `until`, in order."""
    with ThreadPoolExecutor(READ_AT_ONCE) as threads:
        read = threads.map(
            lambda path: Manifest.decode(folder.uri_of(path), folder.read(path)), folder.walk(place, ENDING)
        )
        wanted = [one for one in read if (since is None or one.last >= since) and (until is None or one.first < until)]
    return sorted(wanted, key=lambda one: (one.fragment, one.entityId, one.fromSequenceNumber))


def rows_of(
    spark: SparkSession,
    folder: Folder,
    files: Sequence[Manifest],
    *,
    since: dt.datetime | None = None,
    until: dt.datetime | None = None,
    where: str | None = None,
) -> DataFrame:
    """What is in the files, a partition for each fragment. PipelineError if `where` is no expression of Spark's."""
    from pyspark.errors import PySparkException  # noqa: PLC0415  # whoever only looks for files does without

    from twinbus.pipeline.columns import DDL  # noqa: PLC0415
    from twinbus.pipeline.spark import first_line  # noqa: PLC0415

    orders = [
        (folder.uri, json.dumps([[one.file, one.eventCount] for one in some]), since, until)
        for _, some in groupby(files, lambda one: one.fragment)
    ]
    spread = spark.sparkContext.parallelize(orders, max(1, len(orders)))
    rows = spark.createDataFrame(spread, _ORDER_DDL).mapInArrow(_read, DDL)
    if where is None:
        return rows
    try:
        return rows.where(where)
    except PySparkException as error:
        raise PipelineError(f"the filter {where!r:.200} cannot be used: {first_line(error)}") from error


def send(rows: DataFrame, options: Mapping[str, str]) -> None:
    """Send them. PipelineError says what is in the way."""
    from pyspark.errors import PySparkException  # noqa: PLC0415

    try:
        rows.write.format("servicebus").options(**options).mode("append").save()
    except PySparkException as error:
        raise PipelineError(_said_last(error)) from error


def _said_last(error: Exception) -> str:
    """What a task said when it failed, without the stack of Spark's around it."""
    lines = [line for line in str(error).splitlines() if "PipelineError: " in line]
    return lines[-1].split("PipelineError: ", 1)[1] if lines else str(error).strip().split("\n", 1)[0]


# --- in a task --------------------------------------------------------------------------------------------------------


def _read(orders: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in orders:
        for order in batch.to_pylist():
            folder = Folder(order["uri"])
            for file, count in json.loads(order["files"]):
                yield from _read_file(folder, file, count, order["since"], order["until"])


def _read_file(
    folder: Folder, file: str, count: int, since: dt.datetime | None, until: dt.datetime | None
) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.parquet as pq  # noqa: PLC0415

    try:
        with folder.open_input(file) as stream:
            parquet = pq.ParquetFile(stream)
            if parquet.metadata.num_rows != count:
                found = f"{parquet.metadata.num_rows} messages, and its manifest says {count}"
                raise PipelineError(f"{folder.uri_of(file)} has {found}: it was changed")
            for batch in parquet.iter_batches(BATCH_ROWS):
                yield _between(batch, since, until)
    except (OSError, pa.ArrowException) as error:
        raise PipelineError(f"{folder.uri_of(file)} cannot be read: {error}") from error


def _between(batch: pa.RecordBatch, since: dt.datetime | None, until: dt.datetime | None) -> pa.RecordBatch:
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.compute as pc  # noqa: PLC0415

    moments = batch.column("enqueuedTime")
    if since is not None:
        batch = batch.filter(pc.greater_equal(moments, pa.scalar(since, moments.type)))
        moments = batch.column("enqueuedTime")
    if until is not None:
        batch = batch.filter(pc.less(moments, pa.scalar(until, moments.type)))
    return batch
