"""The bench of outages runs from its start to its end, at a low rate: what it finds means nothing here."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from bench import outage

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outage, "WARM_S", 0.3)
    monkeypatch.setattr(outage, "ATTEMPT_TIMEOUT_S", 0.6)


@pytest.mark.campaign
@pytest.mark.usefixtures("no_waiting")
def test_sends_are_measured_through_three_kinds_of_outage(tmp_path: Path) -> None:
    words = ["--rate", "40", "--seconds", "1.2", "--rounds", "1"]
    status = outage.main([*words, "--folder", str(tmp_path), "--results", str(tmp_path / "results")])
    measured = json.loads((tmp_path / "results" / "outage.json").read_text())
    page = (tmp_path / "results" / "outage.md").read_text()
    assert status == any(not bar["is_met"] for bar in measured["bars"])
    assert all(bar["what"] in page for bar in measured["bars"])
    assert [one["kind"] for one in measured["outages"]] == ["killed", "stopped", "network silent"]
    for one in measured["outages"]:
        assert one["failed"] == 0
        assert one["sends"] > one["parked"] > 0
    assert [path.name for path in tmp_path.iterdir()] == ["results"], "nothing is left on the disk"
