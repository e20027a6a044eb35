"""The hourly rollup: each usage journal becomes exactly one complete Parquet file."""

from __future__ import annotations

import asyncio
import datetime as dt
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from tests.server.usage.test_usage_writer import make_usage_writer
from twinbus.broker.clock import TimeServices
from twinbus.model.usage import COLUMNS, JournalHead, UsageRow, journals_without_parquet, read_journal, write_frame
from twinbus.server.usage import parquet_files
from twinbus.server.usage.meter import UsageMeter
from twinbus.server.usage.parquet_files import write_hour
from twinbus.server.usage.rollup import EXIT_NO_PYARROW, remove_expired
from twinbus.server.usage.writer import UsageWriter, UsageWriterConfig
from twinbus.testing import LoopClock, in_virtual_time

HOUR = 1_700_000_000 // 3600 * 3600
HEAD = JournalHead(namespace="contoso", process=0, life="5f1c", hour=HOUR)


def read(folder: Path) -> list[dict[str, Any]]:
    """All rows of all Parquet files, with the columns that are in the names of folders."""
    files = list(map(str, folder.rglob("*.parquet")))
    dataset = ds.dataset(files, partitioning=ds.partitioning(flavor="hive"), partition_base_dir=str(folder))
    rows: list[dict[str, Any]] = dataset.to_table().to_pylist()
    return rows


def make_journal(folder: Path, *rows: UsageRow, head: JournalHead = HEAD) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / head.journal_name
    path.write_bytes(write_frame(head) + write_frame(list(rows)))
    return path


def roll_in_process(arguments: list[str]) -> None:
    """Do the work of the rollup program in this process."""
    folder, _, *journals = arguments
    for journal in journals:
        parquet_files.convert_journal(Path(folder), Path(journal))


@in_virtual_time
async def count_for_three_hours(folder: Path) -> None:
    meter, clock = UsageMeter(), LoopClock()
    clock.set_wall_ms((HOUR + 1_800) * 1000)
    async with make_usage_writer(folder, meter, clock, roll_in_process):
        for _ in range(150):
            meter.counter("orders", "shop").sends += 1
            await asyncio.sleep(60)


def test_each_hour_becomes_a_parquet_file_as_soon_as_it_ends(tmp_path: Path) -> None:
    count_for_three_hours(tmp_path)
    usage = tmp_path / "usage"
    files = sorted(str(path.relative_to(usage)) for path in usage.rglob("*.parquet"))
    assert [name.rsplit("-", 1)[0] for name in files] == [
        "namespace=contoso/date=2023-11-14/22-0",
        "namespace=contoso/date=2023-11-14/23-0",
        "namespace=contoso/date=2023-11-15/00-0",
    ]
    (current,) = usage.glob("*.journal")
    assert journals_without_parquet(usage) == [current]
    converted = [row for row in read(usage) if row["entity"] == "orders"]
    remaining = [row for _, row in read_journal(current) if row.entity == "orders"]
    assert sum(row["sends"] for row in converted) + sum(row.sends for row in remaining) == 150
    assert max(row["minute"] for row in converted) < dt.datetime.fromtimestamp(remaining[0].minute, dt.UTC)
    assert len({row["minute"] for row in converted}) == len(converted)


class MinuteClock:
    """A clock whose time a test sets."""

    def __init__(self, wall_s: int) -> None:
        self.wall_s = wall_s

    def wall_ms(self) -> int:
        return self.wall_s * 1000

    def monotonic_s(self) -> float:
        return self.wall_s


