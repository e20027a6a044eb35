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

from tests.faults import management
from tests.faults.line import PARTITIONED, LineFailed, ReceivingLine, close, connected
from tests.faults.server_process import ServerProcess
from tests.faults.shim import Action, Shim
from tests.faults.workload import Workload
from tests.ledger.ledger import Ledger
from tests.served import ServerFailed

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

QUEUES: Final = tuple(f"queue-{number}" for number in range(6))
DIVIDED: Final = tuple(f"{PARTITIONED}{number}" for number in range(2))
"""Queues over all stores."""
STORES: Final = 4
DRAIN_S: Final = 30.0
NOTHING_COMES_S: Final = 5.0
"""From a queue that is said to hold messages: then it has none, and its count is wrong."""
CREDIT: Final = 200
SLOW_SYNC_MS: Final = (20, 200)
USE_S: Final = 60.0
"""So long the last life may go on until all that a run is about was used: on a busy machine lives are short."""


class Death(Enum):
    """How the server's lives end."""

    KILL = "kill"
    """SIGKILL: what it wrote is there, synced or not."""
    POWER_CUT = "cut"
    """SIGKILL, and what no sync had made durable is gone, or most of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What shall happen."""

    seed: int
    death: Death
    deaths: int
    life_s: tuple[float, float] = (0.1, 2.0)
    """The shortest and the longest time that it serves."""
    until: float = float("inf")
    """By the monotonic clock: no more deaths after this."""
    may_tear: bool = True
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
    deaths: int = 0
    seconds: float = 0.0
    starts_s: list[float] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    ledger: Ledger | None = None

    def summary(self) -> str:
        messages = self.ledger.figures() if self.ledger is not None else "nothing sent"
        start = f"starts {_median(self.starts_s):.2f} s, at most {max(self.starts_s, default=0):.2f} s"
        return (
            f"seed {self.seed}: {self.deaths} deaths in {self.seconds:.0f} s, {start}; {messages}; "
            f"{len(self.problems)} problems"
        )

    def __str__(self) -> str:
        return "\n".join([*self.problems, self.summary()])


class Scene(Protocol):
    """Queues, who uses them, and what must be true of them at the end."""

    @property
    def ledger(self) -> Ledger:
        """What was promised."""

    async def prepare(self, server: ServerProcess) -> None:
        """Make the queues."""

    def clients(self, server: ServerProcess, rng: random.Random) -> Workload:
        """Who uses them while the server dies again and again."""

    async def reckon(self, server: ServerProcess, clients: Workload) -> list[str]:
        """Look at all that is there, with nobody else at work: what is wrong beside what the ledger tells."""


async def endure(
    plan: Plan, folder: Path, say: Callable[[str], None] = lambda _line: None, scene: Scene | None = None
) -> Report:
    """Go through with a plan. A server that does not start any more, or does not stop, is a problem as well."""
    report, rng, started = Report(plan.seed), random.Random(plan.seed), time.monotonic()
    scene = scene if scene is not None else PlainQueues(plan.seed, with_partitioned=not plan.fails_syncs)
    report.ledger = scene.ledger
    async with AsyncExitStack() as stack:
        shim = None
        server = ServerProcess(folder, options=plan.options)
        if plan.death is Death.POWER_CUT:
            shim = stack.enter_context(Shim(server.data, folder))
            server = ServerProcess(folder, shim=shim, options=plan.options)
        try:
            await stack.enter_async_context(server)
            await scene.prepare(server)
            clients = scene.clients(server, random.Random(rng.random()))
            async with clients:
                await _live_and_die(plan, server, shim, clients, report, rng, say)
            for end, count in clients.ends.most_common():
                say(f"{count:6} clients ended by: {end}")
            report.problems += await _reckon(scene, server, clients)
        except ServerFailed as failure:
            report.problems.append(f"server: {failure}")
    report.problems += scene.ledger.problems
    report.starts_s, report.seconds = server.starts_s, time.monotonic() - started
    return report


async def _live_and_die(
    plan: Plan,
    server: ServerProcess,
    shim: Shim | None,
    clients: Workload,
    report: Report,
    rng: random.Random,
    say: Callable[[str], None],
) -> None:
    """Life after life."""
    assert report.ledger is not None
    while report.deaths < plan.deaths and time.monotonic() < plan.until:
        if clients.has_failed or report.ledger.problems:
            break
        with _sickness(plan, server, shim, rng):
            await asyncio.sleep(rng.uniform(*plan.life_s))
        if report.deaths == plan.deaths - 1:
            await _until_used(report.ledger, clients)
        await server.kill()
        if shim is not None:
            torn = random.Random(rng.random()) if plan.may_tear and rng.random() < 0.5 else None
            shim.disk().cut_power(torn)
        await server.start()
        report.deaths += 1
        say(f"death {report.deaths} of {plan.deaths}: started in {server.starts_s[-1]:.2f} s; {_state(report)}")
    if plan.fails_syncs:  # in a life that goes on, too: what a store that failed holds up is not freed by a new start
        with _sickness(plan, server, shim, rng):
            await asyncio.sleep(plan.life_s[1])


