"""A power cut breaks no promise of sessions, schedules, duplicates, times to live or deferral: all that was answered
was synced before. Longer: see __main__.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.faults.features.scene import Features
from tests.faults.harness import Death, Plan, endure

if TYPE_CHECKING:
    from pathlib import Path


async def test_a_server_whose_power_is_cut_again_and_again_keeps_what_its_queues_promise(tmp_path: Path) -> None:
    plan, scene = Plan(seed=2, death=Death.POWER_CUT, deaths=2, life_s=(0.3, 1.5), slows_syncs=True), Features(2)
    report = await endure(plan, tmp_path, scene=scene)
    assert report.problems == [], str(report)
    assert report.deaths == 2
    assert scene.ledger.unused() == [], str(report)


@pytest.mark.campaign
async def test_without_syncs_the_same_run_breaks_promises_and_this_is_found(tmp_path: Path) -> None:
    options = ("--stores=4", "--unsafe-no-sync")
    plan = Plan(seed=1, death=Death.POWER_CUT, deaths=1, life_s=(2.0, 2.0), may_tear=False, options=options)
    report = await endure(plan, tmp_path, scene=Features(1))
    broken = {problem.split(":")[0] for problem in report.problems}
    assert {"lost", "state"} <= broken, str(report)
