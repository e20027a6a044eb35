"""SIGKILL loses nothing that was accepted and brings back nothing that was completed. Longer: see __main__.py."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.faults.harness import Death, Plan, endure

if TYPE_CHECKING:
    from pathlib import Path


async def test_a_server_that_is_killed_again_and_again_loses_nothing(tmp_path: Path) -> None:
    report = await endure(Plan(seed=1, death=Death.KILL, deaths=3, life_s=(0.1, 1.5)), tmp_path)
    assert report.problems == [], str(report)
    assert report.deaths == 3
    assert report.ledger is not None
    assert report.ledger.unused() == [], str(report)
