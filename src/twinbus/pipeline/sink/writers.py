"""The writers that Spark calls: one for a batch job, one for each batch of a stream.

Owns the write, commit and abort steps, the scope of derived message ids, and the final summary. `batch_sender` does the
sending.

Spark repeats a failed task, and a stream repeats an unfinished batch after a restart, so rows may be sent twice. With
the option `messageIds=deterministic` repeated rows get the same ids, and an entity with duplicate detection drops them.
`message_ids` derives the ids from a scope, which is chosen here. With a pair, rows that may have been sent before are
marked as possible duplicates; `mark_batch_begun` returns whether an earlier run began the batch.
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
"""Names of Spark's task properties that contain the query id, the batch id and the run id of a streaming query.

Spark uses the run id of a streaming query as the name of its job group.
"""


@dataclass
class TaskCommit(WriterCommitMessage):
    """The result of a task."""

    sent: int
    parked: int
    spooled: int
    digests: bytes = b""
    """Digests of the derived ids, 16 bytes each, to find equal rows in different tasks."""


class BatchWriter(DataSourceArrowWriter):
    """The writer of a batch job."""

    def __init__(self, options: SinkOptions) -> None:
        """Create the writer with a new job id.

        Spark copies the writer to every task, so repeated tasks have the same job id.
        """
        self._options = options
        self._job_id = uuid.uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskCommit:
        """Send the rows of one partition, in a task."""
        return _write_rows(self._options, iterator, lambda: self._job_id)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Report the finished job, in the driver. Raise PipelineError if two rows have the same id."""
        _log_counts("written", messages)
        _check_distinct_ids(messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Report a failed job, in the driver. Sent messages are not withdrawn."""
        _log_counts("not all rows written: a task failed; sent messages stay sent", messages)


class StreamWriter(DataSourceStreamArrowWriter):
    """The writer of a stream."""

    def __init__(self, options: SinkOptions) -> None:
        """Create the writer. Spark creates a writer for each batch."""
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskCommit:
        """Send the rows of one partition of a batch, in a task."""
        return _write_rows(self._options, iterator, _stream_id_scope)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  # as Spark calls it
        """Report a finished batch, in the driver.

        Raise PipelineError, which stops the query, if two rows have the same id.
        """
        _log_counts(f"batch {batchId} written", messages)
        _check_distinct_ids(messages)
        if self._options.pair is not None and self._options.checkpoint is not None:
            try:
                remove_batch_marks_before(self._options.checkpoint, batchId)
            except PipelineError as error:  # harmless: the files are small, and the rows are written
                log.warning("%s", error)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Report a failed batch, in the driver. The batch is repeated after a restart."""
        _log_counts(f"batch {batchId} not written: a task failed; sent messages stay sent", messages)


def make_writer(options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> BatchWriter:
    """Return the writer for `DataSource.writer`. Raise PipelineError if the options or the schema are invalid."""
    return BatchWriter(_check_options(options, schema, overwrite=overwrite))


def make_stream_writer(options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> StreamWriter:
    """Return the writer for `DataSource.streamWriter`. `overwrite` means the output mode `complete`."""
    return StreamWriter(_check_options(options, schema, overwrite=overwrite))


def _check_options(options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> SinkOptions:
    if overwrite:
        raise PipelineError("the messages of an entity cannot be overwritten: write with the mode append")
    sink_options = read_options(options)
    columns = to_arrow_schema(schema, timezone="UTC")
    check_columns(columns, needs_entity=sink_options.entity is None, key_columns=sink_options.id_key)
    if sink_options.has_deterministic_ids:
        check_key(columns, sink_options.id_key)
    return sink_options


def _write_rows(options: SinkOptions, rows: Iterator[pa.RecordBatch], id_scope: Callable[[], str]) -> TaskCommit:
    ids = RowIds(id_scope(), options.id_key) if options.has_deterministic_ids else None
    counts = send_all(options, rows, ids, may_have_been_sent=options.pair is not None and _may_have_been_sent(options))
    return TaskCommit(counts.sent, counts.parked, counts.spooled, b"" if ids is None else ids.digests)


def _may_have_been_sent(options: SinkOptions) -> bool:
    """Return whether an earlier attempt of this task, or an earlier run of the batch, may have sent some rows."""
    task = TaskContext.get()
    assert task is not None, "writers run in tasks"
    batch, run = task.getLocalProperty(BATCH_ID_PROPERTY), task.getLocalProperty(RUN_ID_PROPERTY)
    if batch is None:
        return task.attemptNumber() > 0
    if run is None or options.checkpoint is None:
        log.warning(
            "batch %s may have run before, so its rows are marked as possible duplicates: set the option"
            " checkpointLocation of the writer to avoid this",
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
    """Return the query id and the batch id. The checkpoint keeps both ids, so a repeated batch has the same scope."""
    task = TaskContext.get()
    assert task is not None, "writers run in tasks"
    query, batch = task.getLocalProperty(QUERY_ID_PROPERTY), task.getLocalProperty(BATCH_ID_PROPERTY)
    if query is None or batch is None:
        raise PipelineError(
            "Spark does not report the query and batch of this task, so messageIds cannot be deterministic: give each"
            " row a messageId, and omit the option"
        )
    return f"{query}-{batch}"


def _check_distinct_ids(messages: Sequence[WriterCommitMessage | None]) -> None:
    check_distinct(message.digests for message in messages if isinstance(message, TaskCommit))


def _log_counts(outcome: str, messages: Sequence[WriterCommitMessage | None]) -> None:
    commits = [message for message in messages if isinstance(message, TaskCommit)]
    sent, parked, spooled = (sum(getattr(commit, name) for commit in commits) for name in ("sent", "parked", "spooled"))
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
"""Folder in the checkpoint with a file for each run that began a batch, created before the first row is sent.

A restarted query repeats its last batch unless the checkpoint contains the batch's commit. Spark does not tell tasks
that a batch is repeated. So each run stores its id with the batch that it begins, and a task that finds another run's
id knows that the batch is repeated. The files of a batch stay until the next batch is written, because Spark records
the commit of a batch only after the writer's commit.
"""


def mark_batch_begun(checkpoint: str, batch_id: int, run_id: str) -> bool:
    """Record that a run begins a batch. Return whether another run began the batch before."""
    files, root = open_checkpoint(checkpoint)
    folder = f"{root}/{BEGUN_FOLDER}/{batch_id}"
    try:
        runs = set(_list_names(files, folder))
        if run_id not in runs:
            files.create_dir(folder, recursive=True)
            with files.open_output_stream(f"{folder}/{run_id}"):
                pass  # the empty file is the mark
    except OSError as error:
        raise PipelineError(f"{folder} cannot be written: {error}") from error
    return bool(runs - {run_id})


def remove_batch_marks_before(checkpoint: str, batch_id: int) -> None:
    """Remove the marks of earlier batches, which are all committed. Raise PipelineError if a deletion fails."""
    files, root = open_checkpoint(checkpoint)
    try:
        for name in _list_names(files, f"{root}/{BEGUN_FOLDER}"):
            if name.isdecimal() and int(name) < batch_id:
                files.delete_dir(f"{root}/{BEGUN_FOLDER}/{name}")
    except OSError as error:
        raise PipelineError(f"{root}/{BEGUN_FOLDER} cannot be cleared: {error}") from error


def _list_names(file_system: pyarrow.fs.FileSystem, folder: str) -> list[str]:
    from pyarrow import fs  # noqa: PLC0415  # slow to import

    return [entry.base_name for entry in file_system.get_file_info(fs.FileSelector(folder, allow_not_found=True))]
