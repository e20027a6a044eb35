"""A journal queues rows without blocking, writes them on a thread, and counts the rows that it had to drop."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from twinbus.client import journal as journal_module
from twinbus.client.journal import Journal
from twinbus.client.journal_file import SUFFIX, JournalFiles, Row, read

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

TIMEOUT_S = 20.0


def row(message_id: object) -> Row:
    return (
        1_700_000_000_123,
        "send",
        message_id,
        "orders",
        None,
        None,
        None,
        "sent",
        None,
        1,
        "contoso",
        "me",
        None,
        None,
    )


def rows_in(folder: Path) -> list[dict[str, Any]]:
    rows = [record for path in sorted(folder.glob(f"*{SUFFIX}")) for record in read(path).to_pylist()]
    return [record for record in rows if record["kind"] != "journal"]


def journal_events_in(folder: Path) -> list[tuple[str, int]]:
    """The rows of a journal about itself: outcome and count."""
    rows = [record for path in sorted(folder.glob(f"*{SUFFIX}")) for record in read(path).to_pylist()]
    return [(record["outcome"], record["count"]) for record in rows if record["kind"] == "journal"]


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_queued_rows_are_written_on_close(tmp_path: Path) -> None:
    async def scenario() -> None:
        journal = Journal(tmp_path / "a" / "b")
        for number in range(25_000):
            journal.write(row(number))
        await journal.close()
        await journal.close()

    asyncio.run(scenario())
    assert [record["message_id"] for record in rows_in(tmp_path / "a" / "b")] == [str(n) for n in range(25_000)]


def test_rows_are_on_disk_within_a_second_or_so(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.write(row("one"))
    wait_until(lambda: bool(rows_in(tmp_path)))
    journal.close_now()


def test_a_full_batch_is_written_before_the_write_interval_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_module, "WRITE_INTERVAL_S", 3600.0)
    journal = Journal(tmp_path)
    for number in range(journal_module.BATCH_ROWS):
        journal.write(row(number))
    wait_until(lambda: len(rows_in(tmp_path)) == journal_module.BATCH_ROWS)
    journal.close_now()


def test_a_slow_disk_blocks_no_caller_and_a_row_counts_the_lost_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_writing, may_continue = threading.Event(), threading.Event()
    original = JournalFiles.write

    def write_slowly(files: JournalFiles, rows: Sequence[Row]) -> None:
        is_writing.set()
        assert may_continue.wait(TIMEOUT_S)
        original(files, rows)

    monkeypatch.setattr(JournalFiles, "write", write_slowly)
    monkeypatch.setattr(journal_module, "MAX_QUEUED_ROWS", 10)
    journal = Journal(tmp_path)
    assert is_writing.wait(TIMEOUT_S)
    for number in range(17):
        journal.write(row(number))
    assert journal.lost == 7
    may_continue.set()
    journal.close_now()
    written = rows_in(tmp_path)
    assert [record["message_id"] for record in written] == [str(n) for n in range(10)]
    assert journal_events_in(tmp_path) == [("began", 1), ("rows lost", 7), ("ended", 1)]


def test_rows_that_a_full_disk_refused_are_written_when_there_is_space_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    failures = [OSError(28, "No space left on device")] * 2
    original = JournalFiles.write

    def write(files: JournalFiles, rows: Sequence[Row]) -> None:
        if failures:
            raise failures.pop()
        original(files, rows)

    monkeypatch.setattr(JournalFiles, "write", write)
    monkeypatch.setattr(journal_module, "WRITE_INTERVAL_S", 0.01)
    with caplog.at_level(logging.ERROR):
        journal = Journal(tmp_path)
        journal.write(row("one"))
        wait_until(lambda: bool(rows_in(tmp_path)))
        journal.close_now()
    assert [record["message_id"] for record in rows_in(tmp_path)] == ["one"]
    assert "retrying: [Errno 28]" in caplog.text


def test_writing_a_row_takes_less_than_100_microseconds(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    try:
        started_s = time.perf_counter()
        for _ in range(10_000):
            journal.write(row("one"))
        assert (time.perf_counter() - started_s) / 10_000 < 100e-6, "it takes about 1 µs on an idle machine"
    finally:
        journal.close_now()


def test_a_folder_that_cannot_be_created_is_an_error_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        Journal(tmp_path / "file" / "below")


def test_a_journal_records_its_start_that_it_is_alive_and_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_module, "WRITE_INTERVAL_S", 0.01)
    monkeypatch.setattr(journal_module, "ALIVE_INTERVAL_S", 0.02)
    journal = Journal(tmp_path)
    wait_until(lambda: ("alive", 1) in journal_events_in(tmp_path))
    journal.close_now()
    first, *between, last = journal_events_in(tmp_path)
    assert (first, set(between), last) == (("began", 1), {("alive", 1)}, ("ended", 1))


def test_a_journal_with_rows_to_write_needs_no_alive_rows(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.write(row("one"))
    journal.close_now()
    assert journal_events_in(tmp_path) == [("began", 1), ("ended", 1)]
