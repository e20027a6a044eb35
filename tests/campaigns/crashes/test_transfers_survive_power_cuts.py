"""A power cut breaks no promise of transactions, forwarding or topics, and neither does a sync that fails. Longer: see
__main__.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.campaigns.crashes.campaign import CrashKind, Plan, run_campaign
from tests.campaigns.crashes.transfers.scenario import TransferScenario

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(("deaths", "fails_syncs"), [(2, False), pytest.param(1, True, marks=pytest.mark.campaign)])
async def test_a_server_whose_power_is_cut_keeps_what_is_forwarded_and_transacted(
    tmp_path: Path, deaths: int, *, fails_syncs: bool
) -> None:
    death, scene = CrashKind.POWER_CUT, TransferScenario(2)
    plan = Plan(
        seed=2,
        crash_kind=death,
        crash_count=deaths,
        uptime_range_s=(0.5, 1.5),
        slows_syncs=True,
        fails_syncs=fails_syncs,
    )
    report = await run_campaign(plan, tmp_path, scenario=scene)
    assert report.problems == [], str(report)
    assert report.crashes == deaths
    assert scene.checker.uncovered_features() == [], str(report)


@pytest.mark.campaign
async def test_without_syncs_the_same_run_breaks_promises_and_this_is_found(tmp_path: Path) -> None:
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
