"""One process with a partitioned queue over several disks. Nothing in it happens by itself."""

from __future__ import annotations

import sys
from collections import deque
from typing import TYPE_CHECKING

from tests.simulation.ledger import Violation
from tests.simulation.letter import read_delivery
from tests.simulation.partitioned.ledger import Ledger, Lock
from twinbus.broker.gathering import Gathering
from twinbus.broker.namespace import Namespace
from twinbus.model.description import FRAGMENTS
from twinbus.model.queue import QueueDescription
from twinbus.store.memory import MemoryDisk, MemoryStore
from twinbus.testing.clock import FakeClock

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from tests.simulation.settings import Settings
    from twinbus.broker.consumer import Delivery
    from twinbus.broker.fragment import Fragment
    from twinbus.broker.journal import Journal
    from twinbus.broker.queue import Queue
    from twinbus.model.errors import ServiceBusError

MAX_WORK = 20_000
"""Calls and store steps until nothing is left to do: more is a loop without end."""
LOCK_S = 60.0


class World:
    def __init__(self, random: Random, settings: Settings, stores: int, *, is_tracing: bool) -> None:
        self.random = random
        self.settings = settings
        self.is_tracing = is_tracing
        self.clock = FakeClock()
        self.disks = [MemoryDisk() for _ in range(stores)]
        self.ledger = Ledger(stores)
        self.consumers: list[Taker] = []
        self.held: list[Lock] = []
        self.hanging = [False] * stores
        self.start()

    def say(self, line: str) -> None:
        if self.is_tracing:
            sys.stdout.write(f"{self.clock.monotonic_s():10.3f}  {line}\n")

    # --- a process ----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._turn: deque[Callable[[], object]] = deque()
        self._mail: list[deque[Callable[[], object]]] = [deque() for _ in self.disks]
        self.closed = [False] * len(self.disks)
        self.hanging = [False] * len(self.disks)
        self.namespace = Namespace(
            clock=self.clock,
            random=self.random,
            defer=self._turn.append,
            on_failed=self._failed,
            limits=self.settings.limits,
            store_timeout_s=self.settings.timeout_s,
        )
        self.stores = [self._open(number) for number in range(len(self.disks))]
        for store in self.stores:
            self.namespace.add_store(store)
        description = QueueDescription(enable_partitioning=True, max_delivery_count=1_000_000)
        places = [number % len(self.disks) for number in range(FRAGMENTS)]
        self.queue: Queue = self.namespace.add_queue(7, "orders", description, places, created_ms=0, updated_ms=0)
        loaded: list[ServiceBusError | None] = []
        self.queue.load(loaded.append)
        self.work_all()
        if loaded != [None]:
            raise Violation(f"the queue cannot be loaded: {loaded}")
        self.queue.settled_down()

    @property
    def mains(self) -> list[Fragment]:
        return [part.main for part in self.queue.parts]

    def _open(self, number: int) -> MemoryStore:
        return MemoryStore(self.disks[number], name=str(number), post=self._mail[number].append)

    def crash(self) -> None:
        """Power is cut: of what was written and not synced, a part is there."""
        for number, disk in enumerate(self.disks):
            disk.crash(self.random)
            self.ledger.lose(number, len(self.disks))
        self.ledger.lose_process()
        self.consumers.clear()
        self.held.clear()
        self.start()

    def _failed(self, journal: Journal) -> None:
        number = self.namespace.journals.index(journal)
        self.say(f"  store {number} failed")
        self.ledger.lose(number, len(self.disks))
        journal.store.close(lambda _: self._let_go(number))

    def _let_go(self, number: int) -> None:
        self.closed[number] = True

    def reopen(self, number: int) -> None:
        self.closed[number] = False
        self.stores[number] = self._open(number)
        self.namespace.journals[number].resume(self.stores[number])

    def hang(self, number: int) -> None:
        self.ledger.troubles[number] += 1
        self.hanging[number] = True
        self.stores[number].hang()

    def go_on(self, number: int) -> None:
        self.hanging[number] = False
        self.stores[number].resume()

    def takers(self) -> list[int]:
        """Stores that take messages now."""
        closed = {main.number % len(self.disks) for main in self.mains if not main.takes_sends}
        return [number for number in range(len(self.disks)) if number not in closed]

    # --- the loop -----------------------------------------------------------------------------------------------------

    def work(self) -> bool:
        """Do one thing of all that wait to be done, whichever comes. False if nothing does."""
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
        for _ in range(MAX_WORK):
            if not self.work():
                return
        raise Violation(f"still busy after {MAX_WORK} steps")

    def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.namespace.timers.run_due()
        for number, journal in enumerate(self.namespace.journals):
            self.ledger.troubles[number] += journal.trouble is not None  # what it was asked took too long
        for taker in self.consumers:
            if taker.drain_until_s is not None and taker.drain_until_s <= self.clock.monotonic_s():
                raise Violation("a drain is not answered within a tenth of a second")

    def check_fed(self) -> None:
        """When nothing is left to do, whoever is hungry has got what there is."""
        self.work_all()
        if not any(taker.room > 0 for taker in self.consumers):
            return
        for main in self.mains:
            idle = main.count - len(main.out.locks)
            is_hanging = self.hanging[main.number % len(self.disks)]
            if main.may_hand_out and idle > 0 and main.free_locks > 0 and not is_hanging:
                raise Violation(f"fragment {main.number} has {idle} messages, and someone waits")


class Taker:
    """A receiving link over all fragments."""

    deletes = False

    def __init__(self, world: World) -> None:
        self.is_gone = False
        self.room = 0
        self.drain_until_s: float | None = None
        self._world = world
        self.gathering = Gathering(world.mains)
        self.gathering.add(self)
        world.consumers.append(self)

    def reserve(self, count: int) -> None:
        raise AssertionError(count)

    def deliver(self, deliveries: list[Delivery]) -> int:
        if self.is_gone or len(deliveries) > self.room:
            raise Violation(f"{len(deliveries)} messages for one who has room for {self.room}")
        self.room -= len(deliveries)
        world = self._world
        now_s = world.clock.monotonic_s()
        for payload, tag in deliveries:
            found = read_delivery(payload)
            if self.gathering.find(tag).number != found.sequence >> 48:
                raise Violation(f"the tag of message {found.identity} is of another fragment")
            world.held.append(world.ledger.deliver(found.identity, found.sequence, tag, now_s, now_s + LOCK_S))
        return len(deliveries)

    def entity_gone(self, error: ServiceBusError) -> None:
        raise AssertionError(error)

    def session_lost(self, error: ServiceBusError) -> None:
        raise AssertionError(error)

    def grant(self, credit: int) -> None:
        self.room += credit
        self.gathering.feed(self)

    def drain(self) -> None:
        self.drain_until_s = self._world.clock.monotonic_s() + 0.15
        self.gathering.drain(self, self._drained)

    def _drained(self) -> None:
        if self.is_gone:
            raise Violation("one who has gone is told of its drain")
        self.room = 0
        self.drain_until_s = None

    def leave(self) -> None:
        self.is_gone = True
        self.room = 0
        self.gathering.remove(self)
        self._world.consumers.remove(self)
