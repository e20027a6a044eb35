"""One run: everything in it follows from its seed.

    result = run(7)
    result.problems

The storm: outages, one after the other or several at once, while the program sends. Then all is mended, the program
sends a little more, and what is parked or spooled has DRAIN_LIMIT_S to be brought to the primary. Then everything is
closed, and `checks` has a look at what is where.
"""
# ruff: noqa: ASYNC110  # time is virtual: to look again costs nothing

from __future__ import annotations

import asyncio
import contextlib
import gc
import hashlib
import logging
import tempfile
import traceback
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Final

from tests.pair_simulation import checks
from tests.pair_simulation.findings import dead_letters, left_behind, refused
from tests.pair_simulation.outages import Outages
from tests.pair_simulation.repeatable import repeatable
from tests.pair_simulation.settings import Settings
from tests.pair_simulation.spool_disk import SimulatedLoop, memory_folder
from tests.pair_simulation.world import Listener, World
from tests.withholding import without_withholding
from twinbus.client import MessagingFactory
from twinbus.model.errors import ServiceBusError
from twinbus.model.queue import QueueRuntime
from twinbus.testing.loop import START_S

if TYPE_CHECKING:
    from collections.abc import Callable

DRAIN_LIMIT_S: Final = 300.0
"""How long after the last outage everything parked or spooled may take to arrive."""
LOOK_S: Final = 2.0
START_LIMIT_S: Final = 60.0
REAL_LIMIT_S: Final = 120.0
AFTER_S: Final = 3.0
"""How long is sent after the last outage."""
SETTLE_LEAST_S: Final = 1.0
SETTLE_MOST_S: Final = 70.0
"""Messages are scheduled for a minute ahead at most."""


@dataclass
class Result:
    """What a run found."""

    seed: int
    outages: int = 0
    problems: list[tuple[str, str]] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    paths: Counter[str] = field(default_factory=Counter)
    virtual_s: float = 0.0
    log: list[str] = field(default_factory=list)
    digest: str = ""


def run(seed: int, *, is_tracing: bool = False, change: Callable[[Settings], None] | None = None) -> Result:
    """Do what follows from a seed. Whatever is raised is a problem, too.

    `is_tracing`: warnings are in the log. `change` may choose other settings than the seed does.
    """
    result = Result(seed)
    logger = logging.getLogger("twinbus")
    before = logger.level
    logger.setLevel(logging.WARNING if is_tracing else logging.ERROR)  # an outage is no news, and formatting it costs
    was_collecting = gc.isenabled()
    gc.disable()  # what is collected tells of its death: always at the same moment
    gc.freeze()  # and only what belongs to the run is looked at
    try:
        with (
            repeatable(Random(f"{seed} ids")),  # of a simulation
            tempfile.TemporaryDirectory(prefix="twinbus-", dir=memory_folder()) as root,
            asyncio.Runner(loop_factory=SimulatedLoop) as runner,
        ):
            loop = runner.get_loop()
            assert isinstance(loop, SimulatedLoop)
            loop.limit(REAL_LIMIT_S)
            settings = Settings(Random(f"{seed} settings"))
            if change is not None:
                change(settings)
            with contextlib.nullcontext() if settings.withholds else without_withholding():
                runner.run(_run(seed, settings, Path(root), result))
    except Exception as error:  # noqa: BLE001
        result.problems.append(("FAILED", f"{error!r}\n{traceback.format_exc()}"))
    finally:
        logger.setLevel(before)
        gc.unfreeze()
        if was_collecting:
            gc.enable()
    result.digest = hashlib.sha256("\n".join(result.log).encode()).hexdigest()[:16]
    return result


async def _run(seed: int, settings: Settings, root: Path, result: Result) -> None:
    world = World(seed, settings, root)
    outages = Outages(world, Random(f"{seed} outages"))
    listener = Listener(world, logging.getLogger("twinbus").level)
    logging.getLogger("twinbus").addHandler(listener)
    try:
        await world.start()
        await _storm(world, outages)
        await _end_traffic(world)
        await _drain(world)
        await _close(world)
        gc.collect()  # a task that nobody waits for tells of its death only now
        checks.check(world)
    finally:
        world.is_ending = True
        logging.getLogger("twinbus").removeHandler(listener)
        result.outages, result.problems, result.log = outages.count, world.problems, world.log
        result.faults, result.paths = world.faults, world.ledger.paths
        result.virtual_s = world.loop.time() - START_S
        await _end(world)


async def _end(world: World) -> None:
    for namespace in world.namespaces:
        world.loop.thaw(namespace.host)
        namespace.outage.restore()
        await namespace.stop()
    world.bury()


