"""Usage rows: how many operations they are charged as, and the frames of their journal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from twinbus.model.usage import (
    COLUMNS,
    COUNTS,
    DOCUMENT_TERMS,
    FAILED_TERMS,
    OPERATION_TERMS,
    JournalHead,
    JournalUnreadable,
    UsageRow,
    add_rows,
    columns_of,
    document_operations,
    journals_without_parquet,
    operations,
    read_head,
    read_journal,
    units_of,
    write_frame,
)

HOUR = 1_750_000_000 // 3600 * 3600
HEAD = JournalHead(namespace="contoso", process=1, life="5f1c", hour=HOUR)


def row(**counts: Any) -> UsageRow:  # noqa: ANN401  # integers
    return UsageRow(minute=HOUR, entity="orders", client="shop", **counts)


def journal(folder: Path, *frames: list[UsageRow]) -> Path:
    path = folder / HEAD.journal_name
    path.write_bytes(b"".join([write_frame(HEAD), *map(write_frame, frames)]))
    return path


@pytest.mark.parametrize(("kilobytes", "units"), [(0, 1), (8, 1), (64, 1), (96, 2), (256, 4)])
def test_c02_an_operation_is_charged_for_each_64_kb_begun(kilobytes: int, units: int) -> None:
    assert units_of(kilobytes * 1024) == units


def test_c03_a_peek_lock_receive_and_completion_are_two_operations_or_one_in_the_document() -> None:
    both = row(receives=1, receive_units=1, receive_bytes=900, settlements=1)
    assert operations(both) == 2
    assert document_operations(both) == 1


def test_c09_failed_sends_are_charged_unless_the_caller_excludes_them() -> None:
    failed = row(failed_sends=2, failed_pings=3, pings=4)
    assert (operations(failed), document_operations(failed)) == (9, 9)
    assert (operations(failed, bills_failed=False), document_operations(failed, bills_failed=False)) == (4, 4)


def test_each_column_of_calls_is_charged_once_in_the_operation_model() -> None:
    not_charged = {"sends", "send_bytes", "receives", "receive_bytes", "connections"}
    assert {*OPERATION_TERMS, *FAILED_TERMS} == {*COUNTS} - not_charged
    assert len(OPERATION_TERMS) == len({*OPERATION_TERMS})
    assert {*DOCUMENT_TERMS} < {*OPERATION_TERMS}


def test_rows_are_added_to_one_row_of_other_entities() -> None:
    assert add_rows([row(sends=1, pings=2), row(sends=3)]) == UsageRow(
        minute=HOUR, entity="(other)", client="(other)", sends=4, pings=2
    )


def test_a_journal_is_read_as_it_was_written(tmp_path: Path) -> None:
    first, second = [row(sends=1), row(peeks=2)], [row(forwards=2**40)]
    path = journal(tmp_path, first, second)
    assert read_head(path) == HEAD
    assert list(read_journal(path)) == [(HEAD, expected) for expected in [*first, *second]]
    columns = columns_of(path)
    assert tuple(columns) == COLUMNS
    assert columns["life"] == ["5f1c"] * 3
    assert columns["forwards"] == [0, 0, 2**40]


def test_a_torn_frame_is_ignored(tmp_path: Path) -> None:
    whole = [row(sends=1)]
    path = journal(tmp_path, whole, [row(sends=2)])
    content = path.read_bytes()
    start = len(content) - len(write_frame([row(sends=2)]))
    for end in range(start, len(content)):
        path.write_bytes(content[:end])
        assert [usage for _, usage in read_journal(path)] == whole


def test_a_corrupt_frame_ends_the_journal(tmp_path: Path) -> None:
    path = journal(tmp_path, [row(sends=1)], [row(sends=2)], [row(sends=3)])
    content = bytearray(path.read_bytes())
    content[-len(write_frame([row(sends=3)])) - 1] ^= 0xFF
    path.write_bytes(content)
    assert [usage.sends for _, usage in read_journal(path)] == [1]


def test_an_empty_torn_or_newer_journal_is_unreadable(tmp_path: Path) -> None:
    path = tmp_path / "0-a-2025010100.journal"
    for content in (
        b"",
        write_frame(HEAD)[:-1],
        write_frame(JournalHead(version=2, namespace="n", process=0, life="a", hour=0)),
    ):
        path.write_bytes(content)
        with pytest.raises(JournalUnreadable):
            read_head(path)


def test_a_journal_is_listed_until_its_parquet_file_exists(tmp_path: Path) -> None:
    path = journal(tmp_path, [row(sends=1)])
    (tmp_path / "0-torn-2025010100.journal").write_bytes(b"\0")
    assert path.name == "1-5f1c-2025061515.journal"
    assert HEAD.parquet_path == Path("namespace=contoso/date=2025-06-15/15-1-5f1c.parquet")
    assert journals_without_parquet(tmp_path) == [path]
    parquet = tmp_path / HEAD.parquet_path
    parquet.parent.mkdir(parents=True)
    parquet.touch()
    assert journals_without_parquet(tmp_path) == []
