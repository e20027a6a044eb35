"""Campaign: clients use a server that crashes repeatedly; at the end all messages are checked.

    report = await run_campaign(Plan(seed=1, crash_count=6, crash_kind=CrashKind.KILL), folder)
    assert report.problems == []

After the last crash the server starts again, without clients: its message counts must be correct, and the remaining
messages must be those that the checker expects. Then it is restarted cleanly, and no message may reappear.

Owns: the order of events. A `Scenario` has the queues, the clients and the final checks: here that of plain queues;
`features` and `transfers` have others. Clients are in `workload`, the guarantees in the checker.
"""

from __future__ import annotations

import asyncio
import random
import time
from contextlib import AbstractContextManager, AsyncExitStack, ExitStack
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Final, Protocol

from tests.campaigns import management
from tests.campaigns.clients import PARTITIONED, ClientDisconnected, ReceiverClient, connect_client, disconnect
from tests.campaigns.crashes.workload import Workload
from tests.campaigns.restartable_server import RestartableServer
from tests.support.delivery_checker.checker import DeliveryChecker
from tests.support.fault_injection.shim import Action, DiskShim
from tests.support.server_process import ServerFailed

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

QUEUES: Final = tuple(f"queue-{number}" for number in range(6))
PARTITIONED_QUEUES: Final = tuple(f"{PARTITIONED}{number}" for number in range(2))
"""Queues with fragments in all stores."""
STORES: Final = 4
DRAIN_TIMEOUT_S: Final = 30.0
IDLE_TIMEOUT_S: Final = 5.0
"""If a queue delivers nothing for so long, its message count is wrong."""
CREDIT: Final = 200
SYNC_DELAY_RANGE_MS: Final = (20, 200)
COVERAGE_TIMEOUT_S: Final = 60.0
"""Time limit for covering all features before the last crash; on a busy machine little happens before a crash."""


class CrashKind(Enum):
    """Kind of a crash."""

    KILL = "kill"
    """SIGKILL: all written data survives, synced or not."""
    POWER_CUT = "cut"
    """SIGKILL, and all or most data that was not synced is lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Parameters of a campaign."""

    seed: int
    crash_kind: CrashKind
    crash_count: int
    uptime_range_s: tuple[float, float] = (0.1, 2.0)
    """Shortest and longest time between start and crash."""
    until: float = float("inf")
    """Monotonic time after which there are no more crashes."""
    tears_unsynced: bool = True
    """Some power cuts keep part of the unsynced data; if False, all unsynced data is lost."""
    fails_syncs: bool = False
    """Before some power cuts, one to three syncs of a store fail."""
    slows_syncs: bool = False
    """Before some power cuts, syncs are slow, so that many operations are pending at the cut."""
    options: tuple[str, ...] = (f"--stores={STORES}",)


@dataclass(slots=True)
class Report:
    """Results of a campaign."""

    seed: int
    crashes: int = 0
    seconds: float = 0.0
    start_durations_s: list[float] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    checker: DeliveryChecker | None = None

    def summary(self) -> str:
        messages = self.checker.statistics() if self.checker is not None else "nothing sent"
        start = (
            f"starts {_median(self.start_durations_s):.2f} s, at most {max(self.start_durations_s, default=0):.2f} s"
        )
        return (
            f"seed {self.seed}: {self.crashes} crashes in {self.seconds:.0f} s, {start}; {messages}; "
            f"{len(self.problems)} problems"
        )

    def __str__(self) -> str:
        return "\n".join([*self.problems, self.summary()])


class Scenario(Protocol):
    """Queues, their clients, and the final checks."""

    @property
    def checker(self) -> DeliveryChecker:
        """Checker of the delivery guarantees."""

    async def prepare(self, server: RestartableServer) -> None:
        """Create the queues."""

    def start_clients(self, server: RestartableServer, rng: random.Random) -> Workload:
        """Return the clients that use the server while it crashes repeatedly."""

    async def verify(self, server: RestartableServer, clients: Workload) -> list[str]:
        """Check all remaining messages without clients; return problems other than those of the checker."""


