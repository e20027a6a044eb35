"""The files of a journal: Arrow IPC streams, one for each hour, that any Arrow library reads as they are.

Owns: the columns, the names of files, and what is on the disk when. A batch of rows is one write at the end of a file,
so a file whose process was killed holds all batches but perhaps the last: `read` gives those. Knows nothing of threads.

Version 2 has the columns `time_to_live` and `enqueued`, and rows of a journal's own life (`journal`); files of
version 1 are read as they are.
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
    raise ImportError("a journal is written with pyarrow: pip install twinbus[journal]") from error

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from twinbus.client.clock import Clock

VERSION: Final = 2
"""Of the columns."""
SUFFIX: Final = ".arrows"
"""What the streaming format's files are usually called."""
MAX_TEXT_LENGTH: Final = 1_000
_VERSION_KEY: Final = b"twinbus.journal.version"
_END_OF_STREAM: Final = b"\xff\xff\xff\xff\x00\x00\x00\x00"
"""How a stream ends."""
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
"""As the columns."""


class JournalFiles:
    """Those of one journal: a name has its own random part, so no two journals ever write to one file."""

    def __init__(self, folder: Path | str, clock: Clock) -> None:
        """Make the folder; a file is made with the first rows."""
        self._folder = Path(folder)
        self._folder.mkdir(parents=True, exist_ok=True)
        self._clock = clock
        self._unique_suffix = f"{os.getpid()}-{uuid.uuid4().hex[:12]}"
        self._descriptor: int | None = None
        self._hour = -1
        self._file_count = 0
        self._whole_bytes = 0
        """Bytes of the file that are whole batches."""

    def write(self, rows: Sequence[Row]) -> None:
        """Append rows, all or none; OSError says why that cannot be: then the next go to another file."""
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
        """End the file there is, in good order."""
        if self._descriptor is not None:
            try:
                self._append(_END_OF_STREAM)
                os.fsync(self._descriptor)
            except OSError:  # a reader does without an end
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
        left = memoryview(buffer)  # type: ignore[arg-type]  # Arrow's buffers are such
        while left:
            left = left[os.write(self._descriptor, left) :]
        self._whole_bytes += memoryview(buffer).nbytes  # type: ignore[arg-type]

    def _abandon_file(self) -> None:
        """Leave a file that cannot be written to, with whole batches only."""
        if self._descriptor is not None:
            try:
                os.ftruncate(self._descriptor, self._whole_bytes)
            except OSError:  # a reader stops at what is not whole
                pass
            finally:
                os.close(self._descriptor)
                self._descriptor = None


def read(path: Path | str) -> pa.Table:
    """All whole batches of a file, also of one that its process did not end. ValueError for a newer version's."""
    found = list(batches(path))
    return pa.Table.from_batches(found, schema=found[0].schema) if found else SCHEMA.empty_table()


def batches(path: Path | str) -> Iterator[pa.RecordBatch]:
    """The same, one at a time."""
    with pa.OSFile(str(path)) as source:
        try:
            reader = pa.ipc.open_stream(source)
        except pa.ArrowInvalid:
            return
        _check_version(reader.schema, path)
        while True:
            try:
                batch = reader.read_next_batch()
            except (StopIteration, pa.ArrowInvalid, OSError):  # its end, or where it was cut off
                return
            yield batch


def has_end(path: Path | str) -> bool:
    """Whether its journal has ended it: nothing of it is missing then."""
    with Path(path).open("rb") as file:
        if file.seek(0, os.SEEK_END) <= len(_END_OF_STREAM):
            return False
        file.seek(-len(_END_OF_STREAM), os.SEEK_END)
        return file.read() == _END_OF_STREAM


def _check_version(schema: pa.Schema, path: Path | str) -> None:
    found = (schema.metadata or {}).get(_VERSION_KEY)
    if found is None or int(found) > VERSION:
        said = "none" if found is None else found.decode()
        raise ValueError(f"{path} is of journal version {said}; this twinbus reads up to {VERSION}")


def _column(values: Sequence[object], field: pa.Field) -> pa.Array:
    """Arrow's own way where it can: the thread that does this takes its time from the application's loop."""
    if field.name != "message_id":
        try:
            return pa.array(values, field.type)
        except (pa.ArrowException, UnicodeError):
            pass  # a text that is none
    return pa.array([text_of(value) if field.type == pa.string() else value for value in values], field.type)


def text_of(value: object) -> str | None:
    """Of any kind of id, and such as Arrow takes."""
    if value is None:
        return None
    text = value if isinstance(value, str) else value.hex() if isinstance(value, bytes) else str(value)
    if not text.isascii():
        text = text.encode(errors="replace").decode()
    return text[:MAX_TEXT_LENGTH]
