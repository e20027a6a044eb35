"""What the usage writer writes: each minute, at start and stop of a process, and when a disk fails."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from twinbus.broker.clock import TimeServices
from twinbus.model.usage import BEGIN, END, LOST, UsageRow, read_journal
from twinbus.server.runtime.system_clock import SystemClock, TimerDriver
from twinbus.server.usage import writer as writer_module
from twinbus.server.usage.meter import UsageMeter
from twinbus.server.usage.writer import UsageWriter, UsageWriterConfig
from twinbus.testing import LoopClock, in_virtual_time

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    import pytest


@asynccontextmanager
async def make_usage_writer(
    folder: Path, meter: UsageMeter, clock: LoopClock | None = None, run: Callable[[list[str]], object] | None = None
) -> AsyncIterator[UsageWriter]:
    """A running writer, with a clock whose first minute begins with the test."""
    clock = clock or LoopClock()
    times = TimeServices(clock)
    driver = TimerDriver(times.timers)
    config = UsageWriterConfig(folder=folder / "usage", namespace="contoso")
    writer = UsageWriter(meter, clock, times.timers, config, run or (lambda _: None))
    await asyncio.sleep(60 - clock.wall_ms() / 1000 % 60)
    writer.start()
    try:
        yield writer
    finally:
        await writer.close()
        driver.stop()


def written(folder: Path) -> list[UsageRow]:
    """All rows of all journals, in order."""
    return [row for path in sorted((folder / "usage").glob("*.journal")) for _, row in read_journal(path)]


def written_counts(rows: list[UsageRow]) -> list[tuple[int, str, str, int]]:
    """Each row's number of minutes after the first row, mark, entity and sends."""
    return [((row.minute - rows[0].minute) // 60, row.mark, row.entity, row.sends) for row in rows]


@in_virtual_time
async def write_minutes(folder: Path) -> None:
    meter = UsageMeter()
    async with make_usage_writer(folder, meter):
        meter.counter("orders", "shop").sends += 3
        await asyncio.sleep(61)
        await asyncio.sleep(60)
        meter.counter("orders", "shop").sends += 4
        await asyncio.sleep(60)
        meter.counter("news", "shop").sends += 5


def test_each_minute_has_its_rows_and_each_process_its_begin_and_end_marks(tmp_path: Path) -> None:
    write_minutes(tmp_path)
    rows = written(tmp_path)
    assert written_counts(rows) == [
        (0, BEGIN, "", 0),
        (0, "", "", 0),
        (0, "", "", 0),
        (0, "", "orders", 3),
        (1, "", "", 0),
        (2, "", "", 0),
        (2, "", "orders", 4),
        (3, END, "", 0),
        (3, "", "", 0),
        (3, "", "news", 5),
    ]


def test_files_are_accessible_to_their_owner_only(tmp_path: Path) -> None:
    write_minutes(tmp_path)
    (path,) = (tmp_path / "usage").iterdir()
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700


@in_virtual_time
async def write_connections(folder: Path) -> None:
    meter = UsageMeter()
    async with make_usage_writer(folder, meter):
        for _ in range(3):
            meter.on_connected()
        meter.on_disconnected()
        await asyncio.sleep(61)
        meter.on_disconnected()
        await asyncio.sleep(60)
        await asyncio.sleep(60)


def test_the_peak_of_connections_in_each_minute_is_written(tmp_path: Path) -> None:
    write_connections(tmp_path)
    assert [row.connections for row in written(tmp_path) if not row.mark] == [0, 3, 2, 1, 1]


@in_virtual_time
async def set_the_clock_back(folder: Path) -> None:
    meter, clock = UsageMeter(), LoopClock()
    async with make_usage_writer(folder, meter, clock):
        await asyncio.sleep(121)
        clock.set_wall_ms(clock.wall_ms() - 7_200_000)
        for _ in range(6):
            meter.counter("orders", "shop").sends += 1
            await asyncio.sleep(60)


def test_minutes_do_not_go_back_with_the_clock_and_are_still_written(tmp_path: Path) -> None:
    set_the_clock_back(tmp_path)
    rows = written(tmp_path)
    sent = [((row.minute - rows[0].minute) // 60, row.sends) for row in rows if row.sends]
    assert {minute for minute, _ in sent} == {2}
    assert sum(sends for _, sends in sent) == 6
    assert len(sent) == 4, "every minute and a half, whatever the clock says"


# --- disks ------------------------------------------------------------------------------------------------------------


@in_virtual_time
async def fill_the_disk(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    meter, write = UsageMeter(), os.pwrite

    def write_partly(file: int, content: bytes, offset: int) -> int:
        if len(content) < 20:
            raise OSError(28, "No space left on device")
        return write(file, content[:10], offset)

    async with make_usage_writer(folder, meter):
        await asyncio.sleep(1)
        meter.counter("orders", "shop").sends += 1
        await asyncio.sleep(60)
        monkeypatch.setattr(os, "pwrite", write_partly)
        for _ in range(3):
            meter.counter("orders", "shop").sends += 10
            await asyncio.sleep(60)
        monkeypatch.setattr(os, "pwrite", write)
        meter.counter("orders", "shop").sends += 2
        await asyncio.sleep(60)


def test_rows_lost_on_a_full_disk_are_logged_once_and_marked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "twinbus"):
        fill_the_disk(tmp_path, monkeypatch)
    rows = written(tmp_path)
    assert [row.sends for row in rows if row.sends] == [1, 2]
    assert [((row.minute - rows[0].minute) // 60, row.mark) for row in rows if row.mark] == [
        (0, BEGIN),
        (4, LOST),
        (5, END),
    ]
    messages = [record.message for record in caplog.records if "usage" in record.message or "use" in record.message]
    assert len(messages) == 2
    assert "No space left on device" in messages[0]


async def test_the_last_rows_follow_the_rows_that_a_slow_disk_has_not_written_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    meter, sync, may_sync = UsageMeter(), os.fsync, threading.Event()

    def wait(file: int) -> None:
        may_sync.wait()
        sync(file)

    monkeypatch.setattr(os, "fsync", wait)
    monkeypatch.setattr(writer_module, "STOP_TIMEOUT_S", 0.05)
    clock = SystemClock()
    writer = UsageWriter(
        meter, clock, TimeServices(clock).timers, UsageWriterConfig(folder=tmp_path / "usage", namespace="contoso")
    )
    writer.start()
    meter.counter("orders", "shop").sends += 1
    await writer.close()  # returns although not even the first rows are written
    may_sync.set()
    while len(rows := written(tmp_path)) < 5:  # noqa: ASYNC110  # other threads write
        await asyncio.sleep(0.01)
    assert [(row.mark, row.sends) for row in rows] == [(BEGIN, 0), ("", 0), (END, 0), ("", 0), ("", 1)]


@in_virtual_time
async def write_to_a_blocked_folder(folder: Path) -> None:
    (folder / "usage").write_text("in the way")
    meter = UsageMeter()
    async with make_usage_writer(folder, meter):
        meter.counter("orders", "shop").sends += 1
        await asyncio.sleep(61)
        (folder / "usage").unlink()
        meter.counter("orders", "shop").sends += 2
        await asyncio.sleep(60)


def test_a_folder_that_cannot_be_created_is_tried_again(tmp_path: Path) -> None:
    write_to_a_blocked_folder(tmp_path)
    rows = written(tmp_path)
    assert [row.mark for row in rows if row.mark] == [BEGIN, LOST, END]
    assert [row.sends for row in rows if row.sends] == [2]


# --- counters ---------------------------------------------------------------------------------------------------------


@in_virtual_time
async def use_counters_for_a_minute(folder: Path) -> None:
    meter = UsageMeter()
    async with make_usage_writer(folder, meter):
        kept = meter.counter("orders", "kept")
        kept.user_count += 1
        for number in range(5):
            meter.counter("orders", str(number)).sends += 1
        await asyncio.sleep(61)
        assert len(meter.counters()) == 7, "what was counted is not forgotten in the same minute"
        await asyncio.sleep(60)
        assert [counter.client for counter in meter.counters()] == ["kept", "(other)"]
        kept.sends += 1


def test_unused_counters_are_removed(tmp_path: Path) -> None:
    use_counters_for_a_minute(tmp_path)
    assert sum(row.sends for row in written(tmp_path)) == 6
