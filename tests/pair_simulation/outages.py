"""The outages of a simulation: what can go wrong, and how it ends.

Each kind is a coroutine that makes something fail and returns what mends it, or None where there is nothing to mend. A
kind first claims what it needs; two outages of the same thing at the same time would undo each other. `a/b` is a part
of `a`.

Owns: the kinds, and which are on.
"""
# ruff: noqa: ASYNC110  # time is virtual: to look again costs nothing

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from twinbus.model.errors import EntityNotFound, ServiceBusError
from twinbus.server.settings import StartError
from twinbus.store.protocol import StoreFailed
from twinbus.testing import Direction

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from random import Random

    from tests.pair_simulation.program import Program
    from tests.pair_simulation.settings import EntityPlan
    from tests.pair_simulation.world import World
    from twinbus.testing import InMemoryNamespace

    Mend: TypeAlias = Callable[[], Awaitable[None]]

SLOWEST_S: Final = 3.0
MEND_PAUSE_S: Final = 0.5
ADMIN_LIMIT_S: Final = 20.0
DURATIONS_S: Final = {(0.01, 1.0): 3, (1.0, 8.0): 3, (8.0, 30.0): 2, (20.0, 90.0): 1}
"""Ranges, and how often each is drawn."""


class Taken(Exception):
    """What an outage needs has another one already."""


class Outages:
    """All of one run."""

    def __init__(self, world: World, random: Random) -> None:
        self._world = world
        self._random = random
        self._claims: dict[str, None] = {}
        self._ending: dict[asyncio.Task[None], None] = {}
        self.count = 0
        """Outages with traffic under them."""

    @property
    def active(self) -> int:
        return len(self._ending)

    async def begin(self) -> None:
        """Make one, with sends on their way; it ends by itself."""
        world, random = self._world, self._random
        world.traffic.burst()
        await asyncio.sleep(random.choice((0.0, 2.1, 4.2, 8.4)) * world.settings.latency_s)
        kinds = [name for name in KINDS if not world.settings.only or name in world.settings.only]
        weights = [KINDS[name].weight for name in kinds]
        for _ in range(20):
            kind = random.choices(kinds, weights)[0]
            claims: list[str] = []
            try:
                mend = await KINDS[kind].make(_Scene(self, world, random, claims))
            except Taken:
                self._give_back(claims)
                continue
            break
        else:
            return
        world.faults[kind] += 1
        world.say(f"OUTAGE {kind} {' '.join(claims)}")
        duration_s = self._duration_s()
        before = world.ledger.begun
        was_busy = bool(world.ledger.pending)
        task = asyncio.ensure_future(self._end(kind, mend, claims, duration_s, before, was_busy=was_busy))
        self._ending[task] = None
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        del self._ending[task]
        if not task.cancelled() and (error := task.exception()) is not None:
            self._world.problem("FAILED", f"an outage could not be ended: {error!r}")

    def _duration_s(self) -> float:
        random = self._random
        least, most = random.choices(list(DURATIONS_S), list(DURATIONS_S.values()))[0]
        return random.uniform(least, most)

    async def _end(
        self, kind: str, mend: Mend | None, claims: list[str], duration_s: float, before: int, *, was_busy: bool
    ) -> None:
        world = self._world
        if mend is not None:
            await asyncio.sleep(duration_s / 2)
            world.traffic.burst()
            await asyncio.sleep(duration_s / 2)
            await mend()
            world.say(f"MENDED {kind} {' '.join(claims)}")
        self._give_back(claims)
        self.count += was_busy or world.ledger.begun > before or bool(world.ledger.pending)

    async def wait(self) -> None:
        """Until all are over."""
        while self._ending:
            await asyncio.wait(list(self._ending))

    def claim(self, name: str) -> None:
        """Taken if an outage has it, a part of it, or what it is a part of."""
        for one in self._claims:
            if f"{one}/".startswith(f"{name}/") or f"{name}/".startswith(f"{one}/"):
                raise Taken(name)
        self._claims[name] = None

    def _give_back(self, claims: list[str]) -> None:
        for name in claims:
            self._claims.pop(name, None)


class _Scene:
    """What a kind of outage works with."""

    def __init__(self, outages: Outages, world: World, random: Random, claims: list[str]) -> None:
        self.world = world
        self.random = random
        self._outages = outages
        self._claims = claims

    def claim(self, *names: str) -> None:
        for name in names:
            self._outages.claim(name)
            self._claims.append(name)

    def namespace(self, part: str) -> InMemoryNamespace:
        """A namespace that runs; the primary has more outages than the secondary."""
        namespace = self.world.primary if self.random.random() < 0.65 else self.world.secondary
        self.claim(f"{namespace.name}/{part}")
        if not namespace.is_running:
            raise Taken(namespace.name)
        return namespace

    def program(self, part: str) -> Program:
        program = self.random.choice(self.world.programs)
        self.claim(f"{program.name}/{part}")
        if not program.is_running:
            raise Taken(program.name)
        return program

    def entity(self) -> EntityPlan:
        plan = self.random.choice(self.world.settings.entities)
        self.claim(f"{self.world.primary.name}/entity/{plan.path}")
        if not self.world.primary.is_running:
            raise Taken(plan.path)
        return plan

    def route(self) -> tuple[str, str | None]:
        """A namespace, and perhaps the only program that is cut off from it."""
        namespace = self.world.primary if self.random.random() < 0.65 else self.world.secondary
        if self.random.random() < 0.35:
            self.claim(f"{namespace.name}/network")
            return namespace.host, None
        program = self.random.choice(self.world.programs)
        self.claim(f"{namespace.name}/network/{program.name}")
        if not program.is_running:
            raise Taken(program.name)
        return namespace.host, program.host


