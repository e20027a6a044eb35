"""Damaged records are moved aside and logged, and the other records are found."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.client.pairing.spool.records import make_record, read_spool, segment_file, spool_all
from twinbus.client.pairing.errors import SpoolFailed
from twinbus.client.pairing.spool.files import SpoolFiles
from twinbus.client.pairing.spool.record import FILE_HEADER, encode_record, frame_size

if TYPE_CHECKING:
    from pathlib import Path

RECORDS = [make_record(f"m{number}", body=bytes([number]) * 40) for number in range(5)]
FRAME = frame_size(encode_record(RECORDS[0]))


def damage(file: Path, at: int, change: int = 0xFF) -> None:
    content = bytearray(file.read_bytes())
    content[at] ^= change
    file.write_bytes(content)


def test_a_damaged_record_in_the_middle_is_moved_aside_and_the_others_are_found(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    spool_all(tmp_path, RECORDS)
    file = segment_file(tmp_path)
    content_before = file.read_bytes()
    damage(file, len(FILE_HEADER) + 2 * FRAME + 30)
    assert read_spool(tmp_path) == [*RECORDS[:2], *RECORDS[3:]]
    (kept,) = (tmp_path / "damaged").iterdir()
    assert len(kept.read_bytes()) == FRAME
    assert kept.read_bytes()[31:] == content_before[len(FILE_HEADER) + 2 * FRAME + 31 :][: FRAME - 31]
    (logged,) = [entry for entry in caplog.records if entry.levelno == logging.CRITICAL]
    assert str(kept) in logged.getMessage()


def test_damage_is_logged_once_and_not_at_every_start(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    spool_all(tmp_path, RECORDS)
    damage(segment_file(tmp_path), len(FILE_HEADER) + FRAME + 30)
    read_spool(tmp_path)
    caplog.clear()
    assert read_spool(tmp_path) == [RECORDS[0], *RECORDS[2:]]
    assert not caplog.records


@given(at=st.integers(0, len(FILE_HEADER) + 5 * FRAME - 1), change=st.integers(1, 255))
@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_one_damaged_byte_loses_at_most_the_record_that_contains_it(
    tmp_path_factory: pytest.TempPathFactory, at: int, change: int
) -> None:
    folder = tmp_path_factory.mktemp("spool")
    spool_all(folder, RECORDS)
    damage(segment_file(folder), at, change)
    if at == len(FILE_HEADER) - 1:
        with pytest.raises(SpoolFailed, match="newer version"):
            read_spool(folder)
        return
    hit = (at - len(FILE_HEADER)) // FRAME
    expected = [record for number, record in enumerate(RECORDS) if number != hit]
    assert read_spool(folder) == expected


def test_a_record_that_is_damaged_while_the_spool_is_open_is_not_returned(tmp_path: Path) -> None:
    files = SpoolFiles(tmp_path)
    files.open(lambda _position, _record: None)
    (position,) = files.append([encode_record(RECORDS[0])])
    assert isinstance(position, int)
    assert files.read(position) == RECORDS[0]
    damage(segment_file(tmp_path), len(FILE_HEADER) + 30)
    with pytest.raises(SpoolFailed, match="damaged"):
        files.read(position)
    files.close()
