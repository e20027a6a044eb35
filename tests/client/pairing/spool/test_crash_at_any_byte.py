"""A process may end at any byte that it writes: what was acknowledged is there, and nothing else is."""

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
def test_a_file_cut_off_anywhere_has_every_record_that_was_whole(bodies: list[bytes], part: float) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        records = [make_record(f"m{number}", body=body) for number, body in enumerate(bodies)]
        spool_all(folder, records)
        file = segment_file(folder)
        size = round(part * file.stat().st_size)
        with file.open("r+b") as opened:
            opened.truncate(size)
        end, whole = len(FILE_HEADER), []
        for one in records:
            end += frame_size(encode_record(one))
            if end <= size:
                whole.append(one)
        assert read_spool(folder) == whole
        assert read_spool(folder) == whole, "the second start finds the same"
        assert not list((folder / "damaged").iterdir()), "what was never acknowledged is no damage"


@given(bodies=BODIES, gone=st.data())
@settings(deadline=None, max_examples=50)
def test_marks_cut_off_anywhere_bring_back_only_what_they_no_longer_say(
    bodies: list[bytes], gone: st.DataObject
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
        size = gone.draw(st.integers(0, marks.stat().st_size))
        with marks.open("r+b") as opened:
            opened.truncate(size)
        assert read_spool(folder) == records[size // len(encode_done_mark(0)) :]


def test_a_message_that_holds_a_spooled_record_is_not_taken_for_one(tmp_path: Path) -> None:
    inner = encode_frame(encode_record(make_record("inner")), len(FILE_HEADER))
    spool_all(tmp_path, [make_record("outer", body=inner)])
    file = segment_file(tmp_path)
    content = bytearray(file.read_bytes())
    content[len(FILE_HEADER)] ^= 0xFF  # the outer one's mark
    file.write_bytes(content)
    assert read_spool(tmp_path) == []
    (kept,) = (tmp_path / "damaged").iterdir()
    assert inner in kept.read_bytes()


def test_a_crash_between_the_removal_of_a_segment_and_of_its_marks_is_cleaned_up(tmp_path: Path) -> None:
    spool_all(tmp_path, [make_record("one")])
    (tmp_path / "00000077.done").write_bytes(encode_done_mark(8))
    assert [one.message_ids for one in read_spool(tmp_path)] == [["one"]]
    assert not list(tmp_path.glob("*.done"))
