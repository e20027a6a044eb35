"""One run: everything in it follows from its seed."""

from __future__ import annotations

from random import Random

from tests.seeded.limits import in_force
from tests.simulation.processes.actions import ALWAYS, WEIGHTS, Actions
from tests.simulation.processes.ending import finish
from tests.simulation.processes.world import World
from tests.simulation.settings import Settings


def run(seed: int, *, is_tracing: bool = False) -> int:
    """Do random things, then see that nothing is lost. Raises Violation, or whatever the broker raised. The steps."""
    random = Random(seed)
    settings = Settings(random)
    weights = {
        name: 0.0 if name not in ALWAYS and random.random() < 0.3 else weight for name, weight in WEIGHTS.items()
    }
    with in_force(settings.constants):
        world = World(random, settings, is_tracing=is_tracing)
        actions = Actions(world)
        for name in random.choices(list(weights), list(weights.values()), k=settings.steps):
            actions.do(name)
        world.say("the end: everything works again, and everything is received")
        finish(world)
    return settings.steps
