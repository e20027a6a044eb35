"""A power cut loses no accepted message, because it was synced before the response. Longer: see __main__.py."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.campaigns.crashes.campaign import CrashKind, Plan, run_campaign
from tests.campaigns.restartable_server import RestartableServer
from tests.support.fault_injection.shim import DiskShim

if TYPE_CHECKING:
    from pathlib import Path


async def test_repeated_power_cuts_lose_no_accepted_message(tmp_path: Path) -> None:
    report = await run_campaign(
        Plan(seed=1, crash_kind=CrashKind.POWER_CUT, crash_count=3, uptime_range_s=(0.1, 1.5)), tmp_path
    )
    assert report.problems == [], str(report)
    assert report.crashes == 3
    assert report.checker is not None
    assert report.checker.uncovered_features() == [], str(report)


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
    report = await run_campaign(plan, tmp_path)
    assert any(problem.startswith("lost: ") for problem in report.problems), str(report)


async def test_the_shim_traces_all_writes_of_a_server(tmp_path: Path) -> None:
    """Otherwise a power cut would be simulated from an incomplete trace."""
    server = RestartableServer(tmp_path)
    with DiskShim(server.data, tmp_path) as shim:
        async with RestartableServer(tmp_path, shim=shim) as traced:
            await traced.stop()
        assert shim.replayed_disk().differences() == []
