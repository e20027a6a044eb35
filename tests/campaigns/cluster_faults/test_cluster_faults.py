"""Faults of processes and disks lose no messages and do not affect other fragments."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.campaigns.cluster_faults.campaign import Plan, run_campaign
from tests.campaigns.cluster_faults.fault import FaultKind

if TYPE_CHECKING:
    from pathlib import Path


async def test_partitioned_entities_lose_no_messages_during_faults(tmp_path: Path) -> None:
    plan = Plan(
        seed=3,
        fault_count=3,
        kinds=(FaultKind.KILLED, FaultKind.STOPPED, FaultKind.FAILING),
        pause_range_s=(0.2, 0.6),
        lock_ms=5_000,
        worker_timeout_s=2.0,
        response_limit_s=4.0,  # other tests use the processors at the same time
    )
    report = await run_campaign(plan, tmp_path)
    assert report.problems == [], str(report)
    assert len(report.faults) == plan.fault_count, str(report)
    assert report.accepted > 300, str(report)
    assert sum(report.responses.drops.values()) > 0, str(report)
