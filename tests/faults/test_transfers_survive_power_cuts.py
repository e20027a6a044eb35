"""A power cut breaks no promise of transactions, forwarding or topics, and neither does a sync that fails. Longer: see
__main__.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.faults.harness import Death, Plan, endure
from tests.faults.transfers.scene import Transfers

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(("deaths", "fails_syncs"), [(2, False), pytest.param(1, True, marks=pytest.mark.campaign)])
async def test_a_server_whose_power_is_cut_keeps_what_is_forwarded_and_transacted(
    tmp_path: Path, deaths: int, *, fails_syncs: bool
) -> None:
    death, scene = Death.POWER_CUT, Transfers(2)
    plan = Plan(seed=2, death=death, deaths=deaths, life_s=(0.5, 1.5), slows_syncs=True, fails_syncs=fails_syncs)
    report = await endure(plan, tmp_path, scene=scene)
    assert report.problems == [], str(report)
    assert report.deaths == deaths
    assert scene.ledger.unused() == [], str(report)


@pytest.mark.campaign
async def test_without_syncs_the_same_run_breaks_promises_and_this_is_found(tmp_path: Path) -> None:
    options = ("--stores=4", "--unsafe-no-sync")
    plan = Plan(seed=1, death=Death.POWER_CUT, deaths=1, life_s=(2.0, 2.0), may_tear=False, options=options)
    report = await endure(plan, tmp_path, scene=Transfers(1))
    assert any(problem.startswith("lost: ") for problem in report.problems), str(report)
