"""One run: everything in it follows from its seed."""

from __future__ import annotations

from functools import partial
from random import Random
from typing import TYPE_CHECKING

from tests.seeded.limits import in_force
from tests.simulation.ledger import Violation
from tests.simulation.letter import make_payload
from tests.simulation.partitioned.world import LOCK_S, Taker, World
from tests.simulation.settings import Settings
from twinbus.amqp.message import build
from twinbus.broker.intake import PARTITION_KEY, Parcel
from twinbus.broker.settlement import Settlement
from twinbus.model.errors import ServiceBusError

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    from tests.simulation.partitioned.ledger import Lock
    from twinbus.broker.journal import Answered

    How: TypeAlias = Callable[[Settlement, list[int], Answered], list[int]]

WEIGHTS = {
    "work": 60,
    "look": 3,
    "send": 12,
    "send_with_key": 10,
    "send_several": 5,
    "come": 4,
    "leave": 2,
    "grant": 10,
    "drain": 3,
    "complete": 10,
    "abandon": 3,
    "release": 3,
    "wait": 6,
    "wait_long": 2,
    "hang": 1,
    "go_on": 3,
    "fail": 1,
    "reopen": 4,
    "crash": 0.5,
}
KEYS = [f"key-{number}" for number in range(6)]
MAX_ROUNDS = 400


def run(seed: int, *, is_tracing: bool = False) -> int:
    """Do random things, then see that nothing is lost. Raises Violation, or whatever the broker raised. The steps."""
    random = Random(seed)
    settings = Settings(random)
    stores = random.choice((1, 2, 4, 4))
    weights = {
        name: 0.0 if name not in ("work", "send", "come", "grant") and random.random() < 0.25 else weight
        for name, weight in WEIGHTS.items()
    }
    with in_force(settings.constants):
        actions = Actions(World(random, settings, stores, is_tracing=is_tracing))
        for name in random.choices(list(weights), list(weights.values()), k=settings.steps):
            actions.do(name)
        actions.finish()
    return settings.steps


