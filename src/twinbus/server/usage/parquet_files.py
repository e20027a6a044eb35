"""Hours of usage as Parquet files.

    write_hour(folder, Head(namespace="contoso", process=0, life="5f1c", hour=hour), {"minute": ..., "entity": ...})

Owns: the types of their columns, and that a file is there whole or not at all. Needs pyarrow: a server does not import
this, `roll` says why.
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
"""The namespace and the date are in the names of the folders, as Spark and others read them."""
_STATISTICS_COLUMNS: Final = ("minute", "entity")
"""Columns of which a file says what it has; for the others that would be longer than they are."""


def write_hour(folder: Path, head: JournalHead, columns: Mapping[str, Any], *, sync: bool = True) -> Path:
    """Put rows of one hour and process in their place below a folder `usage`; its path.

    A column is an array of Arrow or anything that one is made of; one that is not given is 0, or empty. Minutes may be
    numbers, seconds since 1970. Without `syncs` a power cut may leave nothing of it, or a file that cannot be read.
    """
    count = len(columns["minute"])
    arrays = [_to_array(field, columns.get(field.name), head, count) for field in SCHEMA]
    path = folder / head.parquet_path
    _make_folders(path.parent)
    new = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with os.fdopen(
            os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600), "wb"
        ) as file:
            table = pa.Table.from_arrays(arrays, schema=SCHEMA)
            pq.write_table(
                table, file, compression="zstd", write_statistics=list(_STATISTICS_COLUMNS), row_group_size=count or 1
            )
            file.flush()
            if sync:
                os.fsync(file.fileno())
        new.replace(path)
        if sync:
            _sync_folder(path.parent)
    except BaseException:
        with contextlib.suppress(OSError):
            new.unlink()
        raise
    return path


def convert_journal(folder: Path, journal: Path) -> None:
    """Let a Parquet file take the place of a journal. What was cut off between the two steps is done again."""
    head = read_head(journal)
    if not (folder / head.parquet_path).exists():
        write_hour(folder, head, columns_of(journal))
    journal.unlink(missing_ok=True)
    partial_minute_path(journal).unlink(missing_ok=True)  # after the journal, which is not to be read without it


def _to_array(field: pa.Field, values: Any, head: JournalHead, count: int) -> pa.Array:  # noqa: ANN401  # whatever Arrow takes
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
    """For their owner alone, there also after a power cut."""
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
