"""A run of the queue simulation, determined by its seed."""

from __future__ import annotations

from random import Random

from tests.simulation.patched_constants import patched_constants
from tests.simulation.queue.actions import Actions
from tests.simulation.queue.links import Receiver
from tests.simulation.queue.messages import SentMessage
from tests.simulation.queue.model_state import ACTIVE, DEAD, DEFERRED, MAIN, SCHEDULED, Violation
from tests.simulation.queue.settings import Settings
from tests.simulation.queue.simulation import GRACE_S, QueueSimulation
from twinbus.broker import store_keys
from twinbus.broker.fragment.dispatcher import Dispatcher
from twinbus.broker.fragment.session_dispatcher import SessionDispatcher
from twinbus.broker.ports.incoming_batch import IncomingBatch

MAX_ROUNDS = 400
LAST = 1_000_000_000
"""Identity of the last message of a run."""


def run(seed: int, *, steps: int | None = None, is_tracing: bool = False) -> int:
    """Perform random actions, receive all messages, check that nothing is left, and return the number of steps.

    Every fourth run completes each action before the next, without faults, so that the model knows its exact outcome.
    Raises Violation, or any exception of the broker.
    """
    random = Random(seed)
    settings = _choose_settings(random, seed)
    with patched_constants(settings.constants):
        simulation = QueueSimulation(random, settings, is_tracing=is_tracing)
        simulation.trace(f"{settings.description}")
        simulation.start()
        actions = Actions(simulation)
        count = steps or settings.steps
        for name in random.choices(list(settings.weights), list(settings.weights.values()), k=count):
            actions.do(name)
            if not settings.has_faults:
                simulation.check_when_idle()
        finish(simulation)
    return count


def settings_of(seed: int) -> Settings:
    """Return the settings of a seed's run."""
    return _choose_settings(Random(seed), seed)


def _choose_settings(random: Random, seed: int) -> Settings:
    return Settings(random, has_faults=bool(seed % 4))


# --- final checks ---------------------------------------------------------------------------------------------------


def finish(simulation: QueueSimulation) -> None:
    """Make everything work again, detach all receivers, and receive all messages."""
    simulation.trace("the end: everything works again, and everything is received")
    simulation.store.cancel_failure()
    recover_all(simulation)
    for receiver in list(simulation.model.receivers):
        receiver.leave()
    recover_all(simulation)
    for _ in range(4):
        simulation.pass_time(simulation.settings.longest_lock_ms / 1000 + 0.1)
        recover_all(simulation)
    for kind in (SCHEDULED, DEFERRED):
        for area in (MAIN, DEAD):
            numbers = [stored.location.number for stored in simulation.model.messages_at(area, kind) if stored.location]
            if numbers:
                _delete(simulation, area, numbers)
    drain_all(simulation)
    for message in simulation.model.messages.values():
        if message.location is not None:
            raise Violation(f"{message} is still there")
    _check_empty(simulation)


def _check_empty(simulation: QueueSimulation) -> None:
    """Check that index rows of deleted messages are removed once a further message expires."""
    message = SentMessage(LAST, "last", session="a", ttl_ms=1)
    batch = IncomingBatch()
    simulation.namespace.intake.add_to(
        batch, message.encode(), 0, simulation.clock.wall_ms(), simulation.queue.validation_policy
    )
    simulation.model.add_message(message)
    operation = simulation.model.begin_operation("send", [LAST])
    simulation.queue.send(batch, lambda _: simulation.model.end_operation(operation))
    for _ in range(3):
        recover_all(simulation)
        simulation.pass_time(simulation.settings.longest_lock_ms / 1000 + GRACE_S)
    recover_all(simulation)
    left = simulation.disk.rows(MAIN, store_keys.EXPIRY)
    if left and simulation.clock.wall_ms() >= simulation.model.latest_wall_ms:
        raise Violation(
            f"of messages that are gone there is still {[store_keys.time_entry_of_key(key) for key in left]}"
        )


def recover_all(simulation: QueueSimulation) -> None:
    """Make the store work again, and check that all pending operations complete."""
    for _ in range(MAX_ROUNDS):
        if simulation.store.is_hanging:
            simulation.store.resume()
        if simulation.is_closed:
            simulation.reopen()
        simulation.run_until_idle()
        if not simulation.is_working:
            continue
        if any(
            message.pending_operation is not None and message.pending_operation.kind == "expire"
            for message in simulation.model.messages.values()
        ):
            simulation.pass_time(0.02)
            continue
        simulation.check_when_idle()
        return
    raise Violation("the store does not work again, or a lock does not expire")


def _delete(simulation: QueueSimulation, area: str, numbers: list[int]) -> None:
    removed: list[object] = []
    simulation.model.begin_operation(
        "remove", covers=lambda message: message.location is not None and message.location.number in numbers
    )
    simulation.fragment(area).removal.remove_by_sequence(numbers, removed.append)
    simulation.run_until_idle()
    simulation.model.became_idle()
    if len(removed) != 1 or not isinstance(removed[0], list) or sorted(removed[0]) != sorted(numbers):
        raise Violation(f"{area}: {numbers} cannot be deleted: {removed}")
    recover_all(simulation)


def drain_all(simulation: QueueSimulation) -> None:
    """Receive and complete all messages."""
    for area in (MAIN, DEAD):
        for number in range(MAX_ROUNDS):
            if not simulation.model.messages_at(area, ACTIVE):
                break
            _receive_some(simulation, area, 1_000_000 + number)
        else:
            raise Violation(f"{area}: there is still {simulation.model.messages_at(area, ACTIVE)}")


def _receive_some(simulation: QueueSimulation, area: str, number: int) -> None:
    receiver = Receiver(simulation, area, number, deletes=False)
    dispatcher = simulation.fragment(area).dispatcher
    receiver.credit = 1_000_000
    if isinstance(dispatcher, Dispatcher):
        dispatcher.add(receiver)
        dispatcher.dispatch_to(receiver)
    else:
        receiver.is_waiting = True
        assert isinstance(dispatcher, SessionDispatcher)
        dispatcher.accept_any_session(receiver, receiver.session_granted)
        simulation.run_until_idle()
        if receiver.session is not None:
            dispatcher.dispatch_to(receiver)
    recover_all(simulation)
    for _ in range(MAX_ROUNDS):
        locks = [message.lock for message in simulation.model.messages_at(area, ACTIVE) if message.lock is not None]
        if not locks:
            break
        operation = simulation.model.begin_operation("complete", [lock.message.identity for lock in locks])
        for lock in locks:
            lock.message.lock, lock.message.pending_operation = None, operation
        fragment = simulation.fragment(area)
        fragment.settlement.complete(
            fragment.lock_numbers([lock.tag for lock in locks]),
            lambda _, operation=operation: simulation.model.end_operation(operation),  # type: ignore[misc]
        )
        recover_all(simulation)
    receiver.leave()
    recover_all(simulation)
