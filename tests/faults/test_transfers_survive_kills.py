"""SIGKILL breaks no promise of transactions, forwarding or topics. Longer: see __main__.py."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.faults.harness import Death, Plan, endure
from tests.faults.transfers.places import CHAIN
from tests.faults.transfers.scene import Transfers

if TYPE_CHECKING:
    from pathlib import Path


async def test_a_server_that_is_killed_again_and_again_keeps_what_is_forwarded_and_transacted(tmp_path: Path) -> None:
    plan, scene = Plan(seed=1, death=Death.KILL, deaths=2, life_s=(0.5, 1.5)), Transfers(1)
    report = await endure(plan, tmp_path, scene=scene)
    assert report.problems == [], str(report)
    assert report.deaths == 2
    assert scene.ledger.unused() == [], str(report)
    uses = scene.ledger.uses()
    assert all(uses[f"arrived from {head}"] for head in CHAIN), str(report)
