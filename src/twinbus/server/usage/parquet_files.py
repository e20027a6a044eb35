"""Parquet files, each with one hour of usage.

    write_hour(folder, JournalHead(namespace="contoso", process=0, life="5f1c", hour=hour), {"minute": ..., ...})

Owns: the column types, and the guarantee that a file is complete or does not exist. This module imports pyarrow, so the
server does not import this module (`rollup` explains why).
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from twinbus.model.usage import COUNTS, columns_of, partial_minute_path, read_head

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from twinbus.model.usage import JournalHead

SCHEMA: Final = pa.schema(
    [
        pa.field("minute", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("process", pa.int64(), nullable=False),
        pa.field("life", pa.string(), nullable=False),
        pa.field("entity", pa.string(), nullable=False),
        pa.field("client", pa.string(), nullable=False),
        pa.field("mark", pa.string(), nullable=False),
        *[pa.field(name, pa.int64(), nullable=False) for name in COUNTS],
    ]
)
"""The columns of a file. Namespace and date are in the folder names, as Spark and other tools expect."""
_STATISTICS_COLUMNS: Final = ("minute", "entity")
"""The columns with statistics; for the other columns, statistics would be larger than the data."""


def write_hour(folder: Path, head: JournalHead, columns: Mapping[str, Any], *, sync: bool = True) -> Path:
    """Write one process's rows for one hour to a file below the folder `usage`; return the path of the file.

    A column is an Arrow array or anything that converts to an Arrow array; a missing column is 0 or empty. Minutes may
    be numbers, seconds since 1970. Without `sync`, a power failure may leave no file, or a file that cannot be read.
    """
    count = len(columns["minute"])
    arrays = [_to_array(field, columns.get(field.name), head, count) for field in SCHEMA]
    path = folder / head.parquet_path
    _make_folders(path.parent)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with os.fdopen(
            os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600), "wb"
        ) as file:
            table = pa.Table.from_arrays(arrays, schema=SCHEMA)
            pq.write_table(
                table, file, compression="zstd", write_statistics=list(_STATISTICS_COLUMNS), row_group_size=count or 1
            )
            file.flush()
            if sync:
                os.fsync(file.fileno())
        temporary.replace(path)
        if sync:
            _sync_folder(path.parent)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    return path


def convert_journal(folder: Path, journal: Path) -> None:
    """Replace a journal with a Parquet file. After an interruption, the conversion can be repeated."""
    head = read_head(journal)
    if not (folder / head.parquet_path).exists():
        write_hour(folder, head, columns_of(journal))
    journal.unlink(missing_ok=True)
    partial_minute_path(journal).unlink(missing_ok=True)  # deleted last, because the journal is incomplete without it


def _to_array(field: pa.Field, values: Any, head: JournalHead, count: int) -> pa.Array:  # noqa: ANN401
    if values is None:
        values = pa.repeat(pa.scalar(_default_value(field, head), field.type), count)
    if field.name == "minute" and not (isinstance(values, pa.Array) and pa.types.is_timestamp(values.type)):
        seconds = pa.array(values, pa.int64())
        return seconds.cast(pa.timestamp("s", tz="UTC")).cast(field.type)
    return values.cast(field.type) if isinstance(values, pa.Array) else pa.array(values, field.type)


def _default_value(field: pa.Field, head: JournalHead) -> object:
    if field.name in ("process", "life"):
        return getattr(head, field.name)
    return "" if pa.types.is_string(field.type) else 0


def _make_folders(path: Path) -> None:
    """Create missing folders that only their owner can open, and fsync their parents."""
    if not path.is_dir():
        _make_folders(path.parent)
        path.mkdir(mode=0o700, exist_ok=True)
        _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
