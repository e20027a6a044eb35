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
from twinbus.pipeline.capture.manifest import DATA_ENDING
from twinbus.pipeline.errors import PipelineError

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from twinbus.pipeline.capture.window import Closing
    from twinbus.pipeline.source import SourceOptions

GROUP_BYTES: Final = 16 * 1024 * 1024
"""Of one row group: what is in memory at a time, and what a reader of the file takes at once."""
_PIECE: Final = 20
"""A file is at most this part larger than the limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What one task is to do."""

    entity: str
    source: SourceOptions
    entity_id: int
    closing: Closing
    uri: str
    temporary: str
    """The folder, below `uri`, for what is not whole yet."""
    size_limit: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """A file that was written."""

    temporary: str
    to_number: int
    """It has all up to here that is not in the file before."""
    count: int
    first_number: int
    last_number: int
    first_us: int
    last_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What became of an order."""

    entity: str
    entity_id: int
    fragment: int
    first: int
    """Where the window begins."""
    files: tuple[Written, ...] = ()
    up_to: int = -1
    """All numbers up to this one are in the files, or are not there at all."""
    numbers: int = 0
    size: int = 0
    """How many numbers were looked at, and how many bytes of messages they were."""
    failure: str | None = None
    """Why it was given up."""
    is_lasting: bool = False
    """The same order would fail again."""


def capture_window(order: Order) -> Report:
    """Do it, in an executor. What can be said is reported; an exception is Spark's, which runs the task again."""
    try:
        return _capture(order)
    except (PipelineError, ServiceBusError, OSError) as error:
        return failed(order, str(error), is_lasting=isinstance(error, PipelineError | CallerError))


def failed(order: Order, reason: str, *, is_lasting: bool = False) -> Report:
    """It was given up."""
    return Report(
        entity=order.entity,
        entity_id=order.entity_id,
        fragment=order.closing.fragment,
        first=order.closing.first,
        failure=reason,
        is_lasting=is_lasting,
    )


def _capture(order: Order) -> Report:
    from twinbus.pipeline.source import read_range  # noqa: PLC0415  # brings the client: the driver's part does without

    closing = order.closing
    batches = read_range(order.source, closing.fragment, closing.first, closing.last, entity_id=order.entity_id)
    folder, done, size = Folder(order.uri), [], 0
    file = _File(folder, order.temporary)
    try:
        for piece in _pieces(batches, order.size_limit // _PIECE):
            file.add(piece)
            size += piece.nbytes
            if file.size >= order.size_limit:
                done.append(file.finish(file.last_number))
                file = _File(folder, order.temporary)
        if file.count and not closing.only_full:
            done.append(file.finish(closing.last))
    finally:
        file.discard()
    up_to = done[-1].to_number if closing.only_full and done else closing.last
    return Report(
        entity=order.entity,
        entity_id=order.entity_id,
        fragment=closing.fragment,
        first=closing.first,
        files=tuple(done),
        up_to=-1 if closing.only_full and not done else up_to,
        numbers=closing.last - closing.first + 1,
        size=size,
    )


def _pieces(batches: Iterator[pa.RecordBatch], most_bytes: int) -> Iterator[pa.RecordBatch]:
    """The same rows, in batches of so many bytes at most, or of one row."""
    for batch in batches:
        if not batch.num_rows:
            continue
        rows = max(1, batch.num_rows * most_bytes // max(1, batch.nbytes))
        for first in range(0, batch.num_rows, rows):
            yield batch.slice(first, rows)


class _File:
    """One Parquet file, from its first row to its last."""

    def __init__(self, folder: Folder, temporary: str) -> None:
        """Nothing is made before there is a row."""
        self._folder = folder
        self._path = f"{temporary}/{uuid.uuid4().hex}{DATA_ENDING}"
        self._stream: pa.NativeFile | None = None
        self._writer: object = None
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_bytes = 0
        self.size = 0
        """Bytes of messages, before they are compressed."""
        self.count = 0
        self.first_number = -1
        self.last_number = -1
        self._first_us: int | None = None
        self._last_us: int | None = None
        self._is_finished = False

    def add(self, rows: pa.RecordBatch) -> None:
        """Some more."""
        import pyarrow.compute as pc  # noqa: PLC0415

        numbers, moments = rows.column("sequenceNumber"), pc.min_max(rows.column("enqueuedTime"))
        if self.count == 0:
            self.first_number = numbers[0].as_py()
        self.last_number = numbers[-1].as_py()
        self.count += rows.num_rows
        self.size += rows.nbytes
        earliest, latest = moments["min"].value, moments["max"].value
        if earliest is not None:
            self._first_us = earliest if self._first_us is None else min(earliest, self._first_us)
            self._last_us = latest if self._last_us is None else max(latest, self._last_us)
        self._waiting.append(rows)
        self._waiting_bytes += rows.nbytes
        if self._waiting_bytes >= GROUP_BYTES:
            self._write()

    def _write(self) -> None:
        import pyarrow as pa  # noqa: PLC0415
        import pyarrow.parquet as pq  # noqa: PLC0415

        if self._writer is None:
            self._stream = self._folder.open_output(self._path)
            self._writer = pq.ParquetWriter(self._stream, self._waiting[0].schema, compression="zstd")
        table = pa.Table.from_batches(self._waiting)
        self._waiting, self._waiting_bytes = [], 0
        self._writer.write_table(table, row_group_size=max(1, table.num_rows))  # type: ignore[attr-defined]

    def finish(self, to_number: int) -> Written:
        """It is whole, and covers all up to a number."""
        if self._waiting:
            self._write()
        self._close()
        self._folder.keep(self._path)
        self._is_finished = True
        return Written(
            temporary=self._path,
            to_number=to_number,
            count=self.count,
            first_number=self.first_number,
            last_number=self.last_number,
            first_us=self._first_us or 0,
            last_us=self._last_us or 0,
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
