"""Campaign: clients use partitioned entities while faults are injected into processes and disks; then all is checked.

    report = await run_campaign(Plan(seed=1, fault_count=3), folder)
    assert report.problems == []

The next fault is injected only after recovery: all processes run, and every affected fragment has accepted a message
from every sender with keys in it. At the end all clients stop, the remaining messages are received and completed, and
the records are checked. Owns: the order of events.
"""

from __future__ import annotations

import asyncio
import dataclasses
import random
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tests.campaigns import management
from tests.campaigns.cluster_faults.checker import ClusterChecker
from tests.campaigns.cluster_faults.disk_monitor import DiskMonitor
from tests.campaigns.cluster_faults.fault import (
    PROCESS_KINDS,
    FaultInjector,
    FaultKind,
    FaultNotDetected,
    shuffled_kinds,
)
from tests.campaigns.cluster_faults.loop_lag import LoopLag
from tests.campaigns.cluster_faults.report import Report
from tests.campaigns.cluster_faults.response_checker import RESPONSE_LIMIT_S, ResponseChecker
from tests.campaigns.cluster_faults.restartable_cluster import RestartableCluster
from tests.campaigns.cluster_faults.scenario import ALL_ENTITIES, create_entities, destinations_of
from tests.campaigns.cluster_faults.workload import Workload, drain
from tests.support.fault_injection.shim import DiskShim
from tests.support.server_process import ServerFailed
from twinbus.client.management import NamespaceManager

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.campaigns.cluster_faults.fault import Fault
    from tests.campaigns.cluster_faults.scenario import Scenario

LOG_CHARACTERS: Final = 3_000
"""Characters of the log that are reported if a campaign fails."""
RECOVERY_TIMEOUT_S: Final = 30.0
POLL_INTERVAL_S: Final = 0.1
IDLE_TIMEOUT_S: Final = 20.0
"""If a destination delivers nothing for so long, its message count is wrong."""
START_TIMEOUT_S: Final = 30.0


class NotRecovered(Exception):
    """A fault has ended, and the affected part has not recovered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Parameters of a campaign."""

    seed: int
    fault_count: int
    workers: int = 4
    stores: int = 4
    scenario: Scenario = ALL_ENTITIES
    pause_range_s: tuple[float, float] = (0.3, 2.0)
    """Pause between the recovery from a fault and the next fault."""
    kinds: tuple[FaultKind, ...] = tuple(FaultKind)
    lock_ms: int = 10_000
    worker_timeout_s: float = 5.0
    response_limit_s: float = RESPONSE_LIMIT_S
    """Latest time of a response after the detection of a fault."""

    @property
    def available_kinds(self) -> list[FaultKind]:
        """The kinds of faults to inject; with a single process, no process faults."""
        return [kind for kind in self.kinds if self.workers > 1 or kind not in PROCESS_KINDS]


async def run_campaign(plan: Plan, folder: Path, on_progress: Callable[[str], None] = lambda _line: None) -> Report:
    """Run a campaign. A server that fails to start, detect or recover is reported as a problem."""
    report, started_s = Report(plan.seed, plan.workers), time.monotonic()
    (folder / "data").mkdir()
    with DiskShim(folder / "data", folder, has_trace=False) as shim:
        timeout_s = plan.worker_timeout_s
        server = RestartableCluster(folder, shim, workers=plan.workers, stores=plan.stores, worker_timeout_s=timeout_s)
        try:
            await server.start()
            with DiskMonitor(folder) as disk:
                await Campaign(plan, server, shim, report, on_progress, disk).run()
        except (ServerFailed, FaultNotDetected, NotRecovered) as failure:
            report.problems.append(f"{type(failure).__name__}: {failure}\n{server.process.log[-LOG_CHARACTERS:]}")
        finally:
            await server.kill()
    report.seconds = time.monotonic() - started_s
    return report


