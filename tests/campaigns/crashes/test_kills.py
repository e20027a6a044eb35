"""SIGKILL loses no accepted message and redelivers no completed message. Longer: see __main__.py."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.campaigns.crashes.campaign import CrashKind, Plan, run_campaign

if TYPE_CHECKING:
    from pathlib import Path


async def test_a_repeatedly_killed_server_loses_no_accepted_message(tmp_path: Path) -> None:
    report = await run_campaign(
        Plan(seed=1, crash_kind=CrashKind.KILL, crash_count=3, uptime_range_s=(0.1, 1.5)), tmp_path
    )
    assert report.problems == [], str(report)
    assert report.crashes == 3
    assert report.checker is not None
    assert report.checker.uncovered_features() == [], str(report)
