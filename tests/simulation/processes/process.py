"""One of several processes, from its start to its death: its namespace, its stores, and who is connected to it.

Owns: what ends with it. Its disks are the world's.
"""

from __future__ import annotations

from collections import deque
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from tests.ledger.problems import Violation
from tests.simulation.processes.deletions import WatchedStore
from twinbus.broker.namespace import Namespace
from twinbus.model.description import FRAGMENTS
from twinbus.server.peers.peers import HEALTH_S, HealthReport, Peers
from twinbus.server.peers.transport import UnixTransport

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.simulation.processes.deals import OpenDeal
    from tests.simulation.processes.readers import Reader
    from tests.simulation.processes.takers import Taker
    from tests.simulation.processes.world import World
    from twinbus.broker.journal import Journal
    from twinbus.broker.ports.fragment import FragmentPort
    from twinbus.broker.remote.owner import Owner
    from twinbus.model.errors import ServiceBusError
    from twinbus.model.path import SubQueue

QUEUE_ID = 7


def do(choice: Callable[[], object]) -> None:
    """Do something that waits to be done; or what is taken out of a line by that."""
    call = choice()
    if callable(call):
        call()


class Process:
    """One life of one process."""

    def __init__(self, world: World, number: int, life: int) -> None:
        """It begins with what its disks hold. `life` is a number that no other one has had."""
        self.world = world
        self.number = number
        self.life = life
        self.is_silent = False
        self.is_late = False
        """It was silent: what was due meanwhile has not been done."""
        self.takers: list[Taker] = []
        self.readers: list[Reader] = []
        self.deals: list[OpenDeal] = []
        self.hanging: set[int] = set()
        self.closed: set[int] = set()
        """Stores that failed and let go of their disks."""
        self.turn: deque[Callable[[], object]] = deque()
        self.mail: dict[int, deque[Callable[[], object]]] = {store: deque() for store in world.stores_of(number)}
        self.namespace = Namespace(
            clock=world.clock,
            random=Random(world.random.getrandbits(32)),
            defer=self.turn.append,
            on_failed=self._failed,
            limits=world.settings.limits,
            store_timeout_s=world.settings.timeout_s,
        )
        self._peers = Peers(self.namespace, number=number, workers=world.count, transport=UnixTransport(Path()))
        self.stores = {store: self._open(store) for store in self.mail}
        for store in range(len(world.disks)):
            if store in self.stores:
                self.namespace.add_store(self.stores[store])
            else:
                self.namespace.add_remote_store(str(store), self.owner(store % world.count))
        self.queue: Any = self._add_queue()
        self._load()
        self.health = HealthReport(self.namespace)
        self._watch_health()

    def __repr__(self) -> str:
        return f"process {self.number}.{self.life}"

    def _add_queue(self) -> Any:  # noqa: ANN401  # plain or partitioned
        world, times = self.world, {"created_ms": 0, "updated_ms": 0}
        fragments = FRAGMENTS if world.description.enable_partitioning else 1
        places = [world.store_of(number) for number in range(fragments)]
        return self.namespace.add_queue(QUEUE_ID, "orders", world.description, places, **times)

    def _load(self) -> None:
        loaded: list[ServiceBusError | None] = []
        self.queue.load(loaded.append)
        while not loaded:
            do(self.choices()[0])
        if loaded != [None]:
            raise Violation(f"the queue cannot be loaded: {loaded}")
        self.queue.settled_down()

    # --- what it has --------------------------------------------------------------------------------------------------

    def owner(self, number: int) -> Owner:
        """Another process, as this one knows it."""
        return self._peers.owner(number)

    @property
    def owners(self) -> list[Owner]:
        return [self.owner(number) for number in range(self.world.count) if number != self.number]

    def parts(self) -> list[Any]:
        return list(self.queue.parts)

    def fragments(self, sub_queue: SubQueue) -> list[FragmentPort]:
        found: list[FragmentPort] = self.queue.fragments_of(sub_queue)
        return found

    def takes(self) -> list[int]:
        """Stores that take messages now, as is known here, and as it is."""
        known = {self.world.store_of(part.main.number) for part in self.parts() if part.main.takes_sends}
        owners = {store: self.world.processes[store % self.world.count] for store in known}
        journals = {store: owner.namespace.journals[store] for store, owner in owners.items() if owner is not None}
        return sorted([store for store, journal in journals.items() if journal.takes_sends])

    # --- its loop -----------------------------------------------------------------------------------------------------

    def choices(self) -> list[Callable[[], object]]:
        """All that it may do next, as `do` does it."""
        if self.is_silent:
            return []
        found: list[Callable[[], object]] = [store.step for store in self.stores.values() if store.pending]
        found += [mail.popleft for mail in self.mail.values() if mail]
        if self.turn:
            found.append(self.turn.popleft)
        if self.is_late:
            found.append(self.catch_up)
        return found

    def catch_up(self) -> None:
        """Do what is due."""
        if not self.is_silent:
            self.is_late = False
            self.namespace.timers.run_due()

    # --- its stores ---------------------------------------------------------------------------------------------------

    def _open(self, store: int) -> WatchedStore:
        disk, deletions = self.world.disks[store], self.world.ledger.deletions
        return WatchedStore(disk, deletions, name=str(store), post=self.mail[store].append)

    def _failed(self, journal: Journal) -> None:
        store = self.namespace.journals.index(journal)
        self.world.say(f"  store {store} failed")
        self.world.store_failed(store)
        journal.store.close(lambda _: self.closed.add(store))

    def reopen(self, store: int) -> None:
        self.closed.discard(store)
        self.hanging.discard(store)
        self.stores[store] = self._open(store)
        self.namespace.journal(store).resume(self.stores[store])

    def hang(self, store: int) -> None:
        self.hanging.add(store)
        self.stores[store].hang()

    def go_on(self, store: int) -> None:
        self.hanging.discard(store)
        self.stores[store].resume()

    @property
    def is_sound(self) -> bool:
        """All of its stores work."""
        journals = self.namespace.journals
        return not self.closed and not self.hanging and all(journals[store].trouble is None for store in self.stores)

    # --- its health ---------------------------------------------------------------------------------------------------

    def _watch_health(self) -> None:
        def look() -> None:
            self.health.look()
            self._watch_health()

        self.namespace.timers.call_at(self.world.clock.monotonic_s() + HEALTH_S, look)
