"""One process with its disks, from start to crash and to the next start. Nothing in it happens by itself.

Owns: the loop (calls put off to the end of the turn, answers of stores), the stores and their failures, the catalogue.
What is done in it, and when, is chosen by `actions`.
"""

from __future__ import annotations

import sys
from collections import deque
from typing import TYPE_CHECKING

from tests.ledger.problems import Violation
from tests.parts import part_of
from tests.simulation.disk import SimulatedDisk, SimulatedStore
from tests.simulation.ledger import Ledger
from tests.simulation.letter import read_delivery
from twinbus.broker.namespace import Namespace
from twinbus.model.errors import ServiceBusError, StoreUnavailable
from twinbus.testing.clock import FakeClock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from random import Random

    from tests.simulation.consumer import SimulatedConsumer
    from tests.simulation.settings import Settings
    from tests.simulation.shelf import Entity, Lock, Shelf
    from twinbus.broker.fragment import Fragment
    from twinbus.broker.journal import Journal
    from twinbus.broker.ports.consumer import Delivery

MAX_WORK = 5_000
"""Calls and store steps until nothing is left to do: more is a loop without end."""


class World:
    def __init__(self, random: Random, settings: Settings, *, is_tracing: bool) -> None:
        self.random = random
        self.settings = settings
        self.is_tracing = is_tracing
        self.clock = FakeClock()
        self.disks = [SimulatedDisk() for _ in range(settings.stores)]
        self.ledger = Ledger(self.clock.monotonic_s, self.disks)
        self.catalogue: dict[str, Entity] = {}
        self.doomed: list[Entity] = []
        self.held: list[Lock] = []
        """What consumers were given, also what they settled already and what is void."""
        self.former: list[Entity] = []
        """Deleted, and perhaps still in the hands of someone who sends."""
        self.namespace: Namespace
        self.stores: list[SimulatedStore]
        self.closed: list[bool]
        """Which stores failed and let go of their disks."""
        self._turn: deque[Callable[[], object]] = deque()
        self._mail: list[deque[Callable[[], object]]] = []
        for disk in self.disks:
            disk.ledger = self.ledger

    def say(self, line: str) -> None:
        sys.stdout.write(f"{self.clock.monotonic_s():10.3f}  {line}\n")

    # --- a process ----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """A process begins with what the disks and the catalogue hold."""
        settings = self.settings
        self._turn.clear()
        self._mail = [deque() for _ in self.disks]
        self.closed = [False for _ in self.disks]
        self.stores = [self._open(number) for number in range(len(self.disks))]
        self.namespace = Namespace(
            clock=self.clock,
            random=self.random,
            defer=self._turn.append,
            on_failed=self._failed,
            limits=settings.limits,
            store_timeout_s=settings.timeout_s,
        )
        for store in self.stores:
            self.namespace.add_store(store)
        waiting = []
        for entity in self.catalogue.values():
            self.add_queue(entity)
            waiting += [shelf.fragment for shelf in entity.shelves]
        self._load(deque(waiting))

    def add_queue(self, entity: Entity) -> None:
        entity.queue = self.namespace.add_queue(
            entity.id, entity.path, entity.description, [entity.store], created_ms=0, updated_ms=0
        )
        entity.main.fragment, entity.dead.fragment = part_of(entity.queue).main, part_of(entity.queue).dead_letters

    def _load(self, waiting: deque[Fragment]) -> None:
        """One after the other, as a server does before it serves."""

        def load_next(error: ServiceBusError | None = None) -> None:
            if error is not None:
                raise Violation(f"a fragment cannot be loaded: {error}")
            if waiting:
                waiting.popleft().load(load_next)

        load_next()
        self.work_all()
        for entity in self.catalogue.values():
            for shelf in entity.shelves:
                if not shelf.fragment.is_loaded:
                    raise Violation(f"{shelf} was not loaded")
                self.ledger.check_counters(shelf)
        for entity in list(self.doomed):
            self.bury(entity)

    def crash(self) -> None:
        """Power is cut: what was in memory is gone, and of what was written and not synced a part."""
        for disk in self.disks:
            disk.crash(self.random)
        self.ledger.lose_all()
        for entity in self.ledger.entities:
            for shelf in entity.shelves:
                for consumer in list(shelf.consumers):
                    consumer.leave()
        self.former.clear()
        self.start()

    def bury(self, entity: Entity) -> None:
        def buried(error: ServiceBusError | None) -> None:
            if error is None and entity in self.doomed:
                self.doomed.remove(entity)
                entity.is_buried = True

        try:
            self.namespace.bury(entity.id, entity.store, buried)
        except StoreUnavailable:
            return

    # --- the loop -----------------------------------------------------------------------------------------------------

    def _open(self, number: int) -> SimulatedStore:
        return SimulatedStore(self.disks[number], name=str(number), post=self._mail[number].append)

    def work(self) -> bool:
        """Do one thing of all that is waiting to be done, whichever comes. False if nothing is."""
        choices: list[Callable[[], object]] = [store.step for store in self.stores if store.pending]
        choices += [mail.popleft for mail in self._mail if mail]
        if self._turn:
            choices.append(self._turn.popleft)
        if not choices:
            return False
        call = choices[int(self.random.random() * len(choices))]()
        if call is not None:
            call()  # type: ignore[operator]
        return True

    def work_all(self) -> None:
        """Until nothing is waiting but for time."""
        for _ in range(MAX_WORK):
            if not self.work():
                return
        raise Violation(f"still busy after {MAX_WORK} steps")

    def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.namespace.timers.run_due()
        now_s = self.clock.monotonic_s()
        for entity in self.catalogue.values():
            for shelf in entity.shelves:
                for consumer in shelf.consumers:
                    if consumer.drain_until_s is not None and consumer.drain_until_s <= now_s:
                        raise Violation(f"{consumer!r} waits for its drain too long")

    # --- stores that fail ---------------------------------------------------------------------------------------------

    def _failed(self, journal: Journal) -> None:
        number = self.namespace.journals.index(journal)
        if self.is_tracing:
            self.say(f"  store {number} failed")
        self.ledger.lose(number)
        journal.store.close(lambda _: self._let_go(number))

    def _let_go(self, number: int) -> None:
        self.closed[number] = True

    def reopen(self, number: int) -> None:
        self.closed[number] = False
        self.ledger.audit(number)
        self.stores[number] = self._open(number)
        self.namespace.journal(number).resume(self.stores[number])

    def is_working(self, number: int) -> bool:
        return self.namespace.journals[number].trouble is None and not self.stores[number].is_hanging

    # --- looking ------------------------------------------------------------------------------------------------------

    def settle_down(self) -> None:
        """Let everything finish that can, and see whether all is as it should be."""
        self.work_all()
        for number in range(len(self.disks)):
            if not self.is_working(number):
                continue
            self.ledger.check_answered(number)
            self.ledger.audit(number)
            for shelf in self.ledger.live_shelves(number):
                if not shelf.fragment.is_loaded:
                    raise Violation(f"{shelf} is not loaded")
                self.ledger.check_shelf(shelf, self.settings.limits.max_locks)
            self._check_expiry(number)

    def _check_expiry(self, number: int) -> None:
        """A lock that has expired is being looked after: not all in one turn, but soon."""
        now_s, due_s = self.clock.monotonic_s(), self.namespace.timers.due_in_s()
        for shelf in self.ledger.live_shelves(number):
            for lock in self.locks(shelf):
                if lock.deadline_s <= now_s and (due_s is None or due_s > 0.02):
                    raise Violation(f"{lock.message!r}: its lock has expired, and nobody looks before {due_s} s")

    def locks(self, shelf: Shelf) -> Iterator[Lock]:
        for live in shelf.visible.values():
            lock = self.ledger.messages[live.identity].lock
            if lock is not None:
                yield lock

    def has_room(self, shelf: Shelf) -> bool:
        """More messages may be out."""
        messages = self.ledger.messages
        out = {live.identity for live in shelf.visible.values() if not messages[live.identity].is_idle}
        out |= {one.identity for one in messages.values() if one.handed is not None and one.handed.shelf is shelf}
        return len(out) < self.settings.limits.max_locks

    def lent(self, consumer: SimulatedConsumer, deliveries: list[Delivery]) -> None:
        entity = consumer.shelf.entity
        if self.namespace.journals[entity.store].trouble is not None:
            raise Violation(f"{consumer!r} was given messages while the store does not work")
        deadline_s = self.clock.monotonic_s() + entity.description.lock_duration_ms / 1000
        self.held += self.ledger.lend(consumer, deliveries, deadline_s)

    def identities(self, deliveries: list[Delivery]) -> list[int]:
        return [read_delivery(payload).identity for payload, _ in deliveries]
