"""A run of the broker simulation, determined by its seed."""

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
    """Perform random actions, check that no message is lost, and return the number of steps.

    Raises Violation, or any exception of the broker.
    """
    random = Random(seed)
    settings = Settings(random)
    with patched_constants(settings.constants):
        simulation = BrokerSimulation(random, settings, is_tracing=is_tracing)
        simulation.start()
        actions = Actions(simulation)
        actions.create()
        names = list(settings.weights)
        for name in random.choices(names, list(settings.weights.values()), k=settings.steps):
            actions.do(name)
        if is_tracing:
            simulation.trace("the end: everything works again, and everything is received")
        recover_all(simulation)
        let_locks_expire(simulation)
        drain_all(simulation)
    return settings.steps


def recover_all(simulation: BrokerSimulation) -> None:
    """Make all stores work again, and check that all pending operations complete."""
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
    area_states = [area_state for entity in simulation.catalogue.values() for area_state in entity.area_states]
    for area_state in area_states:
        for consumer in list(area_state.consumers):
            consumer.leave()
            area_state.fragment.dispatcher.remove(consumer)
    recover_all(simulation)
    simulation.pass_time(61.0)
    for _ in range(MAX_ROUNDS):
        recover_all(simulation)
        if not any(True for area_state in area_states for _ in simulation.locks(area_state)):
            return
        simulation.pass_time(0.02)
    raise Violation("a lock does not expire")


def drain_all(simulation: BrokerSimulation) -> None:
    """Receive and complete all messages, and check that nothing is left."""
    for entity in list(simulation.catalogue.values()):
        for area_state in entity.area_states:
            consumer = SimulatedConsumer(simulation, area_state, 0, deletes=False)
            consumer.grant(1_000_000)
            for _ in range(MAX_ROUNDS):
                recover_all(simulation)
                locks = list(simulation.locks(area_state))
                if not locks:
                    break
                settlement = simulation.checker.settlement_started(SettlementKind.COMPLETE, area_state, locks)
                area_state.fragment.settlement.complete(
                    area_state.fragment.lock_numbers([lock.tag for lock in locks]),
                    lambda error, settlement=settlement: simulation.checker.settlement_answered(settlement, error),  # type: ignore[misc]
                )
            if area_state.synced or area_state.fragment.active_count or area_state.fragment.size:
                raise Violation(f"{area_state}: there is still {area_state.synced}")
    recover_all(simulation)
