"""What Spark calls to write: one writer for a batch, one for a stream.

Owns: when a task's rows are sent, the ids that rows without one are given, and what is said at the end. The sending
itself is in `sending`.

A task that fails is run again by Spark, and so is a batch of a stream after a restart: what it sent is sent again. With
the option `messageIds=deterministic` it has the same ids then, and an entity that detects duplicates drops it. How ids
are derived is in `ids`; here is what they begin with. With a pair, rows that may have been sent before are marked as
possible duplicates; whether an earlier run began a batch is told by `begin_batch`.
"""

from __future__ import annotations

import logging
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.pandas.types import to_arrow_schema

from twinbus.pipeline.errors import PipelineError
from twinbus.pipeline.sink.batch_sender import send_all
from twinbus.pipeline.sink.message_ids import RowIds, check_distinct, check_key
from twinbus.pipeline.sink.messages import check_columns
from twinbus.pipeline.sink.options import read_options
from twinbus.pipeline.source.checkpoint import open_checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import pyarrow as pa
    import pyarrow.fs
    from pyspark.sql.types import StructType

    from twinbus.pipeline.sink.options import SinkOptions

log: Final = logging.getLogger(__name__)

QUERY_ID_PROPERTY: Final = "sql.streaming.queryId"
BATCH_ID_PROPERTY: Final = "streaming.sql.batchId"
RUN_ID_PROPERTY: Final = "spark.jobGroup.id"
"""What Spark calls them among a task's properties: the jobs of a query are a group with the id of its run."""


@dataclass
class TaskCommit(WriterCommitMessage):
    """What a task did."""

    sent: int
    parked: int
    spooled: int
    digests: bytes = b""
    """Of the ids that were derived, 16 bytes each: two tasks may have had rows that are alike."""