# --- the network ------------------------------------------------------------------------------------------------------


def _restoring(scene: _Scene, host: str, peer: str | None, *, cuts: bool = False) -> Mend:
    async def mend() -> None:
        if cuts:
            scene.world.network.cut(host, peer=peer)
        scene.world.network.restore(host, peer=peer)

    return mend


async def _refused(scene: _Scene) -> Mend:
    host, peer = scene.route()
    scene.world.network.refuse(host, peer=peer)
    return _restoring(scene, host, peer)


async def _partition(scene: _Scene) -> Mend:
    host, peer = scene.route()
    scene.world.network.hang(host, peer=peer)
    return _restoring(scene, host, peer, cuts=scene.random.random() < 0.5)


async def _lost_answers(scene: _Scene) -> Mend:
    host, peer = scene.route()
    scene.world.network.hang(host, peer=peer, direction=Direction.FROM)
    return _restoring(scene, host, peer, cuts=scene.random.random() < 0.7)


async def _lost_requests(scene: _Scene) -> Mend:
    host, peer = scene.route()
    scene.world.network.hang(host, peer=peer, direction=Direction.TO)
    return _restoring(scene, host, peer, cuts=scene.random.random() < 0.5)


async def _cut(scene: _Scene) -> Mend | None:
    host, peer = scene.route()
    scene.world.network.cut(host, peer=peer)
    return None


async def _cut_after(scene: _Scene) -> Mend:
    host, peer = scene.route()
    size = round(10 ** scene.random.uniform(0, 5))
    direction = scene.random.choice((Direction.TO, Direction.FROM))
    scene.world.network.cut_after(host, size, peer=peer, direction=direction)
    return _restoring(scene, host, peer)


async def _slow(scene: _Scene) -> Mend:
    host, peer = scene.route()
    scene.world.network.slow(host, scene.random.uniform(0.05, SLOWEST_S), peer=peer)
    return _restoring(scene, host, peer)


# --- processes and machines -------------------------------------------------------------------------------------------


async def _namespace_killed(scene: _Scene) -> Mend:
    namespace = scene.namespace("process")
    namespace.kill()
    return lambda: _start(namespace)


async def _start(namespace: InMemoryNamespace) -> None:
    """Start it; again, as long as its disks do not let it."""
    while not namespace.is_running:
        try:
            await namespace.start()
        except (ServiceBusError, StoreFailed, StartError):
            await asyncio.sleep(MEND_PAUSE_S)


async def _namespace_restarted(scene: _Scene) -> Mend:
    namespace = scene.namespace("process")
    await namespace.stop()
    return lambda: _start(namespace)


async def _namespace_frozen(scene: _Scene) -> Mend:
    namespace = scene.namespace("process")
    scene.world.loop.freeze(namespace.host)

    async def mend() -> None:
        scene.world.loop.thaw(namespace.host)

    return mend


async def _program_killed(scene: _Scene) -> Mend:
    program = scene.program("process")
    program.crash(is_power_cut=scene.random.random() < 0.5)

    async def mend() -> None:
        program.start()

    return mend


async def _program_restarted(scene: _Scene) -> Mend:
    program = scene.program("process")
    await program.stop()

    async def mend() -> None:
        program.start()

    return mend


async def _program_frozen(scene: _Scene) -> Mend:
    program = scene.program("process")
    program.freeze()

    async def mend() -> None:
        program.thaw()

    return mend


async def _clock_set(scene: _Scene) -> Mend:
    owners: list[InMemoryNamespace | Program] = [*scene.world.namespaces, *scene.world.programs]
    owner = scene.random.choice(owners)
    scene.claim(f"{owner.name}/clock")
    by_ms = round(scene.random.choice((-1, 1)) * 1000 * 10 ** scene.random.uniform(0, 3.85))
    scene.world.note_clock()
    owner.clock.set_wall_ms(owner.clock.wall_ms() + by_ms)

    async def mend() -> None:
        scene.world.note_clock()
        owner.clock.set_wall_ms(owner.clock.wall_ms() - by_ms)

    return mend


# --- what administrators do -------------------------------------------------------------------------------------------


async def _key_revoked(scene: _Scene) -> Mend:
    namespace = scene.namespace("key")
    namespace.outage.revoke_key()

    async def mend() -> None:
        namespace.outage.give_key_back()

    return mend


