"""SIGKILL breaks no guarantee of sessions, schedules, duplicates, expiry or deferral. Longer: see __main__.py."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.campaigns.crashes.campaign import CrashKind, Plan, run_campaign
from tests.campaigns.crashes.features.scenario import FeatureScenario

if TYPE_CHECKING:
    from pathlib import Path


async def test_a_repeatedly_killed_server_keeps_the_guarantees_of_all_features(tmp_path: Path) -> None:
    plan, scenario = (
        Plan(seed=1, crash_kind=CrashKind.KILL, crash_count=2, uptime_range_s=(0.3, 1.5)),
        FeatureScenario(1),
    )
    report = await run_campaign(plan, tmp_path, scenario=scenario)
    assert report.problems == [], str(report)
    assert report.crashes == 2
    assert scenario.checker.uncovered_features() == [], str(report)
