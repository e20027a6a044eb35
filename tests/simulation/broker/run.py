"""One run: everything in it follows from its seed."""

from __future__ import annotations

from random import Random

from tests.simulation.broker.actions import Actions
from tests.simulation.broker.consumer import SimulatedConsumer
from tests.simulation.broker.expected_state import SettlementKind
from tests.simulation.broker.settings import Settings
from tests.simulation.broker.simulation import BrokerSimulation
from tests.simulation.patched_constants import patched_constants
from tests.support.delivery_checker.problems import Violation

MAX_ROUNDS = 400


def run(seed: int, *, is_tracing: bool = False) -> int:
    """Do random things, then see that nothing is lost. Raises Violation, or whatever the broker raised. The steps."""
    random = Random(seed)
    settings = Settings(random)
    with patched_constants(settings.constants):
        world = BrokerSimulation(random, settings, is_tracing=is_tracing)
        world.start()
        actions = Actions(world)
        actions.create()
        names = list(settings.weights)
        for name in random.choices(names, list(settings.weights.values()), k=settings.steps):
            actions.do(name)
        if is_tracing:
            world.trace("the end: everything works again, and everything is received")
        recover_all(world)
        let_locks_expire(world)
        drain_all(world)
    return settings.steps


def recover_all(simulation: BrokerSimulation) -> None:
    """All stores work again, and all who wait are answered."""
    for _ in range(MAX_ROUNDS):
        for number, store in enumerate(simulation.stores):
            if store.is_hanging:
                store.resume()
            if simulation.closed[number]:
                simulation.reopen(number)
        simulation.run_until_idle()
        if all(simulation.is_working(number) for number in range(len(simulation.stores))):
            simulation.check_when_idle()
            return
    raise Violation("a store does not work again")


def let_locks_expire(simulation: BrokerSimulation) -> None:
    shelves = [shelf for entity in simulation.catalogue.values() for shelf in entity.area_states]
    for shelf in shelves:
        for consumer in list(shelf.consumers):
            consumer.leave()
            shelf.fragment.dispatcher.remove(consumer)
    recover_all(simulation)
    simulation.pass_time(61.0)
    for _ in range(MAX_ROUNDS):
        recover_all(simulation)
        if not any(True for shelf in shelves for _ in simulation.locks(shelf)):
            return
        simulation.pass_time(0.02)
    raise Violation("a lock does not expire")


def drain_all(simulation: BrokerSimulation) -> None:
    """Everything that a disk holds is received once and completed, and then nothing is left."""
    for entity in list(simulation.catalogue.values()):
        for shelf in entity.area_states:
            consumer = SimulatedConsumer(simulation, shelf, 0, deletes=False)
            consumer.grant(1_000_000)
            for _ in range(MAX_ROUNDS):
                recover_all(simulation)
                locks = list(simulation.locks(shelf))
                if not locks:
                    break
                settlement = simulation.checker.settlement_started(SettlementKind.COMPLETE, shelf, locks)
                shelf.fragment.settlement.complete(
                    shelf.fragment.lock_numbers([lock.tag for lock in locks]),
                    lambda error, settlement=settlement: simulation.checker.settlement_answered(settlement, error),  # type: ignore[misc]
                )
            if shelf.synced or shelf.fragment.active_count or shelf.fragment.size:
                raise Violation(f"{shelf}: there is still {shelf.synced}")
    recover_all(simulation)