async def _admin(world: World, work: Callable[[], Awaitable[object]]) -> None:
    """Do what an administrator does: again, until it has worked."""
    while True:
        while not world.primary.is_running:
            await asyncio.sleep(MEND_PAUSE_S)
        try:
            async with asyncio.timeout(ADMIN_LIMIT_S):
                await work()
        except (ServiceBusError, TimeoutError, RuntimeError):
            await asyncio.sleep(MEND_PAUSE_S)
        else:
            return


async def _set_status(world: World, plan: EntityPlan, status: str) -> None:
    await _admin(world, lambda: world.primary.set_status(plan.path, status))


async def _entity_disabled(scene: _Scene) -> Mend:
    plan = scene.entity()
    await _set_status(scene.world, plan, scene.random.choice(("Disabled", "SendDisabled")))
    return lambda: _set_status(scene.world, plan, "Active")


async def _entity_deleted(scene: _Scene) -> Mend:
    """Delete an entity once nothing is sent to it any more: what had arrived by then has been looked at."""
    plan, world = scene.entity(), scene.world
    await _set_status(world, plan, "SendDisabled")
    await asyncio.sleep(1.0)

    async def delete() -> None:
        try:
            await world.collect(plan)
            world.doom_scheduled(plan)
            await world.primary.entities.delete(plan.path)
        except EntityNotFound:
            return

    await _admin(world, delete)
    world.incarnations[plan.path] += 1
    return lambda: _admin(world, lambda: world.create(plan))


async def _entity_full(scene: _Scene) -> Mend:
    plan = scene.entity()
    scene.world.primary.outage.full(plan.path)

    async def mend() -> None:
        scene.world.primary.outage.no_longer(plan.path)

    return mend


async def _entity_busy(scene: _Scene) -> Mend:
    plan = scene.entity()
    scene.world.primary.outage.busy(plan.path)

    async def mend() -> None:
        scene.world.primary.outage.no_longer(plan.path)

    return mend


async def _backlog_disabled(scene: _Scene) -> Mend:
    world = scene.world
    path = scene.random.choice(world.backlog_paths)
    scene.claim(f"{world.secondary.name}/entity/{path}")
    status = scene.random.choice(("Disabled", "SendDisabled", "ReceiveDisabled"))
    if not world.secondary.is_running:
        raise Taken(path)
    try:
        await world.secondary.set_status(path, status)
    except ServiceBusError:
        raise Taken(path) from None

    async def mend() -> None:
        while True:
            try:
                await world.secondary.set_status(path, "Active")
            except (ServiceBusError, RuntimeError):
                await asyncio.sleep(MEND_PAUSE_S)
            else:
                return

    return mend


# --- disks ------------------------------------------------------------------------------------------------------------


def _mending_disks(namespace: InMemoryNamespace) -> Mend:
    async def mend() -> None:
        namespace.outage.restore_disks()

    return mend


async def _disk_full(scene: _Scene) -> Mend:
    namespace = scene.namespace("disk")
    namespace.outage.fill_disk()
    return _mending_disks(namespace)


async def _store_failed(scene: _Scene) -> Mend:
    namespace = scene.namespace("disk")
    namespace.outage.fail_store(scene.random.randrange(scene.world.settings.stores))
    return _mending_disks(namespace)


async def _store_hanging(scene: _Scene) -> Mend:
    namespace = scene.namespace("disk")
    namespace.outage.hang_store(scene.random.randrange(scene.world.settings.stores))
    return _mending_disks(namespace)


class Kind(NamedTuple):
    """One kind of outage."""

    weight: float
    make: Callable[[_Scene], Awaitable[Mend | None]]


KINDS: Final[dict[str, Kind]] = {
    "connections refused": Kind(1.0, _refused),
    "partition": Kind(1.5, _partition),
    "answers lost": Kind(2.0, _lost_answers),
    "requests lost": Kind(1.0, _lost_requests),
    "connections cut": Kind(1.0, _cut),
    "cut after some bytes": Kind(1.5, _cut_after),
    "slow network": Kind(0.5, _slow),
    "namespace killed": Kind(1.0, _namespace_killed),
    "namespace restarted": Kind(0.5, _namespace_restarted),
    "namespace frozen": Kind(0.7, _namespace_frozen),
    "program killed": Kind(1.5, _program_killed),
    "program restarted": Kind(0.8, _program_restarted),
    "program frozen": Kind(1.0, _program_frozen),
    "clock set": Kind(1.0, _clock_set),
    "key revoked": Kind(1.0, _key_revoked),
    "entity disabled": Kind(1.0, _entity_disabled),
    "entity deleted": Kind(0.8, _entity_deleted),
    "entity full": Kind(0.6, _entity_full),
    "entity busy": Kind(0.6, _entity_busy),
    "backlog queue disabled": Kind(0.5, _backlog_disabled),
    "disk full": Kind(0.6, _disk_full),
    "store failed": Kind(0.8, _store_failed),
    "store hanging": Kind(0.8, _store_hanging),
}
