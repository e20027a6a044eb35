"""Journal files are Arrow streams for any reader; a file that was cut off keeps all complete batches."""

from __future__ import annotations

import os
import uuid
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from twinbus.client.journal_file import SCHEMA, SUFFIX, VERSION, JournalFiles, Row, has_end, read
from twinbus.testing.clock import FakeClock

if TYPE_CHECKING:
    from pathlib import Path

HOUR_S = 3600


def row(message_id: object, reason: str | None = None) -> Row:
    return (
        1_700_000_000_123,
        "send",
        message_id,
        "orders",
        None,
        None,
        None,
        "sent",
        reason,
        1,
        "contoso",
        "me",
        None,
        None,
    )


def files_of(folder: Path) -> list[Path]:
    return sorted(folder.glob(f"*{SUFFIX}"))


def ids_in(path: Path) -> list[Any]:
    return list(read(path).column("message_id").to_pylist())


def test_arrow_alone_can_read_a_file(tmp_path: Path) -> None:
    files = JournalFiles(tmp_path, FakeClock())
    files.write([row("one"), row("two")])
    files.write([row("three")])
    files.close()
    (path,) = files_of(tmp_path)
    with pa.OSFile(str(path)) as source:
        table = pa.ipc.open_stream(source).read_all()
    assert table.schema.equals(SCHEMA, check_metadata=True)
    assert table.column("message_id").to_pylist() == ["one", "two", "three"]
    first = table.to_pylist()[0]
    assert first["time"].isoformat() == "2023-11-14T22:13:20.123000+00:00"
    assert (first["entity"], first["outcome"], first["count"], first["client_id"]) == ("orders", "sent", 1, "me")


def test_each_hour_has_a_file_that_is_named_after_it(tmp_path: Path) -> None:
    clock = FakeClock()
    files = JournalFiles(tmp_path, clock)
    files.write([row("at ten")])
    clock.advance(HOUR_S)
    files.write([row("at eleven")])
    files.write([row("still at eleven")])
    files.close()
    first, second = files_of(tmp_path)
    assert first.name.startswith("20231114T22Z-")
    assert second.name.startswith("20231114T23Z-")
    assert (ids_in(first), ids_in(second)) == (["at ten"], ["at eleven", "still at eleven"])


def test_two_journals_in_one_folder_never_share_a_file(tmp_path: Path) -> None:
    clock = FakeClock()
    for number in range(20):
        JournalFiles(tmp_path, clock).write([row(number)])
    assert sorted(ids_in(path)[0] for path in files_of(tmp_path)) == sorted(str(number) for number in range(20))


def test_a_file_cut_off_anywhere_keeps_all_complete_batches(tmp_path: Path) -> None:
    files = JournalFiles(tmp_path, FakeClock())
    (sizes, written) = ([], 0)
    for number in range(3):
        files.write([row(f"{number}")])
        (path,) = files_of(tmp_path)
        sizes.append(path.stat().st_size)
    files.close()
    whole, cut = path.read_bytes(), tmp_path / "cut"
    edges = {edge for size in (0, *sizes, len(whole)) for edge in (size - 1, size, size + 1)}
    for length in sorted(edges.union(range(0, len(whole), 13)) & {*range(len(whole) + 1)}):
        cut.write_bytes(whole[:length])
        written = sum(size <= length for size in sizes)
        assert ids_in(cut) == [str(number) for number in range(written)], length
        assert has_end(cut) is (length == len(whole)), length
    assert written == 3


def test_message_ids_of_every_type_become_text(tmp_path: Path) -> None:
    key = uuid.UUID(int=17)
    files = JournalFiles(tmp_path, FakeClock())
    files.write([row("text"), row(17), row(b"\x01\xff"), row(key), row(None), row("half \ud800"), row("x" * 5_000)])
    (path,) = files_of(tmp_path)
    assert ids_in(path) == ["text", "17", "01ff", str(key), None, "half ?", "x" * 1_000]


def test_invalid_unicode_in_one_row_affects_no_other_row(tmp_path: Path) -> None:
    files = JournalFiles(tmp_path, FakeClock())
    files.write([row("one", "half \ud800"), row("two", "naïve")])
    (path,) = files_of(tmp_path)
    assert read(path).column("reason").to_pylist() == ["half ?", "naïve"]


def test_a_file_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    newer = SCHEMA.with_metadata({b"twinbus.journal.version": str(VERSION + 1).encode()})
    (tmp_path / "newer").write_bytes(newer.serialize())
    with pytest.raises(
        ValueError, match=f"has journal version {VERSION + 1}; this twinbus reads versions up to {VERSION}"
    ):
        read(tmp_path / "newer")


def test_after_a_failed_write_rows_go_to_another_file_and_none_is_duplicated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = JournalFiles(tmp_path, FakeClock())
    files.write([row("before")])
    with monkeypatch.context() as patched:
        patched.setattr("twinbus.client.journal_file.os.write", full_disk())
        with pytest.raises(OSError, match="No space"):
            files.write([row("again")])
    files.write([row("again")])
    files.close()
    for path, ids in zip(files_of(tmp_path), [["before"], ["again"]], strict=True):
        with pa.OSFile(str(path)) as source:  # not with `read`: Arrow alone must be able to read the file
            assert pa.ipc.open_stream(source).read_all().column("message_id").to_pylist() == ids


def full_disk() -> Any:  # noqa: ANN401
    original = os.write

    def write(descriptor: int, buffer: memoryview) -> int:
        """Write all but the last 20 bytes, then fail."""
        if len(buffer) > 20:
            return original(descriptor, buffer[:-20])
        raise OSError(28, "No space left on device")

    return write
