"""A simulated pair: two namespaces, a sending program, two programs with syphons, a network, disks and clocks.

Owns: creating and closing them, the log of the run, and the problems found during the run.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from random import Random
from typing import TYPE_CHECKING, Any, Final

from tests.simulation.pair.checker import SimulationChecker
from tests.simulation.pair.found_messages import find_arrivals
from tests.simulation.pair.program import Program
from tests.simulation.pair.spool_disk import SimulatedLoop, SpoolDisk
from tests.simulation.pair.traffic import Traffic
from twinbus.client.pairing import EventKind
from twinbus.model.errors import EntityAlreadyExists
from twinbus.testing import InMemoryNamespace, LoopClock
from twinbus.testing.loop import START_S

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.simulation.pair.settings import EntityPlan, Settings
    from twinbus.client.pairing import Pairing, PairingEvent

SKEW_MS: Final = 2_000
"""Maximum initial deviation of a machine's clock."""
_UNLOGGED_EVENTS: Final = frozenset({EventKind.MOVED, EventKind.PINGED})


class PairSimulation:
    """The simulated pair of one run."""

    def __init__(self, seed: int, settings: Settings, root: Path) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimulatedLoop)
        self.loop = loop
        self.network = loop.network
        self.settings = settings
        self._root = f"{root}/"
        self.random = Random(f"{seed} world")  # randomness of a simulation
        self.network.latency_s = settings.latency_s
        loop.random, loop.disk_s = Random(f"{seed} disk"), settings.disk_s
        self.log: list[str] = []
        self.problems: list[tuple[str, str]] = []
        self.faults: Counter[str] = Counter()
        self.killed_hosts: list[str] = []
        self.killed_tasks: list[set[asyncio.Task[Any]]] = []
        self.killed_pairings: list[Pairing] = []
        self.incarnations: Counter[str] = Counter()
        """Number of deletions of each entity."""
        self.is_ending = False
        self.primary = self._namespace("contoso")
        self.secondary = self._namespace("contoso-backup")
        self.checker = SimulationChecker(self.secondary.clock.wall_ms)
        disk = SpoolDisk(root, Random(f"{seed} spool")) if settings.has_spool else None
        self.app = Program(self, "app", hosts_syphon=False, disk=disk, skew_ms=self._skew_ms())
        self.syphons = [
            Program(self, name, hosts_syphon=True, skew_ms=self._skew_ms()) for name in ("syphon-a", "syphon-b")
        ]
        self.traffic = Traffic(self, seed)
        self.latest_secondary_ms = 0
        """Latest time that the secondary's clock has shown."""
        loop.set_exception_handler(self._on_loop_error)

    def _namespace(self, name: str) -> InMemoryNamespace:
        clock = LoopClock()
        clock.set_wall_ms(clock.wall_ms() + self._skew_ms())
        return InMemoryNamespace(name, clock=clock, stores=self.settings.stores)

    def _skew_ms(self) -> int:
        return self.random.randint(-SKEW_MS, SKEW_MS)

    @property
    def namespaces(self) -> tuple[InMemoryNamespace, InMemoryNamespace]:
        return self.primary, self.secondary

    @property
    def programs(self) -> tuple[Program, ...]:
        return self.app, *self.syphons

    @property
    def backlog_paths(self) -> list[str]:
        count = self.settings.pair["backlog_queue_count"]
        return [f"{self.primary.name}/x-servicebus-transfer/{index}" for index in range(count)]

    # --- start and end -----------------------------------------------------------------------------------------------

    async def start(self) -> None:
        for namespace in self.namespaces:
            await namespace.start()
        for plan in self.settings.entities:
            await self.create(plan)
        for program in self.programs:
            program.start()

    async def create(self, plan: EntityPlan) -> None:
        """Create the missing parts of an entity in the primary. A topic is disabled until it has a subscription."""
        with contextlib.suppress(EntityAlreadyExists):
            if plan.is_topic:
                await self.primary.create_topic(plan.path, **plan.description, status="SendDisabled")
            else:
                await self.primary.create_queue(plan.path, **plan.description)
        if plan.is_topic:
            with contextlib.suppress(EntityAlreadyExists):
                await self.primary.create_subscription(plan.path, "all", dead_lettering_on_expiration=True)
            await self.primary.set_status(plan.path, "Active")

    async def collect_arrivals(self, plan: EntityPlan) -> None:
        """Record all messages that have arrived at an entity."""
        incarnation = self.incarnations[plan.path]
        self.checker.found_copies[plan.path, incarnation] = await find_arrivals(self, plan, incarnation)

    def mark_scheduled_deleted(self, plan: EntityPlan) -> None:
        """Record that a topic is deleted together with its scheduled messages, which no subscription has got yet."""
        for message in self.checker.messages_sent.values():
            if plan.is_topic and message.path == plan.path and message.due_ms is not None:
                message.may_be_deleted = True

    def remember_secondary_clock(self) -> None:
        """Record the time of the secondary's clock, before it is changed."""
        self.latest_secondary_ms = max(self.latest_secondary_ms, self.secondary.clock.wall_ms())

    def release_killed_processes(self) -> None:
        """Release killed processes, so that the loop can end; their further actions have no effect."""
        for host in self.killed_hosts:
            self.network.refuse(host)
            self.loop.thaw(host)
        for pairing in self.killed_pairings:
            if pairing.spool is not None:
                with contextlib.suppress(OSError, AssertionError):
                    pairing.spool._files.close()  # noqa: SLF001  # lock and file of a killed process

    # --- log and problems --------------------------------------------------------------------------------------------

    def trace(self, line: str) -> None:
        line = line.replace(self._root, "")  # the path differs between runs
        self.log.append(f"{self.loop.time() - START_S:10.4f} {line}")

    def add_problem(self, kind: str, text: str) -> None:
        if not self.is_ending:
            self.problems.append((kind, text))
            self.trace(f"PROBLEM {kind}: {text}")

    def check_tasks(self) -> None:
        """Report failed tasks whose exception nobody has retrieved."""
        for task in self.loop.failed_tasks():
            self.add_problem("DIED", f"a task has failed, and nobody noticed: {task}")

    def event_listener(self, host: str) -> Callable[[PairingEvent], None]:
        """Return a listener for the events of a pairing."""

        def on_event(event: PairingEvent) -> None:
            self.checker.on_event(event)
            if event.kind not in _UNLOGGED_EVENTS:
                subject = event.message_id or event.path or ""
                self.trace(
                    f"  {host}: {event.kind.value} {subject} {event.backlog_queue or ''} {event.reason or '':.90}"
                )

        return on_event

    def _on_loop_error(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Report an exception of a task or callback."""
        error = context.get("exception")
        self.add_problem("DIED", f"{context.get('message')}: {error!r}")


class LogListener(logging.Handler):
    """Log handler that reports records with a traceback as problems, and adds other records to the run's log."""

    def __init__(self, simulation: PairSimulation, level: int) -> None:
        super().__init__(level)
        self._simulation = simulation

    def emit(self, record: logging.LogRecord) -> None:
        if self.level < logging.ERROR:
            self._simulation.trace(f"  {record.levelname} {record.getMessage():.150}")
        if record.exc_info and record.exc_info[1] is not None:
            self._simulation.add_problem(
                "DIED", f"{record.name}: {record.getMessage():.200}: {record.exc_info[1]!r:.200}"
            )