async def run_campaign(
    plan: Plan, folder: Path, on_progress: Callable[[str], None] = lambda _line: None, scenario: Scenario | None = None
) -> Report:
    """Run a campaign. A server that fails to start or stop is reported as a problem."""
    report, rng, started_s = Report(plan.seed), random.Random(plan.seed), time.monotonic()
    scenario = scenario if scenario is not None else BasicScenario(plan.seed, with_partitioned=not plan.fails_syncs)
    report.checker = scenario.checker
    async with AsyncExitStack() as stack:
        shim = None
        server = RestartableServer(folder, options=plan.options)
        if plan.crash_kind is CrashKind.POWER_CUT:
            shim = stack.enter_context(DiskShim(server.data, folder))
            server = RestartableServer(folder, shim=shim, options=plan.options)
        try:
            await stack.enter_async_context(server)
            await scenario.prepare(server)
            clients = scenario.start_clients(server, random.Random(rng.random()))
            async with clients:
                await _crash_repeatedly(plan, server, shim, clients, report, rng, on_progress)
            for reason, count in clients.disconnect_reasons.most_common():
                on_progress(f"{count:6} clients ended by: {reason}")
            report.problems += await _verify(scenario, server, clients)
        except ServerFailed as failure:
            report.problems.append(f"server: {failure}")
    report.problems += scenario.checker.problems
    report.start_durations_s, report.seconds = server.start_durations_s, time.monotonic() - started_s
    return report


async def _crash_repeatedly(
    plan: Plan,
    server: RestartableServer,
    shim: DiskShim | None,
    clients: Workload,
    report: Report,
    rng: random.Random,
    on_progress: Callable[[str], None],
) -> None:
    """Crash and restart the server as planned."""
    assert report.checker is not None
    while report.crashes < plan.crash_count and time.monotonic() < plan.until:
        if clients.has_failed or report.checker.problems:
            break
        with _disk_faults(plan, server, shim, rng):
            await asyncio.sleep(rng.uniform(*plan.uptime_range_s))
        if report.crashes == plan.crash_count - 1:
            await _wait_for_coverage(report.checker, clients)
        await server.kill()
        if shim is not None:
            torn = random.Random(rng.random()) if plan.tears_unsynced and rng.random() < 0.5 else None
            shim.replayed_disk().cut_power(torn)
        await server.start()
        report.crashes += 1
        on_progress(
            f"crash {report.crashes} of {plan.crash_count}: started in {server.start_durations_s[-1]:.2f} s; "
            f"{_status_text(report)}"
        )
    if plan.fails_syncs:  # also without a crash: a restart would release operations that a failed store holds up
        with _disk_faults(plan, server, shim, rng):
            await asyncio.sleep(plan.uptime_range_s[1])


async def _wait_for_coverage(checker: DeliveryChecker, clients: Workload) -> None:
    deadline = time.monotonic() + COVERAGE_TIMEOUT_S
    while checker.uncovered_features() and not clients.has_failed and time.monotonic() < deadline:  # noqa: ASYNC110  # the checker has no event for it
        await asyncio.sleep(0.1)


def _disk_faults(
    plan: Plan, server: RestartableServer, shim: DiskShim | None, rng: random.Random
) -> AbstractContextManager[object]:
    """Return the disk faults until the next crash; mostly none."""
    faults = ExitStack()
    if shim is None:
        return faults
    if plan.fails_syncs and rng.random() >= 0.3:
        store = server.data / "stores" / str(rng.randrange(STORES))
        faults.enter_context(shim.rule(Action.FAIL_SYNC, store, times=rng.randint(1, 3)))
    if plan.slows_syncs and rng.random() < 0.5:
        stores = server.data / "stores"
        faults.enter_context(shim.rule(Action.DELAY_SYNC, stores, delay_ms=rng.randint(*SYNC_DELAY_RANGE_MS)))
    return faults


