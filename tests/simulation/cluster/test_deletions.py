"""What the simulation knows of messages that are deleted for receivers."""

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


def crash(world: ClusterSimulation) -> None:
    world.crash()


def fail(world: ClusterSimulation) -> None:
    (process,) = world.running_processes
    for taker in world.receivers:
        taker.leave()
    for number in process.stores:
        process.namespace.commit_log(number).fail("input/output error")
        world.run_until_idle()
        process.reopen(number)


@pytest.mark.parametrize("break_down", [crash, fail])
def test_a_message_that_was_to_be_deleted_comes_back_late_if_no_store_was_told(
    break_down: Callable[[ClusterSimulation], None],
) -> None:
    """Its deletion is in the batch of this turn, and a later message of its key is handed out, when a store fails."""
    random = Random(1)
    world = ClusterSimulation(random, Settings(random), processes=1, is_tracing=False)
    (process,) = world.running_processes
    sending = world.checker.send_started(["key", "key"], process.life)
    parcel = IncomingBatch()
    for message in sending.messages:
        payload = build(message_annotations={PARTITION_KEY: "key"}) + make_payload(message.identity, 0)
        process.namespace.intake.add_to(parcel, payload, 0, world.clock.wall_ms(), process.queue.validation_policy)
    process.queue.send(parcel, lambda error: world.checker.send_answered(sending, error, []))
    deleting, locking = SimulatedReceiver(process, 1, deletes=True), SimulatedReceiver(process, 2)
    world.run_until_idle()
    deleting.grant(1)
    while not deleting.reserved:
        assert world.step()
    locking.grant(1)
    assert [lock.copy.message.identity for lock in world.given_locks] == [1]
    break_down(world)
    (process,) = world.running_processes
    world.given_locks.clear()
    SimulatedReceiver(process, 3).grant(2)
    world.run_until_idle()
    assert [lock.copy.message.identity for lock in world.given_locks] == [0, 1]