class Actions:
    """What may happen."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._random = world.random

    def do(self, name: str) -> None:
        self._world.say(name)
        getattr(self, f"_{name}")()

    # --- the loop -----------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        for _ in range(self._random.randint(1, 20)):
            self._world.work()

    def _look(self) -> None:
        self._world.check_fed()

    def _wait(self) -> None:
        self._world.pass_time(self._random.choice((0.001, 0.05, 0.2, 3.0)))

    def _wait_long(self) -> None:
        self._world.pass_time(self._random.choice((10.5, LOCK_S + 1)))

    # --- sending ------------------------------------------------------------------------------------------------------

    def _send(self) -> None:
        self._send_all([None] * self._random.choice((1, 1, 1, 3)))

    def _send_with_key(self) -> None:
        self._send_all([self._random.choice(KEYS)] * self._random.choice((1, 1, 2)))

    def _send_several(self) -> None:
        self._send_all([self._random.choice([*KEYS, None]) for _ in range(self._random.randint(2, 5))])

    def _send_all(self, keys: list[str | None]) -> None:
        world = self._world
        sending = world.ledger.send(keys)
        parcel = Parcel()
        for letter in sending.letters:
            payload = make_payload(letter.identity, self._random.randint(0, world.settings.max_padding))
            annotated = build(message_annotations={PARTITION_KEY: letter.key}) if letter.key is not None else b""
            world.namespace.intake.add_to(parcel, annotated + payload, 0, world.clock.wall_ms(), world.queue.terms)
        try:
            world.queue.send(parcel, lambda error: world.ledger.sent(sending, error, world.takers()))
        except ServiceBusError as error:
            world.ledger.sent(sending, error, world.takers())

    # --- receiving ----------------------------------------------------------------------------------------------------

    def _come(self) -> None:
        if len(self._world.consumers) < 4:
            Taker(self._world)

    def _leave(self) -> None:
        if self._world.consumers:
            self._random.choice(self._world.consumers).leave()

    def _grant(self) -> None:
        if self._world.consumers:
            self._random.choice(self._world.consumers).grant(self._random.choice((1, 1, 2, 5, 40)))

    def _drain(self) -> None:
        if self._world.consumers:
            self._random.choice(self._world.consumers).drain()

    def _complete(self) -> None:
        self._settle(Settlement.complete, is_end=True)

    def _abandon(self) -> None:
        self._settle(Settlement.abandon)

    def _release(self) -> None:
        self._settle(Settlement.release)

    def _settle(self, how: How, *, is_end: bool = False) -> None:
        held = self._world.held
        if held:
            count = self._random.randint(1, min(6, len(held)))
            chosen = [held.pop(int(self._random.random() * len(held))) for _ in range(count)]
            self.settle(chosen, how, is_end=is_end)

    def settle(self, locks: list[Lock], how: How, *, is_end: bool) -> None:
        by_fragment: dict[int, list[Lock]] = {}
        for lock in locks:
            by_fragment.setdefault(lock.copy.sequence >> 48, []).append(lock)
        for number, some in by_fragment.items():
            fragment = self._world.queue.parts[number].main
            numbers = fragment.lock_numbers([lock.tag for lock in some])
            asked: list[Lock] = []
            try:
                lost = how(fragment.settlement, numbers, partial(self._settled, asked, is_end=is_end))
            except ServiceBusError:
                continue
            asked += [lock for lock, one in zip(some, numbers, strict=True) if one not in lost]
            for lock in asked:
                if lock.copy.lock is not lock:
                    raise Violation(f"a lock on message {lock.copy.letter.identity} was void, and settles it")
                lock.copy.is_ending = lock.copy.is_ending or is_end
                lock.copy.lock = None  # what is being settled is neither locked nor free

    def _settled(self, locks: list[Lock], error: ServiceBusError | None, *, is_end: bool) -> None:
        for lock in locks:
            lock.copy.is_gone = lock.copy.is_gone or (error is None and is_end)

    # --- failures -----------------------------------------------------------------------------------------------------

    def _any_store(self) -> int:
        return self._random.randrange(len(self._world.stores))

    def _hang(self) -> None:
        self._world.hang(self._any_store())

    def _go_on(self) -> None:
        self._world.go_on(self._any_store())

    def _fail(self) -> None:
        number = self._any_store()
        self._world.ledger.troubles[number] += 1
        self._world.stores[number].fail_next("input/output error", self._random)

    def _reopen(self) -> None:
        number = self._any_store()
        if self._world.closed[number]:
            self._world.reopen(number)

    def _crash(self) -> None:
        self._world.crash()

    # --- the end ------------------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """All works again; all are answered; everything is received and completed, and then nothing is left."""
        world = self._world
        self._heal()
        world.ledger.check_answered()
        for taker in list(world.consumers):
            taker.leave()
        world.pass_time(LOCK_S + 1)
        self._heal()
        taker = Taker(world)
        world.held.clear()
        for _ in range(MAX_ROUNDS):
            taker.room = 0
            taker.grant(1_000)
            world.pass_time(0.02)
            self._heal()
            if not world.held:
                break
            held, world.held = world.held, []
            self.settle(held, Settlement.complete, is_end=True)
        self._heal()
        left = [part.main.count for part in world.queue.parts]
        if any(left):
            raise Violation(f"not received: {left}")
        world.ledger.check_all_received()

    def _heal(self) -> None:
        world = self._world
        for _ in range(MAX_ROUNDS):
            for number in range(len(world.stores)):
                world.go_on(number)
                if world.closed[number]:
                    world.reopen(number)
            world.work_all()
            if len(world.takers()) == len(world.stores) and not any(world.closed):
                return
        raise Violation("a store does not work again")
