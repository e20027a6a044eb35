"""Through outages of either namespace, every promise of a pair is kept. Longer campaigns: see __main__.py."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.outages.campaign import endure
from tests.outages.kinds import OF_STORES, Kind, Plan

if TYPE_CHECKING:
    from pathlib import Path


async def test_a_pair_that_fails_again_and_again_keeps_every_promise(tmp_path: Path) -> None:
    kinds = (Kind.KILLED, Kind.RESPONSES_LOST, Kind.RESET, Kind.KEY_ROTATED, Kind.DISABLED, Kind.CLOCK_AHEAD)
    plan = Plan(
        seed=5,
        outages=6,
        length_s=(0.5, 2.0),
        peace_s=(0.2, 0.6),
        syphon_life_s=(1.0, 4.0),
        kinds=kinds,
    )
    report = await endure(plan, tmp_path)
    assert report.problems == [], str(report)
    assert {outage.kind for outage in report.outages} == set(kinds), str(report)
    assert len(report.parked) > 50, str(report)
    assert len(report.sent) > len(report.parked), str(report)


async def test_so_does_one_with_partitioned_entities_whose_stores_fail_and_hang(tmp_path: Path) -> None:
    kinds = (*OF_STORES, Kind.CLIENT_CLOSED, Kind.SENDER_KILLED)
    plan = Plan(
        seed=5,
        outages=4,
        length_s=(0.5, 2.0),
        peace_s=(0.3, 1.0),
        syphon_life_s=(1.0, 4.0),
        partitioned=True,
        kinds=kinds,
    )
    report = await endure(plan, tmp_path)
    assert report.problems == [], str(report)
    assert {outage.kind for outage in report.outages} == set(kinds), str(report)
    assert len(report.parked) > 50, str(report)
    assert len(report.sent) > len(report.parked), str(report)
