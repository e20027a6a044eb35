"""The bench of takeovers runs completely; the figures of one run of each kind mean little."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from bench import takeover

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.campaign
def test_takeovers_are_measured_for_each_kind_of_fault(tmp_path: Path) -> None:
    status = takeover.main(["--runs", "1", "--results", str(tmp_path)])
    measured = json.loads((tmp_path / "takeover.json").read_text())
    page = (tmp_path / "takeover.md").read_text()
    assert status == any(not bar["is_met"] for bar in measured["bars"])
    assert all(bar["what"] in page for bar in measured["bars"])
    assert list(measured["took_s"]) == ["stopped", "network silent", "killed", "closed"]
    assert all(len(took_s) == 1 and took_s[0] > 0 for took_s in measured["took_s"].values())
