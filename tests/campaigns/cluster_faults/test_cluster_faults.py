"""Through strikes at processes and disks nothing is lost, and who has nothing to do with it does not notice."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.campaigns.cluster_faults.campaign import Plan, run_campaign
from tests.campaigns.cluster_faults.fault import FaultKind

if TYPE_CHECKING:
    from pathlib import Path


async def test_partitioned_entities_lose_nothing_and_go_on(tmp_path: Path) -> None:
    plan = Plan(
        seed=3,
        fault_count=3,
        kinds=(FaultKind.KILLED, FaultKind.STOPPED, FaultKind.FAILING),
        pause_range_s=(0.2, 0.6),
        lock_ms=5_000,
        worker_timeout_s=2.0,
        response_limit_s=4.0,  # beside other tests, which have the processors as well
    )
    report = await run_campaign(plan, tmp_path)
    assert report.problems == [], str(report)
    assert len(report.faults) == plan.fault_count, str(report)
    assert report.accepted > 300, str(report)
    assert sum(report.responses.drops.values()) > 0, str(report)
