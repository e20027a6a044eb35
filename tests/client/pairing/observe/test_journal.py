"""A journal takes rows at once, writes them on a thread, and says how many it had to lose."""

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
    rows = [found for path in sorted(folder.glob(f"*{SUFFIX}")) for found in read(path).to_pylist()]
    return [found for found in rows if found["kind"] != "journal"]


def words_in(folder: Path) -> list[tuple[str, int]]:
    """What a journal says of itself."""
    rows = [found for path in sorted(folder.glob(f"*{SUFFIX}")) for found in read(path).to_pylist()]
    return [(found["outcome"], found["count"]) for found in rows if found["kind"] == "journal"]


def await_that(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_what_waits_is_written_at_the_end(tmp_path: Path) -> None:
    async def scenario() -> None:
        journal = Journal(tmp_path / "a" / "b")
        for number in range(25_000):
            journal.write(row(number))
        await journal.close()
        await journal.close()

    asyncio.run(scenario())
    assert [found["message_id"] for found in rows_in(tmp_path / "a" / "b")] == [str(n) for n in range(25_000)]


def test_rows_are_on_the_disk_within_a_second_or_so(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.write(row("one"))
    await_that(lambda: bool(rows_in(tmp_path)))
    journal.close_now()


def test_ten_thousand_rows_do_not_wait_for_the_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "WRITE_INTERVAL_S", 3600.0)
    journal = Journal(tmp_path)
    for number in range(journal_module.BATCH_ROWS):
        journal.write(row(number))
    await_that(lambda: len(rows_in(tmp_path)) == journal_module.BATCH_ROWS)
    journal.close_now()


def test_a_slow_disk_holds_up_nobody_and_the_rows_lost_are_counted_in_a_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_writing, may_go_on = threading.Event(), threading.Event()
    really = JournalFiles.write

    def write_slowly(files: JournalFiles, rows: Sequence[Row]) -> None:
        is_writing.set()
        assert may_go_on.wait(TIMEOUT_S)
        really(files, rows)

    monkeypatch.setattr(JournalFiles, "write", write_slowly)
    monkeypatch.setattr(journal_module, "MAX_QUEUED_ROWS", 10)
    journal = Journal(tmp_path)
    assert is_writing.wait(TIMEOUT_S)
    for number in range(17):
        journal.write(row(number))
    assert journal.lost == 7
    may_go_on.set()
    journal.close_now()
    found = rows_in(tmp_path)
    assert [one["message_id"] for one in found] == [str(n) for n in range(10)]
    assert words_in(tmp_path) == [("began", 1), ("rows lost", 7), ("ended", 1)]


def test_rows_of_a_full_disk_are_written_when_there_is_room_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    failures = [OSError(28, "No space left on device")] * 2
    really = JournalFiles.write

    def write(files: JournalFiles, rows: Sequence[Row]) -> None:
        if failures:
            raise failures.pop()
        really(files, rows)

    monkeypatch.setattr(JournalFiles, "write", write)
    monkeypatch.setattr(journal_module, "WRITE_INTERVAL_S", 0.01)
    with caplog.at_level(logging.ERROR):
        journal = Journal(tmp_path)
        journal.write(row("one"))
        await_that(lambda: bool(rows_in(tmp_path)))
        journal.close_now()
    assert [found["message_id"] for found in rows_in(tmp_path)] == ["one"]
    assert "tried again: [Errno 28]" in caplog.text


def test_a_row_costs_little(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    try:
        started_s = time.perf_counter()
        for _ in range(10_000):
            journal.write(row("one"))
        assert (time.perf_counter() - started_s) / 10_000 < 100e-6, "it takes about 1 µs on an idle machine"
    finally:
        journal.close_now()


def test_a_folder_that_cannot_be_made_is_told_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        Journal(tmp_path / "file" / "below")


def test_a_journal_says_when_it_begins_that_it_is_alive_and_when_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_module, "WRITE_INTERVAL_S", 0.01)
    monkeypatch.setattr(journal_module, "ALIVE_INTERVAL_S", 0.02)
    journal = Journal(tmp_path)
    await_that(lambda: ("alive", 1) in words_in(tmp_path))
    journal.close_now()
    first, *between, last = words_in(tmp_path)
    assert (first, set(between), last) == (("began", 1), {("alive", 1)}, ("ended", 1))


def test_one_that_has_rows_to_write_need_not_say_that_it_is_alive(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.write(row("one"))
    journal.close_now()
    assert words_in(tmp_path) == [("began", 1), ("ended", 1)]
