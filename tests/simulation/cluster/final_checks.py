"""Final checks of a run: recover all processes, receive and complete all messages, and check that nothing is left."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.broker.payloads import read_delivery
from tests.simulation.cluster.invariants import check_settled
from tests.simulation.cluster.receivers import SimulatedReceiver, SimulatedSessionReceiver
from tests.simulation.cluster.settlements import settle
from tests.simulation.cluster.simulation import LOCK_S
from tests.support.delivery_checker.problems import Violation
from twinbus.broker.fragment.fragment import Fragment
from twinbus.broker.ports.settlement import Disposition
from twinbus.model.errors import ServiceBusError, StoreUnavailable
from twinbus.model.path import SubQueue

if TYPE_CHECKING:
    from tests.simulation.broker.payloads import DeliveryFields
    from tests.simulation.cluster.process import Process
    from tests.simulation.cluster.simulation import ClusterSimulation

MAX_ROUNDS = 400


def finish(simulation: ClusterSimulation) -> None:
    recover_all(simulation)
    for seconds in (1.0, 0.3):  # requests to a silent process time out
        simulation.pass_time(seconds)
        recover_all(simulation)
    check_settled(simulation)
    simulation.checker.check_answered()
    for process in simulation.running_processes:
        for transaction in list(process.open_transactions):
            transaction.roll_back()
        for receiver in list(process.receivers):
            receiver.leave()
        for browser in list(process.browsers):
            browser.leave()
    check_settled(simulation)
    simulation.pass_time(LOCK_S + 1)
    recover_all(simulation)
    simulation.given_locks.clear()
    _receive_deferred(simulation)
    for sub_queue in (SubQueue.MAIN, SubQueue.DEAD_LETTER):
        _receive_all(simulation, sub_queue)
    check_settled(simulation)
    left = [
        (process.number, fragment.number, sub_queue.name, fragment.active_count)
        for process, sub_queue, fragment in _all_fragments(simulation)
        if fragment.active_count
    ]
    if left:
        raise Violation(f"not received: {left}")
    simulation.checker.check_all_received()


def recover_all(simulation: ClusterSimulation) -> None:
    """Start all processes, and make all stores work."""
    for _ in range(MAX_ROUNDS):
        for number, process in enumerate(simulation.processes):
            if process is None:
                simulation.start(number)
            elif process.is_silent:
                simulation.make_responsive(process)
        for process in simulation.running_processes:
            for store in process.stores:
                process.resume(store)
                if store in process.closed:
                    process.reopen(store)
        simulation.run_until_idle()
        if simulation.is_complete:
            return
        simulation.pass_time(0.001)
    raise Violation("not all work again")


def _receive_all(simulation: ClusterSimulation, sub_queue: SubQueue) -> None:
    has_sessions = simulation.description.requires_session and sub_queue is SubQueue.MAIN
    for _ in range(MAX_ROUNDS):
        process = simulation.random.choice(simulation.running_processes)
        number = next(simulation.numbers)
        receiver = (
            SimulatedSessionReceiver(process, number)
            if has_sessions
            else SimulatedReceiver(process, number, sub_queue=sub_queue)
        )
        receiver.grant(1_000)
        if not _complete_all(simulation, process):
            check_settled(simulation)
            receiver.leave()
            return
        receiver.leave()
    raise Violation("there is always more to receive")


def _complete_all(simulation: ClusterSimulation, process: Process) -> bool:
    """Complete all messages that come, until none comes and no expired lock is left. Return False if none came."""
    was_given = False
    for _ in range(MAX_ROUNDS):
        simulation.pass_time(0.3)
        recover_all(simulation)
        locks, simulation.given_locks = simulation.given_locks, []
        if not locks and not _has_expired_locks(simulation):
            return was_given
        was_given = was_given or bool(locks)
        settle(process, locks, Disposition.COMPLETE)
        recover_all(simulation)
    raise Violation("there is always more to complete")


def _has_expired_locks(simulation: ClusterSimulation) -> bool:
    """Whether messages are still locked although their locks have expired: these end a few at a time."""
    now_s = simulation.clock.monotonic_s()
    deadlines_s = [fragment.locks.next_deadline_s() for _, _, fragment in _all_fragments(simulation)]
    return any(deadline_s is not None and deadline_s <= now_s for deadline_s in deadlines_s)


def _all_fragments(simulation: ClusterSimulation) -> list[tuple[Process, SubQueue, Fragment]]:
    """Return all fragments in their owners' processes."""
    return [
        (process, sub_queue, fragment)
        for process in simulation.running_processes
        for sub_queue in (SubQueue.MAIN, SubQueue.DEAD_LETTER)
        for fragment in process.fragments(sub_queue)
        if isinstance(fragment, Fragment)
    ]


def _receive_deferred(simulation: ClusterSimulation) -> None:
    """Find deferred messages through any process, and receive them from their owners."""
    for number in range(len(simulation.running_processes[0].parts())):
        for sub_queue in (SubQueue.MAIN, SubQueue.DEAD_LETTER):
            for _ in range(MAX_ROUNDS):  # a planned store failure may happen only now
                deliveries = _find_deferred(simulation, number, sub_queue)
                if not deliveries:
                    break
                _receive_deferred_messages(simulation, number, sub_queue, deliveries)


def _find_deferred(simulation: ClusterSimulation, number: int, sub_queue: SubQueue) -> list[DeliveryFields]:
    pages: list[list[bytes] | ServiceBusError] = []
    fragment = simulation.random.choice(simulation.running_processes).fragments(sub_queue)[number]
    fragment.browser.peek(0, 10_000, 10**9, pages.append, deferred_only=True)
    recover_all(simulation)
    (page,) = pages
    if isinstance(page, ServiceBusError):
        raise Violation(f"deferred messages are not found: {page}")
    return [read_delivery(payload) for payload in page]


def _receive_deferred_messages(
    simulation: ClusterSimulation, number: int, sub_queue: SubQueue, deliveries: list[DeliveryFields]
) -> None:
    owner = simulation.owner_of(number)
    assert owner is not None
    answers: list[list[tuple[bytes, bytes]] | ServiceBusError] = []
    sequences = [delivery.sequence for delivery in deliveries]
    owner.fragments(sub_queue)[number].local.deferral.receive(sequences, answers.append, receive_and_delete=True)
    recover_all(simulation)
    (result,) = answers
    if isinstance(result, ServiceBusError) and not isinstance(result, StoreUnavailable):
        raise Violation(f"deferred messages are not received: {result}")
    is_done = not isinstance(result, ServiceBusError)
    for delivery in deliveries:
        simulation.checker.deferred_received(delivery, is_dead=sub_queue is SubQueue.DEAD_LETTER, is_done=is_done)
