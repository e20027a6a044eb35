"""A run of the pair simulation, determined by its seed.

    result = run(7)
    result.problems

First there are outages, one after the other or several at once, while the program sends. Then all outages end, the
program sends a little more, and parked and spooled messages must reach the primary within DRAIN_LIMIT_S. Finally
everything is closed, and `final_checks` checks where all messages are.
"""
# ruff: noqa: ASYNC110  # time is virtual: polling costs nothing

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
"""Time after the last outage within which all parked and spooled messages must arrive."""
POLL_INTERVAL_S: Final = 2.0
START_LIMIT_S: Final = 60.0
REAL_LIMIT_S: Final = 120.0
AFTER_FAULTS_S: Final = 3.0
"""Duration of the traffic after the last outage."""
SETTLE_LEAST_S: Final = 1.0
SETTLE_MOST_S: Final = 70.0
"""Messages are scheduled at most a minute ahead."""


@dataclass
class Result:
    """Result of a run."""

    seed: int
    outages: int = 0
    problems: list[tuple[str, str]] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    paths: Counter[str] = field(default_factory=Counter)
    virtual_s: float = 0.0
    log: list[str] = field(default_factory=list)
    digest: str = ""


def run(seed: int, *, is_tracing: bool = False, change: Callable[[Settings], None] | None = None) -> Result:
    """Run a seed, and return its result. An exception is reported as a problem.

    With `is_tracing`, the log contains warnings. `change` may modify the settings of the seed.
    """
    result = Result(seed)
    logger = logging.getLogger("twinbus")
    previous_level = logger.level
    logger.setLevel(
        logging.WARNING if is_tracing else logging.ERROR
    )  # logs of outages are expected, and formatting them is slow
    was_collecting = gc.isenabled()
    gc.disable()  # collection may log; it must happen at the same moment in every run
    gc.freeze()  # and only look at objects of this run
    try:
        with (
            deterministic(Random(f"{seed} ids")),  # randomness of a simulation
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
        logger.setLevel(previous_level)
        gc.unfreeze()
        if was_collecting:
            gc.enable()
    result.digest = hashlib.sha256("\n".join(result.log).encode()).hexdigest()[:16]
    return result


async def _run(seed: int, settings: Settings, root: Path, result: Result) -> None:
    simulation = PairSimulation(seed, settings, root)
    outages = FaultScheduler(simulation, Random(f"{seed} outages"))
    listener = LogListener(simulation, logging.getLogger("twinbus").level)
    logging.getLogger("twinbus").addHandler(listener)
    try:
        await simulation.start()
        await _run_faults(simulation, outages)
        await _stop_traffic(simulation)
        await _wait_until_drained(simulation)
        await _close(simulation)
        gc.collect()  # failed tasks without a waiter are reported now
        final_checks.check_all(simulation)
    finally:
        simulation.is_ending = True
        logging.getLogger("twinbus").removeHandler(listener)
        result.outages, result.problems, result.log = outages.count, simulation.problems, simulation.log
        result.faults, result.paths = simulation.faults, simulation.checker.path_counts
        result.virtual_s = simulation.loop.time() - START_S
        await _end(simulation)


async def _end(simulation: PairSimulation) -> None:
    for namespace in simulation.namespaces:
        simulation.loop.thaw(namespace.host)
        namespace.outage.restore()
        await namespace.stop()
    simulation.release_killed_processes()


async def _run_faults(simulation: PairSimulation, outages: FaultScheduler) -> None:
    """Inject outages while the program sends."""
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
    """Send a little more after all outages, and wait until all sends have ended."""
    for program in simulation.programs:
        if not program.is_running:
            program.start()
    await asyncio.sleep(AFTER_FAULTS_S)
    simulation.traffic.stop()
    settings = simulation.settings
    timeout_s = 2 * settings.operation_timeout_s + settings.failover_interval_s + 10.0
    deadline_s = simulation.loop.time() + timeout_s
    while simulation.checker.pending_calls and simulation.loop.time() < deadline_s:
        await asyncio.sleep(0.5)


async def _wait_until_drained(simulation: PairSimulation) -> None:
    """Wait until all messages are at their destinations."""
    began_s = simulation.loop.time()
    while remaining := await _remaining_messages(simulation):
        if simulation.loop.time() - began_s > DRAIN_LIMIT_S:
            simulation.add_problem("STUCK", f"{DRAIN_LIMIT_S:g} s after the last outage there is still {remaining}")
            break
        await asyncio.sleep(POLL_INTERVAL_S)
    simulation.trace("drained")
    await asyncio.sleep(_until_settled_s(simulation))


def _until_settled_s(simulation: PairSimulation) -> float:
    """Return the time until failed stores are open again and all scheduled messages are due."""
    now_ms = simulation.primary.clock.wall_ms()
    due_ms = max(
        (message.due_ms for message in simulation.checker.messages_sent.values() if message.due_ms is not None),
        default=0,
    )
    return min(SETTLE_MOST_S, max(SETTLE_LEAST_S, (due_ms - now_ms) / 1000 + 5.0))


async def _remaining_messages(simulation: PairSimulation) -> str:
    """Describe what is not at its destination yet; an empty string if nothing is left."""
    remaining = []
    if not all(program.is_paired for program in simulation.programs):
        remaining.append("a program that has not paired")
    if any(
        commit_log.unavailable_reason is not None
        for namespace in simulation.namespaces
        for commit_log in namespace.broker.stores
    ):
        remaining.append("a store that is not open again")
    for path in simulation.backlog_paths:
        try:
            counts = simulation.secondary.counts(path)
        except ServiceBusError:
            continue  # the backlog queue was never created
        assert isinstance(counts, QueueRuntime)
        parked = counts.active_count + counts.deferred_count + counts.scheduled_count
        if parked:
            remaining.append(f"{parked} in {path}")
    pairing = simulation.app.pairing
    if pairing is not None and pairing.spool is not None and not pairing.spool.is_empty:
        remaining.append(f"{pairing.spool.status.count} in the spool")
    return ", ".join(remaining)


async def _close(simulation: PairSimulation) -> None:
    """Stop all programs, and record where all messages are."""
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
    """Receive from an entity as an application does, and compare the messages with those found by peeking."""
    plan = simulation.settings.entities[0]
    if plan.requires_session:
        return
    existing = await simulation.primary.messages(plan.receive_path)
    received: list[int] = []
    async with MessagingFactory.from_connection_string(
        simulation.primary.connection_string, clock=simulation.primary.clock
    ) as factory:
        receiver = factory.create_message_receiver(plan.receive_path)
        while batch := await receiver.receive_batch(200, timeout=5):
            received += [message.sequence_number for message in batch]
            await asyncio.gather(*[receiver.complete(message) for message in batch])
    # Other messages may expire meanwhile, or are scheduled by a clock that was ahead.
    expected = {found.sequence_number for found in existing if found.time_to_live is None and found.state == "active"}
    if not expected.issubset(received) or len(received) > len(existing):
        simulation.add_problem(
            "LOST", f"'{plan.receive_path}' holds {len(existing)} messages, and {len(received)} were received"
        )