async def _storm(world: World, outages: Outages) -> None:
    """Make outages while the program sends."""
    random, settings = world.random, world.settings
    async with asyncio.timeout(START_LIMIT_S):
        while not world.app.is_paired:
            await asyncio.sleep(0.1)
    for _ in range(settings.outages):
        await asyncio.sleep(random.expovariate(1 / settings.mean_gap_s))
        while outages.active >= settings.most_at_once:
            await asyncio.sleep(0.5)
        await outages.begin()
    await outages.wait()
    world.say("the last outage is over")


async def _end_traffic(world: World) -> None:
    """All is well now: send a little more, and let all sends end."""
    for program in world.programs:
        if not program.is_running:
            program.start()
    await asyncio.sleep(AFTER_S)
    world.traffic.stop()
    settings = world.settings
    patience_s = 2 * settings.operation_timeout_s + settings.failover_interval_s + 10.0
    deadline_s = world.loop.time() + patience_s
    while world.ledger.pending and world.loop.time() < deadline_s:
        await asyncio.sleep(0.5)


async def _drain(world: World) -> None:
    """Wait until everything is at its destination."""
    began_s = world.loop.time()
    while left := await _left(world):
        if world.loop.time() - began_s > DRAIN_LIMIT_S:
            world.problem("STUCK", f"{DRAIN_LIMIT_S:g} s after the last outage there is still {left}")
            break
        await asyncio.sleep(LOOK_S)
    world.say("drained")
    await asyncio.sleep(_until_settled_s(world))


def _until_settled_s(world: World) -> float:
    """Until a store that failed is open again, and all scheduled messages are due."""
    now_ms = world.primary.clock.wall_ms()
    due_ms = max((letter.due_ms for letter in world.ledger.letters.values() if letter.due_ms is not None), default=0)
    return min(SETTLE_MOST_S, max(SETTLE_LEAST_S, (due_ms - now_ms) / 1000 + 5.0))


async def _left(world: World) -> str:
    """What is not at its destination yet; nothing: ''."""
    found = []
    if not all(program.is_paired for program in world.programs):
        found.append("a program that has not paired")
    if any(journal.trouble is not None for namespace in world.namespaces for journal in namespace.broker.journals):
        found.append("a store that is not open again")
    for path in world.backlog_paths:
        try:
            counts = world.secondary.counts(path)
        except ServiceBusError:
            continue  # nobody could make it yet
        assert isinstance(counts, QueueRuntime)
        parked = counts.active_count + counts.deferred_count + counts.scheduled_count
        if parked:
            found.append(f"{parked} in {path}")
    pairing = world.app.pairing
    if pairing is not None and pairing.spool is not None and not pairing.spool.is_empty:
        found.append(f"{pairing.spool.status.count} in the spool")
    return ", ".join(found)


async def _close(world: World) -> None:
    """End all programs, and write down where all messages are."""
    for program in world.programs:
        pairing = program.pairing
        if pairing is not None and pairing.syphon is not None:
            for pump in pairing.syphon.pumps:
                if pump.has_ended:
                    world.problem("DIED", f"the pump of {pump.path} on {program.host} has ended: {pump.why_not!r}")
    for program in world.programs:
        await program.stop()
    world.note_clock()
    for plan in world.settings.entities:
        await world.collect(plan)
    world.ledger.places["backlog"] = await dead_letters(world)
    world.ledger.places["parked"] = await left_behind(world)
    if world.app.disk is not None:
        world.ledger.places["spool"] = refused(world.app.disk.folder)
    await _receive_some(world)


async def _receive_some(world: World) -> None:
    """Receive from an entity as an application does: what was found by peeking is what it gets."""
    plan = world.settings.entities[0]
    if plan.requires_session:
        return
    there = await world.primary.messages(plan.source)
    received: list[int] = []
    async with MessagingFactory.from_connection_string(
        world.primary.connection_string, clock=world.primary.clock
    ) as factory:
        receiver = factory.create_message_receiver(plan.source)
        while batch := await receiver.receive_batch(200, timeout=5):
            received += [message.sequence_number for message in batch]
            await asyncio.gather(*[receiver.complete(message) for message in batch])
    # Others may expire meanwhile, or are scheduled by a clock that was set to a later time.
    lasting = {one.sequence_number for one in there if one.time_to_live is None and one.state == "active"}
    if not lasting.issubset(received) or len(received) > len(there):
        world.problem("LOST", f"'{plan.source}' holds {len(there)} messages, and {len(received)} were received")
