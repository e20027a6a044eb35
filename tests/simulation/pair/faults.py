"""Outages of the pair simulation.

Each kind of outage is a coroutine that injects a fault and returns a coroutine function that restores service, or None
if nothing has to be restored. A fault first claims its targets, because two outages of the same target would undo each
other. `a/b` is a part of target `a`.

Owns: the kinds of outages, and the active outages.
"""
# ruff: noqa: ASYNC110  # time is virtual: polling costs nothing

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from twinbus.model.errors import EntityNotFound, ServiceBusError
from twinbus.server.config.settings import StartError
from twinbus.store.protocol import StoreFailed
from twinbus.testing import Direction

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from random import Random

    from tests.simulation.pair.program import Program
    from tests.simulation.pair.settings import EntityPlan
    from tests.simulation.pair.simulation import PairSimulation
    from twinbus.testing import InMemoryNamespace

    Restore: TypeAlias = Callable[[], Awaitable[None]]

MAX_LATENCY_S: Final = 3.0
RESTORE_PAUSE_S: Final = 0.5
ADMIN_LIMIT_S: Final = 20.0
DURATIONS_S: Final = {(0.01, 1.0): 3, (1.0, 8.0): 3, (8.0, 30.0): 2, (20.0, 90.0): 1}
"""Ranges of durations, and their frequencies."""


class AlreadyFaulty(Exception):
    """The target has another outage already."""


class FaultScheduler:
    """All outages of a run."""

    def __init__(self, simulation: PairSimulation, random: Random) -> None:
        self._simulation = simulation
        self._random = random
        self._claims: dict[str, None] = {}
        self._ending_tasks: dict[asyncio.Task[None], None] = {}
        self.count = 0
        """Number of outages with sends in progress."""

    @property
    def active(self) -> int:
        return len(self._ending_tasks)

    async def begin(self) -> None:
        """Begin a random outage with sends in progress; it ends by itself."""
        simulation, random = self._simulation, self._random
        simulation.traffic.wake_all()
        await asyncio.sleep(random.choice((0.0, 2.1, 4.2, 8.4)) * simulation.settings.latency_s)
        kinds = [
            name
            for name in FAULT_KINDS
            if not simulation.settings.only_fault_kinds or name in simulation.settings.only_fault_kinds
        ]
        weights = [FAULT_KINDS[name].weight for name in kinds]
        for _ in range(20):
            kind = random.choices(kinds, weights)[0]
            claims: list[str] = []
            try:
                restore = await FAULT_KINDS[kind].inject(_FaultContext(self, simulation, random, claims))
            except AlreadyFaulty:
                self._release_claims(claims)
                continue
            break
        else:
            return
        simulation.faults[kind] += 1
        simulation.trace(f"OUTAGE {kind} {' '.join(claims)}")
        duration_s = self._duration_s()
        before = simulation.checker.call_count
        was_busy = bool(simulation.checker.pending_calls)
        task = asyncio.ensure_future(self._end(kind, restore, claims, duration_s, before, was_busy=was_busy))
        self._ending_tasks[task] = None
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        del self._ending_tasks[task]
        if not task.cancelled() and (error := task.exception()) is not None:
            self._simulation.add_problem("FAILED", f"an outage could not be ended: {error!r}")

    def _duration_s(self) -> float:
        random = self._random
        least, most = random.choices(list(DURATIONS_S), list(DURATIONS_S.values()))[0]
        return random.uniform(least, most)

    async def _end(
        self, kind: str, restore: Restore | None, claims: list[str], duration_s: float, before: int, *, was_busy: bool
    ) -> None:
        simulation = self._simulation
        if restore is not None:
            await asyncio.sleep(duration_s / 2)
            simulation.traffic.wake_all()
            await asyncio.sleep(duration_s / 2)
            await restore()
            simulation.trace(f"MENDED {kind} {' '.join(claims)}")
        self._release_claims(claims)
        self.count += was_busy or simulation.checker.call_count > before or bool(simulation.checker.pending_calls)

    async def wait(self) -> None:
        """Wait until all outages are over."""
        while self._ending_tasks:
            await asyncio.wait(list(self._ending_tasks))

    def claim_target(self, name: str) -> None:
        """Claim a target. Raises AlreadyFaulty if the target, a part of it, or the whole has an outage."""
        for claimed in self._claims:
            if f"{claimed}/".startswith(f"{name}/") or f"{name}/".startswith(f"{claimed}/"):
                raise AlreadyFaulty(name)
        self._claims[name] = None

    def _release_claims(self, claims: list[str]) -> None:
        for name in claims:
            self._claims.pop(name, None)


