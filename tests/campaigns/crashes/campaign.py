"""A run: clients at work, a server that dies again and again under them, and the reckoning at the end.

    report = await endure(Plan(seed=1, deaths=6, death=Death.KILL), folder)
    assert report.problems == []

After the last death the server starts once more, without clients: the counts that it tells must be what is there, and
what is received to the end must be what `ledger` expects. Then it stops cleanly, and once more nothing may come back.

Owns: the order of events. Which queues there are, who uses them and how they are reckoned up is a `Scene`: here that of
plain queues; `features` has another. Clients are in `workload`, the promises in `ledger`, what a power cut leaves in
`disk`.
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
"""Queues over all stores."""
STORES: Final = 4
DRAIN_TIMEOUT_S: Final = 30.0
IDLE_TIMEOUT_S: Final = 5.0
"""From a queue that is said to hold messages: then it has none, and its count is wrong."""
CREDIT: Final = 200
SYNC_DELAY_RANGE_MS: Final = (20, 200)
COVERAGE_TIMEOUT_S: Final = 60.0
"""So long the last life may go on until all that a run is about was used: on a busy machine lives are short."""


class CrashKind(Enum):
    """How the server's lives end."""

    KILL = "kill"
    """SIGKILL: what it wrote is there, synced or not."""
    POWER_CUT = "cut"
    """SIGKILL, and what no sync had made durable is gone, or most of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What shall happen."""

    seed: int
    crash_kind: CrashKind
    crash_count: int
    uptime_range_s: tuple[float, float] = (0.1, 2.0)
    """The shortest and the longest time that it serves."""
    until: float = float("inf")
    """By the monotonic clock: no more deaths after this."""
    tears_unsynced: bool = True
    """Some power cuts leave some of what was not synced; else each leaves nothing of it."""
    fails_syncs: bool = False
    """In some lives, before the power is cut, one to three syncs of a store fail."""
    slows_syncs: bool = False
    """In some lives syncs take their time, so that much is waiting for its answer when the power is cut."""
    options: tuple[str, ...] = (f"--stores={STORES}",)


@dataclass(slots=True)
class Report:
    """What has happened."""

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
            f"seed {self.seed}: {self.crashes} deaths in {self.seconds:.0f} s, {start}; {messages}; "
            f"{len(self.problems)} problems"
        )

    def __str__(self) -> str:
        return "\n".join([*self.problems, self.summary()])


class Scenario(Protocol):
    """Queues, who uses them, and what must be true of them at the end."""

    @property
    def checker(self) -> DeliveryChecker:
        """What was promised."""

    async def prepare(self, server: RestartableServer) -> None:
        """Make the queues."""

    def start_clients(self, server: RestartableServer, rng: random.Random) -> Workload:
        """Who uses them while the server dies again and again."""

    async def verify(self, server: RestartableServer, clients: Workload) -> list[str]:
        """Look at all that is there, with nobody else at work: what is wrong beside what the ledger tells."""


async def run_campaign(
    plan: Plan, folder: Path, on_progress: Callable[[str], None] = lambda _line: None, scenario: Scenario | None = None
) -> Report:
    """Go through with a plan. A server that does not start any more, or does not stop, is a problem as well."""
    report, rng, started = Report(plan.seed), random.Random(plan.seed), time.monotonic()
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
            for end, count in clients.disconnect_reasons.most_common():
                on_progress(f"{count:6} clients ended by: {end}")
            report.problems += await _verify(scenario, server, clients)
        except ServerFailed as failure:
            report.problems.append(f"server: {failure}")
    report.problems += scenario.checker.problems
    report.start_durations_s, report.seconds = server.start_durations_s, time.monotonic() - started
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
    """Life after life."""
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
            f"death {report.crashes} of {plan.crash_count}: started in {server.start_durations_s[-1]:.2f} s; "
            f"{_status_text(report)}"
        )
    if plan.fails_syncs:  # in a life that goes on, too: what a store that failed holds up is not freed by a new start
        with _disk_faults(plan, server, shim, rng):
            await asyncio.sleep(plan.uptime_range_s[1])


async def _wait_for_coverage(checker: DeliveryChecker, clients: Workload) -> None:
    deadline = time.monotonic() + COVERAGE_TIMEOUT_S
    while checker.uncovered_features() and not clients.has_failed and time.monotonic() < deadline:  # noqa: ASYNC110  # nobody tells of it but the ledger
        await asyncio.sleep(0.1)


def _disk_faults(
    plan: Plan, server: RestartableServer, shim: DiskShim | None, rng: random.Random
) -> AbstractContextManager[object]:
    """What the disks do in one life of the server: mostly nothing."""
    sickness = ExitStack()
    if shim is None:
        return sickness
    if plan.fails_syncs and rng.random() >= 0.3:
        store = server.data / "stores" / str(rng.randrange(STORES))
        sickness.enter_context(shim.rule(Action.FAIL_SYNC, store, times=rng.randint(1, 3)))
    if plan.slows_syncs and rng.random() < 0.5:
        stores = server.data / "stores"
        sickness.enter_context(shim.rule(Action.DELAY_SYNC, stores, delay_ms=rng.randint(*SYNC_DELAY_RANGE_MS)))
    return sickness


async def _verify(scenario: Scenario, server: RestartableServer, clients: Workload) -> list[str]:
    try:
        return await scenario.verify(server, clients)
    except OSError as failure:
        return [f"reckoning: {failure}"]


class BasicScenario:
    """Senders and receivers, and somebody who makes queues and removes them."""

    def __init__(self, seed: int, *, with_partitioned: bool) -> None:
        """Where a sync fails, what a partitioned queue may have on disk it has elsewhere as well: not once only."""
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
            told = await management.active_count(server.endpoint, queue)
            completed = await drain(server, self.checker, queue)
            if told != completed:
                problems.append(f"count: {queue} was said to hold {told} messages, and held {completed}")
        self.checker.finish()
        await server.stop()
        await server.start()
        for queue in self._queues:
            told = await management.active_count(server.endpoint, queue)
            if told != 0:
                problems.append(f"count: {queue} is empty and is said to hold {told} messages")
            await drain(server, self.checker, queue)
        await server.stop()
        return problems


async def drain(server: RestartableServer, checker: DeliveryChecker, queue: str) -> int:
    """Receive and complete until a queue has nothing more; how many that were."""
    async with connect_client(ReceiverClient(checker, queue), server.endpoint) as line:

        async def is_empty() -> bool:
            return await management.active_count(server.endpoint, queue) == 0

        await drain_client(line, is_empty)
        await disconnect(line)
        return line.completed


async def drain_client(client: ReceiverClient, is_empty: Callable[[], Awaitable[bool]]) -> None:
    """Receive and complete what comes until a queue is said to be empty, or nothing has come for long.

    The answer to a drain is not enough: a broker that still reads from its disk gives it, too.
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
    for name, was_there in created.items():
        is_there = await management.queue_exists(server.endpoint, name)
        if was_there is not None and is_there != was_there:
            told = "made" if was_there else "removed"
            problems.append(f"catalogue: queue {name} was {told}, and is {'there' if is_there else 'not there'}")
    return problems


def _status_text(report: Report) -> str:
    assert report.checker is not None
    return f"{report.checker.statistics()}, {len(report.checker.pending):,} waiting"


def _median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2] if values else 0.0
