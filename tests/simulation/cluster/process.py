"""A simulated process from its start to its end: its namespace, its stores, its receivers and browsers.

Owns: everything that is lost with the process. The disks belong to the simulation.
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
    """Run a step; if the step takes a call from a queue, run that call."""
    call = step()
    if callable(call):
        call()


class Process:
    """A process from one start to its end."""

    def __init__(self, simulation: ClusterSimulation, number: int, life: int) -> None:
        """Start with the content of the disks. `life` is a unique number."""
        self.simulation = simulation
        self.number = number
        self.life = life
        self.is_silent = False
        self.has_overdue_timers = False
        """Whether it was silent, and due timers have not run."""
        self.receivers: list[SimulatedReceiver] = []
        self.browsers: list[SimulatedBrowser] = []
        self.open_transactions: list[OpenTransaction] = []
        self.hanging: set[int] = set()
        self.closed: set[int] = set()
        """Stores that have failed and released their disks."""
        self.deferred_calls: deque[Callable[[], object]] = deque()
        self.store_callbacks: dict[int, deque[Callable[[], object]]] = {
            store: deque() for store in simulation.stores_of(number)
        }
        self.namespace = Namespace(
            clock=simulation.clock,
            random=Random(simulation.random.getrandbits(32)),
            call_at_turn_end=self.deferred_calls.append,
            on_failed=self._on_store_failed,
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
        simulation, times = self.simulation, {"created_ms": 0, "updated_ms": 0}
        fragments = FRAGMENT_COUNT if simulation.description.enable_partitioning else 1
        stores = [simulation.store_of(number) for number in range(fragments)]
        return self.namespace.add_queue(QUEUE_ID, "orders", simulation.description, stores, **times)

    def _load(self) -> None:
        loaded: list[ServiceBusError | None] = []
        self.queue.load(loaded.append)
        while not loaded:
            run_step(self.possible_steps()[0])
        if loaded != [None]:
            raise Violation(f"the queue cannot be loaded: {loaded}")
        self.queue.resume()

    # --- content -----------------------------------------------------------------------------------------------------

    def peer_client(self, number: int) -> PeerClient:
        """Return this process's client of another process."""
        return self._peers.client(number)

    @property
    def peer_clients(self) -> list[PeerClient]:
        return [self.peer_client(number) for number in range(self.simulation.count) if number != self.number]

    def parts(self) -> list[Any]:
        return list(self.queue.parts)

    def fragments(self, sub_queue: SubQueue) -> list[FragmentPort]:
        fragments: list[FragmentPort] = self.queue.fragments_of(sub_queue)
        return fragments

    def stores_accepting_sends(self) -> list[int]:
        """Return the stores that accept messages, both as known here and in fact: a store being opened accepts none."""
        known = [part.main.number for part in self.parts() if part.main.accepts_sends]
        owners = [(number, owner) for number in known if (owner := self.simulation.owner_of(number)) is not None]
        accepting = [number for number, owner in owners if owner.parts()[number].main.accepts_sends]
        return sorted({self.simulation.store_of(number) for number in accepting})

    # --- event loop --------------------------------------------------------------------------------------------------

    def possible_steps(self) -> list[Callable[[], object]]:
        """Return the possible next steps, for `run_step`."""
        if self.is_silent:
            return []
        steps: list[Callable[[], object]] = [store.step for store in self.stores.values() if store.has_work]
        steps += [callbacks.popleft for callbacks in self.store_callbacks.values() if callbacks]
        if self.deferred_calls:
            steps.append(self.deferred_calls.popleft)
        if self.has_overdue_timers:
            steps.append(self.run_overdue_timers)
        return steps

    def run_overdue_timers(self) -> None:
        """Run all timers that are due."""
        if not self.is_silent:
            self.has_overdue_timers = False
            self.namespace.timers.run_due()
            self.record_unavailable_stores()

    def record_unavailable_stores(self) -> None:
        """Count a failure of each store that this process finds unavailable: sends may have been repeated elsewhere."""
        for store, commit_log in enumerate(self.namespace.stores):
            self.simulation.checker.store_failures[store] += commit_log.unavailable_reason is not None

    # --- stores ------------------------------------------------------------------------------------------------------

    def _open(self, store: int) -> WatchedStore:
        disk, deletions = self.simulation.disks[store], self.simulation.checker.deletions
        return WatchedStore(disk, deletions, name=str(store), post_call=self.store_callbacks[store].append)

    def _on_store_failed(self, commit_log: CommitLog) -> None:
        store = self.namespace.stores.index(commit_log)
        self.simulation.trace(f"  store {store} failed")
        self.stores[store].lose()
        self.simulation.store_failed(store)
        commit_log.store.close(lambda _: self.closed.add(store))

    def reopen(self, store: int) -> None:
        self.closed.discard(store)
        self.hanging.discard(store)
        self.stores[store] = self._open(store)
        self.namespace.commit_log(store).reopen(self.stores[store])

    def hang(self, store: int) -> None:
        self.hanging.add(store)
        self.stores[store].hang()

    def resume(self, store: int) -> None:
        self.hanging.discard(store)
        self.stores[store].resume()

    @property
    def is_healthy(self) -> bool:
        """Whether all of its stores work."""
        commit_logs = self.namespace.stores
        return (
            not self.closed
            and not self.hanging
            and all(commit_logs[store].unavailable_reason is None for store in self.stores)
        )

    # --- health ------------------------------------------------------------------------------------------------------

    def _watch_health(self) -> None:
        def publish() -> None:
            self.health.publish_changes()
            self._watch_health()

        self.namespace.timers.call_at(self.simulation.clock.monotonic_s() + HEALTH_INTERVAL_S, publish)
