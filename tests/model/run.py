"""One run: everything in it follows from its seed."""

from __future__ import annotations

from random import Random

from tests.model.actions import Actions
from tests.model.letter import Letter
from tests.model.people import Receiver
from tests.model.settings import Settings
from tests.model.things import ACTIVE, DEAD, DEFERRED, MAIN, SCHEDULED
from tests.model.violation import Violation
from tests.model.world import GRACE_S, World
from tests.seeded.limits import in_force
from twinbus.broker import keys
from twinbus.broker.line import Line
from twinbus.broker.ports.incoming import Parcel
from twinbus.broker.sessions import Sessions

MAX_ROUNDS = 400
LAST = 1_000_000_000
"""The identity of the last message of a run."""


def run(seed: int, *, steps: int | None = None, is_tracing: bool = False) -> int:
    """Do random things, then see that nothing is left. Raises Violation, or whatever the broker raised. The steps.

    Every fourth run does one thing after the other, without faults: then the model knows what to expect of each.
    """
    random = Random(seed)
    settings = _draw(random, seed)
    with in_force(settings.constants):
        world = World(random, settings, is_tracing=is_tracing)
        world.say(f"{settings.description}")
        world.start()
        actions = Actions(world)
        count = steps or settings.steps
        for name in random.choices(list(settings.weights), list(settings.weights.values()), k=count):
            actions.do(name)
            if not settings.has_faults:
                world.settle_down()
        finish(world)
    return count


def settings_of(seed: int) -> Settings:
    """What its run is like."""
    return _draw(Random(seed), seed)


def _draw(random: Random, seed: int) -> Settings:
    return Settings(random, has_faults=bool(seed % 4))


# --- the end ----------------------------------------------------------------------------------------------------------


def finish(world: World) -> None:
    """Everything works again, everyone leaves, and all that is left is received."""
    world.say("the end: everything works again, and everything is received")
    world.store.spare()
    heal(world)
    for receiver in list(world.model.receivers):
        receiver.leave()
    heal(world)
    for _ in range(4):
        world.pass_time(world.settings.longest_lock_ms / 1000 + 0.1)
        heal(world)
    for kind in (SCHEDULED, DEFERRED):
        for shelf in (MAIN, DEAD):
            numbers = [one.place.number for one in world.model.at(shelf, kind) if one.place]
            if numbers:
                _delete(world, shelf, numbers)
    receive_all(world)
    for message in world.model.messages.values():
        if message.place is not None:
            raise Violation(f"{message} is still there")
    _check_nothing_is_left(world)


def _check_nothing_is_left(world: World) -> None:
    """Rows of messages that are gone do not stay, once there is a reason to look at any."""
    letter = Letter(LAST, "last", session="a", ttl_ms=1)
    parcel = Parcel()
    world.namespace.intake.add_to(parcel, letter.payload(), 0, world.clock.wall_ms(), world.queue.terms)
    world.model.add(letter)
    deed = world.model.begin("send", [LAST])
    world.queue.send(parcel, lambda _: world.model.end(deed))
    for _ in range(3):
        heal(world)
        world.pass_time(world.settings.longest_lock_ms / 1000 + GRACE_S)
    heal(world)
    left = world.disk.rows(MAIN, keys.EXPIRY)
    if left and world.clock.wall_ms() >= world.model.latest_wall_ms:
        raise Violation(f"of messages that are gone there is still {[keys.moment_of(key) for key in left]}")


def heal(world: World) -> None:
    """The store works again, and all who wait are answered."""
    for _ in range(MAX_ROUNDS):
        if world.store.is_hanging:
            world.store.resume()
        if world.is_closed:
            world.reopen()
        world.work_all()
        if not world.is_working:
            continue
        if any(one.busy is not None and one.busy.kind == "expire" for one in world.model.messages.values()):
            world.pass_time(0.02)
            continue
        world.settle_down()
        return
    raise Violation("the store does not work again, or a lock does not expire")


def _delete(world: World, shelf: str, numbers: list[int]) -> None:
    removed: list[object] = []
    world.model.begin("remove", covers=lambda one: one.place is not None and one.place.number in numbers)
    world.fragment(shelf).removal.remove_numbers(numbers, removed.append)
    world.work_all()
    world.model.come_to_rest()
    if len(removed) != 1 or not isinstance(removed[0], list) or sorted(removed[0]) != sorted(numbers):
        raise Violation(f"{shelf}: {numbers} cannot be deleted: {removed}")
    heal(world)


def receive_all(world: World) -> None:
    """Everything is received once and completed, and then nothing is left."""
    for shelf in (MAIN, DEAD):
        for number in range(MAX_ROUNDS):
            if not world.model.at(shelf, ACTIVE):
                break
            _receive_some(world, shelf, 1_000_000 + number)
        else:
            raise Violation(f"{shelf}: there is still {world.model.at(shelf, ACTIVE)}")


def _receive_some(world: World, shelf: str, number: int) -> None:
    receiver = Receiver(world, shelf, number, deletes=False)
    line = world.fragment(shelf).line
    receiver.credit = 1_000_000
    if isinstance(line, Line):
        line.add(receiver)
        line.feed(receiver)
    else:
        receiver.is_waiting = True
        assert isinstance(line, Sessions)
        line.accept_any(receiver, receiver.granted)
        world.work_all()
        if receiver.session is not None:
            line.feed(receiver)
    heal(world)
    for _ in range(MAX_ROUNDS):
        locks = [one.lock for one in world.model.at(shelf, ACTIVE) if one.lock is not None]
        if not locks:
            break
        deed = world.model.begin("complete", [lock.message.identity for lock in locks])
        for lock in locks:
            lock.message.lock, lock.message.busy = None, deed
        fragment = world.fragment(shelf)
        fragment.settlement.complete(
            fragment.lock_numbers([lock.tag for lock in locks]),
            lambda _, deed=deed: world.model.end(deed),  # type: ignore[misc]
        )
        heal(world)
    receiver.leave()
    heal(world)
