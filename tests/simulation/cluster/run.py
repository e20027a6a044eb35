"""A run of the cluster simulation, determined by its seed."""

from __future__ import annotations

from random import Random

from tests.simulation.broker.settings import Settings
from tests.simulation.cluster.actions import ALWAYS, SINGLE_PROCESS_WEIGHTS, WEIGHTS, Actions
from tests.simulation.cluster.final_checks import finish
from tests.simulation.cluster.simulation import ClusterSimulation
from tests.simulation.patched_constants import patched_constants


def run(seed: int, *, processes: int | None = None, is_tracing: bool = False) -> int:
    """Perform random actions, check that no message is lost, and return the number of steps.

    Raises Violation, or any exception of the broker.
    """
    random = Random(seed)
    settings = Settings(random)
    weights = {
        name: 0.0 if name not in ALWAYS and random.random() < 0.3 else weight
        for name, weight in (SINGLE_PROCESS_WEIGHTS if processes == 1 else WEIGHTS).items()
    }
    with patched_constants(settings.constants):
        simulation = ClusterSimulation(random, settings, processes=processes, is_tracing=is_tracing)
        actions = Actions(simulation)
        for name in random.choices(list(weights), list(weights.values()), k=settings.steps):
            actions.do(name)
        simulation.trace("the end: everything works again, and everything is received")
        finish(simulation)
    return settings.steps


def run_single_process(seed: int, *, is_tracing: bool = False) -> int:
    """Run with one process, which owns all fragments of a partitioned queue."""
    return run(seed, processes=1, is_tracing=is_tracing)
