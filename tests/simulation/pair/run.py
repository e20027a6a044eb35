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

from tests.simulation.pair import final_checks
from tests.simulation.pair.determinism import deterministic
from tests.simulation.pair.faults import FaultScheduler
from tests.simulation.pair.found_messages import find_dead_letters, find_parked, find_refused
from tests.simulation.pair.settings import Settings
from tests.simulation.pair.simulation import LogListener, PairSimulation
from tests.simulation.pair.spool_disk import SimulatedLoop, memory_folder
from tests.support.withholding import without_withholding
from twinbus.client import MessagingFactory
from twinbus.model.errors import ServiceBusError
from twinbus.model.queue import QueueRuntime
from twinbus.testing.loop import START_S

if TYPE_CHECKING:
    from collections.abc import Callable

DRAIN_LIMIT_S: Final = 300.0
"""How long after the last outage everything parked or spooled may take to arrive."""
POLL_INTERVAL_S: Final = 2.0
START_LIMIT_S: Final = 60.0
REAL_LIMIT_S: Final = 120.0
AFTER_FAULTS_S: Final = 3.0
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
            deterministic(Random(f"{seed} ids")),  # of a simulation
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
    world = PairSimulation(seed, settings, root)
    outages = FaultScheduler(world, Random(f"{seed} outages"))
    listener = LogListener(world, logging.getLogger("twinbus").level)
    logging.getLogger("twinbus").addHandler(listener)
    try:
        await world.start()
        await _run_faults(world, outages)
        await _stop_traffic(world)
        await _wait_until_drained(world)
        await _close(world)
        gc.collect()  # a task that nobody waits for tells of its death only now
        final_checks.check_all(world)
    finally:
        world.is_ending = True
        logging.getLogger("twinbus").removeHandler(listener)
        result.outages, result.problems, result.log = outages.count, world.problems, world.log
        result.faults, result.paths = world.faults, world.checker.path_counts
        result.virtual_s = world.loop.time() - START_S
        await _end(world)


async def _end(simulation: PairSimulation) -> None:
    for namespace in simulation.namespaces:
        simulation.loop.thaw(namespace.host)
        namespace.outage.restore()
        await namespace.stop()
    simulation.release_killed_processes()


async def _run_faults(simulation: PairSimulation, outages: FaultScheduler) -> None:
    """Make outages while the program sends."""
    random, settings = simulation.random, simulation.settings
    async with asyncio.timeout(START_LIMIT_S):
        while not simulation.app.is_paired:
            await asyncio.sleep(0.1)
    for _ in range(settings.outages):
        await asyncio.sleep(random.expovariate(1 / settings.mean_gap_s))
        while outages.active >= settings.most_at_once:
            await asyncio.sleep(0.5)
        await outages.begin()
    await outages.wait()
    simulation.trace("the last outage is over")


async def _stop_traffic(simulation: PairSimulation) -> None:
    """All is well now: send a little more, and let all sends end."""
    for program in simulation.programs:
        if not program.is_running:
            program.start()
    await asyncio.sleep(AFTER_FAULTS_S)
    simulation.traffic.stop()
    settings = simulation.settings
    patience_s = 2 * settings.operation_timeout_s + settings.failover_interval_s + 10.0
    deadline_s = simulation.loop.time() + patience_s
    while simulation.checker.pending_calls and simulation.loop.time() < deadline_s:
        await asyncio.sleep(0.5)


async def _wait_until_drained(simulation: PairSimulation) -> None:
    """Wait until everything is at its destination."""
    began_s = simulation.loop.time()
    while left := await _remaining_messages(simulation):
        if simulation.loop.time() - began_s > DRAIN_LIMIT_S:
            simulation.add_problem("STUCK", f"{DRAIN_LIMIT_S:g} s after the last outage there is still {left}")
            break
        await asyncio.sleep(POLL_INTERVAL_S)
    simulation.trace("drained")
    await asyncio.sleep(_until_settled_s(simulation))


def _until_settled_s(simulation: PairSimulation) -> float:
    """Until a store that failed is open again, and all scheduled messages are due."""
    now_ms = simulation.primary.clock.wall_ms()
    due_ms = max(
        (letter.due_ms for letter in simulation.checker.messages_sent.values() if letter.due_ms is not None), default=0
    )
    return min(SETTLE_MOST_S, max(SETTLE_LEAST_S, (due_ms - now_ms) / 1000 + 5.0))


async def _remaining_messages(simulation: PairSimulation) -> str:
    """What is not at its destination yet; nothing: ''."""
    found = []
    if not all(program.is_paired for program in simulation.programs):
        found.append("a program that has not paired")
    if any(
        journal.unavailable_reason is not None
        for namespace in simulation.namespaces
        for journal in namespace.broker.stores
    ):
        found.append("a store that is not open again")
    for path in simulation.backlog_paths:
        try:
            counts = simulation.secondary.counts(path)
        except ServiceBusError:
            continue  # nobody could make it yet
        assert isinstance(counts, QueueRuntime)
        parked = counts.active_count + counts.deferred_count + counts.scheduled_count
        if parked:
            found.append(f"{parked} in {path}")
    pairing = simulation.app.pairing
    if pairing is not None and pairing.spool is not None and not pairing.spool.is_empty:
        found.append(f"{pairing.spool.status.count} in the spool")
    return ", ".join(found)


async def _close(simulation: PairSimulation) -> None:
    """End all programs, and write down where all messages are."""
    for program in simulation.programs:
        pairing = program.pairing
        if pairing is not None and pairing.syphon is not None:
            for pump in pairing.syphon.pumps:
                if pump.has_ended:
                    simulation.add_problem(
                        "DIED", f"the pump of {pump.path} on {program.host} has ended: {pump.inactive_reason!r}"
                    )
    for program in simulation.programs:
        await program.stop()
    simulation.remember_secondary_clock()
    for plan in simulation.settings.entities:
        await simulation.collect_arrivals(plan)
    simulation.checker.found_copies["backlog"] = await find_dead_letters(simulation)
    simulation.checker.found_copies["parked"] = await find_parked(simulation)
    if simulation.app.disk is not None:
        simulation.checker.found_copies["spool"] = find_refused(simulation.app.disk.folder)
    await _receive_some(simulation)


async def _receive_some(simulation: PairSimulation) -> None:
    """Receive from an entity as an application does: what was found by peeking is what it gets."""
    plan = simulation.settings.entities[0]
    if plan.requires_session:
        return
    there = await simulation.primary.messages(plan.receive_path)
    received: list[int] = []
    async with MessagingFactory.from_connection_string(
        simulation.primary.connection_string, clock=simulation.primary.clock
    ) as factory:
        receiver = factory.create_message_receiver(plan.receive_path)
        while batch := await receiver.receive_batch(200, timeout=5):
            received += [message.sequence_number for message in batch]
            await asyncio.gather(*[receiver.complete(message) for message in batch])
    # Others may expire meanwhile, or are scheduled by a clock that was set to a later time.
    lasting = {one.sequence_number for one in there if one.time_to_live is None and one.state == "active"}
    if not lasting.issubset(received) or len(received) > len(there):
        simulation.add_problem(
            "LOST", f"'{plan.receive_path}' holds {len(there)} messages, and {len(received)} were received"
        )
