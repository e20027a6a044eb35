"""The bench of indexes runs completely with tiny counts, and its counts are correct."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from bench import indexes
from bench.support.engine_client import batches, sequence_of, write_message
from twinbus.amqp.message import Message

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.campaign
@pytest.mark.timeout(300)
def test_indexes_are_filled_used_and_recovered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indexes, "SPARE_S", 20.0)  # two restarts, on a machine that is busy with other tests
    arguments = ["--count", "2000", "--only", "scheduled,deferred"]
    status = indexes.main([*arguments, "--folder", str(tmp_path), "--results", str(tmp_path / "results")])
    measured = json.loads((tmp_path / "results" / "indexes.json").read_text())
    page = (tmp_path / "results" / "indexes.md").read_text()
    bars = {bar["what"]: bar for bar in measured["bars"]}
    assert status == any(not bar["is_met"] for bar in bars.values())
    for name in ("scheduled", "deferred"):
        assert bars[f"{name}: counts that are wrong"]["found"] == 0
        assert bars[f"{name}: warnings in the server's log"]["found"] == 0
        assert 10 < bars[f"{name}: resident at most"]["found"] < 1024
        restarts = [bar["found"] for what, bar in bars.items() if what.startswith(f"{name}: restart")]
        assert len(restarts) >= 2
        assert all(found > 0 for found in restarts)
    for phase in measured["phases"]:
        assert phase["pauses"]["measured_s"] > 0
        assert sum(phase["pauses"]["counts_by_ms"].values()) > 0
        assert phase["name"] in page
    assert [path.name for path in tmp_path.iterdir()] == ["results"], "nothing is left on the disk"


def test_an_unknown_index_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        indexes.main(["--only", "sessions,colours", "--results", str(tmp_path)])
    assert "sessions,colours" in capsys.readouterr().err


def test_a_message_of_write_message_is_decoded_correctly() -> None:
    message = Message(
        write_message("m-1", b"body", session="s-1", due_ms=1_700_000_000_000, expires_ms=1_800_000_000_000)
    )
    properties = message.properties
    assert properties is not None
    assert (properties.message_id, properties.group_id) == ("m-1", "s-1")
    assert properties.absolute_expiry_time == 1_800_000_000_000
    assert message.message_annotations == {"x-opt-scheduled-enqueue-time": 1_700_000_000_000}
    assert message.data == [b"body"]
    plain = Message(write_message("m-2", b""))
    assert plain.properties is not None
    assert (plain.properties.group_id, plain.properties.absolute_expiry_time, plain.data) == (None, None, [b""])


def test_batches_contain_whole_messages() -> None:
    messages = [write_message(f"m-{number}", b"x") for number in range(5)]
    assert [Message(batch).data for batch in batches(messages, 2)] == [messages[:2], messages[2:4], messages[4:]]


def test_a_sequence_number_is_found_without_decoding_the_rest() -> None:
    assert sequence_of(b"\xa3\x15x-opt-sequence-number\x81\x00\x00\x00\x00\x00\x00\x01\x02...") == 258
