"""The usage of servers is read completely, each minute once, from journals and Parquet files."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

import pytest

from tests.pipeline.costs.recorded_usage import NOON, UsageRecorder, usage_row
from twinbus.model.usage import COLUMNS
from twinbus.pipeline.errors import PipelineError
from twinbus.pipeline.usage import read_batches, read_usage
from twinbus.server.usage import parquet_files

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

HOUR = dt.timedelta(hours=1)


def record_two_hours(data: Path) -> UsageRecorder:
    server = UsageRecorder(data, "contoso")
    server.record_minute(NOON, usage_row("orders", sends=3, send_units=4))
    server.record_minute(NOON + HOUR, usage_row("orders", sends=5, send_units=6))
    return server


def sends(spark: SparkSession, *folders: Path | str, **period: dt.datetime) -> int:
    total = read_usage(spark, folders, **period).groupBy().sum("sends").first()
    assert total is not None
    return total[0] or 0


def test_parquet_files_and_journals_are_read_together(spark: SparkSession, tmp_path: Path) -> None:
    server = record_two_hours(tmp_path)
    first = min(server.folder.glob("*.journal"))
    parquet_files.convert_journal(server.folder, first)
    usage = read_usage(spark, [tmp_path])
    assert tuple(usage.columns) == COLUMNS
    rows = usage.where("entity = 'orders'").orderBy("minute").collect()
    assert [(row.namespace, row.client, row.sends, row.send_units) for row in rows] == [
        ("contoso", "shop", 3, 4),
        ("contoso", "shop", 5, 6),
    ]
    assert [row.minute.astimezone(dt.UTC) for row in rows] == [NOON, NOON + HOUR]


def test_an_hour_in_both_a_journal_and_a_parquet_file_counts_once(spark: SparkSession, tmp_path: Path) -> None:
    server = record_two_hours(tmp_path)
    first = min(server.folder.glob("*.journal"))
    content = first.read_bytes()
    parquet_files.convert_journal(server.folder, first)
    first.write_bytes(content)  # as after a crash between writing the Parquet file and removing the journal
    assert sends(spark, tmp_path) == 8


def test_a_journal_that_was_converted_meanwhile_has_no_rows(tmp_path: Path) -> None:
    assert list(read_batches(tmp_path / "gone.journal")) == []


def test_a_truncated_journal_is_read_up_to_its_last_whole_record(spark: SparkSession, tmp_path: Path) -> None:
    server = record_two_hours(tmp_path)
    last = max(server.folder.glob("*.journal"))
    last.write_bytes(last.read_bytes()[:-3])
    assert sends(spark, tmp_path) == 3


def test_several_namespaces_and_their_usage_folders_can_be_read(spark: SparkSession, tmp_path: Path) -> None:
    record_two_hours(tmp_path / "one").roll()
    record_two_hours(tmp_path / "two")
    assert sends(spark, tmp_path / "one" / "usage", tmp_path / "two") == 16


def test_a_folder_that_is_named_twice_counts_once(spark: SparkSession, tmp_path: Path) -> None:
    record_two_hours(tmp_path)
    assert sends(spark, tmp_path, tmp_path / "usage", tmp_path / "usage" / ".." / "usage") == 8


def test_a_period_can_be_chosen(spark: SparkSession, tmp_path: Path) -> None:
    record_two_hours(tmp_path).roll()
    record_two_hours(tmp_path / "journals")
    assert sends(spark, tmp_path, tmp_path / "journals", since=NOON + HOUR) == 10
    assert sends(spark, tmp_path, tmp_path / "journals", until=NOON + HOUR) == 6
    assert sends(spark, tmp_path, since=NOON + dt.timedelta(days=1)) == 0


def test_missing_usage_is_an_error(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "empty" / "usage").mkdir(parents=True)
    with pytest.raises(PipelineError, match="no usage in"):
        read_usage(spark, [tmp_path / "empty"])
    with pytest.raises(PipelineError, match="absent is not a folder"):
        read_usage(spark, [tmp_path / "absent"])
    with pytest.raises(PipelineError, match="no usage: name the data folder"):
        read_usage(spark, [])
