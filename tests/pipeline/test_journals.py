"""Client journals are read as Spark rows: from several folders, of killed processes, and of older versions."""

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


def row(message_id: object, outcome: str = "sent", *, ttl_ms: int | None = None, enqueued_ms: int | None = None) -> Row:
    client = ("contoso", "me")
    return (TIME_MS, "send", message_id, "orders", "s", 7, None, outcome, None, 1, *client, ttl_ms, enqueued_ms)


def write(folder: Path, *ids: object) -> Path:
    """Write a journal, close it, and return its path."""
    journal = Journal(folder)
    for message_id in ids:
        journal.write(row(message_id))
    journal.close_now()
    (path,) = folder.glob(f"*{SUFFIX}")
    return path


def ids_of(frame: DataFrame) -> list[str]:
    return sorted(record.message_id for record in frame.where("kind = 'send'").collect())


def test_rows_have_every_column_and_the_name_of_their_file(spark: SparkSession, tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.write(row("one", "parked", ttl_ms=5, enqueued_ms=TIME_MS - 1))
    journal.close_now()
    frame = read_journals(spark, tmp_path)
    assert frame.columns == [*SCHEMA.names, "file"]
    (record,) = (
        frame.where("kind = 'send'").selectExpr("*", "unix_millis(time) at", "unix_millis(enqueued) came").collect()
    )
    assert (record.message_id, record.entity, record.session_id, record.sequence_number) == ("one", "orders", "s", 7)
    assert (record.outcome, record["count"], record.time_to_live, record.client_id) == ("parked", 1, 5, "me")
    assert (record["at"], record.came) == (TIME_MS, TIME_MS - 1)
    assert record.file == next(tmp_path.iterdir()).name


def test_subfolders_are_read_and_a_copied_file_counts_once(spark: SparkSession, tmp_path: Path) -> None:
    first = write(tmp_path / "a", "one")
    write(tmp_path / "a" / "b", "two")
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / first.name).write_bytes(first.read_bytes()[:-8])
    write(tmp_path / "c", "three")
    assert ids_of(read_journals(spark, tmp_path / "a", tmp_path / "copy", tmp_path / "c")) == ["one", "three", "two"]


def test_a_truncated_file_is_read_up_to_its_last_whole_batch(spark: SparkSession, tmp_path: Path) -> None:
    path = write(tmp_path, *range(25_000))
    size = path.stat().st_size
    path.write_bytes(path.read_bytes()[: size - 200_000])
    (file,) = find_journal_files([tmp_path])
    assert not file.is_complete
    assert 10_000 <= read_journals(spark, tmp_path).where("kind = 'send'").count() < 25_000


def test_files_without_rows_are_accepted(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path, "one")
    (tmp_path / f"20260101T00Z-1-aaaaaaaaaaaa-1{SUFFIX}").write_bytes(b"")
    (tmp_path / f"20260101T00Z-2-bbbbbbbbbbbb-1{SUFFIX}").write_bytes(SCHEMA.serialize().to_pybytes())
    assert ids_of(read_journals(spark, tmp_path)) == ["one"]
    assert [file.is_complete for file in find_journal_files([tmp_path])] == [False, False, True]


def test_columns_that_version_1_lacks_are_null(spark: SparkSession, tmp_path: Path) -> None:
    old = pa.schema(list(SCHEMA)[:12], metadata={b"twinbus.journal.version": b"1"})
    values = row("old")[:12]
    batch = pa.record_batch(
        [pa.array([value], field.type) for value, field in zip(values, old, strict=True)], schema=old
    )
    with pa.OSFile(str(tmp_path / f"old{SUFFIX}"), "wb") as sink, pa.ipc.new_stream(sink, old) as writer:
        writer.write_batch(batch)
    (record,) = read_journals(spark, tmp_path).collect()
    assert (record.message_id, record.time_to_live, record.enqueued) == ("old", None, None)


def test_a_file_name_has_the_run_id_and_the_file_number(tmp_path: Path) -> None:
    path = write(tmp_path, "one")
    (file,) = find_journal_files([tmp_path])
    assert f"-{file.run_id}-{file.file_number}{SUFFIX}" in path.name
    assert (file.file_number, file.is_complete, file.size) == (1, True, path.stat().st_size)


def test_small_files_share_a_task_and_large_ones_do_not() -> None:
    mebibyte = 1024 * 1024
    reader = JournalReader(
        [("a", mebibyte), ("b", 60 * mebibyte), ("c", 9 * mebibyte), ("d", 900 * mebibyte), ("e", 1)]
    )
    assert [partition.paths for partition in reader.partitions() if isinstance(partition, JournalPartition)] == [
        ["a", "b"],
        ["c"],
        ["d"],
        ["e"],
    ]


def test_missing_journals_are_a_pipeline_error(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="no such folder"):
        read_journals(spark, tmp_path / "nowhere")
    with pytest.raises(PipelineError, match=r"no file ends in \.arrows"):
        read_journals(spark, tmp_path)
