"""Usage survives a kill: calls counted a second before the kill are recorded exactly once."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from typing import TYPE_CHECKING

import pyarrow.parquet as pq

from tests.server.usage.test_usage_writer import make_usage_writer
from tests.support.multi_process_server import run_multi_process_server
from tests.support.server_process import ServerProcess
from twinbus.client import BrokeredMessage, MessagingFactory
from twinbus.model.usage import (
    BEGIN,
    COUNTS,
    UsageRow,
    add_rows,
    journals_without_parquet,
    partial_minute_path,
    read_journal,
)
from twinbus.server.usage import parquet_files
from twinbus.server.usage import writer as writer_module
from twinbus.server.usage.meter import UsageMeter
from twinbus.server.usage.rollup import remove_orphan_partials
from twinbus.server.usage.usage_journal import UsageJournal
from twinbus.testing import in_virtual_time

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

NOON = 1_700_000_000 // 86_400 * 86_400 + 43_200


def rows_of(usage: Path) -> list[UsageRow]:
    """The rows of journals, their partial minutes, and Parquet files."""
    rows = [row for path in journals_without_parquet(usage) for _, row in read_journal(path)]
    for path in usage.rglob("*.parquet"):
        columns = ["entity", "client", "mark", *COUNTS]
        rows += [
            UsageRow(minute=0, **row) for row in pq.read_table(path, columns=columns, partitioning=None).to_pylist()
        ]
    return rows


def usage_of_queue(usage: Path, queue: str) -> tuple[int, int, int, int]:
    """Sends, receives, settlements and management of a queue."""
    row = add_rows([UsageRow(minute=0), *[row for row in rows_of(usage) if row.entity == queue]])
    return row.sends, row.receives, row.settlements, row.management


async def use_queue(server: ServerProcess, queue: str, *, sends: int, receives: int = 0, connections: int = 1) -> None:
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(connections):
            factory = await stack.enter_async_context(MessagingFactory.from_connection_string(server.connection_string))
            sender = factory.create_message_sender(queue)
            for number in range(sends):
                await sender.send(BrokeredMessage(str(number)))
        receiver = factory.create_message_receiver(queue, prefetch=0)
        for _ in range(receives):
            message = await receiver.receive(5)
            assert message is not None
            await receiver.complete(message)
        await receiver.close()


def test_calls_a_second_before_a_kill_are_counted_exactly_once(tmp_path: Path) -> None:
    usage = tmp_path / "data" / "usage"
    server = ServerProcess(tmp_path)
    try:
        server.start()
        queue = server.create_queue()
        for sends, expected in ((20, (20, 10, 10, 1)), (30, (50, 20, 20, 1))):
            asyncio.run(use_queue(server, queue, sends=sends, receives=10))
            time.sleep(1.0)
            assert usage_of_queue(usage, queue) == expected, "and it is there for who reads while the server runs"
            server.kill()
            assert usage_of_queue(usage, queue) == expected
            if sends == 20:
                server.start()  # the next process has its own files
    finally:
        server.kill()
    assert [row.mark for row in rows_of(usage) if row.mark] == [BEGIN] * 2, "none has an end"
    for journal in journals_without_parquet(usage):
        parquet_files.convert_journal(usage, journal)
    assert usage_of_queue(usage, queue) == (50, 20, 20, 1)
    assert not [*usage.glob("*.journal"), *usage.glob("*.partial")]


def test_the_usage_of_each_of_several_processes_survives_a_kill(tmp_path: Path) -> None:
    usage = tmp_path / "data" / "usage"
    with run_multi_process_server(tmp_path, workers=2) as server:
        queue = server.create_queue()
        asyncio.run(use_queue(server, queue, sends=5, receives=40, connections=8))
        time.sleep(1.0)
        os.kill(server.pid, signal.SIGSTOP)  # the supervisor would restart them
        for number in server.workers():
            server.signal_worker(number, signal.SIGKILL)
        server.kill()
    assert usage_of_queue(usage, queue) == (40, 40, 40, 1)
    assert len(journals_without_parquet(usage)) == 2


# --- files left by a kill ---------------------------------------------------------------------------------------------


def sends_row(count: int, minute: int = NOON) -> UsageRow:
    return UsageRow(minute=minute, entity="orders", client="shop", sends=count)


def journal_with_partial_minute(folder: Path) -> tuple[UsageJournal, Path]:
    """A journal with a complete minute of 1 send and a partial minute of 2 + 4 sends."""
    journal = UsageJournal(folder, namespace="contoso", process=0, life="5f1c")
    journal.append([sends_row(1)], NOON)
    journal.append_partial([sends_row(2, NOON + 60)], NOON + 60)
    journal.append_partial([sends_row(4, NOON + 60), UsageRow(minute=NOON + 60, connections=3)], NOON + 60)
    (path,) = folder.glob("*.journal")
    return journal, path


def sends(path: Path) -> list[int]:
    return [row.sends for _, row in read_journal(path) if row.entity]


def test_changes_within_a_minute_are_read_as_one_row(tmp_path: Path) -> None:
    _, path = journal_with_partial_minute(tmp_path)
    assert sends(path) == [1, 6]
    assert max(row.connections for _, row in read_journal(path)) == 3


def test_a_torn_partial_minute_is_read_up_to_its_last_whole_frame(tmp_path: Path) -> None:
    _, path = journal_with_partial_minute(tmp_path)
    content = partial_minute_path(path).read_bytes()
    results = set()
    for end in range(len(content)):
        partial_minute_path(path).write_bytes(content[:end])
        results.add(tuple(sends(path)))
    assert results == {(1,), (1, 2)}


def test_a_leftover_partial_minute_of_a_complete_minute_is_not_counted_again(tmp_path: Path) -> None:
    journal, path = journal_with_partial_minute(tmp_path)
    partial = partial_minute_path(path).read_bytes()
    journal.append([sends_row(7, NOON + 60)], NOON + 60)
    assert sends(path) == [1, 7]
    partial_minute_path(path).write_bytes(partial)  # a power failure may restore the removed partial minute
    assert sends(path) == [1, 7]
    parquet_files.convert_journal(tmp_path, path)
    assert [row.sends for row in rows_of(tmp_path)] == [1, 7]


def test_a_partial_minute_of_a_converted_journal_is_removed(tmp_path: Path) -> None:
    _, path = journal_with_partial_minute(tmp_path)
    partial = partial_minute_path(path).read_bytes()
    remove_orphan_partials(tmp_path)
    assert partial_minute_path(path).exists(), "its journal is there"
    parquet_files.convert_journal(tmp_path, path)
    partial_minute_path(path).write_bytes(partial)  # a kill between the two removals
    assert sum(row.sends for row in rows_of(tmp_path)) == 7
    remove_orphan_partials(tmp_path)
    assert not partial_minute_path(path).exists()


# --- costs ------------------------------------------------------------------------------------------------------------


@in_virtual_time
async def count_each_second(folder: Path) -> list[int]:
    """The size of the partial minute after each second of three minutes."""
    meter, sizes = UsageMeter(), []
    async with make_usage_writer(folder, meter):
        for _ in range(180):
            meter.counter("orders", "shop").sends += 1
            await asyncio.sleep(1)
            sizes.append(sum(path.stat().st_size for path in (folder / "usage").glob("*.partial")))
    return sizes


def test_the_partial_minute_starts_again_each_minute(tmp_path: Path) -> None:
    sizes = count_each_second(tmp_path)
    minutes = [sizes[begin : begin + 60] for begin in (0, 60, 120)]
    largest = [max(minute) for minute in minutes]
    assert max(largest) < min(largest) + 10
    assert all(minute[0] < minute[-2] for minute in minutes)
    journals = (tmp_path / "usage").glob("*.journal")
    assert sum(row.sends for path in journals for _, row in read_journal(path)) == 180
    assert not list((tmp_path / "usage").glob("*.partial"))


@in_virtual_time
async def count_nothing(folder: Path) -> list[int]:
    async with make_usage_writer(folder, UsageMeter()):
        await asyncio.sleep(5)
        before = [path.stat().st_mtime_ns for path in (folder / "usage").glob("*.partial")]
        await asyncio.sleep(50)
        return [
            after.stat().st_mtime_ns - then
            for after, then in zip((folder / "usage").glob("*.partial"), before, strict=True)
        ]


def test_nothing_is_written_without_calls(tmp_path: Path) -> None:
    assert count_nothing(tmp_path) == [0]


@in_virtual_time
async def count_slowly(folder: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    meter, now_s, writes = UsageMeter(), [0.0], []

    def take_slowly(*_arguments: object) -> list[UsageRow]:
        now_s[0] += 0.1  # seconds of CPU time, for the changes of many thousand counters
        writes.append(now_s[0])
        return []

    monkeypatch.setattr(writer_module, "take_partial_rows", take_slowly)
    monkeypatch.setattr(time, "thread_time", lambda: now_s[0])
    async with make_usage_writer(folder, meter):
        await asyncio.sleep(55)
    return len(writes)


def test_partial_minutes_are_written_less_often_above_one_percent_of_cpu_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert count_slowly(tmp_path, monkeypatch) == 6


@in_virtual_time
async def fill_the_disk_for_a_second(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    meter, write = UsageMeter(), os.pwrite

    def fail(*_arguments: object) -> int:
        raise OSError(28, "No space left on device")

    async with make_usage_writer(folder, meter):
        meter.counter("orders", "shop").sends += 1
        monkeypatch.setattr(os, "pwrite", fail)
        await asyncio.sleep(5)
        monkeypatch.setattr(os, "pwrite", write)
        meter.counter("news", "shop").sends += 2
        await asyncio.sleep(2)
        (path,) = (folder / "usage").glob("*.journal")
        return sorted(sends(path))


def test_changes_are_written_as_soon_as_a_full_disk_has_space_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert fill_the_disk_for_a_second(tmp_path, monkeypatch) == [1, 2]
