"""SIGKILL breaks no guarantee of transactions, forwarding or topics. Longer: see __main__.py."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.campaigns.crashes.campaign import CrashKind, Plan, run_campaign
from tests.campaigns.crashes.transfers.scenario import TransferScenario
from tests.campaigns.crashes.transfers.topology import CHAIN

if TYPE_CHECKING:
    from pathlib import Path


async def test_a_repeatedly_killed_server_keeps_the_guarantees_of_forwarding_and_transactions(tmp_path: Path) -> None:
    plan, scenario = (
        Plan(seed=1, crash_kind=CrashKind.KILL, crash_count=2, uptime_range_s=(0.5, 1.5)),
        TransferScenario(1),
    )
    report = await run_campaign(plan, tmp_path, scenario=scenario)
    assert report.problems == [], str(report)
    assert report.crashes == 2
    assert scenario.checker.uncovered_features() == [], str(report)
    uses = scenario.checker.feature_counts()
    assert all(uses[f"arrived from {entry}"] for entry in CHAIN), str(report)
