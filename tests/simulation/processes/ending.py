"""The end of a run: all works again, all are answered, everything is received and completed, and nothing is left."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.ledger.problems import Violation
from tests.simulation.letter import read_delivery
from tests.simulation.processes.looking import look_well
from tests.simulation.processes.settling import settle
from tests.simulation.processes.takers import SessionTaker, Taker
from tests.simulation.processes.world import LOCK_S
from twinbus.broker.fragment import Fragment
from twinbus.broker.ports.settlement import How
from twinbus.model.errors import ServiceBusError, StoreUnavailable
from twinbus.model.path import SubQueue

if TYPE_CHECKING:
    from tests.simulation.letter import Reading
    from tests.simulation.processes.process import Process
    from tests.simulation.processes.world import World

MAX_ROUNDS = 400


def finish(world: World) -> None:
    heal(world)
    for seconds in (1.0, 0.3):  # who waits for a silent one is told in time
        world.pass_time(seconds)
        heal(world)
    look_well(world)
    world.ledger.check_answered()
    for process in world.living:
        for deal in list(process.deals):
            deal.roll_back()
        for taker in list(process.takers):
            taker.leave()
        for reader in list(process.readers):
            reader.leave()
    look_well(world)
    world.pass_time(LOCK_S + 1)
    heal(world)
    world.held.clear()
    _receive_deferred(world)
    for sub_queue in (SubQueue.MAIN, SubQueue.DEAD_LETTER):
        _receive_all(world, sub_queue)
    look_well(world)
    left = [
        (process.number, fragment.number, sub_queue.name, fragment.count)
        for process in world.living
        for sub_queue in (SubQueue.MAIN, SubQueue.DEAD_LETTER)
        for fragment in process.fragments(sub_queue)
        if isinstance(fragment, Fragment) and fragment.count
    ]
    if left:
        raise Violation(f"not received: {left}")
    world.ledger.check_all_received()


def heal(world: World) -> None:
    """All are there, and all of their stores work."""
    for _ in range(MAX_ROUNDS):
        for number, process in enumerate(world.processes):
            if process is None:
                world.start(number)
            elif process.is_silent:
                world.wake(process)
        for process in world.living:
            for store in process.stores:
                process.go_on(store)
                if store in process.closed:
                    process.reopen(store)
        world.work_all()
        if world.is_whole:
            return
        world.pass_time(0.001)
    raise Violation("not all work again")


def _receive_all(world: World, sub_queue: SubQueue) -> None:
    has_sessions = world.description.requires_session and sub_queue is SubQueue.MAIN
    for _ in range(MAX_ROUNDS):
        process = world.random.choice(world.living)
        number = next(world.numbers)
        taker = SessionTaker(process, number) if has_sessions else Taker(process, number, sub_queue=sub_queue)
        taker.grant(1_000)
        if not _complete_all(world, process):
            look_well(world)
            taker.leave()
            return
        taker.leave()
    raise Violation("there is always more to receive")


def _complete_all(world: World, process: Process) -> bool:
    """All that is given is completed. False if that was nothing."""
    was_given = False
    for _ in range(MAX_ROUNDS):
        world.pass_time(0.3)
        heal(world)
        held, world.held = world.held, []
        if not held:
            return was_given
        was_given = True
        settle(process, held, How.COMPLETE)
        heal(world)
    raise Violation("there is always more to complete")


def _receive_deferred(world: World) -> None:
    """What was set aside is found by way of any process, and received from the one that has it."""
    for number in range(len(world.living[0].parts())):
        for sub_queue in (SubQueue.MAIN, SubQueue.DEAD_LETTER):
            for _ in range(MAX_ROUNDS):  # a store that was to fail may do so only now
                readings = _find_aside(world, number, sub_queue)
                if not readings:
                    break
                _receive_aside(world, number, sub_queue, readings)


def _find_aside(world: World, number: int, sub_queue: SubQueue) -> list[Reading]:
    pages: list[list[bytes] | ServiceBusError] = []
    near = world.random.choice(world.living).fragments(sub_queue)[number]
    near.browsing.peek(0, 10_000, 10**9, pages.append, deferred_only=True)
    heal(world)
    (page,) = pages
    if isinstance(page, ServiceBusError):
        raise Violation(f"deferred messages are not found: {page}")
    return [read_delivery(payload) for payload in page]


def _receive_aside(world: World, number: int, sub_queue: SubQueue, readings: list[Reading]) -> None:
    owner = world.owner_of(number)
    assert owner is not None
    answers: list[list[tuple[bytes, bytes]] | ServiceBusError] = []
    sequences = [reading.sequence for reading in readings]
    owner.fragments(sub_queue)[number].local.deferral.receive(sequences, answers.append, deletes=True)
    heal(world)
    (found,) = answers
    if isinstance(found, ServiceBusError) and not isinstance(found, StoreUnavailable):
        raise Violation(f"deferred messages are not received: {found}")
    is_done = not isinstance(found, ServiceBusError)
    for reading in readings:
        world.ledger.receive_aside(reading, is_dead=sub_queue is SubQueue.DEAD_LETTER, is_done=is_done)
