"""The guarantees of a broker: the checker verifies every commit, every outcome and every delivery.

The checker sees both sides of the broker: the requests and outcomes of clients, and the commits of stores. A commit is
correct if each of its changes follows from a client's request or an expired lock; an outcome is correct if it agrees
with the synced disk; a delivery is correct if it is the available message with the lowest sequence number.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from tests.simulation.broker.expected_state import (
    AreaState,
    Entity,
    ExpectedCommit,
    Lock,
    Message,
    SendOperation,
    SettlementKind,
    SettlementOperation,
    StoredLocation,
    StoredMessage,
)
from tests.simulation.broker.payloads import matches_record, read_delivery, read_record_fields
from tests.support.delivery_checker.problems import Violation
from twinbus.broker.fragment.message_table import COUNTERS_STRUCT, MessageCounters
from twinbus.broker.store_keys import KIND_BYTES, PREFIX_BYTES, Area, entity_key_range, pack_sequence, sequence_of_key
from twinbus.store.protocol import Table

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.simulation.broker.consumer import SimulatedConsumer
    from twinbus.broker.ports.consumer import Delivery
    from twinbus.model.errors import ServiceBusError
    from twinbus.store.change_batch import ChangeBatch
    from twinbus.store.memory import MemoryDisk

AREA_KEY_BYTES = PREFIX_BYTES + KIND_BYTES


class BrokerChecker:
    """All messages of a run, and their expected locations."""

    def __init__(self, now_s: Callable[[], float], disks: Sequence[MemoryDisk]) -> None:
        self.disks = disks
        self.messages: dict[int, Message] = {}
        self.entities: list[Entity] = []
        self.area_states: dict[bytes, AreaState] = {}
        self.pending_operations: list[SendOperation | SettlementOperation] = []
        """Operations without an outcome; `check_answered` removes completed ones."""
        self._now_s = now_s
        self._commits: dict[ChangeBatch, ExpectedCommit] = {}

    def add_entity(self, entity: Entity) -> None:
        self.entities.append(entity)
        self.area_states |= {area_state.prefix: area_state for area_state in entity.area_states}

    def existing_area_states(self, store: int) -> list[AreaState]:
        entities = [entity for entity in self.entities if entity.store == store and not entity.is_deleted]
        return [area_state for entity in entities for area_state in entity.area_states]

    def available_sequence_numbers(self, area_state: AreaState) -> list[int]:
        """Return the sequence numbers that can be delivered, in the order in which they must be delivered."""
        messages = self.messages
        return sorted([number for number, stored in area_state.visible.items() if messages[stored.identity].is_idle])

    # --- requests and outcomes ---------------------------------------------------------------------------------------

    def send_started(self, entity: Entity, identities: list[int]) -> SendOperation:
        sending = SendOperation(entity, identities)
        for identity in identities:
            self.messages[identity] = Message(identity, sending)
        self.pending_operations.append(sending)
        return sending

    def send_answered(self, sending: SendOperation, error: ServiceBusError | None) -> None:
        self._check_answer(sending, error)
        if error is not None or sending.entity.is_deleted:
            return
        for identity in sending.identities:
            message = self.messages[identity]
            _check(message.was_synced, "message %s was accepted before it was on disk", identity)
        main = sending.entity.main
        main.min_shown_count += len(sending.identities)
        shown = main.fragment.active_count
        _check(shown >= main.min_shown_count, "%s was accepted, and only %s messages are shown", sending, shown)

    def settlement_started(self, kind: SettlementKind, area_state: AreaState, locks: list[Lock]) -> SettlementOperation:
        settlement = SettlementOperation(kind, area_state, [lock.message for lock in locks])
        for lock in locks:
            lock.message.lock = None
            lock.message.settlement = settlement
        self.pending_operations.append(settlement)
        return settlement

    def settlement_answered(self, settlement: SettlementOperation, error: ServiceBusError | None) -> None:
        self._check_answer(settlement, error)
        for message in settlement.messages:
            if message.settlement is settlement:
                message.settlement = None
        if error is not None or settlement.area_state.entity.is_deleted:
            return
        dead = settlement.area_state.entity.dead
        for message, count in zip(settlement.messages, settlement.delivery_counts, strict=True):
            location, operation = message.location, settlement
            if settlement.kind is SettlementKind.COMPLETE:
                _check(location is None, "%s was answered, and is still on disk: %s", operation, message)
                message.is_deleted = True
                continue
            _check(location is not None, "%s was answered, and is not on disk: %s", operation, message)
            assert location is not None
            is_counted = settlement.kind is SettlementKind.ABANDON or (
                settlement.kind is SettlementKind.DEAD_LETTER and settlement.area_state is dead
            )
            _check(
                location.stored.delivery_count == count + is_counted,
                "%s was answered, and counted wrongly: %s",
                operation,
                message,
            )
            if settlement.kind is SettlementKind.DEAD_LETTER:
                _check(location.area_state is dead, "%s was answered, and is elsewhere: %s", operation, message)

    def _check_answer(self, operation: SendOperation | SettlementOperation, error: ServiceBusError | None) -> None:
        _check(not operation.is_answered, "%s was answered twice", operation)
        _check(error is not None or not operation.is_void, "%s succeeded though its store failed meanwhile", operation)
        operation.is_answered = True

    # --- deliveries --------------------------------------------------------------------------------------------------

    def messages_locked(self, consumer: SimulatedConsumer, deliveries: list[Delivery], deadline_s: float) -> list[Lock]:
        area_state = consumer.area_state
        available = self.available_sequence_numbers(area_state)
        locks = []
        for index, (payload, tag) in enumerate(deliveries):
            message, sequence = self._check_delivery(area_state, payload)
            _check(message.is_idle, "handed out though it is not free: %s", message)
            _check(
                index < len(available) and available[index] == sequence,
                "%s: %s was handed out, not %s: %s",
                area_state,
                sequence,
                available[index : index + 1],
                message,
            )
            record = (
                self.disks[area_state.entity.store]
                .synced[Table.LOG]
                .values.get(area_state.prefix + pack_sequence(sequence))
            )
            _check(
                record is not None and matches_record(payload, record), "not the bytes that are on disk: %s", message
            )
            locks.append(Lock(message, area_state, sequence, tag, deadline_s))
        for lock in locks:
            _check(lock.message.lock is None, "%s was handed out twice at once", lock.message)
            lock.message.lock = lock
        return locks

    def _check_delivery(self, area_state: AreaState, payload: bytes) -> tuple[Message, int]:
        """Check that a delivery agrees with the synced disk."""
        identity, sequence, count = read_delivery(payload)
        message = self.messages.get(identity)
        if message is None:
            _fail(f"message {identity} was never sent")
        location = message.location
        _check(
            location is not None
            and location.area_state is area_state
            and location.sequence == sequence
            and location.stored.delivery_count == count,
            "%s: %s was handed out with count %s, which no disk has: %s",
            area_state,
            sequence,
            count,
            message,
        )
        return message, sequence

    def messages_reserved(self, consumer: SimulatedConsumer, count: int) -> None:
        """Record that the first available messages are being deleted for a consumer."""
        area_state = consumer.area_state
        available = self.available_sequence_numbers(area_state)
        _check(len(available) >= count, "%s: %s were reserved, and there are %s", area_state, count, len(available))
        for sequence in available[:count]:
            self.messages[area_state.visible[sequence].identity].deleting_consumer = consumer

    def messages_refused(self, deliveries: list[Delivery]) -> None:
        """Record messages that were deleted and then refused by the consumer: they must be stored again."""
        for payload, _ in deliveries:
            self.messages[read_delivery(payload)[0]].is_refused = True

    def messages_deleted(self, consumer: SimulatedConsumer, deliveries: list[Delivery]) -> None:
        for payload, _ in deliveries:
            identity, sequence, count = read_delivery(payload)
            message = self.messages.get(identity)
            if message is None:
                _fail(f"message {identity} was never sent")
            _check(not message.is_deleted, "received once more: %s", message)
            _check(message.deleting_consumer is consumer, "received by another consumer: %s", message)
            _check(message.location is None, "received before it was deleted: %s", message)
            _check(
                (consumer.area_state.prefix, sequence, count) in message.synced_versions,
                "%s: %s with count %s was never on disk: %s",
                consumer.area_state,
                sequence,
                count,
                message,
            )
            message.deleting_consumer, message.is_deleted = None, True

    # --- commits -----------------------------------------------------------------------------------------------------

    def commit_submitted(self, batch: ChangeBatch) -> ExpectedCommit:
        """Check that each change in a batch has a reason, and return the expected changes."""
        commit = ExpectedCommit()
        self._commits[batch] = commit
        final: dict[bytes, bytes | None] = {}
        counters: dict[bytes, bytes] = {}
        for key, value, table in batch.changes:
            if isinstance(value, tuple):
                continue  # deletion of an entity's records, which clients cannot see any more
            if table is Table.LOG:
                final[key] = value
            elif value is not None:
                counters[key] = value
        self._check_changes(commit, final)
        for area_state, sequence, stored in commit.changes:
            _apply_change(area_state.submitted, sequence, stored)
        touched = {area_state.prefix for area_state, _, _ in commit.changes}
        _check(touched <= counters.keys(), "a batch without the marks of a fragment that it changes")
        for prefix, value in counters.items():
            if not self.area_states[prefix].entity.is_deleted:
                self._check_stored_counters(self.area_states[prefix], value, self.area_states[prefix].submitted)
        return commit

    def _check_changes(self, commit: ExpectedCommit, final: dict[bytes, bytes | None]) -> None:
        removed: dict[int, StoredLocation] = {}
        added: dict[int, StoredLocation] = {}
        for key, record in final.items():
            area_state, sequence = self.area_states[key[:AREA_KEY_BYTES]], sequence_of_key(key)
            if area_state.entity.is_deleted:
                continue
            old = area_state.submitted.get(sequence)
            if record is not None:
                identity, count = read_record_fields(record)
                stored = StoredMessage(identity, count, len(record))
                _check(identity in self.messages, "message %s was stored, and never sent", identity)
                if old is None:
                    added[identity] = StoredLocation(area_state, sequence, stored)
                else:
                    self._check_rewrite(commit, old, StoredLocation(area_state, sequence, stored))
                    commit.changes.append((area_state, sequence, stored))
            else:
                _check(old is not None, "%s: %s was deleted, and is not there", area_state, sequence)
                assert old is not None
                removed[old.identity] = StoredLocation(area_state, sequence, old)
        for identity, location in removed.items():
            self._check_removal(commit, self.messages[identity], location, added.get(identity))
            commit.changes.append((location.area_state, location.sequence, None))
        for identity, location in added.items():
            if identity not in removed:
                self._check_arrival(commit, self.messages[identity], location, added)
            area_state = location.area_state
            area_state.highest_submitted = max(area_state.highest_submitted, location.sequence)
            commit.changes.append((area_state, location.sequence, location.stored))
        for area_state, _, _ in commit.changes:
            area_state.entity.recent_max_delivery_counts = {area_state.entity.description.max_delivery_count}

    def _check_rewrite(self, commit: ExpectedCommit, old: StoredMessage, new: StoredLocation) -> None:
        """Check that a record is rewritten only to count a delivery, below the max delivery count."""
        message = self.messages[old.identity]
        _check(new.stored.identity == old.identity, "%s was overwritten by %s", message, new)
        self._check_delivery_count(message, old, new.stored, new.area_state)
        is_below = new.area_state.area is Area.DEAD_LETTER or any(
            new.stored.delivery_count < most for most in new.area_state.entity.recent_max_delivery_counts
        )
        _check(is_below, "delivered %s times and not dead-lettered: %s", new.stored.delivery_count, message)
        self._mark_pending(commit, message)

    def _check_delivery_count(
        self, message: Message, old: StoredMessage, new: StoredMessage, area_state: AreaState
    ) -> None:
        _check(
            new.delivery_count == old.delivery_count + 1,
            "the delivery count became %s: %s",
            new.delivery_count,
            message,
        )
        settlement, lock = message.settlement, message.lock
        if settlement is not None:
            is_abandon = settlement.kind is SettlementKind.ABANDON or (
                settlement.kind is SettlementKind.DEAD_LETTER and area_state.area is Area.DEAD_LETTER
            )
            _check(is_abandon, "a delivery was counted by %s", settlement)
            return
        _check(lock is not None and lock.deadline_s <= self._now_s(), "counted without a reason: %s", message)
        message.lock = None

    def _check_removal(
        self, commit: ExpectedCommit, message: Message, old: StoredLocation, new: StoredLocation | None
    ) -> None:
        _check(message.pending_commit is None, "changed by two commits at once: %s", message)
        settlement = message.settlement
        if new is None:
            is_complete = settlement is not None and settlement.kind is SettlementKind.COMPLETE
            _check(is_complete or message.deleting_consumer is not None, "deleted without a reason: %s", message)
        else:
            is_move = new.area_state is old.area_state.entity.dead and old.area_state is old.area_state.entity.main
            _check(is_move, "moved to %s: %s", new, message)
            self._check_new_number(message, new)
            if settlement is not None and settlement.kind is SettlementKind.DEAD_LETTER:
                _check(new.stored.delivery_count == old.stored.delivery_count, "counted by a dead-letter: %s", message)
            else:
                self._check_delivery_count(message, old.stored, new.stored, old.area_state)
                is_due = any(
                    new.stored.delivery_count >= most for most in old.area_state.entity.recent_max_delivery_counts
                )
                _check(is_due, "dead-lettered after %s deliveries: %s", new.stored.delivery_count, message)
        self._mark_pending(commit, message)

    def _check_arrival(
        self, commit: ExpectedCommit, message: Message, new: StoredLocation, added: dict[int, StoredLocation]
    ) -> None:
        consumer = message.deleting_consumer
        if consumer is not None:
            is_wanted = not consumer.is_closed and not message.is_refused
            _check(not is_wanted, "stored again though its consumer is there: %s", message)
            _check(
                (new.area_state.prefix, new.sequence, new.stored.delivery_count) in message.synced_versions,
                "%s: %s",
                message,
                new,
            )
        else:
            sending = message.send
            _check(not message.was_synced and message.pending_commit is None, "appeared once more: %s", message)
            _check(not (sending.is_answered or sending.is_void), "%s was refused, and stored later", sending)
            _check(
                new.area_state is sending.entity.main and new.stored.delivery_count == 0,
                "arrived as %s: %s",
                new,
                message,
            )
            _check(all(identity in added for identity in sending.identities), "%s was stored in part", sending)
            _check(message.identity > new.area_state.latest_stored_identity, "overtook another: %s", message)
            new.area_state.latest_stored_identity = message.identity
            self._check_new_number(message, new)
        self._mark_pending(commit, message)

    def _check_new_number(self, message: Message, new: StoredLocation) -> None:
        _check(new.sequence > new.area_state.highest_submitted, "number %s was used before: %s", new.sequence, message)

    def _mark_pending(self, commit: ExpectedCommit, message: Message) -> None:
        _check(message.pending_commit is None, "changed by two commits at once: %s", message)
        message.pending_commit = commit
        commit.messages.append(message)

    def _check_stored_counters(self, area_state: AreaState, counters: bytes, held: dict[int, StoredMessage]) -> None:
        read = MessageCounters(*COUNTERS_STRUCT.unpack(counters)[1:])
        next_sequence, low, count, size = read.next_sequence, read.low_watermark, read.active_count, read.active_bytes
        _check(count == len(held), "%s: the marks say %s messages, and there are %s", area_state, count, len(held))
        total = sum([stored.size for stored in held.values()])
        _check(size == total, "%s: the marks say %s bytes, and there are %s", area_state, size, total)
        _check(
            next_sequence > area_state.highest_synced,
            "%s: number %s is next, %s was",
            area_state,
            next_sequence,
            area_state.highest_synced,
        )
        highest, lowest = max(held, default=0), min(held, default=low)
        _check(next_sequence > highest, "%s: number %s is next, and there is %s", area_state, next_sequence, highest)
        _check(low <= lowest, "%s: the low-water mark is %s, above %s", area_state, low, lowest)

    def commit_synced(self, batch: ChangeBatch) -> None:
        """Record that a batch is synced."""
        commit = self._commits.pop(batch)
        for area_state, sequence, stored in commit.changes:
            old = area_state.synced.get(sequence)
            _apply_change(area_state.synced, sequence, stored)
            area_state.highest_synced = max(area_state.highest_synced, sequence)
            if stored is None:
                assert old is not None
                self.messages[old.identity].location = None
                continue
            message = self.messages[stored.identity]
            _check(
                message.location is None or message.location[:2] == (area_state, sequence), "stored twice: %s", message
            )
            message.location = StoredLocation(area_state, sequence, stored)
            message.was_synced = True
            message.synced_versions.add((area_state.prefix, sequence, stored.delivery_count))

    def commit_visible(self, commit: ExpectedCommit) -> None:
        """Record that the broker is about to learn that a batch is synced: from now on clients may see the changes."""
        for area_state, _, _ in commit.changes:
            area_state.min_shown_count = len(area_state.visible)
        for area_state, sequence, stored in commit.changes:
            area_state.min_shown_count -= stored is None
            _apply_change(area_state.visible, sequence, stored)
        for message in commit.messages:
            message.pending_commit = None
            if message.deleting_consumer is not None and message.location is not None:
                message.deleting_consumer, message.is_refused = None, False  # stored again

    def check_shown(self, commit: ExpectedCommit) -> None:
        for area_state in {area_state.prefix: area_state for area_state, _, _ in commit.changes}.values():
            if not area_state.entity.is_deleted:
                self.check_counters(area_state)

    def check_counters(self, area_state: AreaState) -> None:
        shown, held = area_state.fragment, area_state.visible
        _check(
            shown.active_count == len(held),
            "%s: %s messages are shown, and there are %s",
            area_state,
            shown.active_count,
            len(held),
        )
        total = sum([stored.size for stored in held.values()])
        _check(shown.size == total, "%s: %s bytes are shown, and there are %s", area_state, shown.size, total)

    def store_lost(self, store: int) -> None:
        """Record the failure of a store: its locks are void, and unsynced commits are lost."""
        for operation in self.pending_operations:
            entity = operation.entity if isinstance(operation, SendOperation) else operation.area_state.entity
            operation.is_void = operation.is_void or (entity.store == store and not operation.is_answered)
        for message in self.messages.values():
            if message.send.entity.store != store:
                continue
            message.lock = message.settlement = message.pending_commit = None
            if message.deleting_consumer is not None:
                message.is_lost = message.location is None
                message.deleting_consumer, message.is_refused = None, False
        for entity in self.entities:
            if entity.store == store:
                for area_state in entity.area_states:
                    area_state.lose_unsynced()

    def process_lost(self) -> None:
        """Record the loss of the process with all pending operations."""
        for number in range(len(self.disks)):
            self.store_lost(number)
            self.check_disk(number)
        self.pending_operations.clear()

    # --- checks when idle --------------------------------------------------------------------------------------------

    def check_disk(self, store: int) -> None:
        """Check that the synced disk has the expected messages, and that its counters agree."""
        disk = self.disks[store]
        log, index = disk.synced[Table.LOG], disk.synced[Table.INDEX]
        messages_by_prefix: dict[bytes, dict[int, StoredMessage]] = {}
        for key, record in log.values.items():
            held = messages_by_prefix.setdefault(key[:AREA_KEY_BYTES], {})
            held[sequence_of_key(key)] = StoredMessage(*read_record_fields(record), len(record))
        for area_state in self.existing_area_states(store):
            held = messages_by_prefix.get(area_state.prefix, {})
            _check(held == area_state.synced, "%s: the disk holds %s, not %s", area_state, held, area_state.synced)
            counters = index.values.get(area_state.prefix)
            if counters is not None:
                self._check_stored_counters(area_state, counters, held)
            else:
                _check(not held, "%s: messages without marks", area_state)
        for entity in self.entities:
            if entity.is_cleaned_up and entity.store == store:
                start, end = entity_key_range(entity.id)
                left = [key for records in (log, index) for key in records.keys if start <= key < end]
                _check(not left, "%s was deleted, and its records are still there: %s", entity, left)

    def check_answered(self, store: int) -> None:
        """Check that no operation is pending when a store is idle."""
        self.pending_operations = [operation for operation in self.pending_operations if not operation.is_answered]
        for operation in self.pending_operations:
            entity = operation.entity if isinstance(operation, SendOperation) else operation.area_state.entity
            _check(entity.store != store, "%s is not answered", operation)
        for message in self.messages.values():
            if message.deleting_consumer is not None and not message.send.entity.is_deleted:
                _check(message.send.entity.store != store, "received by nobody: %s", message)

    def check_area(self, area_state: AreaState, max_locks: int) -> None:
        """Check that all commits are visible, and that available messages were delivered to waiting consumers."""
        _check(
            area_state.visible == area_state.synced == area_state.submitted,
            "%s: the callback of a commit was not called",
            area_state,
        )
        self.check_counters(area_state)
        messages = [self.messages[stored.identity] for stored in area_state.visible.values()]
        for message in messages:
            _check(message.settlement is None and message.pending_commit is None, "never finished: %s", message)
        in_flight_count = sum([not message.is_idle for message in messages])
        _check(
            in_flight_count <= max_locks,
            "%s: %s messages are in flight, more than %s",
            area_state,
            in_flight_count,
            max_locks,
        )
        if in_flight_count < max_locks and (available := self.available_sequence_numbers(area_state)):
            for consumer in area_state.consumers:
                _check(
                    not consumer.wants_messages,
                    "%s: %s gets nothing, though there are %s",
                    area_state,
                    consumer,
                    available,
                )


def _apply_change(messages: dict[int, StoredMessage], sequence: int, stored: StoredMessage | None) -> None:
    if stored is None:
        messages.pop(sequence, None)
    else:
        messages[sequence] = stored


def _check(holds: object, text: str, *parts: object) -> None:
    """Raise a violation if a condition does not hold. The text is formatted only then: a step has a hundred checks."""
    if not holds:
        _fail(text % parts)


def _fail(text: str) -> NoReturn:
    raise Violation(text)
