"""The checker of the cluster simulation tracks messages that are deleted for receivers."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pytest

from tests.simulation.broker.payloads import make_payload
from tests.simulation.broker.settings import Settings
from tests.simulation.cluster.receivers import SimulatedReceiver
from tests.simulation.cluster.simulation import ClusterSimulation
from twinbus.amqp.message import build
from twinbus.broker.ports.incoming_batch import IncomingBatch
from twinbus.model.annotations import PARTITION_KEY

if TYPE_CHECKING:
    from collections.abc import Callable


def crash(simulation: ClusterSimulation) -> None:
    simulation.crash()


def fail(simulation: ClusterSimulation) -> None:
    (process,) = simulation.running_processes
    for receiver in simulation.receivers:
        receiver.leave()
    for number in process.stores:
        process.namespace.commit_log(number).fail("input/output error")
        simulation.run_until_idle()
        process.reopen(number)


@pytest.mark.parametrize("break_down", [crash, fail])
def test_a_message_comes_back_late_if_its_deletion_was_not_committed(
    break_down: Callable[[ClusterSimulation], None],
) -> None:
    """A store fails while the deletion is in the batch of this turn, and a later message of the same key is locked."""
    random = Random(1)
    simulation = ClusterSimulation(random, Settings(random), processes=1, is_tracing=False)
    (process,) = simulation.running_processes
    sending = simulation.checker.send_started(["key", "key"], process.life)
    batch = IncomingBatch()
    for message in sending.messages:
        payload = build(message_annotations={PARTITION_KEY: "key"}) + make_payload(message.identity, 0)
        process.namespace.intake.add_to(batch, payload, 0, simulation.clock.wall_ms(), process.queue.validation_policy)
    process.queue.send(batch, lambda error: simulation.checker.send_answered(sending, error, []))
    deleting, locking = SimulatedReceiver(process, 1, deletes=True), SimulatedReceiver(process, 2)
    simulation.run_until_idle()
    deleting.grant(1)
    while not deleting.reserved:
        assert simulation.step()
    locking.grant(1)
    assert [lock.copy.message.identity for lock in simulation.given_locks] == [1]
    break_down(simulation)
    (process,) = simulation.running_processes
    simulation.given_locks.clear()
    SimulatedReceiver(process, 3).grant(2)
    simulation.run_until_idle()
    assert [lock.copy.message.identity for lock in simulation.given_locks] == [0, 1]
