"""Rows of usage: what is charged for them, and the frames they are kept in."""

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


def row(**counts: Any) -> UsageRow:  # noqa: ANN401  # they are numbers
    return UsageRow(minute=HOUR, entity="orders", client="shop", **counts)


def journal(folder: Path, *frames: list[UsageRow]) -> Path:
    path = folder / HEAD.journal_name
    path.write_bytes(b"".join([write_frame(HEAD), *map(write_frame, frames)]))
    return path


@pytest.mark.parametrize(("kilobytes", "units"), [(0, 1), (8, 1), (64, 1), (96, 2), (256, 4)])
def test_c02_an_operation_is_charged_for_each_64_kb_begun(kilobytes: int, units: int) -> None:
    assert units_of(kilobytes * 1024) == units


def test_c03_a_receive_under_a_lock_and_its_completion_are_two_operations_and_one_of_the_documents() -> None:
    both = row(receives=1, receive_units=1, receive_bytes=900, settlements=1)
    assert operations(both) == 2
    assert document_operations(both) == 1


def test_c09_whether_what_failed_is_charged_is_for_the_asker_to_say() -> None:
    failed = row(failed_sends=2, failed_pings=3, pings=4)
    assert (operations(failed), document_operations(failed)) == (9, 9)
    assert (operations(failed, bills_failed=False), document_operations(failed, bills_failed=False)) == (4, 4)


def test_each_column_of_calls_is_charged_once_in_the_operation_model() -> None:
    not_charged = {"sends", "send_bytes", "receives", "receive_bytes", "connections"}
    assert {*OPERATION_TERMS, *FAILED_TERMS} == {*COUNTS} - not_charged
    assert len(OPERATION_TERMS) == len({*OPERATION_TERMS})
    assert {*DOCUMENT_TERMS} < {*OPERATION_TERMS}


def test_several_rows_become_one_of_others() -> None:
    assert add_rows([row(sends=1, pings=2), row(sends=3)]) == UsageRow(
        minute=HOUR, entity="(other)", client="(other)", sends=4, pings=2
    )


def test_what_is_written_to_a_journal_is_read_from_it(tmp_path: Path) -> None:
    first, second = [row(sends=1), row(peeks=2)], [row(forwards=2**40)]
    path = journal(tmp_path, first, second)
    assert read_head(path) == HEAD
    assert list(read_journal(path)) == [(HEAD, one) for one in [*first, *second]]
    columns = columns_of(path)
    assert tuple(columns) == COLUMNS
    assert columns["life"] == ["5f1c"] * 3
    assert columns["forwards"] == [0, 0, 2**40]


def test_a_frame_that_was_not_written_to_its_end_is_left_out_wherever_it_is_torn(tmp_path: Path) -> None:
    whole = [row(sends=1)]
    path = journal(tmp_path, whole, [row(sends=2)])
    content = path.read_bytes()
    begun = len(content) - len(write_frame([row(sends=2)]))
    for end in range(begun, len(content)):
        path.write_bytes(content[:end])
        assert [one for _, one in read_journal(path)] == whole


def test_a_frame_that_was_changed_ends_the_journal(tmp_path: Path) -> None:
    path = journal(tmp_path, [row(sends=1)], [row(sends=2)], [row(sends=3)])
    content = bytearray(path.read_bytes())
    content[-len(write_frame([row(sends=3)])) - 1] ^= 0xFF
    path.write_bytes(content)
    assert [one.sends for _, one in read_journal(path)] == [1]


def test_a_journal_of_a_newer_version_or_none_at_all_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "0-a-2025010100.journal"
    for content in (
        b"",
        write_frame(HEAD)[:-1],
        write_frame(JournalHead(version=2, namespace="n", process=0, life="a", hour=0)),
    ):
        path.write_bytes(content)
        with pytest.raises(JournalUnreadable):
            read_head(path)


def test_a_journal_lies_beside_the_parquet_files_until_it_has_become_one(tmp_path: Path) -> None:
    path = journal(tmp_path, [row(sends=1)])
    (tmp_path / "0-torn-2025010100.journal").write_bytes(b"\0")
    assert path.name == "1-5f1c-2025061515.journal"
    assert HEAD.parquet_path == Path("namespace=contoso/date=2025-06-15/15-1-5f1c.parquet")
    assert journals_without_parquet(tmp_path) == [path]
    place = tmp_path / HEAD.parquet_path
    place.parent.mkdir(parents=True)
    place.touch()
    assert journals_without_parquet(tmp_path) == []