async def _until_used(ledger: Ledger, clients: Workload) -> None:
    deadline = time.monotonic() + USE_S
    while ledger.unused() and not clients.has_failed and time.monotonic() < deadline:  # noqa: ASYNC110  # nobody tells of it but the ledger
        await asyncio.sleep(0.1)


def _sickness(
    plan: Plan, server: ServerProcess, shim: Shim | None, rng: random.Random
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
        sickness.enter_context(shim.rule(Action.DELAY_SYNC, stores, delay_ms=rng.randint(*SLOW_SYNC_MS)))
    return sickness


async def _reckon(scene: Scene, server: ServerProcess, clients: Workload) -> list[str]:
    try:
        return await scene.reckon(server, clients)
    except OSError as failure:
        return [f"reckoning: {failure}"]


class PlainQueues:
    """Senders and receivers, and somebody who makes queues and removes them."""

    def __init__(self, seed: int, *, with_partitioned: bool) -> None:
        """Where a sync fails, what a partitioned queue may have on disk it has elsewhere as well: not once only."""
        self.ledger = Ledger(random.Random(seed))
        self._queues = QUEUES + DIVIDED if with_partitioned else QUEUES

    async def prepare(self, server: ServerProcess) -> None:
        for queue in self._queues:
            is_partitioned = str(queue in DIVIDED).lower()
            await management.make_queue(server.endpoint, queue, EnablePartitioning=is_partitioned)

    def clients(self, server: ServerProcess, rng: random.Random) -> Workload:
        return Workload(server, self.ledger, self._queues, rng)

    async def reckon(self, server: ServerProcess, clients: Workload) -> list[str]:
        await server.kill()
        await server.start()
        problems = await _check_made(server, clients.made)
        for queue in self._queues:
            told = await management.active_count(server.endpoint, queue)
            completed = await drain(server, self.ledger, queue)
            if told != completed:
                problems.append(f"count: {queue} was said to hold {told} messages, and held {completed}")
        self.ledger.close()
        await server.stop()
        await server.start()
        for queue in self._queues:
            told = await management.active_count(server.endpoint, queue)
            if told != 0:
                problems.append(f"count: {queue} is empty and is said to hold {told} messages")
            await drain(server, self.ledger, queue)
        await server.stop()
        return problems


async def drain(server: ServerProcess, ledger: Ledger, queue: str) -> int:
    """Receive and complete until a queue has nothing more; how many that were."""
    async with connected(ReceivingLine(ledger, queue), server.endpoint) as line:

        async def is_empty() -> bool:
            return await management.active_count(server.endpoint, queue) == 0

        await drain_line(line, is_empty)
        await close(line)
        return line.completed


async def drain_line(line: ReceivingLine, is_empty: Callable[[], Awaitable[bool]]) -> None:
    """Receive and complete what comes until a queue is said to be empty, or nothing has come for long.

    The answer to a drain is not enough: a broker that still reads from its disk gives it, too.
    """
    deadline = time.monotonic() + NOTHING_COMES_S
    while True:
        completed, line.has_drained = line.completed, False
        line.link.grant(CREDIT, drain=True)
        if not await line.until(lambda: line.has_drained and not line.unconfirmed, patience_s=DRAIN_S):
            raise LineFailed(f"{line.address}: {len(line.unconfirmed)} completions not confirmed in {DRAIN_S:.0f} s")
        if line.completed > completed:
            deadline = time.monotonic() + NOTHING_COMES_S
        elif time.monotonic() > deadline or await is_empty():
            break


async def _check_made(server: ServerProcess, made: dict[str, bool | None]) -> list[str]:
    problems = []
    for name, was_there in made.items():
        is_there = await management.is_there(server.endpoint, name)
        if was_there is not None and is_there != was_there:
            told = "made" if was_there else "removed"
            problems.append(f"catalogue: queue {name} was {told}, and is {'there' if is_there else 'not there'}")
    return problems


def _state(report: Report) -> str:
    assert report.ledger is not None
    return f"{report.ledger.figures()}, {len(report.ledger.waiting):,} waiting"


def _median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2] if values else 0.0