class _FaultContext:
    """Targets and randomness for a fault."""

    def __init__(self, outages: FaultScheduler, simulation: PairSimulation, random: Random, claims: list[str]) -> None:
        self.simulation = simulation
        self.random = random
        self._outages = outages
        self._claims = claims

    def claim(self, *names: str) -> None:
        for name in names:
            self._outages.claim_target(name)
            self._claims.append(name)

    def namespace(self, part: str) -> InMemoryNamespace:
        """Claim part of a running namespace; the primary has more outages than the secondary."""
        namespace = self.simulation.primary if self.random.random() < 0.65 else self.simulation.secondary
        self.claim(f"{namespace.name}/{part}")
        if not namespace.is_running:
            raise AlreadyFaulty(namespace.name)
        return namespace

    def program(self, part: str) -> Program:
        program = self.random.choice(self.simulation.programs)
        self.claim(f"{program.name}/{part}")
        if not program.is_running:
            raise AlreadyFaulty(program.name)
        return program

    def entity(self) -> EntityPlan:
        plan = self.random.choice(self.simulation.settings.entities)
        self.claim(f"{self.simulation.primary.name}/entity/{plan.path}")
        if not self.simulation.primary.is_running:
            raise AlreadyFaulty(plan.path)
        return plan

    def route(self) -> tuple[str, str | None]:
        """Claim the network of a namespace, for all programs or for one; return the host and the program's host."""
        namespace = self.simulation.primary if self.random.random() < 0.65 else self.simulation.secondary
        if self.random.random() < 0.35:
            self.claim(f"{namespace.name}/network")
            return namespace.host, None
        program = self.random.choice(self.simulation.programs)
        self.claim(f"{namespace.name}/network/{program.name}")
        if not program.is_running:
            raise AlreadyFaulty(program.name)
        return namespace.host, program.host


# --- network --------------------------------------------------------------------------------------------------------


def _restoring(context: _FaultContext, host: str, peer: str | None, *, cuts: bool = False) -> Restore:
    async def restore() -> None:
        if cuts:
            context.simulation.network.cut(host, peer=peer)
        context.simulation.network.restore(host, peer=peer)

    return restore


async def _refused(context: _FaultContext) -> Restore:
    host, peer = context.route()
    context.simulation.network.refuse(host, peer=peer)
    return _restoring(context, host, peer)


async def _partition(context: _FaultContext) -> Restore:
    host, peer = context.route()
    context.simulation.network.hang(host, peer=peer)
    return _restoring(context, host, peer, cuts=context.random.random() < 0.5)


async def _lost_answers(context: _FaultContext) -> Restore:
    host, peer = context.route()
    context.simulation.network.hang(host, peer=peer, direction=Direction.FROM)
    return _restoring(context, host, peer, cuts=context.random.random() < 0.7)


async def _lost_requests(context: _FaultContext) -> Restore:
    host, peer = context.route()
    context.simulation.network.hang(host, peer=peer, direction=Direction.TO)
    return _restoring(context, host, peer, cuts=context.random.random() < 0.5)


async def _cut(context: _FaultContext) -> Restore | None:
    host, peer = context.route()
    context.simulation.network.cut(host, peer=peer)
    return None


async def _cut_after(context: _FaultContext) -> Restore:
    host, peer = context.route()
    size = round(10 ** context.random.uniform(0, 5))
    direction = context.random.choice((Direction.TO, Direction.FROM))
    context.simulation.network.cut_after(host, size, peer=peer, direction=direction)
    return _restoring(context, host, peer)


