"""All that can be done to a world, each thing with random details."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from tests.ledger.problems import Violation
from tests.simulation.consumer import SimulatedConsumer
from tests.simulation.letter import make_batch, make_payload, read_delivery
from tests.simulation.shelf import Entity, Kind
from twinbus.broker.ports.incoming import Parcel
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

    from tests.simulation.shelf import Lock, Settlement, Shelf
    from tests.simulation.world import World

T = TypeVar("T")
PATHS = ("orders", "letters", "pings", "bills")
DURATIONS_MS = (5_000, 7_000, 60_000)


class Actions:
    def __init__(self, world: World) -> None:
        self._world = world
        self._random = world.random
        self._ledger = world.ledger
        self._next_identity = 1
        self._next_entity = 1
        self._next_consumer = 1

    def do(self, name: str) -> None:
        if self._world.is_tracing:
            self._world.say(name)
        getattr(self, name)()

    def _say(self, line: str) -> None:
        if self._world.is_tracing:
            self._world.say(f"  {line}")

    def _pick(self, items: Sequence[T]) -> T | None:
        return items[int(self._random.random() * len(items))] if items else None

    def _pick_entity(self) -> Entity | None:
        return self._pick(list(self._world.catalogue.values()))

    def _pick_consumer(self) -> SimulatedConsumer | None:
        shelves = [shelf for entity in self._world.catalogue.values() for shelf in entity.shelves]
        return self._pick([consumer for shelf in shelves for consumer in shelf.consumers])

    # --- time and work ------------------------------------------------------------------------------------------------

    def work(self) -> None:
        for _ in range(self._random.choice((1, 2, 4, 10))):
            self._world.work()

    def look(self) -> None:
        self._world.settle_down()

    def wait(self) -> None:
        due_s = self._world.namespace.timers.due_in_s()
        seconds = [0.001, 0.05, 0.1, 1.0]
        if due_s is not None:
            seconds += [due_s, due_s]
        self._world.pass_time(self._random.choice(seconds))

    def wait_long(self) -> None:
        self._world.pass_time(self._random.choice((5.0, 7.5, 11.0, 61.0)))

    def jump(self) -> None:
        """The wall clock is set; nothing comes of it."""
        self._world.clock.set_wall_ms(self._random.randint(1_000_000_000_000, 2_000_000_000_000))
        self._world.namespace.timers.run_due()

    # --- entities -----------------------------------------------------------------------------------------------------

    def create(self) -> None:
        free = [path for path in PATHS[: self._world.settings.queues] if path not in self._world.catalogue]
        path = self._pick(free)
        if path is None:
            return
        description = QueueDescription(
            lock_duration_ms=self._random.choice(DURATIONS_MS), max_delivery_count=self._random.choice((1, 2, 3, 10))
        )
        entity = Entity(self._next_entity, path, self._random.randrange(self._world.settings.stores), description)
        self._next_entity += 1
        self._ledger.add_entity(entity)
        self._world.catalogue[path] = entity
        self._world.add_queue(entity)

    def delete(self) -> None:
        entity = self._pick_entity()
        if entity is None:
            return
        del self._world.catalogue[entity.path]
        entity.is_deleted = True
        self._world.doomed.append(entity)
        self._world.former.append(entity)
        self._world.namespace.remove(entity.path)
        self._world.bury(entity)

    def describe(self) -> None:
        entity = self._pick_entity()
        if entity is None:
            return
        entity.description = replace(
            entity.description,
            lock_duration_ms=self._random.choice(DURATIONS_MS),
            max_delivery_count=self._random.choice((1, 2, 3, 10)),
        )
        entity.mosts.add(entity.description.max_delivery_count)
        self._world.namespace.update_queue(entity.path, entity.description, updated_ms=0)

    # --- sending ------------------------------------------------------------------------------------------------------

    def send(self) -> None:
        for _ in range(self._random.choice((1, 1, 2, 4))):
            entity = self._pick_entity()
            if entity is not None:
                self._send(entity)

    def send_to_former(self) -> None:
        """Someone has a link to an entity that is deleted."""
        entity = self._pick(self._world.former)
        if entity is not None and self._send(entity):
            raise Violation(f"{entity} is deleted, and takes messages")

    def _send(self, entity: Entity) -> bool:
        random, intake = self._random, self._world.namespace.intake
        count = random.choice((1, 1, 1, 2, 5))
        identities = list(range(self._next_identity, self._next_identity + count))
        self._next_identity += count
        payloads = [make_payload(one, random.randint(0, self._world.settings.max_padding)) for one in identities]
        now_ms = self._world.clock.wall_ms()
        parcel = Parcel()
        if count > 1:
            intake.add_to(parcel, make_batch(payloads), BATCH_FORMAT, now_ms, entity.queue.terms)
        else:
            intake.add_to(parcel, payloads[0], 0, now_ms, entity.queue.terms)
        sending = self._ledger.send(entity, identities)
        self._say(f"{sending!r} to {entity}")

        def answered(error: ServiceBusError | None) -> None:
            self._say(f"{sending!r}: {error or 'accepted'}")
            self._ledger.sent(sending, error)

        try:
            entity.queue.send(parcel, answered)
        except (StoreUnavailable, ServerBusy, QuotaExceeded, EntityDeleted) as error:
            self._say(f"refused: {error}")
            sending.is_answered = True
            return False
        return True

    def refuse(self) -> None:
        """A disk is nearly full, or not any more."""
        journal = self._pick(self._world.namespace.journals)
        assert journal is not None
        journal.refusal = None if journal.refusal else "its disk is nearly full"

    # --- receiving ----------------------------------------------------------------------------------------------------

    def come(self) -> None:
        entity = self._pick_entity()
        if entity is None:
            return
        shelf = entity.dead if self._random.random() < 0.25 else entity.main
        deletes = self._random.random() < 0.3
        consumer = SimulatedConsumer(self._world, shelf, self._next_consumer, deletes=deletes)
        self._next_consumer += 1
        self._say(repr(consumer))
        if self._random.random() < 0.7:
            consumer.grant(self._random.choice((1, 3, 10, 100)))

    def grant(self) -> None:
        consumer = self._pick_consumer()
        if consumer is not None:
            self._say(repr(consumer))
            consumer.grant(self._random.choice((1, 3, 10)))

    def drain(self) -> None:
        consumer = self._pick_consumer()
        if consumer is not None:
            self._say(repr(consumer))
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
            consumer.feed()

    def desert(self) -> None:
        """All links to one fragment end at once, some in the middle of things."""
        consumer = self._pick_consumer()
        if consumer is None:
            return
        shelf = consumer.shelf
        for one in shelf.consumers:
            if self._random.random() < 0.5:
                one.grant(self._random.choice((1, 3)))
        if self._random.random() < 0.7:
            self._settle(self._random.choice((Kind.RELEASE, Kind.ABANDON)), shelf)
        for one in list(shelf.consumers):
            self._say(repr(one))
            one.leave()
            shelf.fragment.line.remove(one)

    def leave(self) -> None:
        """A link ends. What never left for the client is given back at once, or all of it is left to expire."""
        consumer = self._pick_consumer()
        if consumer is None:
            return
        self._say(repr(consumer))
        consumer.leave()
        consumer.shelf.fragment.line.remove(consumer)
        if self._random.random() < 0.3:
            self._settle(Kind.RELEASE, consumer.shelf)

    def peek(self) -> None:
        entity = self._pick_entity()
        if entity is None:
            return
        shelf = self._random.choice(entity.shelves)
        start = self._random.choice((0, 1, self._random.randint(1, shelf.highest_synced + 2)))
        count, max_bytes = self._random.choice((1, 3, 100)), self._random.choice((300, 1_000_000))
        messages = self._ledger.messages
        there = [  # what is being received and deleted may be away for a while, and be stored again
            number
            for number, live in shelf.visible.items()
            if number >= start and messages[live.identity].handed is None
        ]

        def done(found: list[bytes] | ServiceBusError) -> None:
            if isinstance(found, ServiceBusError):
                return
            readings = [read_delivery(payload) for payload in found]
            numbers = [reading.sequence for reading in readings]
            if numbers != sorted(set(numbers)) or len(numbers) > count or min(numbers, default=start) < start:
                raise Violation(f"{shelf}: peeked {numbers}, asked for {count} from {start}")
            for identity, number, delivered in readings:
                if (shelf.prefix, number, delivered) not in messages[identity].seen_synced:
                    raise Violation(f"{shelf}: peeked {number} with count {delivered}, which was never on disk")
            reach = numbers[-1] if numbers and (len(numbers) == count or max_bytes < 1_000_000) else None
            still = [number for number in there if number in shelf.submitted]
            missing = {number for number in still if reach is None or number <= reach} - set(numbers)
            if missing and (numbers or reach is None):
                raise Violation(f"{shelf}: peeked {numbers} from {start}, and there are {missing}")

        try:
            shelf.fragment.browsing.peek(start, count, max_bytes, done)
        except (StoreUnavailable, EntityDeleted) as error:
            self._say(f"refused: {error}")

    # --- settling -----------------------------------------------------------------------------------------------------

    def complete(self) -> None:
        self._settle(Kind.COMPLETE)

    def abandon(self) -> None:
        self._settle(Kind.ABANDON)

    def release(self) -> None:
        self._settle(Kind.RELEASE)

    def dead_letter(self) -> None:
        self._settle(Kind.DEAD_LETTER)

    def _pick_locks(self, shelf: Shelf | None) -> list[Lock]:
        """Some of what consumers of one fragment were given: also what was settled, is void, or is shown twice."""
        held = self._world.held
        if len(held) > 60:
            del held[: len(held) - 60]
        if shelf is None:
            one = self._pick(held)
            if one is None:
                return []
            shelf = one.shelf
        if shelf.entity.is_deleted:
            return []
        fresh = [lock for lock in held if lock.shelf is shelf and lock.message.lock is lock]
        stale = [lock for lock in held if lock.shelf is shelf and lock.message.lock is not lock]
        some = [lock for lock in fresh if self._random.random() < 0.6]
        if stale and self._random.random() < 0.3:
            some.append(self._random.choice(stale))
        if some and self._random.random() < 0.05:
            some.append(some[0])
        return some

    def _settle(self, kind: Kind, shelf: Shelf | None = None) -> None:
        chosen = self._pick_locks(shelf)
        if not chosen:
            return
        shelf = chosen[0].shelf
        now_s = self._world.clock.monotonic_s()
        valid: list[Lock] = []
        expected: list[int] = []
        numbers = shelf.fragment.lock_numbers([lock.tag for lock in chosen])
        for lock, number in zip(chosen, numbers, strict=True):
            if lock.message.lock is lock and lock.deadline_s > now_s and lock not in valid:
                valid.append(lock)
            else:
                expected.append(number)
        self._say(f"{kind.value} {[lock.message.identity for lock in chosen]}, {len(valid)} of them held")
        settlement: Settlement

        def answered(error: ServiceBusError | None) -> None:
            self._say(f"{settlement!r}: {error or 'done'}")
            self._ledger.settled(settlement, error)

        try:
            lost = self._ask(kind, shelf, numbers, answered)
        except (StoreUnavailable, EntityDeleted) as error:
            self._say(f"refused: {error}")
            if self._world.namespace.journals[shelf.entity.store].trouble is None:
                raise Violation(f"{shelf}: refused though the store works") from error
            return
        if lost != expected:
            raise Violation(f"{shelf}: of the locks {numbers} {lost} were lost, not {expected}")
        if valid:
            settlement = self._ledger.settle(kind, shelf, valid)

    def _ask(
        self, kind: Kind, shelf: Shelf, numbers: list[int], answer: Callable[[ServiceBusError | None], None]
    ) -> list[int]:
        fragment = shelf.fragment
        properties = {"why": "x" * self._random.randint(0, 40)} if self._random.random() < 0.4 else None
        if kind is Kind.COMPLETE:
            return fragment.settlement.complete(numbers, answer)
        if kind is Kind.RELEASE:
            return fragment.settlement.release(numbers, answer)
        if kind is Kind.ABANDON:
            return fragment.settlement.abandon(numbers, answer, properties)
        return fragment.settlement.dead_letter(numbers, answer, reason="bad", properties=properties)

    def renew(self) -> None:
        lock = self._pick(self._world.held)
        if lock is None or lock.shelf.entity.is_deleted:
            return
        now_s, entity = self._world.clock.monotonic_s(), lock.shelf.entity
        is_valid = lock.message.lock is lock and lock.deadline_s > now_s
        fragment = lock.shelf.fragment
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

    # --- stores -------------------------------------------------------------------------------------------------------

    def hang(self) -> None:
        store = self._pick(self._world.stores)
        assert store is not None
        store.hang()

    def go_on(self) -> None:
        store = self._pick(self._world.stores)
        assert store is not None
        if store.is_hanging:
            store.resume()

    def fail(self) -> None:
        store = self._pick(self._world.stores)
        assert store is not None
        store.fail_next("input/output error", self._random)

    def reopen(self) -> None:
        number = self._random.randrange(len(self._world.stores))
        if self._world.closed[number]:
            self._world.reopen(number)

    def crash(self) -> None:
        self._world.crash()
