"""What a task of a capture does: it reads one window of one fragment, and writes it as Parquet files.

Owns: the writing of files of the right size, under temporary names. The driver gives them their own, and with them
their manifests: so a task may be run twice, also at the same time, without a trace.
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
"""Of one row group: what is in memory at a time, and what a reader of the file takes at once."""
_PIECES_PER_FILE: Final = 20
"""A file is at most this part larger than the limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureTask:
    """What one task is to do."""

    entity: str
    source_options: SourceOptions
    entity_id: int
    window: DueWindow
    folder_uri: str
    temporary_folder: str
    """The folder, below `uri`, for what is not whole yet."""
    max_file_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenFile:
    """A file that was written."""

    temporary_path: str
    to_sequence_number: int
    """It has all up to here that is not in the file before."""
    message_count: int
    first_sequence_number: int
    last_sequence_number: int
    first_enqueued_us: int
    last_enqueued_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskReport:
    """What became of an order."""

    entity: str
    entity_id: int
    fragment: int
    first_sequence_number: int
    """Where the window begins."""
    files: tuple[WrittenFile, ...] = ()
    captured_up_to: int = -1
    """All numbers up to this one are in the files, or are not there at all."""
    number_count: int = 0
    message_bytes: int = 0
    """How many numbers were looked at, and how many bytes of messages they were."""
    failure: str | None = None
    """Why it was given up."""
    is_permanent: bool = False
    """The same order would fail again."""


def capture_window(task: CaptureTask) -> TaskReport:
    """Do it, in an executor. What can be said is reported; an exception is Spark's, which runs the task again."""
    try:
        return _write_window(task)
    except (PipelineError, ServiceBusError, OSError) as error:
        return failure_report(task, str(error), is_permanent=isinstance(error, PipelineError | CallerError))


def failure_report(task: CaptureTask, reason: str, *, is_permanent: bool = False) -> TaskReport:
    """It was given up."""
    return TaskReport(
        entity=task.entity,
        entity_id=task.entity_id,
        fragment=task.window.fragment,
        first_sequence_number=task.window.first_sequence_number,
        failure=reason,
        is_permanent=is_permanent,
    )


def _write_window(task: CaptureTask) -> TaskReport:
    from twinbus.pipeline.source import read_range  # noqa: PLC0415  # brings the client: the driver's part does without

    closing = task.window
    batches = read_range(
        task.source_options,
        closing.fragment,
        closing.first_sequence_number,
        closing.last_sequence_number,
        entity_id=task.entity_id,
    )
    folder, done, size = Folder(task.folder_uri), [], 0
    file = _ParquetFile(folder, task.temporary_folder)
    try:
        for piece in _split_batches(batches, task.max_file_bytes // _PIECES_PER_FILE):
            file.add(piece)
            size += piece.nbytes
            if file.message_bytes >= task.max_file_bytes:
                done.append(file.finish(file.last_sequence_number))
                file = _ParquetFile(folder, task.temporary_folder)
        if file.message_count and not closing.only_full_files:
            done.append(file.finish(closing.last_sequence_number))
    finally:
        file.discard()
    up_to = done[-1].to_sequence_number if closing.only_full_files and done else closing.last_sequence_number
    return TaskReport(
        entity=task.entity,
        entity_id=task.entity_id,
        fragment=closing.fragment,
        first_sequence_number=closing.first_sequence_number,
        files=tuple(done),
        captured_up_to=-1 if closing.only_full_files and not done else up_to,
        number_count=closing.last_sequence_number - closing.first_sequence_number + 1,
        message_bytes=size,
    )


def _split_batches(batches: Iterator[pa.RecordBatch], max_bytes: int) -> Iterator[pa.RecordBatch]:
    """The same rows, in batches of so many bytes at most, or of one row."""
    for batch in batches:
        if not batch.num_rows:
            continue
        rows = max(1, batch.num_rows * max_bytes // max(1, batch.nbytes))
        for first in range(0, batch.num_rows, rows):
            yield batch.slice(first, rows)


class _ParquetFile:
    """One Parquet file, from its first row to its last."""

    def __init__(self, folder: Folder, temporary_folder: str) -> None:
        """Nothing is made before there is a row."""
        self._folder = folder
        self._path = f"{temporary_folder}/{uuid.uuid4().hex}{DATA_SUFFIX}"
        self._stream: pa.NativeFile | None = None
        self._writer: object = None
        self._pending: list[pa.RecordBatch] = []
        self._pending_bytes = 0
        self.message_bytes = 0
        """Bytes of messages, before they are compressed."""
        self.message_count = 0
        self.first_sequence_number = -1
        self.last_sequence_number = -1
        self._first_enqueued_us: int | None = None
        self._last_enqueued_us: int | None = None
        self._is_finished = False

    def add(self, rows: pa.RecordBatch) -> None:
        """Some more."""
        import pyarrow.compute as pc  # noqa: PLC0415

        numbers, moments = rows.column("sequenceNumber"), pc.min_max(rows.column("enqueuedTime"))
        if self.message_count == 0:
            self.first_sequence_number = numbers[0].as_py()
        self.last_sequence_number = numbers[-1].as_py()
        self.message_count += rows.num_rows
        self.message_bytes += rows.nbytes
        earliest, latest = moments["min"].value, moments["max"].value
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
        """It is whole, and covers all up to a number."""
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
        """If it is not whole, nothing of it is left."""
        if not self._is_finished and self._writer is not None:
            self._close()
            self._folder.delete(self._path)
