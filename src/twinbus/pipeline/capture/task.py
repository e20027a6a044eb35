"""A task of a capture: reads one window of one fragment and writes it as Parquet files.

Owns writing files of the right size under temporary names. The driver gives the files their final names and manifests,
so a task may run twice, even concurrently, without affecting the result.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from twinbus.model.errors import CallerError, ServiceBusError
from twinbus.pipeline.capture.folder import Folder
from twinbus.pipeline.capture.manifest import DATA_SUFFIX
from twinbus.pipeline.errors import PipelineError

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from twinbus.pipeline.capture.window import DueWindow
    from twinbus.pipeline.source import SourceOptions

ROW_GROUP_BYTES: Final = 16 * 1024 * 1024
"""Size of a row group, which is buffered in memory by the writer and read as a unit by readers."""
_PIECES_PER_FILE: Final = 20
"""Number of slices in which a file is written; a file exceeds its limit by at most one slice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureTask:
    """The work of one task."""

    entity: str
    source_options: SourceOptions
    entity_id: int
    window: DueWindow
    folder_uri: str
    temporary_folder: str
    """Folder for unfinished files, relative to `folder_uri`."""
    max_file_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenFile:
    """A Parquet file under its temporary name."""

    temporary_path: str
    to_sequence_number: int
    """Last sequence number that the file covers. The first number follows the last number of the previous file."""
    message_count: int
    first_sequence_number: int
    last_sequence_number: int
    first_enqueued_us: int
    last_enqueued_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskReport:
    """Report on a finished or failed task."""

    entity: str
    entity_id: int
    fragment: int
    first_sequence_number: int
    """First sequence number of the window."""
    files: tuple[WrittenFile, ...] = ()
    captured_up_to: int = -1
    """Last sequence number that the files cover."""
    number_count: int = 0
    message_bytes: int = 0
    """`number_count` and `message_bytes`: number of sequence numbers in the window, and total message size."""
    failure: str | None = None
    """Reason for the failure, or None."""
    is_permanent: bool = False
    """Whether a retry would fail again."""


def capture_window(task: CaptureTask) -> TaskReport:
    """Capture a window, in an executor.

    Known errors are returned in the report. Any other exception makes Spark retry the task.
    """
    try:
        return _write_window(task)
    except (PipelineError, ServiceBusError, OSError) as error:
        return failure_report(task, str(error), is_permanent=isinstance(error, PipelineError | CallerError))


def failure_report(task: CaptureTask, reason: str, *, is_permanent: bool = False) -> TaskReport:
    """Return the report on a failed task."""
    return TaskReport(
        entity=task.entity,
        entity_id=task.entity_id,
        fragment=task.window.fragment,
        first_sequence_number=task.window.first_sequence_number,
        failure=reason,
        is_permanent=is_permanent,
    )


