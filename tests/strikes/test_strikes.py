"""Through strikes at processes and disks nothing is lost, and who has nothing to do with it does not notice."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.strikes.campaign import Plan, endure
from tests.strikes.strike import Kind

if TYPE_CHECKING:
    from pathlib import Path


async def test_partitioned_entities_lose_nothing_and_go_on(tmp_path: Path) -> None:
    plan = Plan(
        seed=3,
        strikes=3,
        kinds=(Kind.KILLED, Kind.STOPPED, Kind.FAILING),
        peace_s=(0.2, 0.6),
        lock_ms=5_000,
        worker_timeout_s=2.0,
        late_s=4.0,  # beside other tests, which have the processors as well
    )
    report = await endure(plan, tmp_path)
    assert report.problems == [], str(report)
    assert len(report.strikes) == plan.strikes, str(report)
    assert report.accepted > 300, str(report)
    assert sum(report.verdict.drops.values()) > 0, str(report)
