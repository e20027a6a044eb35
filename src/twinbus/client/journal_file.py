"""Journal files: Arrow IPC streams, one per hour, readable by any Arrow library.

Owns the columns, the file names, and when rows reach the disk. Each batch of rows is appended with one write, so the
file of a killed process holds all batches except perhaps the last; `read` returns the complete batches. This module
knows nothing of threads.

Version 2 added the columns `time_to_live` and `enqueued`, and rows about the journal itself (kind `journal`). Files of
version 1 are still readable.
"""

from __future__ import annotations

import datetime as dt
import os
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

try:
    import pyarrow as pa
except ImportError as error:
    raise ImportError("the journal needs pyarrow: pip install twinbus[journal]") from error

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from twinbus.client.clock import Clock

VERSION: Final = 2
"""Version of the columns, written to the metadata of each file."""
SUFFIX: Final = ".arrows"
"""The usual file name suffix of the Arrow streaming format."""
MAX_TEXT_LENGTH: Final = 1_000
_VERSION_KEY: Final = b"twinbus.journal.version"
_END_OF_STREAM: Final = b"\xff\xff\xff\xff\x00\x00\x00\x00"
"""The end-of-stream marker of the Arrow streaming format."""
_HOUR_MS: Final = 3_600_000

SCHEMA: Final = pa.schema(
    [
        pa.field("time", pa.timestamp("ms", tz="UTC"), nullable=False),
        pa.field("kind", pa.string(), nullable=False),
        pa.field("message_id", pa.string()),
        pa.field("entity", pa.string()),
        pa.field("session_id", pa.string()),
        pa.field("sequence_number", pa.int64()),
        pa.field("backlog_queue", pa.string()),
        pa.field("outcome", pa.string(), nullable=False),
        pa.field("reason", pa.string()),
        pa.field("count", pa.int64(), nullable=False),
        pa.field("namespace", pa.string()),
        pa.field("client_id", pa.string()),
        pa.field("time_to_live", pa.int64()),
        pa.field("enqueued", pa.timestamp("ms", tz="UTC")),
    ],
    metadata={_VERSION_KEY: str(VERSION).encode()},
)
Row: TypeAlias = tuple[
    int,
    str,
    object,
    str | None,
    str | None,
    int | None,
    str | None,
    str,
    str | None,
    int,
    str | None,
    str | None,
    int | None,
    int | None,
]
"""The values of one row, in the order of the columns."""


class JournalFiles:
    """The files of one journal. File names have a random part, so that no two journals write to the same file."""

    def __init__(self, folder: Path | str, clock: Clock) -> None:
        """Create the folder if it is missing. The first `write` creates a file."""
        self._folder = Path(folder)
        self._folder.mkdir(parents=True, exist_ok=True)
        self._clock = clock
        self._unique_suffix = f"{os.getpid()}-{uuid.uuid4().hex[:12]}"
        self._descriptor: int | None = None
        self._hour = -1
        self._file_count = 0
        self._whole_bytes = 0
        """Size of the complete batches in the current file."""

    def write(self, rows: Sequence[Row]) -> None:
        """Append rows, all or none. After an OSError the next rows go to a new file."""
        columns = [_column(values, field) for values, field in zip(zip(*rows, strict=True), SCHEMA, strict=True)]
        batch = pa.record_batch(columns, schema=SCHEMA).serialize()
        hour = self._clock.wall_ms() // _HOUR_MS
        if hour != self._hour:
            self.close()
        try:
            if self._descriptor is None:
                self._open_file(hour)
            self._append(batch)
        except OSError:
            self._abandon_file()
            raise

    def close(self) -> None:
        """Finish the current file: write the end-of-stream marker and fsync."""
        if self._descriptor is not None:
            try:
                self._append(_END_OF_STREAM)
                os.fsync(self._descriptor)
            except OSError:  # readers accept a file without an end-of-stream marker
                pass
            finally:
                os.close(self._descriptor)
                self._descriptor = None

    def _open_file(self, hour: int) -> None:
        began = dt.datetime.fromtimestamp(hour * _HOUR_MS / 1000, dt.UTC)
        self._file_count += 1
        name = f"{began:%Y%m%dT%HZ}-{self._unique_suffix}-{self._file_count}{SUFFIX}"
        self._descriptor = os.open(self._folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        self._hour, self._whole_bytes = hour, 0
        self._append(SCHEMA.serialize())

    def _append(self, buffer: object) -> None:
        assert self._descriptor is not None
        left = memoryview(buffer)  # type: ignore[arg-type]  # Arrow buffers support the buffer protocol
        while left:
            left = left[os.write(self._descriptor, left) :]
        self._whole_bytes += memoryview(buffer).nbytes  # type: ignore[arg-type]

    def _abandon_file(self) -> None:
        """Close a file after a failed write, truncated to its complete batches."""
        if self._descriptor is not None:
            try:
                os.ftruncate(self._descriptor, self._whole_bytes)
            except OSError:  # readers stop at an incomplete batch
                pass
            finally:
                os.close(self._descriptor)
                self._descriptor = None


def read(path: Path | str) -> pa.Table:
    """Return all complete batches of a file, even if it was not closed. Raise ValueError for a newer version."""
    found = list(batches(path))
    return pa.Table.from_batches(found, schema=found[0].schema) if found else SCHEMA.empty_table()


def batches(path: Path | str) -> Iterator[pa.RecordBatch]:
    """Yield the complete batches of a file. Raise ValueError for a newer version."""
    with pa.OSFile(str(path)) as source:
        try:
            reader = pa.ipc.open_stream(source)
        except pa.ArrowInvalid:
            return
        _check_version(reader.schema, path)
        while True:
            try:
                batch = reader.read_next_batch()
            except (StopIteration, pa.ArrowInvalid, OSError):  # end of stream, or truncated
                return
            yield batch


def has_end(path: Path | str) -> bool:
    """Return whether the file has an end-of-stream marker, that is, whether it is complete."""
    with Path(path).open("rb") as file:
        if file.seek(0, os.SEEK_END) <= len(_END_OF_STREAM):
            return False
        file.seek(-len(_END_OF_STREAM), os.SEEK_END)
        return file.read() == _END_OF_STREAM


def _check_version(schema: pa.Schema, path: Path | str) -> None:
    version = (schema.metadata or {}).get(_VERSION_KEY)
    if version is None or int(version) > VERSION:
        shown_version = "none" if version is None else version.decode()
        raise ValueError(f"{path} has journal version {shown_version}; this twinbus reads versions up to {VERSION}")


def _column(values: Sequence[object], field: pa.Field) -> pa.Array:
    """Return the values as an Arrow array.

    Arrow converts them if possible, because a loop in Python delays the event loop.
    """
    if field.name != "message_id":
        try:
            return pa.array(values, field.type)
        except (pa.ArrowException, UnicodeError):
            pass  # a value is not a valid string, so each value is converted below
    return pa.array([text_of(value) if field.type == pa.string() else value for value in values], field.type)


def text_of(value: object) -> str | None:
    """Return an id of any type as a string that Arrow accepts, cut to MAX_TEXT_LENGTH."""
    if value is None:
        return None
    text = value if isinstance(value, str) else value.hex() if isinstance(value, bytes) else str(value)
    if not text.isascii():
        text = text.encode(errors="replace").decode()
    return text[:MAX_TEXT_LENGTH]
