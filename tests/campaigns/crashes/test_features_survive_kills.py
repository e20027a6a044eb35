"""SIGKILL breaks no promise of sessions, schedules, duplicates, times to live or deferral. Longer: see __main__.py."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.campaigns.crashes.campaign import CrashKind, Plan, run_campaign
from tests.campaigns.crashes.features.scenario import FeatureScenario

if TYPE_CHECKING:
    from pathlib import Path


async def test_a_server_that_is_killed_again_and_again_keeps_what_its_queues_promise(tmp_path: Path) -> None:
    plan, scene = Plan(seed=1, crash_kind=CrashKind.KILL, crash_count=2, uptime_range_s=(0.3, 1.5)), FeatureScenario(1)
    report = await run_campaign(plan, tmp_path, scenario=scene)
    assert report.problems == [], str(report)
    assert report.crashes == 2
    assert scene.checker.uncovered_features() == [], str(report)