async def _slow(context: _FaultContext) -> Restore:
    host, peer = context.route()
    context.simulation.network.slow(host, context.random.uniform(0.05, MAX_LATENCY_S), peer=peer)
    return _restoring(context, host, peer)


# --- processes and machines -----------------------------------------------------------------------------------------


async def _namespace_killed(context: _FaultContext) -> Restore:
    namespace = context.namespace("process")
    namespace.kill()
    return lambda: _start(namespace)


async def _start(namespace: InMemoryNamespace) -> None:
    """Start a namespace, with retries as long as its disks fail."""
    while not namespace.is_running:
        try:
            await namespace.start()
        except (ServiceBusError, StoreFailed, StartError):
            await asyncio.sleep(RESTORE_PAUSE_S)


async def _namespace_restarted(context: _FaultContext) -> Restore:
    namespace = context.namespace("process")
    await namespace.stop()
    return lambda: _start(namespace)


async def _namespace_frozen(context: _FaultContext) -> Restore:
    namespace = context.namespace("process")
    context.simulation.loop.freeze(namespace.host)

    async def restore() -> None:
        context.simulation.loop.thaw(namespace.host)

    return restore


async def _program_killed(context: _FaultContext) -> Restore:
    program = context.program("process")
    program.crash(is_power_cut=context.random.random() < 0.5)

    async def restore() -> None:
        program.start()

    return restore


async def _program_restarted(context: _FaultContext) -> Restore:
    program = context.program("process")
    await program.stop()

    async def restore() -> None:
        program.start()

    return restore


async def _program_frozen(context: _FaultContext) -> Restore:
    program = context.program("process")
    program.freeze()

    async def restore() -> None:
        program.unfreeze()

    return restore


async def _clock_set(context: _FaultContext) -> Restore:
    owners: list[InMemoryNamespace | Program] = [*context.simulation.namespaces, *context.simulation.programs]
    owner = context.random.choice(owners)
    context.claim(f"{owner.name}/clock")
    by_ms = round(context.random.choice((-1, 1)) * 1000 * 10 ** context.random.uniform(0, 3.85))
    context.simulation.remember_secondary_clock()
    owner.clock.set_wall_ms(owner.clock.wall_ms() + by_ms)

    async def restore() -> None:
        context.simulation.remember_secondary_clock()
        owner.clock.set_wall_ms(owner.clock.wall_ms() - by_ms)

    return restore


# --- administration -------------------------------------------------------------------------------------------------


async def _key_revoked(context: _FaultContext) -> Restore:
    namespace = context.namespace("key")
    namespace.outage.revoke_key()

    async def restore() -> None:
        namespace.outage.give_key_back()

    return restore


async def _admin(simulation: PairSimulation, operation: Callable[[], Awaitable[object]]) -> None:
    """Perform an administrative operation, with retries until it succeeds."""
    while True:
        while not simulation.primary.is_running:
            await asyncio.sleep(RESTORE_PAUSE_S)
        try:
            async with asyncio.timeout(ADMIN_LIMIT_S):
                await operation()
        except (ServiceBusError, TimeoutError, RuntimeError):
            await asyncio.sleep(RESTORE_PAUSE_S)
        else:
            return


async def _set_status(simulation: PairSimulation, plan: EntityPlan, status: str) -> None:
    await _admin(simulation, lambda: simulation.primary.set_status(plan.path, status))


async def _entity_disabled(context: _FaultContext) -> Restore:
    plan = context.entity()
    await _set_status(context.simulation, plan, context.random.choice(("Disabled", "SendDisabled")))
    return lambda: _set_status(context.simulation, plan, "Active")


async def _entity_deleted(context: _FaultContext) -> Restore:
    """Delete an entity after disabling sends and collecting the messages that have arrived."""
    plan, simulation = context.entity(), context.simulation
    await _set_status(simulation, plan, "SendDisabled")
    await asyncio.sleep(1.0)

    async def delete() -> None:
        try:
            await simulation.collect_arrivals(plan)
            simulation.mark_scheduled_deleted(plan)
            await simulation.primary.entities.delete(plan.path)
        except EntityNotFound:
            return

    await _admin(simulation, delete)
    simulation.incarnations[plan.path] += 1
    return lambda: _admin(simulation, lambda: simulation.create(plan))


