"""Journals of clients are read as rows of Spark: of several folders, of killed processes, and of older versions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from twinbus.client.journal import Journal
from twinbus.client.journal_file import SCHEMA, SUFFIX, Row
from twinbus.pipeline.errors import PipelineError
from twinbus.pipeline.journals import JournalPartition, JournalReader, find_journal_files, read_journals

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

TIME_MS = 1_700_000_000_123


def row(message_id: object, outcome: str = "sent", *, lives_ms: int | None = None, came_ms: int | None = None) -> Row:
    where = ("contoso", "me")
    return (TIME_MS, "send", message_id, "orders", "s", 7, None, outcome, None, 1, *where, lives_ms, came_ms)


def write(folder: Path, *ids: object) -> Path:
    """A journal that has ended."""
    journal = Journal(folder)
    for one in ids:
        journal.write(row(one))
    journal.close_now()
    (path,) = folder.glob(f"*{SUFFIX}")
    return path


def ids_of(frame: DataFrame) -> list[str]:
    return sorted(found.message_id for found in frame.where("kind = 'send'").collect())


def test_every_column_is_there_and_the_file_a_row_is_from(spark: SparkSession, tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.write(row("one", "parked", lives_ms=5, came_ms=TIME_MS - 1))
    journal.close_now()
    frame = read_journals(spark, tmp_path)
    assert frame.columns == [*SCHEMA.names, "file"]
    (found,) = (
        frame.where("kind = 'send'").selectExpr("*", "unix_millis(time) at", "unix_millis(enqueued) came").collect()
    )
    assert (found.message_id, found.entity, found.session_id, found.sequence_number) == ("one", "orders", "s", 7)
    assert (found.outcome, found["count"], found.time_to_live, found.client_id) == ("parked", 1, 5, "me")
    assert (found["at"], found.came) == (TIME_MS, TIME_MS - 1)
    assert found.file == next(tmp_path.iterdir()).name


def test_folders_below_are_read_and_a_file_that_is_there_twice_counts_once(spark: SparkSession, tmp_path: Path) -> None:
    first = write(tmp_path / "a", "one")
    write(tmp_path / "a" / "b", "two")
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / first.name).write_bytes(first.read_bytes()[:-8])
    write(tmp_path / "c", "three")
    assert ids_of(read_journals(spark, tmp_path / "a", tmp_path / "copy", tmp_path / "c")) == ["one", "three", "two"]


def test_a_file_that_was_cut_off_is_read_up_to_its_last_whole_batch(spark: SparkSession, tmp_path: Path) -> None:
    path = write(tmp_path, *range(25_000))
    whole = path.stat().st_size
    path.write_bytes(path.read_bytes()[: whole - 200_000])
    (found,) = find_journal_files([tmp_path])
    assert not found.is_complete
    assert 10_000 <= read_journals(spark, tmp_path).where("kind = 'send'").count() < 25_000


def test_a_file_without_a_row_is_no_reason_to_fail(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path, "one")
    (tmp_path / f"20260101T00Z-1-aaaaaaaaaaaa-1{SUFFIX}").write_bytes(b"")
    (tmp_path / f"20260101T00Z-2-bbbbbbbbbbbb-1{SUFFIX}").write_bytes(SCHEMA.serialize().to_pybytes())
    assert ids_of(read_journals(spark, tmp_path)) == ["one"]
    assert [one.is_complete for one in find_journal_files([tmp_path])] == [False, False, True]


def test_what_a_journal_of_version_1_does_not_have_is_null(spark: SparkSession, tmp_path: Path) -> None:
    old = pa.schema(list(SCHEMA)[:12], metadata={b"twinbus.journal.version": b"1"})
    values = row("old")[:12]
    batch = pa.record_batch([pa.array([value], one.type) for value, one in zip(values, old, strict=True)], schema=old)
    with pa.OSFile(str(tmp_path / f"old{SUFFIX}"), "wb") as sink, pa.ipc.new_stream(sink, old) as writer:
        writer.write_batch(batch)
    (found,) = read_journals(spark, tmp_path).collect()
    assert (found.message_id, found.time_to_live, found.enqueued) == ("old", None, None)


def test_lives_and_parts_are_in_the_names(tmp_path: Path) -> None:
    path = write(tmp_path, "one")
    (found,) = find_journal_files([tmp_path])
    assert f"-{found.run_id}-{found.file_number}{SUFFIX}" in path.name
    assert (found.file_number, found.is_complete, found.size) == (1, True, path.stat().st_size)


def test_small_files_share_a_task_and_large_ones_do_not() -> None:
    mebibyte = 1024 * 1024
    reader = JournalReader(
        [("a", mebibyte), ("b", 60 * mebibyte), ("c", 9 * mebibyte), ("d", 900 * mebibyte), ("e", 1)]
    )
    assert [one.paths for one in reader.partitions() if isinstance(one, JournalPartition)] == [
        ["a", "b"],
        ["c"],
        ["d"],
        ["e"],
    ]


def test_no_journals_are_a_plain_error(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="no such folder"):
        read_journals(spark, tmp_path / "nowhere")
    with pytest.raises(PipelineError, match=r"no file ends in \.arrows"):
        read_journals(spark, tmp_path)
