"""Random actions of the broker simulation."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from tests.simulation.broker.consumer import SimulatedConsumer
from tests.simulation.broker.expected_state import Entity, SettlementKind
from tests.simulation.broker.payloads import make_batch, make_payload, read_delivery
from tests.support.delivery_checker.problems import Violation
from twinbus.broker.ports.incoming_batch import IncomingBatch
from twinbus.model.errors import (
    EntityDeleted,
    MessageLockLost,
    QuotaExceeded,
    ServerBusy,
    ServiceBusError,
    StoreUnavailable,
)
from twinbus.model.message import BATCH_FORMAT
from twinbus.model.queue import QueueDescription

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.simulation.broker.expected_state import AreaState, Lock, SettlementOperation
    from tests.simulation.broker.simulation import BrokerSimulation

T = TypeVar("T")
PATHS = ("orders", "letters", "pings", "bills")
DURATIONS_MS = (5_000, 7_000, 60_000)


class Actions:
    def __init__(self, simulation: BrokerSimulation) -> None:
        self._simulation = simulation
        self._random = simulation.random
        self._checker = simulation.checker
        self._next_identity = 1
        self._next_entity = 1
        self._next_consumer = 1

    def do(self, name: str) -> None:
        if self._simulation.is_tracing:
            self._simulation.trace(name)
        getattr(self, name)()

    def _trace(self, line: str) -> None:
        if self._simulation.is_tracing:
            self._simulation.trace(f"  {line}")

    def _pick(self, items: Sequence[T]) -> T | None:
        return items[int(self._random.random() * len(items))] if items else None

    def _pick_entity(self) -> Entity | None:
        return self._pick(list(self._simulation.catalogue.values()))

    def _pick_consumer(self) -> SimulatedConsumer | None:
        area_states = [
            area_state for entity in self._simulation.catalogue.values() for area_state in entity.area_states
        ]
        return self._pick([consumer for area_state in area_states for consumer in area_state.consumers])

    # --- time and work -----------------------------------------------------------------------------------------------

    def run_steps(self) -> None:
        for _ in range(self._random.choice((1, 2, 4, 10))):
            self._simulation.step()

    def check(self) -> None:
        self._simulation.check_when_idle()

    def wait(self) -> None:
        due_s = self._simulation.namespace.timers.due_in_s()
        seconds = [0.001, 0.05, 0.1, 1.0]
        if due_s is not None:
            seconds += [due_s, due_s]
        self._simulation.pass_time(self._random.choice(seconds))

    def wait_long(self) -> None:
        self._simulation.pass_time(self._random.choice((5.0, 7.5, 11.0, 61.0)))

    def set_wall_clock(self) -> None:
        """Set the wall clock, which must have no effect."""
        self._simulation.clock.set_wall_ms(self._random.randint(1_000_000_000_000, 2_000_000_000_000))
        self._simulation.namespace.timers.run_due()

    # --- entities ----------------------------------------------------------------------------------------------------

    def create(self) -> None:
        free = [path for path in PATHS[: self._simulation.settings.queues] if path not in self._simulation.catalogue]
        path = self._pick(free)
        if path is None:
            return
        description = QueueDescription(
            lock_duration_ms=self._random.choice(DURATIONS_MS), max_delivery_count=self._random.choice((1, 2, 3, 10))
        )
        entity = Entity(self._next_entity, path, self._random.randrange(self._simulation.settings.stores), description)
        self._next_entity += 1
        self._checker.add_entity(entity)
        self._simulation.catalogue[path] = entity
        self._simulation.add_queue(entity)

    def delete(self) -> None:
        entity = self._pick_entity()
        if entity is None:
            return
        del self._simulation.catalogue[entity.path]
        entity.is_deleted = True
        self._simulation.entities_pending_cleanup.append(entity)
        self._simulation.deleted_entities.append(entity)
        self._simulation.namespace.remove(entity.path)
        self._simulation.clean_up_entity(entity)

    def update(self) -> None:
        entity = self._pick_entity()
        if entity is None:
            return
        entity.description = replace(
            entity.description,
            lock_duration_ms=self._random.choice(DURATIONS_MS),
            max_delivery_count=self._random.choice((1, 2, 3, 10)),
        )
        entity.recent_max_delivery_counts.add(entity.description.max_delivery_count)
        self._simulation.namespace.update_queue(entity.path, entity.description, updated_ms=0)

    # --- sending -----------------------------------------------------------------------------------------------------

    def send(self) -> None:
        for _ in range(self._random.choice((1, 1, 2, 4))):
            entity = self._pick_entity()
            if entity is not None:
                self._send(entity)

    def send_to_deleted(self) -> None:
        """Send on a link to a deleted entity."""
        entity = self._pick(self._simulation.deleted_entities)
        if entity is not None and self._send(entity):
            raise Violation(f"{entity} is deleted, and takes messages")

    def _send(self, entity: Entity) -> bool:
        random, intake = self._random, self._simulation.namespace.intake
        count = random.choice((1, 1, 1, 2, 5))
        identities = list(range(self._next_identity, self._next_identity + count))
        self._next_identity += count
        payloads = [
            make_payload(identity, random.randint(0, self._simulation.settings.max_padding)) for identity in identities
        ]
        now_ms = self._simulation.clock.wall_ms()
        batch = IncomingBatch()
        if count > 1:
            intake.add_to(batch, make_batch(payloads), BATCH_FORMAT, now_ms, entity.queue.validation_policy)
        else:
            intake.add_to(batch, payloads[0], 0, now_ms, entity.queue.validation_policy)
        sending = self._checker.send_started(entity, identities)
        self._trace(f"{sending!r} to {entity}")

        def answered(error: ServiceBusError | None) -> None:
            self._trace(f"{sending!r}: {error or 'accepted'}")
            self._checker.send_answered(sending, error)

        try:
            entity.queue.send(batch, answered)
        except (StoreUnavailable, ServerBusy, QuotaExceeded, EntityDeleted) as error:
            self._trace(f"refused: {error}")
            sending.is_answered = True
            return False
        return True

    def fill_disk(self) -> None:
        """Mark a disk as nearly full, or end that."""
        commit_log = self._pick(self._simulation.namespace.stores)
        assert commit_log is not None
        commit_log.disk_full_reason = None if commit_log.disk_full_reason else "its disk is nearly full"

    # --- receiving ---------------------------------------------------------------------------------------------------

    def attach(self) -> None:
        entity = self._pick_entity()
        if entity is None:
            return
        area_state = entity.dead if self._random.random() < 0.25 else entity.main
        deletes = self._random.random() < 0.3
        consumer = SimulatedConsumer(self._simulation, area_state, self._next_consumer, deletes=deletes)
        self._next_consumer += 1
        self._trace(repr(consumer))
        if self._random.random() < 0.7:
            consumer.grant(self._random.choice((1, 3, 10, 100)))

    def grant(self) -> None:
        consumer = self._pick_consumer()
        if consumer is not None:
            self._trace(repr(consumer))
            consumer.grant(self._random.choice((1, 3, 10)))

    def drain(self) -> None:
        consumer = self._pick_consumer()
        if consumer is not None:
            self._trace(repr(consumer))
            if self._random.random() < 0.5:
                consumer.credit += self._random.choice((1, 3, 10))
            consumer.drain()

    def block(self) -> None:
        consumer = self._pick_consumer()
        if consumer is not None:
            consumer.is_blocked = True

    def unblock(self) -> None:
        consumer = self._pick_consumer()
        if consumer is not None and consumer.is_blocked:
            consumer.is_blocked = False
            consumer.request_messages()

    def detach_all(self) -> None:
        """Detach all links of a fragment at once, some with credit and settlements in progress."""
        consumer = self._pick_consumer()
        if consumer is None:
            return
        area_state = consumer.area_state
        for other in area_state.consumers:
            if self._random.random() < 0.5:
                other.grant(self._random.choice((1, 3)))
        if self._random.random() < 0.7:
            self._settle(self._random.choice((SettlementKind.RELEASE, SettlementKind.ABANDON)), area_state)
        for other in list(area_state.consumers):
            self._trace(repr(other))
            other.leave()
            area_state.fragment.dispatcher.remove(other)

    def detach(self) -> None:
        """Detach a link. Its messages are released at once, or their locks expire."""
        consumer = self._pick_consumer()
        if consumer is None:
            return
        self._trace(repr(consumer))
        consumer.leave()
        consumer.area_state.fragment.dispatcher.remove(consumer)
        if self._random.random() < 0.3:
            self._settle(SettlementKind.RELEASE, consumer.area_state)

    def peek(self) -> None:
        entity = self._pick_entity()
        if entity is None:
            return
        area_state = self._random.choice(entity.area_states)
        start = self._random.choice((0, 1, self._random.randint(1, area_state.highest_synced + 2)))
        count, max_bytes = self._random.choice((1, 3, 100)), self._random.choice((300, 1_000_000))
        messages = self._checker.messages
        existing = [  # a message in receive-and-delete may be away for a while, and be stored again
            number
            for number, stored in area_state.visible.items()
            if number >= start and messages[stored.identity].deleting_consumer is None
        ]

        def done(page: list[bytes] | ServiceBusError) -> None:
            if isinstance(page, ServiceBusError):
                return
            deliveries = [read_delivery(payload) for payload in page]
            numbers = [delivery.sequence for delivery in deliveries]
            if numbers != sorted(set(numbers)) or len(numbers) > count or min(numbers, default=start) < start:
                raise Violation(f"{area_state}: peeked {numbers}, asked for {count} from {start}")
            for identity, number, delivered in deliveries:
                if (area_state.prefix, number, delivered) not in messages[identity].synced_versions:
                    raise Violation(f"{area_state}: peeked {number} with count {delivered}, which was never on disk")
            last = numbers[-1] if numbers and (len(numbers) == count or max_bytes < 1_000_000) else None
            remaining = [number for number in existing if number in area_state.submitted]
            missing = {number for number in remaining if last is None or number <= last} - set(numbers)
            if missing and (numbers or last is None):
                raise Violation(f"{area_state}: peeked {numbers} from {start}, and there are {missing}")

        try:
            area_state.fragment.browser.peek(start, count, max_bytes, done)
        except (StoreUnavailable, EntityDeleted) as error:
            self._trace(f"refused: {error}")

    # --- settling ----------------------------------------------------------------------------------------------------

    def complete(self) -> None:
        self._settle(SettlementKind.COMPLETE)

    def abandon(self) -> None:
        self._settle(SettlementKind.ABANDON)

    def release(self) -> None:
        self._settle(SettlementKind.RELEASE)

    def dead_letter(self) -> None:
        self._settle(SettlementKind.DEAD_LETTER)

    def _pick_locks(self, area_state: AreaState | None) -> list[Lock]:
        """Return some locks given to consumers of one fragment, including settled, void and repeated ones."""
        given = self._simulation.given_locks
        if len(given) > 60:
            del given[: len(given) - 60]
        if area_state is None:
            lock_of_area = self._pick(given)
            if lock_of_area is None:
                return []
            area_state = lock_of_area.area_state
        if area_state.entity.is_deleted:
            return []
        fresh = [lock for lock in given if lock.area_state is area_state and lock.message.lock is lock]
        stale = [lock for lock in given if lock.area_state is area_state and lock.message.lock is not lock]
        chosen = [lock for lock in fresh if self._random.random() < 0.6]
        if stale and self._random.random() < 0.3:
            chosen.append(self._random.choice(stale))
        if chosen and self._random.random() < 0.05:
            chosen.append(chosen[0])
        return chosen

    def _settle(self, kind: SettlementKind, area_state: AreaState | None = None) -> None:
        chosen = self._pick_locks(area_state)
        if not chosen:
            return
        area_state = chosen[0].area_state
        now_s = self._simulation.clock.monotonic_s()
        valid: list[Lock] = []
        expected: list[int] = []
        numbers = area_state.fragment.lock_numbers([lock.tag for lock in chosen])
        for lock, number in zip(chosen, numbers, strict=True):
            if lock.message.lock is lock and lock.deadline_s > now_s and lock not in valid:
                valid.append(lock)
            else:
                expected.append(number)
        self._trace(f"{kind.value} {[lock.message.identity for lock in chosen]}, {len(valid)} of them held")
        settlement: SettlementOperation

        def answered(error: ServiceBusError | None) -> None:
            self._trace(f"{settlement!r}: {error or 'done'}")
            self._checker.settlement_answered(settlement, error)

        try:
            lost = self._call_settlement(kind, area_state, numbers, answered)
        except (StoreUnavailable, EntityDeleted) as error:
            self._trace(f"refused: {error}")
            if self._simulation.namespace.stores[area_state.entity.store].unavailable_reason is None:
                raise Violation(f"{area_state}: refused though the store works") from error
            return
        if lost != expected:
            raise Violation(f"{area_state}: of the locks {numbers} {lost} were lost, not {expected}")
        if valid:
            settlement = self._checker.settlement_started(kind, area_state, valid)

    def _call_settlement(
        self,
        kind: SettlementKind,
        area_state: AreaState,
        numbers: list[int],
        on_done: Callable[[ServiceBusError | None], None],
    ) -> list[int]:
        fragment = area_state.fragment
        properties = {"why": "x" * self._random.randint(0, 40)} if self._random.random() < 0.4 else None
        if kind is SettlementKind.COMPLETE:
            return fragment.settlement.complete(numbers, on_done)
        if kind is SettlementKind.RELEASE:
            return fragment.settlement.release(numbers, on_done)
        if kind is SettlementKind.ABANDON:
            return fragment.settlement.abandon(numbers, on_done, properties)
        return fragment.settlement.dead_letter(numbers, on_done, reason="bad", properties=properties)

    def renew(self) -> None:
        lock = self._pick(self._simulation.given_locks)
        if lock is None or lock.area_state.entity.is_deleted:
            return
        now_s, entity = self._simulation.clock.monotonic_s(), lock.area_state.entity
        is_valid = lock.message.lock is lock and lock.deadline_s > now_s
        fragment = lock.area_state.fragment
        (number,) = fragment.lock_numbers([lock.tag])
        try:
            fragment.settlement.renew(number)
        except (StoreUnavailable, EntityDeleted):
            return
        except MessageLockLost:
            if is_valid:
                raise Violation(f"{lock.message!r}: its lock is not lost, and was not renewed") from None
            return
        if not is_valid:
            raise Violation(f"{lock.message!r}: a lock that is lost was renewed")
        lock.deadline_s = now_s + entity.description.lock_duration_ms / 1000

    # --- stores ------------------------------------------------------------------------------------------------------

    def hang(self) -> None:
        store = self._pick(self._simulation.stores)
        assert store is not None
        store.hang()

    def resume(self) -> None:
        store = self._pick(self._simulation.stores)
        assert store is not None
        if store.is_hanging:
            store.resume()

    def fail_sync(self) -> None:
        store = self._pick(self._simulation.stores)
        assert store is not None
        store.fail_next_sync("input/output error", self._random)

    def reopen(self) -> None:
        number = self._random.randrange(len(self._simulation.stores))
        if self._simulation.closed[number]:
            self._simulation.reopen(number)

    def crash(self) -> None:
        self._simulation.crash()