async def _entity_full(context: _FaultContext) -> Restore:
    plan = context.entity()
    context.simulation.primary.outage.full(plan.path)

    async def restore() -> None:
        context.simulation.primary.outage.no_longer(plan.path)

    return restore


async def _entity_busy(context: _FaultContext) -> Restore:
    plan = context.entity()
    context.simulation.primary.outage.busy(plan.path)

    async def restore() -> None:
        context.simulation.primary.outage.no_longer(plan.path)

    return restore


async def _backlog_disabled(context: _FaultContext) -> Restore:
    simulation = context.simulation
    path = context.random.choice(simulation.backlog_paths)
    context.claim(f"{simulation.secondary.name}/entity/{path}")
    status = context.random.choice(("Disabled", "SendDisabled", "ReceiveDisabled"))
    if not simulation.secondary.is_running:
        raise AlreadyFaulty(path)
    try:
        await simulation.secondary.set_status(path, status)
    except ServiceBusError:
        raise AlreadyFaulty(path) from None

    async def restore() -> None:
        while True:
            try:
                await simulation.secondary.set_status(path, "Active")
            except (ServiceBusError, RuntimeError):
                await asyncio.sleep(RESTORE_PAUSE_S)
            else:
                return

    return restore


# --- disks ----------------------------------------------------------------------------------------------------------


def _restoring_disks(namespace: InMemoryNamespace) -> Restore:
    async def restore() -> None:
        namespace.outage.restore_disks()

    return restore


async def _disk_full(context: _FaultContext) -> Restore:
    namespace = context.namespace("disk")
    namespace.outage.fill_disk()
    return _restoring_disks(namespace)


async def _store_failed(context: _FaultContext) -> Restore:
    namespace = context.namespace("disk")
    namespace.outage.fail_store(context.random.randrange(context.simulation.settings.stores))
    return _restoring_disks(namespace)


async def _store_hanging(context: _FaultContext) -> Restore:
    namespace = context.namespace("disk")
    namespace.outage.hang_store(context.random.randrange(context.simulation.settings.stores))
    return _restoring_disks(namespace)


class FaultKind(NamedTuple):
    """A kind of outage."""

    weight: float
    inject: Callable[[_FaultContext], Awaitable[Restore | None]]


FAULT_KINDS: Final[dict[str, FaultKind]] = {
    "connections refused": FaultKind(1.0, _refused),
    "partition": FaultKind(1.5, _partition),
    "answers lost": FaultKind(2.0, _lost_answers),
    "requests lost": FaultKind(1.0, _lost_requests),
    "connections cut": FaultKind(1.0, _cut),
    "cut after some bytes": FaultKind(1.5, _cut_after),
    "slow network": FaultKind(0.5, _slow),
    "namespace killed": FaultKind(1.0, _namespace_killed),
    "namespace restarted": FaultKind(0.5, _namespace_restarted),
    "namespace frozen": FaultKind(0.7, _namespace_frozen),
    "program killed": FaultKind(1.5, _program_killed),
    "program restarted": FaultKind(0.8, _program_restarted),
    "program frozen": FaultKind(1.0, _program_frozen),
    "clock set": FaultKind(1.0, _clock_set),
    "key revoked": FaultKind(1.0, _key_revoked),
    "entity disabled": FaultKind(1.0, _entity_disabled),
    "entity deleted": FaultKind(0.8, _entity_deleted),
    "entity full": FaultKind(0.6, _entity_full),
    "entity busy": FaultKind(0.6, _entity_busy),
    "backlog queue disabled": FaultKind(0.5, _backlog_disabled),
    "disk full": FaultKind(0.6, _disk_full),
    "store failed": FaultKind(0.8, _store_failed),
    "store hanging": FaultKind(0.8, _store_hanging),
}
