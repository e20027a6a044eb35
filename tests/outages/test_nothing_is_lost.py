"""Through outages of either namespace, nothing that was reported sent is lost. Longer: see __main__.py."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.outages.campaign import Plan, endure

if TYPE_CHECKING:
    from pathlib import Path


async def test_a_pair_that_fails_again_and_again_loses_nothing(tmp_path: Path) -> None:
    plan = Plan(seed=5, outages=3, length_s=(0.5, 3.0), peace_s=(0.5, 1.5), syphon_life_s=(1.0, 4.0))
    report = await endure(plan, tmp_path)
    assert report.problems == [], str(report)
    assert len(report.outages) == 3, str(report)
    assert len(report.parked) > 50, str(report)
    assert len(report.sent) > len(report.parked), str(report)
