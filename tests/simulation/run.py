"""One run: everything in it follows from its seed."""

from __future__ import annotations

from random import Random

from tests.ledger.problems import Violation
from tests.seeded.limits import in_force
from tests.simulation.actions import Actions
from tests.simulation.consumer import SimulatedConsumer
from tests.simulation.settings import Settings
from tests.simulation.shelf import Kind
from tests.simulation.world import World

MAX_ROUNDS = 400


def run(seed: int, *, is_tracing: bool = False) -> int:
    """Do random things, then see that nothing is lost. Raises Violation, or whatever the broker raised. The steps."""
    random = Random(seed)
    settings = Settings(random)
    with in_force(settings.constants):
        world = World(random, settings, is_tracing=is_tracing)
        world.start()
        actions = Actions(world)
        actions.create()
        names = list(settings.weights)
        for name in random.choices(names, list(settings.weights.values()), k=settings.steps):
            actions.do(name)
        if is_tracing:
            world.say("the end: everything works again, and everything is received")
        heal(world)
        let_locks_expire(world)
        receive_all(world)
    return settings.steps


def heal(world: World) -> None:
    """All stores work again, and all who wait are answered."""
    for _ in range(MAX_ROUNDS):
        for number, store in enumerate(world.stores):
            if store.is_hanging:
                store.resume()
            if world.closed[number]:
                world.reopen(number)
        world.work_all()
        if all(world.is_working(number) for number in range(len(world.stores))):
            world.settle_down()
            return
    raise Violation("a store does not work again")


def let_locks_expire(world: World) -> None:
    shelves = [shelf for entity in world.catalogue.values() for shelf in entity.shelves]
    for shelf in shelves:
        for consumer in list(shelf.consumers):
            consumer.leave()
            shelf.fragment.line.remove(consumer)
    heal(world)
    world.pass_time(61.0)
    for _ in range(MAX_ROUNDS):
        heal(world)
        if not any(True for shelf in shelves for _ in world.locks(shelf)):
            return
        world.pass_time(0.02)
    raise Violation("a lock does not expire")


def receive_all(world: World) -> None:
    """Everything that a disk holds is received once and completed, and then nothing is left."""
    for entity in list(world.catalogue.values()):
        for shelf in entity.shelves:
            consumer = SimulatedConsumer(world, shelf, 0, deletes=False)
            consumer.grant(1_000_000)
            for _ in range(MAX_ROUNDS):
                heal(world)
                locks = list(world.locks(shelf))
                if not locks:
                    break
                settlement = world.ledger.settle(Kind.COMPLETE, shelf, locks)
                shelf.fragment.settlement.complete(
                    shelf.fragment.lock_numbers([lock.tag for lock in locks]),
                    lambda error, settlement=settlement: world.ledger.settled(settlement, error),  # type: ignore[misc]
                )
            if shelf.synced or shelf.fragment.count or shelf.fragment.size:
                raise Violation(f"{shelf}: there is still {shelf.synced}")
    heal(world)
