"""SIGKILL breaks no promise of sessions, schedules, duplicates, times to live or deferral. Longer: see __main__.py."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.faults.features.scene import Features
from tests.faults.harness import Death, Plan, endure

if TYPE_CHECKING:
    from pathlib import Path


async def test_a_server_that_is_killed_again_and_again_keeps_what_its_queues_promise(tmp_path: Path) -> None:
    plan, scene = Plan(seed=1, death=Death.KILL, deaths=2, life_s=(0.3, 1.5)), Features(1)
    report = await endure(plan, tmp_path, scene=scene)
    assert report.problems == [], str(report)
    assert report.deaths == 2
    assert scene.ledger.unused() == [], str(report)
