"""One of several processes, from its start to its death: its namespace, its stores, and who is connected to it.

Owns: what ends with it. Its disks are the world's.
"""

from __future__ import annotations

from collections import deque
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from tests.simulation.cluster.deletions import WatchedStore
from tests.support.delivery_checker.problems import Violation
from twinbus.broker.namespace import Namespace
from twinbus.model.description import FRAGMENT_COUNT
from twinbus.server.cluster.peer_network import HEALTH_INTERVAL_S, HealthPublisher, PeerNetwork
from twinbus.server.cluster.transport import UnixTransport

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.simulation.cluster.browsers import SimulatedBrowser
    from tests.simulation.cluster.receivers import SimulatedReceiver
    from tests.simulation.cluster.simulation import ClusterSimulation
    from tests.simulation.cluster.transactions import OpenTransaction
    from twinbus.broker.commit_log import CommitLog
    from twinbus.broker.ports.fragment import FragmentPort
    from twinbus.broker.remote.peer_client import PeerClient
    from twinbus.model.errors import ServiceBusError
    from twinbus.model.path import SubQueue

QUEUE_ID = 7


def run_step(step: Callable[[], object]) -> None:
    """Do something that waits to be done; or what is taken out of a line by that."""
    call = step()
    if callable(call):
        call()


class Process:
    """One life of one process."""

    def __init__(self, simulation: ClusterSimulation, number: int, life: int) -> None:
        """It begins with what its disks hold. `life` is a number that no other one has had."""
        self.simulation = simulation
        self.number = number
        self.life = life
        self.is_silent = False
        self.has_overdue_timers = False
        """It was silent: what was due meanwhile has not been done."""
        self.receivers: list[SimulatedReceiver] = []
        self.browsers: list[SimulatedBrowser] = []
        self.open_transactions: list[OpenTransaction] = []
        self.hanging: set[int] = set()
        self.closed: set[int] = set()
        """Stores that failed and let go of their disks."""
        self.deferred_calls: deque[Callable[[], object]] = deque()
        self.store_callbacks: dict[int, deque[Callable[[], object]]] = {
            store: deque() for store in simulation.stores_of(number)
        }
        self.namespace = Namespace(
            clock=simulation.clock,
            random=Random(simulation.random.getrandbits(32)),
            call_at_turn_end=self.deferred_calls.append,
            on_failed=self._failed,
            limits=simulation.settings.limits,
            store_timeout_s=simulation.settings.timeout_s,
        )
        self._peers = PeerNetwork(
            self.namespace, worker_number=number, workers=simulation.count, transport=UnixTransport(Path())
        )
        self.stores = {store: self._open(store) for store in self.store_callbacks}
        for store in range(len(simulation.disks)):
            if store in self.stores:
                self.namespace.add_store(self.stores[store])
            else:
                self.namespace.add_remote_store(str(store), self.peer_client(store % simulation.count))
        self.queue: Any = self._add_queue()
        self._load()
        self.health = HealthPublisher(self.namespace)
        self._watch_health()

    def __repr__(self) -> str:
        return f"process {self.number}.{self.life}"

    def _add_queue(self) -> Any:  # noqa: ANN401  # plain or partitioned
        world, times = self.simulation, {"created_ms": 0, "updated_ms": 0}
        fragments = FRAGMENT_COUNT if world.description.enable_partitioning else 1
        places = [world.store_of(number) for number in range(fragments)]
        return self.namespace.add_queue(QUEUE_ID, "orders", world.description, places, **times)

    def _load(self) -> None:
        loaded: list[ServiceBusError | None] = []
        self.queue.load(loaded.append)
        while not loaded:
            run_step(self.possible_steps()[0])
        if loaded != [None]:
            raise Violation(f"the queue cannot be loaded: {loaded}")
        self.queue.resume()

    # --- what it has --------------------------------------------------------------------------------------------------

    def peer_client(self, number: int) -> PeerClient:
        """Another process, as this one knows it."""
        return self._peers.client(number)

    @property
    def peer_clients(self) -> list[PeerClient]:
        return [self.peer_client(number) for number in range(self.simulation.count) if number != self.number]

    def parts(self) -> list[Any]:
        return list(self.queue.parts)

    def fragments(self, sub_queue: SubQueue) -> list[FragmentPort]:
        found: list[FragmentPort] = self.queue.fragments_of(sub_queue)
        return found

    def stores_accepting_sends(self) -> list[int]:
        """Return the stores that accept messages, both as known here and in fact: a store being opened accepts none."""
        known = [part.main.number for part in self.parts() if part.main.accepts_sends]
        owners = [(number, owner) for number in known if (owner := self.simulation.owner_of(number)) is not None]
        accepting = [number for number, owner in owners if owner.parts()[number].main.accepts_sends]
        return sorted({self.simulation.store_of(number) for number in accepting})

    # --- its loop -----------------------------------------------------------------------------------------------------

    def possible_steps(self) -> list[Callable[[], object]]:
        """All that it may do next, as `do` does it."""
        if self.is_silent:
            return []
        found: list[Callable[[], object]] = [store.step for store in self.stores.values() if store.has_work]
        found += [mail.popleft for mail in self.store_callbacks.values() if mail]
        if self.deferred_calls:
            found.append(self.deferred_calls.popleft)
        if self.has_overdue_timers:
            found.append(self.run_overdue_timers)
        return found

    def run_overdue_timers(self) -> None:
        """Do what is due."""
        if not self.is_silent:
            self.has_overdue_timers = False
            self.namespace.timers.run_due()

    # --- its stores ---------------------------------------------------------------------------------------------------

    def _open(self, store: int) -> WatchedStore:
        disk, deletions = self.simulation.disks[store], self.simulation.checker.deletions
        return WatchedStore(disk, deletions, name=str(store), post_call=self.store_callbacks[store].append)

    def _failed(self, journal: CommitLog) -> None:
        store = self.namespace.stores.index(journal)
        self.simulation.trace(f"  store {store} failed")
        self.stores[store].lose()
        self.simulation.store_failed(store)
        journal.store.close(lambda _: self.closed.add(store))

    def reopen(self, store: int) -> None:
        self.closed.discard(store)
        self.hanging.discard(store)
        self.stores[store] = self._open(store)
        self.namespace.commit_log(store).reopen(self.stores[store])

    def hang(self, store: int) -> None:
        self.hanging.add(store)
        self.stores[store].hang()

    def go_on(self, store: int) -> None:
        self.hanging.discard(store)
        self.stores[store].resume()

    @property
    def is_healthy(self) -> bool:
        """All of its stores work."""
        journals = self.namespace.stores
        return (
            not self.closed
            and not self.hanging
            and all(journals[store].unavailable_reason is None for store in self.stores)
        )

    # --- its health ---------------------------------------------------------------------------------------------------

    def _watch_health(self) -> None:
        def look() -> None:
            self.health.publish_changes()
            self._watch_health()

        self.namespace.timers.call_at(self.simulation.clock.monotonic_s() + HEALTH_INTERVAL_S, look)
