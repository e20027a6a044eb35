"""Outages of either namespace break no guarantee of a pair. Longer campaigns: see __main__.py."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.campaigns.outages.campaign import run_campaign
from tests.campaigns.outages.plan import STORE_KINDS, OutageKind, Plan

if TYPE_CHECKING:
    from pathlib import Path


async def test_a_pair_keeps_all_guarantees_through_repeated_outages(tmp_path: Path) -> None:
    kinds = (
        OutageKind.KILLED,
        OutageKind.RESPONSES_LOST,
        OutageKind.RESET,
        OutageKind.KEY_ROTATED,
        OutageKind.DISABLED,
        OutageKind.CLOCK_AHEAD,
    )
    plan = Plan(
        seed=5,
        outage_count=6,
        length_range_s=(0.5, 2.0),
        pause_range_s=(0.2, 0.6),
        syphon_uptime_range_s=(1.0, 4.0),
        kinds=kinds,
    )
    report = await run_campaign(plan, tmp_path)
    assert report.problems == [], str(report)
    assert {outage.kind for outage in report.outages} == set(kinds), str(report)
    assert len(report.parked) > 50, str(report)
    assert len(report.sent) > len(report.parked), str(report)


async def test_a_pair_with_partitioned_entities_keeps_all_guarantees_when_stores_fail_and_hang(tmp_path: Path) -> None:
    kinds = (*STORE_KINDS, OutageKind.CLIENT_CLOSED, OutageKind.SENDER_KILLED)
    plan = Plan(
        seed=5,
        outage_count=4,
        length_range_s=(0.5, 2.0),
        pause_range_s=(0.3, 1.0),
        syphon_uptime_range_s=(1.0, 4.0),
        partitioned=True,
        kinds=kinds,
    )
    report = await run_campaign(plan, tmp_path)
    assert report.problems == [], str(report)
    assert {outage.kind for outage in report.outages} == set(kinds), str(report)
    assert len(report.parked) > 50, str(report)
    assert len(report.sent) > len(report.parked), str(report)