class BatchWriter(DataSourceArrowWriter):
    """Of a job that ends."""

    def __init__(self, options: SinkOptions) -> None:
        """It is made once, and taken to every task: its id is that of the job, however often a task is run."""
        self._options = options
        self._job_id = uuid.uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskCommit:
        """In a task: send the rows of one partition."""
        return _write_rows(self._options, iterator, lambda: self._job_id)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """In the driver: all tasks are done. PipelineError if rows of them were given one id."""
        _log_counts("written", messages)
        _check_distinct_ids(messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """In the driver: a task has failed. What the others sent stays sent."""
        _log_counts("not all written: a task has failed, and what was sent stays sent", messages)


class StreamWriter(DataSourceStreamArrowWriter):
    """Of a stream's batches."""

    def __init__(self, options: SinkOptions) -> None:
        """It is made for each batch."""
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskCommit:
        """In a task: send the rows of one partition of a batch."""
        return _write_rows(self._options, iterator, _stream_id_scope)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  # as Spark calls it
        """In the driver: a batch is done. PipelineError if rows of it were given one id: it fails, and the query."""
        _log_counts(f"batch {batchId} written", messages)
        _check_distinct_ids(messages)
        if self._options.pair is not None and self._options.checkpoint is not None:
            try:
                remove_batch_marks_before(self._options.checkpoint, batchId)
            except PipelineError as error:  # the files are small, and the rows are written
                log.warning("%s", error)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """In the driver: a task of a batch has failed, and the batch is tried again after a restart."""
        _log_counts(f"batch {batchId} not written: a task has failed, and what was sent stays sent", messages)


def make_writer(options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> BatchWriter:
    """For `DataSource.writer`. PipelineError says what cannot be."""
    return BatchWriter(_check_options(options, schema, overwrite=overwrite))


def make_stream_writer(options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> StreamWriter:
    """For `DataSource.streamWriter`. `overwrite` is Spark's word for the output mode complete."""
    return StreamWriter(_check_options(options, schema, overwrite=overwrite))


def _check_options(options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> SinkOptions:
    if overwrite:
        raise PipelineError("what is in an entity cannot be overwritten: write with the mode append")
    read = read_options(options)
    columns = to_arrow_schema(schema, timezone="UTC")
    check_columns(columns, needs_entity=read.entity is None, key_columns=read.id_key)
    if read.has_deterministic_ids:
        check_key(columns, read.id_key)
    return read


def _write_rows(options: SinkOptions, rows: Iterator[pa.RecordBatch], id_scope: Callable[[], str]) -> TaskCommit:
    ids = RowIds(id_scope(), options.id_key) if options.has_deterministic_ids else None
    counts = send_all(options, rows, ids, may_have_been_sent=options.pair is not None and _may_have_been_sent(options))
    return TaskCommit(counts.sent, counts.parked, counts.spooled, b"" if ids is None else ids.digests)


def _may_have_been_sent(options: SinkOptions) -> bool:
    """Whether rows of this task may have been sent before: by an earlier attempt, or by an earlier run of the batch."""
    task = TaskContext.get()
    assert task is not None, "writers run in tasks"
    batch, run = task.getLocalProperty(BATCH_ID_PROPERTY), task.getLocalProperty(RUN_ID_PROPERTY)
    if batch is None:
        return task.attemptNumber() > 0
    if run is None or options.checkpoint is None:
        log.warning(
            "batch %s may have run before, so its rows are marked as possible duplicates: give the option"
            " checkpointLocation to the writer, by which it can tell",
            batch,
        )
        return True
    try:
        is_again = mark_batch_begun(options.checkpoint, int(batch), run)
    except PipelineError as error:
        log.warning("batch %s may have run before, so its rows are marked as possible duplicates: %s", batch, error)
        return True
    return is_again or task.attemptNumber() > 0


def _stream_id_scope() -> str:
    """The query and the batch, both of which the checkpoint keeps: a batch that runs again has the same."""
    task = TaskContext.get()
    assert task is not None, "writers run in tasks"
    query, batch = task.getLocalProperty(QUERY_ID_PROPERTY), task.getLocalProperty(BATCH_ID_PROPERTY)
    if query is None or batch is None:
        raise PipelineError(
            "Spark does not say of which query and batch a task is, so messageIds cannot be deterministic: give each"
            " row a messageId, and leave the option out"
        )
    return f"{query}-{batch}"


def _check_distinct_ids(messages: Sequence[WriterCommitMessage | None]) -> None:
    check_distinct(message.digests for message in messages if isinstance(message, TaskCommit))


def _log_counts(outcome: str, messages: Sequence[WriterCommitMessage | None]) -> None:
    done = [message for message in messages if isinstance(message, TaskCommit)]
    sent, parked, spooled = (sum(getattr(one, name) for one in done) for name in ("sent", "parked", "spooled"))
    if parked or spooled:
        log.warning(
            "%s: %d messages sent, %d parked in the secondary's backlog queues, %d spooled on the disks of executors",
            outcome,
            sent,
            parked,
            spooled,
        )
    else:
        log.info("%s: %d messages sent", outcome, sent)


# --- batches that may have been sent before ---------------------------------------------------------------------------

BEGUN_FOLDER: Final = "twinbus-begun"
"""A folder of the checkpoint, with a file for each run that began a batch, made before the first row is sent.

A query that is started again runs its last batch again unless its commit is in the checkpoint. Spark does not tell a
task of that; so each run leaves its id with the batch it begins, and a task that finds another run's id knows. The
files of a batch stay until the next one is written: Spark notes the commit of a batch only after the writer's own."""


def mark_batch_begun(checkpoint: str, batch_id: int, run_id: str) -> bool:
    """Note that a run begins a batch; whether another run may have sent rows of it. PipelineError if unknown."""
    files, root = open_checkpoint(checkpoint)
    folder = f"{root}/{BEGUN_FOLDER}/{batch_id}"
    try:
        runs = set(_list_names(files, folder))
        if run_id not in runs:
            files.create_dir(folder, recursive=True)
            with files.open_output_stream(f"{folder}/{run_id}"):
                pass  # that it is there says it all
    except OSError as error:
        raise PipelineError(f"{folder} cannot be written: {error}") from error
    return bool(runs - {run_id})


def remove_batch_marks_before(checkpoint: str, batch_id: int) -> None:
    """Remove what is noted of earlier batches: all of them are committed. PipelineError if that is not possible."""
    files, root = open_checkpoint(checkpoint)
    try:
        for name in _list_names(files, f"{root}/{BEGUN_FOLDER}"):
            if name.isdecimal() and int(name) < batch_id:
                files.delete_dir(f"{root}/{BEGUN_FOLDER}/{name}")
    except OSError as error:
        raise PipelineError(f"{root}/{BEGUN_FOLDER} cannot be cleared: {error}") from error


def _list_names(file_system: pyarrow.fs.FileSystem, folder: str) -> list[str]:
    from pyarrow import fs  # noqa: PLC0415  # slow to import

    return [one.base_name for one in file_system.get_file_info(fs.FileSelector(folder, allow_not_found=True))]
