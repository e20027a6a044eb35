"""Power cuts and failing syncs break no guarantee of transactions, forwarding or topics. Longer: see __main__.py."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.campaigns.crashes.campaign import CrashKind, Plan, run_campaign
from tests.campaigns.crashes.transfers.scenario import TransferScenario

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("crash_count", "fails_syncs"), [(2, False), pytest.param(1, True, marks=pytest.mark.campaign)]
)
async def test_power_cuts_break_no_guarantee_of_forwarding_and_transactions(
    tmp_path: Path, crash_count: int, *, fails_syncs: bool
) -> None:
    crash_kind, scenario = CrashKind.POWER_CUT, TransferScenario(2)
    plan = Plan(
        seed=2,
        crash_kind=crash_kind,
        crash_count=crash_count,
        uptime_range_s=(0.5, 1.5),
        slows_syncs=True,
        fails_syncs=fails_syncs,
    )
    report = await run_campaign(plan, tmp_path, scenario=scenario)
    assert report.problems == [], str(report)
    assert report.crashes == crash_count
    assert scenario.checker.uncovered_features() == [], str(report)


@pytest.mark.campaign
async def test_without_syncs_the_campaign_reports_lost_messages(tmp_path: Path) -> None:
    options = ("--stores=4", "--unsafe-no-sync")
    plan = Plan(
        seed=1,
        crash_kind=CrashKind.POWER_CUT,
        crash_count=1,
        uptime_range_s=(2.0, 2.0),
        tears_unsynced=False,
        options=options,
    )
    report = await run_campaign(plan, tmp_path, scenario=TransferScenario(1))
    assert any(problem.startswith("lost: ") for problem in report.problems), str(report)
