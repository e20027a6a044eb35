"""Through outages of either namespace, nothing that was reported sent is lost. Longer: see __main__.py."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.outages.campaign import Plan, endure
from tests.outages.outage import OF_STORES

if TYPE_CHECKING:
    from pathlib import Path


async def test_a_pair_that_fails_again_and_again_loses_nothing(tmp_path: Path) -> None:
    plan = Plan(seed=5, outages=3, length_s=(0.5, 3.0), peace_s=(0.5, 1.5), syphon_life_s=(1.0, 4.0))
    report = await endure(plan, tmp_path)
    assert report.problems == [], str(report)
    assert len(report.outages) == 3, str(report)
    assert len(report.parked) > 50, str(report)
    assert len(report.sent) > len(report.parked), str(report)


async def test_neither_does_one_with_partitioned_entities_whose_stores_fail_and_hang(tmp_path: Path) -> None:
    plan = Plan(
        seed=5,
        outages=3,
        length_s=(0.5, 2.0),
        peace_s=(0.5, 1.5),
        syphon_life_s=(1.0, 4.0),
        partitioned=True,
    )
    report = await endure(plan, tmp_path)
    assert report.problems == [], str(report)
    assert {outage.kind for outage in report.outages} >= set(OF_STORES), str(report)
    assert len(report.parked) > 50, str(report)
    assert len(report.sent) > len(report.parked), str(report)