async def _verify(scenario: Scenario, server: RestartableServer, clients: Workload) -> list[str]:
    try:
        return await scenario.verify(server, clients)
    except OSError as failure:
        return [f"reckoning: {failure}"]


class BasicScenario:
    """Senders, receivers, and a client that creates and deletes queues."""

    def __init__(self, seed: int, *, with_partitioned: bool) -> None:
        """Failing syncs may duplicate messages of partitioned queues, so those are left out then."""
        self.checker = DeliveryChecker(random.Random(seed))
        self._queues = QUEUES + PARTITIONED_QUEUES if with_partitioned else QUEUES

    async def prepare(self, server: RestartableServer) -> None:
        for queue in self._queues:
            is_partitioned = str(queue in PARTITIONED_QUEUES).lower()
            await management.create_queue(server.endpoint, queue, EnablePartitioning=is_partitioned)

    def start_clients(self, server: RestartableServer, rng: random.Random) -> Workload:
        return Workload(server, self.checker, self._queues, rng)

    async def verify(self, server: RestartableServer, clients: Workload) -> list[str]:
        await server.kill()
        await server.start()
        problems = await _check_created_queues(server, clients.created_queues)
        for queue in self._queues:
            reported = await management.active_count(server.endpoint, queue)
            completed = await drain(server, self.checker, queue)
            if reported != completed:
                problems.append(f"count: {queue} was said to hold {reported} messages, and held {completed}")
        self.checker.finish()
        await server.stop()
        await server.start()
        for queue in self._queues:
            reported = await management.active_count(server.endpoint, queue)
            if reported != 0:
                problems.append(f"count: {queue} is empty and is said to hold {reported} messages")
            await drain(server, self.checker, queue)
        await server.stop()
        return problems


async def drain(server: RestartableServer, checker: DeliveryChecker, queue: str) -> int:
    """Receive and complete all messages of a queue; return their number."""
    async with connect_client(ReceiverClient(checker, queue), server.endpoint) as client:

        async def is_empty() -> bool:
            return await management.active_count(server.endpoint, queue) == 0

        await drain_client(client, is_empty)
        await disconnect(client)
        return client.completed


async def drain_client(client: ReceiverClient, is_empty: Callable[[], Awaitable[bool]]) -> None:
    """Receive and complete until the queue reports that it is empty, or delivers nothing for a while.

    A completed drain is not enough: a broker that is still reading from its disk completes it, too.
    """
    deadline = time.monotonic() + IDLE_TIMEOUT_S
    while True:
        completed, client.has_drained = client.completed, False
        client.link.grant(CREDIT, drain=True)
        if not await client.wait_until(
            lambda: client.has_drained and not client.unconfirmed_settlements, timeout_s=DRAIN_TIMEOUT_S
        ):
            raise ClientDisconnected(
                f"{client.address}: {len(client.unconfirmed_settlements)} completions not confirmed in "
                f"{DRAIN_TIMEOUT_S:.0f} s"
            )
        if client.completed > completed:
            deadline = time.monotonic() + IDLE_TIMEOUT_S
        elif time.monotonic() > deadline or await is_empty():
            break


async def _check_created_queues(server: RestartableServer, created: dict[str, bool | None]) -> list[str]:
    problems = []
    for name, existed in created.items():
        exists = await management.queue_exists(server.endpoint, name)
        if existed is not None and exists != existed:
            action = "made" if existed else "removed"
            problems.append(f"catalogue: queue {name} was {action}, and is {'there' if exists else 'not there'}")
    return problems


def _status_text(report: Report) -> str:
    assert report.checker is not None
    return f"{report.checker.statistics()}, {len(report.checker.pending):,} waiting"


def _median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2] if values else 0.0