async def test_a_journal_that_was_just_opened_is_not_converted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One thread converts journals while another opens the next journal on a slow disk."""
    has_rolled, may_sync, sync, clock = threading.Event(), threading.Event(), os.fsync, MinuteClock(HOUR + 3_540)
    calls: list[list[str]] = []

    def roll(arguments: list[str]) -> None:
        calls.append(arguments[2:])
        has_rolled.set()

    def wait(file: int) -> None:
        may_sync.wait()
        sync(file)

    times = TimeServices(clock)
    writer = UsageWriter(
        UsageMeter(), clock, times.timers, UsageWriterConfig(folder=tmp_path / "usage", namespace="contoso"), roll
    )
    writer.start()
    while not list((tmp_path / "usage").glob("*.journal")):  # noqa: ASYNC110  # a thread writes it
        await asyncio.sleep(0.01)
    for minute in (HOUR + 3_600, HOUR + 3_660):  # the last minute of an hour is written, then the first of the next
        await asyncio.sleep(0.1)
        if minute == HOUR + 3_660:
            monkeypatch.setattr(os, "fsync", wait)
        clock.wall_s = minute
        times.timers.run_due()
    await asyncio.to_thread(has_rolled.wait)
    may_sync.set()
    await writer.close()
    ((journal,),) = calls
    assert journal.endswith("2023111422.journal")


def test_a_file_has_all_columns_and_its_folders_name_the_namespace_and_the_date(tmp_path: Path) -> None:
    journal = make_journal(tmp_path, UsageRow(minute=HOUR + 60, entity="orders", client="shop", sends=2**40, peeks=1))
    parquet_files.convert_journal(tmp_path, journal)
    assert not journal.exists()
    (row,) = read(tmp_path)
    assert {*row} == {*COLUMNS, "date"}
    assert row["minute"] == dt.datetime.fromtimestamp(HOUR + 60, dt.UTC)
    assert (row["namespace"], row["process"], row["life"]) == ("contoso", 0, "5f1c")
    assert (row["entity"], row["client"], row["mark"], row["sends"], row["peeks"], row["pings"]) == (
        "orders",
        "shop",
        "",
        2**40,
        1,
        0,
    )
    assert (tmp_path / HEAD.parquet_path).stat().st_mode & 0o777 == 0o600


def test_an_interrupted_rollup_does_not_duplicate_rows(tmp_path: Path) -> None:
    row = UsageRow(minute=HOUR, entity="orders", client="shop", sends=1)
    parquet_files.convert_journal(tmp_path, make_journal(tmp_path, row))
    journal = make_journal(tmp_path, row)
    assert journals_without_parquet(tmp_path) == []
    parquet_files.convert_journal(tmp_path, journal)
    assert len(read(tmp_path)) == 1
    assert not journal.exists()


def test_a_failed_rollup_leaves_only_the_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = make_journal(tmp_path, UsageRow(minute=HOUR))

    def fail(_file: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space"):
        parquet_files.convert_journal(tmp_path, journal)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [journal]


def test_columns_may_be_arrays_or_lists_and_missing_columns_are_empty(tmp_path: Path) -> None:
    minutes = [HOUR, HOUR + 60, HOUR + 120]
    columns = {
        "minute": pa.array(minutes, pa.timestamp("s", tz="UTC")),
        "entity": pa.array(["a", "b", "a"]).dictionary_encode(),
        "client": ["x", "y", "z"],
        "sends": pa.array([1, 2, 3], pa.int32()),
        "pings": range(3),
    }
    path = write_hour(tmp_path, HEAD, columns, sync=False)
    assert path == tmp_path / HEAD.parquet_path
    table = pq.read_table(path, partitioning=None)
    assert table.schema.remove_metadata() == parquet_files.SCHEMA
    assert table["entity"].to_pylist() == ["a", "b", "a"]
    assert table["pings"].to_pylist() == [0, 1, 2]
    assert table["receives"].to_pylist() == [0, 0, 0]
    assert table["life"].to_pylist() == ["5f1c"] * 3
    write_hour(tmp_path, HEAD, columns | {"minute": minutes})
    assert pq.read_table(path, partitioning=None) == table


# --- the program ------------------------------------------------------------------------------------------------------


def run_program(folder: Path, *journals: Path, days: int = 0, without_pyarrow: bool = False) -> tuple[int, str]:
    prefix = "import sys; sys.modules['pyarrow'] = None; " if without_pyarrow else "import sys; "
    code = f"{prefix}from twinbus.server.usage.rollup import main; sys.exit(main(sys.argv[1:]))"
    arguments = [sys.executable, "-c", code, str(folder), str(days), *map(str, journals)]
    environment = {**os.environ, "PYTHONPATH": str(Path(parquet_files.__file__).parents[3])}
    result = subprocess.run(arguments, check=False, capture_output=True, text=True, env=environment)
    return result.returncode, result.stderr


def test_the_program_converts_valid_journals_and_renames_unreadable_ones(tmp_path: Path) -> None:
    good = make_journal(tmp_path, UsageRow(minute=HOUR, sends=1))
    bad = tmp_path / "0-bad-2023111422.journal"
    bad.write_bytes(b"nothing")
    code, output = run_program(tmp_path, bad, good, tmp_path / "0-gone-2023111422.journal")
    assert code == 0
    assert "renamed to *.unreadable" in output
    assert len(read(tmp_path)) == 1
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == ["0-bad-2023111422.unreadable"]


def test_without_pyarrow_journals_are_kept(tmp_path: Path) -> None:
    journal = make_journal(tmp_path, UsageRow(minute=HOUR, sends=1))
    assert run_program(tmp_path, journal, without_pyarrow=True)[0] == EXIT_NO_PYARROW
    assert journal.exists()


def test_files_older_than_the_retention_are_removed(tmp_path: Path) -> None:
    for days in range(5):
        write_hour(
            tmp_path, JournalHead(namespace="contoso", process=0, life="a", hour=HOUR - days * 86_400), {"minute": []}
        )
    (tmp_path / "namespace=contoso" / "date=somewhen").mkdir()
    today = dt.datetime.fromtimestamp(HOUR, dt.UTC).date()
    remove_expired(tmp_path, 2, today)
    remaining = sorted(path.name for path in (tmp_path / "namespace=contoso").iterdir())
    assert remaining == ["date=2023-11-12", "date=2023-11-13", "date=2023-11-14", "date=somewhen"]
