"""The bench of outages runs completely at a low rate; its figures mean nothing here."""

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
    arguments = ["--rate", "40", "--seconds", "1.2", "--rounds", "1"]
    status = outage.main([*arguments, "--folder", str(tmp_path), "--results", str(tmp_path / "results")])
    measured = json.loads((tmp_path / "results" / "outage.json").read_text())
    page = (tmp_path / "results" / "outage.md").read_text()
    assert status == any(not bar["is_met"] for bar in measured["bars"])
    assert all(bar["what"] in page for bar in measured["bars"])
    assert [each["kind"] for each in measured["outages"]] == ["killed", "stopped", "network silent"]
    for each in measured["outages"]:
        assert each["failed"] == 0
        assert each["sends"] > each["parked"] > 0
    assert [path.name for path in tmp_path.iterdir()] == ["results"], "nothing is left on the disk"