class Campaign:
    """One campaign, on a running server."""

    def __init__(
        self,
        plan: Plan,
        server: RestartableCluster,
        shim: DiskShim,
        report: Report,
        on_progress: Callable[[str], None],
        disk: DiskMonitor,
    ) -> None:
        self._disk = disk
        self._rng = random.Random(plan.seed)
        self._plan = plan
        self._server = server
        self._checker = ClusterChecker(random.Random(self._rng.random()))
        self._workload = Workload(server, plan.scenario, self._checker, random.Random(self._rng.random()))
        self._injector = FaultInjector(server, shim, self._rng)
        self._report = report
        self._on_progress = on_progress

    async def run(self) -> None:
        """Run the campaign and fill the report."""
        async with NamespaceManager.from_connection_string(_management_string(self._server)) as manager:
            await create_entities(manager, self._plan.scenario, self._plan.lock_ms)
        async with LoopLag() as lag:
            try:
                async with self._workload:
                    await self._wait_for_senders()
                    await self._inject_faults()
            finally:
                self._finish_report(lag)
        await self._verify(lag)

    async def _wait_for_senders(self) -> None:
        async with asyncio.timeout(START_TIMEOUT_S):
            while len(self._workload.sender_clients) < len(self._plan.scenario.streams):  # noqa: ASYNC110  # senders connect one by one
                await asyncio.sleep(POLL_INTERVAL_S)

    # --- faults -------------------------------------------------------------------------------------------------------

    async def _inject_faults(self) -> None:
        plan, rng = self._plan, self._rng
        for number, kind in enumerate(shuffled_kinds(rng, plan.fault_count, plan.available_kinds), start=1):
            await asyncio.sleep(rng.uniform(*plan.pause_range_s))
            if self._workload.has_failed:
                break
            self._report.shares += self._workload.connection_shares(self._server.workers)
            fault = await self._injector.inject(kind)
            self._report.faults.append(fault)
            recovery_time_s = await self._wait_for_recovery(fault)
            self._report.faults[-1] = dataclasses.replace(fault, recovered_s=recovery_time_s)
            detection_s, recovery_s = fault.detected_s - fault.began_s, recovery_time_s - fault.ended_s
            description = f"{kind.value}; detected after {detection_s:.2f} s, recovered {recovery_s:.2f} s later"
            self._on_progress(f"fault {number} of {plan.fault_count}: {description}")
        await asyncio.sleep(plan.pause_range_s[1])

    async def _wait_for_recovery(self, fault: Fault) -> float:
        """Wait until all processes run and all affected fragments have accepted each sender; return the time."""
        deadline = fault.ended_s + RECOVERY_TIMEOUT_S
        while True:
            missing = self._missing(fault)
            if missing is None and self._server.is_complete:
                return time.monotonic()
            if time.monotonic() > deadline:
                raise NotRecovered(
                    f"{fault.kind.value}: {RECOVERY_TIMEOUT_S:.0f} s later {missing or 'a process'} has not recovered"
                )
            await asyncio.sleep(POLL_INTERVAL_S)

    def _missing(self, fault: Fault) -> str | None:
        """Return a fragment that has not accepted a message since the fault ended, or None."""
        for stream in self._plan.scenario.streams:
            for fragment in stream.by_fragment:
                is_affected = fragment % self._plan.stores in fault.stores
                if is_affected and self._checker.last_accepted_s.get((stream.name, fragment), 0.0) < fault.ended_s:
                    return f"fragment {fragment} for {stream.name}"
        return None

    # --- the end ------------------------------------------------------------------------------------------------------

    def _finish_report(self, lag: LoopLag) -> None:
        """Add the current figures to the report, also if the campaign fails later."""
        report, checker = self._report, self._checker
        report.messages, report.lag_s, report.disk_s = checker.statistics(), lag.longest_s, self._disk.longest_s
        report.accepted = sum(send.is_accepted for send in checker.sends)
        report.connections, report.duplicates = self._workload.connections, len(checker.duplicates())

    async def _verify(self, lag: LoopLag) -> None:
        report, checker = self._report, self._checker
        report.problems += await _drain_all(self._server, checker, self._plan.scenario)
        report.problems += checker.finish()
        response_checker = ResponseChecker(
            report.faults, self._plan.stores, lag, self._plan.response_limit_s, self._disk
        )
        report.responses = response_checker.check(checker, self._workload.drops, self._workload.reconnections)
        report.problems += report.responses.problems
        self._finish_report(lag)
        await self._server.stop()
        if self._server.traceback_count:
            report.problems.append(f"the server has logged {self._server.traceback_count} tracebacks")


async def _drain_all(server: RestartableCluster, checker: ClusterChecker, scenario: Scenario) -> list[str]:
    """Receive and complete the remaining messages."""
    problems = []
    for destination in [one for path in scenario.paths for one in destinations_of(path)]:
        last_s, completed = time.monotonic(), checker.completed_count
        while (counts := await management.message_counts(server.endpoint, destination)).active:
            await drain(server, checker, destination)
            if checker.completed_count > completed:
                last_s, completed = time.monotonic(), checker.completed_count
            if time.monotonic() > last_s + IDLE_TIMEOUT_S:
                problems.append(f"count: {destination} is said to hold {counts.active} messages, and none comes")
                break
        if counts.dead_lettered:
            problems.append(f"count: {counts.dead_lettered} messages of {destination} are dead-lettered")
    return problems


def _management_string(server: RestartableCluster) -> str:
    endpoint = server.endpoint
    return (
        f"Endpoint=sb://127.0.0.1:{endpoint.http_port};SharedAccessKeyName={endpoint.key_name};"
        f"SharedAccessKey={endpoint.key};UseDevelopmentEmulator=true"
    )
