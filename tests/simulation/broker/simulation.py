"""A simulated broker process with its disks, through crashes and restarts. Only `actions` make anything happen.

Owns: the event loop (calls deferred to the end of the turn, callbacks of stores), the stores and their failures, the
catalogue.
"""

from __future__ import annotations

import sys
from collections import deque
from typing import TYPE_CHECKING

from tests.simulation.broker.checker import BrokerChecker
from tests.simulation.broker.payloads import read_delivery
from tests.simulation.broker.simulated_disk import SimulatedDisk, SimulatedStore
from tests.support.delivery_checker.problems import Violation
from tests.support.parts import local_part
from twinbus.broker.namespace import Namespace
from twinbus.model.errors import ServiceBusError, StoreUnavailable
from twinbus.testing.clock import FakeClock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from random import Random

    from tests.simulation.broker.consumer import SimulatedConsumer
    from tests.simulation.broker.expected_state import AreaState, Entity, Lock
    from tests.simulation.broker.settings import Settings
    from twinbus.broker.commit_log import CommitLog
    from twinbus.broker.fragment.fragment import Fragment
    from twinbus.broker.ports.consumer import Delivery

MAX_STEPS = 5_000
"""Limit of calls and store steps until the simulation is idle: more means an endless loop."""


class BrokerSimulation:
    def __init__(self, random: Random, settings: Settings, *, is_tracing: bool) -> None:
        self.random = random
        self.settings = settings
        self.is_tracing = is_tracing
        self.clock = FakeClock()
        self.disks = [SimulatedDisk() for _ in range(settings.stores)]
        self.checker = BrokerChecker(self.clock.monotonic_s, self.disks)
        self.catalogue: dict[str, Entity] = {}
        self.entities_pending_cleanup: list[Entity] = []
        self.given_locks: list[Lock] = []
        """Locks given to consumers, including settled and void locks."""
        self.deleted_entities: list[Entity] = []
        """Deleted entities, to which senders may still send."""
        self.namespace: Namespace
        self.stores: list[SimulatedStore]
        self.closed: list[bool]
        """For each store: whether it has failed and released its disk."""
        self._deferred_calls: deque[Callable[[], object]] = deque()
        self._store_callbacks: list[deque[Callable[[], object]]] = []
        for disk in self.disks:
            disk.checker = self.checker

    def trace(self, line: str) -> None:
        sys.stdout.write(f"{self.clock.monotonic_s():10.3f}  {line}\n")

    # --- process -----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start a process with the content of the disks and the catalogue."""
        settings = self.settings
        self._deferred_calls.clear()
        self._store_callbacks = [deque() for _ in self.disks]
        self.closed = [False for _ in self.disks]
        self.stores = [self._open(number) for number in range(len(self.disks))]
        self.namespace = Namespace(
            clock=self.clock,
            random=self.random,
            call_at_turn_end=self._deferred_calls.append,
            on_failed=self._on_store_failed,
            limits=settings.limits,
            store_timeout_s=settings.timeout_s,
        )
        for store in self.stores:
            self.namespace.add_store(store)
        fragments = []
        for entity in self.catalogue.values():
            self.add_queue(entity)
            fragments += [area_state.fragment for area_state in entity.area_states]
        self._load(deque(fragments))

    def add_queue(self, entity: Entity) -> None:
        entity.queue = self.namespace.add_queue(
            entity.id, entity.path, entity.description, [entity.store], created_ms=0, updated_ms=0
        )
        entity.main.fragment, entity.dead.fragment = (
            local_part(entity.queue).main,
            local_part(entity.queue).dead_letters,
        )

    def _load(self, fragments: deque[Fragment]) -> None:
        """Load fragments one after the other, as a server does before it serves."""

        def load_next(error: ServiceBusError | None = None) -> None:
            if error is not None:
                raise Violation(f"a fragment cannot be loaded: {error}")
            if fragments:
                fragments.popleft().load(load_next)

        load_next()
        self.run_until_idle()
        for entity in self.catalogue.values():
            for area_state in entity.area_states:
                if not area_state.fragment.is_loaded:
                    raise Violation(f"{area_state} was not loaded")
                self.checker.check_counters(area_state)
        for entity in list(self.entities_pending_cleanup):
            self.clean_up_entity(entity)

    def crash(self) -> None:
        """Cut the power, and restart: memory is lost, and a random part of the unsynced writes."""
        for disk in self.disks:
            disk.crash(self.random)
        self.checker.process_lost()
        for entity in self.checker.entities:
            for area_state in entity.area_states:
                for consumer in list(area_state.consumers):
                    consumer.leave()
        self.deleted_entities.clear()
        self.start()

    def clean_up_entity(self, entity: Entity) -> None:
        def on_deleted(error: ServiceBusError | None) -> None:
            if error is None and entity in self.entities_pending_cleanup:
                self.entities_pending_cleanup.remove(entity)
                entity.is_cleaned_up = True

        try:
            self.namespace.delete_entity_records(entity.id, entity.store, on_deleted)
        except StoreUnavailable:
            return

    # --- event loop --------------------------------------------------------------------------------------------------

    def _open(self, number: int) -> SimulatedStore:
        return SimulatedStore(self.disks[number], name=str(number), post_call=self._store_callbacks[number].append)

    def step(self) -> bool:
        """Run a random one of the pending calls and store steps. Return False if there are none."""
        choices: list[Callable[[], object]] = [store.step for store in self.stores if store.has_work]
        choices += [callbacks.popleft for callbacks in self._store_callbacks if callbacks]
        if self._deferred_calls:
            choices.append(self._deferred_calls.popleft)
        if not choices:
            return False
        call = choices[int(self.random.random() * len(choices))]()
        if call is not None:
            call()  # type: ignore[operator]
        return True

    def run_until_idle(self) -> None:
        """Run all pending calls and store steps; timers wait for `pass_time`."""
        for _ in range(MAX_STEPS):
            if not self.step():
                return
        raise Violation(f"still busy after {MAX_STEPS} steps")

    def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.namespace.timers.run_due()
        now_s = self.clock.monotonic_s()
        for entity in self.catalogue.values():
            for area_state in entity.area_states:
                for consumer in area_state.consumers:
                    if consumer.drain_until_s is not None and consumer.drain_until_s <= now_s:
                        raise Violation(f"{consumer!r} waits for its drain too long")

    # --- failing stores ----------------------------------------------------------------------------------------------

    def _on_store_failed(self, commit_log: CommitLog) -> None:
        number = self.namespace.stores.index(commit_log)
        if self.is_tracing:
            self.trace(f"  store {number} failed")
        self.checker.store_lost(number)
        commit_log.store.close(lambda _: self._store_closed(number))

    def _store_closed(self, number: int) -> None:
        self.closed[number] = True

    def reopen(self, number: int) -> None:
        self.closed[number] = False
        self.checker.check_disk(number)
        self.stores[number] = self._open(number)
        self.namespace.commit_log(number).reopen(self.stores[number])

    def is_working(self, number: int) -> bool:
        return self.namespace.stores[number].unavailable_reason is None and not self.stores[number].is_hanging

    # --- checks ------------------------------------------------------------------------------------------------------

    def check_when_idle(self) -> None:
        """Run until idle, and check all working stores."""
        self.run_until_idle()
        for number in range(len(self.disks)):
            if not self.is_working(number):
                continue
            self.checker.check_answered(number)
            self.checker.check_disk(number)
            for area_state in self.checker.existing_area_states(number):
                if not area_state.fragment.is_loaded:
                    raise Violation(f"{area_state} is not loaded")
                self.checker.check_area(area_state, self.settings.limits.max_locks)
            self._check_expiry(number)

    def _check_expiry(self, number: int) -> None:
        """Check that expired locks have a timer that is due soon: they are not all handled in one turn."""
        now_s, due_s = self.clock.monotonic_s(), self.namespace.timers.due_in_s()
        for area_state in self.checker.existing_area_states(number):
            for lock in self.locks(area_state):
                if lock.deadline_s <= now_s and (due_s is None or due_s > 0.02):
                    raise Violation(f"{lock.message!r}: its lock has expired, and nobody looks before {due_s} s")

    def locks(self, area_state: AreaState) -> Iterator[Lock]:
        for stored in area_state.visible.values():
            lock = self.checker.messages[stored.identity].lock
            if lock is not None:
                yield lock

    def has_room(self, area_state: AreaState) -> bool:
        """Whether more messages may be locked or in deletion."""
        messages = self.checker.messages
        in_flight = {stored.identity for stored in area_state.visible.values() if not messages[stored.identity].is_idle}
        in_flight |= {
            message.identity
            for message in messages.values()
            if message.deleting_consumer is not None and message.deleting_consumer.area_state is area_state
        }
        return len(in_flight) < self.settings.limits.max_locks

    def record_locks(self, consumer: SimulatedConsumer, deliveries: list[Delivery]) -> None:
        entity = consumer.area_state.entity
        if self.namespace.stores[entity.store].unavailable_reason is not None:
            raise Violation(f"{consumer!r} was given messages while the store does not work")
        deadline_s = self.clock.monotonic_s() + entity.description.lock_duration_ms / 1000
        self.given_locks += self.checker.messages_locked(consumer, deliveries, deadline_s)

    def identities(self, deliveries: list[Delivery]) -> list[int]:
        return [read_delivery(payload).identity for payload, _ in deliveries]
