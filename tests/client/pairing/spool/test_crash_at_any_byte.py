"""A process may crash at any byte that it writes: all acknowledged records are found, and no others."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.client.pairing.spool.records import make_record, read_spool, segment_file, spool_all
from twinbus.client.pairing.spool.files import SpoolFiles
from twinbus.client.pairing.spool.record import FILE_HEADER, encode_done_mark, encode_frame, encode_record, frame_size

BODIES = st.lists(st.binary(max_size=60), min_size=1, max_size=5)


@given(bodies=BODIES, part=st.floats(0, 1))
@example(bodies=[b"one", b"two"], part=0.0)
@example(bodies=[b"one", b"two"], part=1.0)
@settings(deadline=None, max_examples=150)
def test_a_file_cut_off_anywhere_keeps_every_complete_record(bodies: list[bytes], part: float) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        records = [make_record(f"m{number}", body=body) for number, body in enumerate(bodies)]
        spool_all(folder, records)
        file = segment_file(folder)
        size = round(part * file.stat().st_size)
        with file.open("r+b") as opened:
            opened.truncate(size)
        end, whole = len(FILE_HEADER), []
        for record in records:
            end += frame_size(encode_record(record))
            if end <= size:
                whole.append(record)
        assert read_spool(folder) == whole
        assert read_spool(folder) == whole, "the second start finds the same"
        assert not list((folder / "damaged").iterdir()), "a record that was never acknowledged is no damage"


@given(bodies=BODIES, data=st.data())
@settings(deadline=None, max_examples=50)
def test_a_cut_off_file_of_done_marks_brings_back_only_records_whose_mark_is_lost(
    bodies: list[bytes], data: st.DataObject
) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        records = [make_record(f"m{number}", body=body) for number, body in enumerate(bodies)]
        records.append(make_record("stays"))
        positions = spool_all(folder, records)
        files = SpoolFiles(folder)
        files.open(lambda _position, _record: None)
        for position in positions[:-1]:
            files.mark_done([position])
        files.close()
        (marks,) = folder.glob("*.done")
        size = data.draw(st.integers(0, marks.stat().st_size))
        with marks.open("r+b") as opened:
            opened.truncate(size)
        assert read_spool(folder) == records[size // len(encode_done_mark(0)) :]


def test_a_message_body_that_contains_a_record_is_not_read_as_a_record(tmp_path: Path) -> None:
    inner = encode_frame(encode_record(make_record("inner")), len(FILE_HEADER))
    spool_all(tmp_path, [make_record("outer", body=inner)])
    file = segment_file(tmp_path)
    content = bytearray(file.read_bytes())
    content[len(FILE_HEADER)] ^= 0xFF  # the first byte of the outer record's frame
    file.write_bytes(content)
    assert read_spool(tmp_path) == []
    (kept,) = (tmp_path / "damaged").iterdir()
    assert inner in kept.read_bytes()


def test_a_crash_between_the_removal_of_a_segment_and_of_its_marks_is_cleaned_up(tmp_path: Path) -> None:
    spool_all(tmp_path, [make_record("one")])
    (tmp_path / "00000077.done").write_bytes(encode_done_mark(8))
    assert [record.message_ids for record in read_spool(tmp_path)] == [["one"]]
    assert not list(tmp_path.glob("*.done"))
