"""The bench of entities fills a namespace, restarts it, and measures it; its counts are correct."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from bench import entities

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.campaign
def test_created_queues_exist_after_a_restart(tmp_path: Path) -> None:
    arguments = ["--partitioned", "2", "--entities", "7", "--idle", "0.1", "--watch", "0.2"]
    status = entities.main([*arguments, "--folder", str(tmp_path), "--results", str(tmp_path / "results")])
    measured = json.loads((tmp_path / "results" / "entities.json").read_text())
    page = (tmp_path / "results" / "entities.md").read_text()
    bars = {bar["what"]: bar for bar in measured["bars"]}
    assert all(what in page for what in bars)
    assert bars["entities after the start, one process"]["found"] == 7 + 2, (
        "including the two beyond the limits of this test"
    )
    assert 10 < bars["idle memory, one process"]["found"] < 1024
    assert 0 < bars["start, one process"]["found"] < 60
    for what in ("partitioned queue 3", "entity 8"):
        assert not bars[f"{what}: refused with QuotaExceeded"]["is_met"], "the limits are higher"
    assert status == 1
    assert [path.name for path in tmp_path.iterdir()] == ["results"], "nothing is left on the disk"
