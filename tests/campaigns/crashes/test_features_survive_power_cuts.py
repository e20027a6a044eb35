"""A power cut breaks no guarantee of sessions, schedules, duplicates, expiry or deferral, because changes are synced
before the response. Longer: see __main__.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.campaigns.crashes.campaign import CrashKind, Plan, run_campaign
from tests.campaigns.crashes.features.scenario import FeatureScenario

if TYPE_CHECKING:
    from pathlib import Path


async def test_repeated_power_cuts_break_no_guarantee_of_any_feature(tmp_path: Path) -> None:
    plan, scenario = (
        Plan(seed=2, crash_kind=CrashKind.POWER_CUT, crash_count=2, uptime_range_s=(0.3, 1.5), slows_syncs=True),
        FeatureScenario(2),
    )
    report = await run_campaign(plan, tmp_path, scenario=scenario)
    assert report.problems == [], str(report)
    assert report.crashes == 2
    assert scenario.checker.uncovered_features() == [], str(report)


@pytest.mark.campaign
async def test_without_syncs_the_campaign_reports_broken_guarantees(tmp_path: Path) -> None:
    options = ("--stores=4", "--unsafe-no-sync")
    plan = Plan(
        seed=1,
        crash_kind=CrashKind.POWER_CUT,
        crash_count=1,
        uptime_range_s=(2.0, 2.0),
        tears_unsynced=False,
        options=options,
    )
    report = await run_campaign(plan, tmp_path, scenario=FeatureScenario(1))
    broken = {problem.split(":")[0] for problem in report.problems}
    assert {"lost", "state"} <= broken, str(report)