def _write_window(task: CaptureTask) -> TaskReport:
    from twinbus.pipeline.source import read_range  # noqa: PLC0415  # imports the client, which the driver does not need here

    window = task.window
    batches = read_range(
        task.source_options,
        window.fragment,
        window.first_sequence_number,
        window.last_sequence_number,
        entity_id=task.entity_id,
    )
    folder, files, size = Folder(task.folder_uri), [], 0
    file = _ParquetFile(folder, task.temporary_folder)
    try:
        for piece in _split_batches(batches, task.max_file_bytes // _PIECES_PER_FILE):
            file.add(piece)
            size += piece.nbytes
            if file.message_bytes >= task.max_file_bytes:
                files.append(file.finish(file.last_sequence_number))
                file = _ParquetFile(folder, task.temporary_folder)
        if file.message_count and not window.only_full_files:
            files.append(file.finish(window.last_sequence_number))
    finally:
        file.discard()
    up_to = files[-1].to_sequence_number if window.only_full_files and files else window.last_sequence_number
    return TaskReport(
        entity=task.entity,
        entity_id=task.entity_id,
        fragment=window.fragment,
        first_sequence_number=window.first_sequence_number,
        files=tuple(files),
        captured_up_to=-1 if window.only_full_files and not files else up_to,
        number_count=window.last_sequence_number - window.first_sequence_number + 1,
        message_bytes=size,
    )


def _split_batches(batches: Iterator[pa.RecordBatch], max_bytes: int) -> Iterator[pa.RecordBatch]:
    """Split record batches into slices of about `max_bytes`, each with at least one row."""
    for batch in batches:
        if not batch.num_rows:
            continue
        rows = max(1, batch.num_rows * max_bytes // max(1, batch.nbytes))
        for first in range(0, batch.num_rows, rows):
            yield batch.slice(first, rows)


class _ParquetFile:
    """A Parquet file that is being written."""

    def __init__(self, folder: Folder, temporary_folder: str) -> None:
        """Create a writer. The file is created with its first row group."""
        self._folder = folder
        self._path = f"{temporary_folder}/{uuid.uuid4().hex}{DATA_SUFFIX}"
        self._stream: pa.NativeFile | None = None
        self._writer: object = None
        self._pending: list[pa.RecordBatch] = []
        self._pending_bytes = 0
        self.message_bytes = 0
        """Uncompressed size of the messages."""
        self.message_count = 0
        self.first_sequence_number = -1
        self.last_sequence_number = -1
        self._first_enqueued_us: int | None = None
        self._last_enqueued_us: int | None = None
        self._is_finished = False

    def add(self, rows: pa.RecordBatch) -> None:
        """Append rows."""
        import pyarrow.compute as pc  # noqa: PLC0415

        numbers, times = rows.column("sequenceNumber"), pc.min_max(rows.column("enqueuedTime"))
        if self.message_count == 0:
            self.first_sequence_number = numbers[0].as_py()
        self.last_sequence_number = numbers[-1].as_py()
        self.message_count += rows.num_rows
        self.message_bytes += rows.nbytes
        earliest, latest = times["min"].value, times["max"].value
        if earliest is not None:
            self._first_enqueued_us = (
                earliest if self._first_enqueued_us is None else min(earliest, self._first_enqueued_us)
            )
            self._last_enqueued_us = latest if self._last_enqueued_us is None else max(latest, self._last_enqueued_us)
        self._pending.append(rows)
        self._pending_bytes += rows.nbytes
        if self._pending_bytes >= ROW_GROUP_BYTES:
            self._write_row_group()

    def _write_row_group(self) -> None:
        import pyarrow as pa  # noqa: PLC0415
        import pyarrow.parquet as pq  # noqa: PLC0415

        if self._writer is None:
            self._stream = self._folder.open_output(self._path)
            self._writer = pq.ParquetWriter(self._stream, self._pending[0].schema, compression="zstd")
        table = pa.Table.from_batches(self._pending)
        self._pending, self._pending_bytes = [], 0
        self._writer.write_table(table, row_group_size=max(1, table.num_rows))  # type: ignore[attr-defined]

    def finish(self, to_sequence_number: int) -> WrittenFile:
        """Close and sync the file, which covers all messages up to `to_sequence_number`."""
        if self._pending:
            self._write_row_group()
        self._close()
        self._folder.sync(self._path)
        self._is_finished = True
        return WrittenFile(
            temporary_path=self._path,
            to_sequence_number=to_sequence_number,
            message_count=self.message_count,
            first_sequence_number=self.first_sequence_number,
            last_sequence_number=self.last_sequence_number,
            first_enqueued_us=self._first_enqueued_us or 0,
            last_enqueued_us=self._last_enqueued_us or 0,
        )

    def _close(self) -> None:
        if self._writer is not None and self._stream is not None:
            self._writer.close()  # type: ignore[attr-defined]
            self._stream.close()

    def discard(self) -> None:
        """Delete the file unless it is finished."""
        if not self._is_finished and self._writer is not None:
            self._close()
            self._folder.delete(self._path)
