"""What must hold: every change that the broker asks of a store, every answer and every delivery is judged here.

The ledger sees a broker from both of its sides: what clients asked and were told, and what stores were asked to write.
A commit is right if each of its changes follows from something that a client asked, or from a lock that expired; an
answer is right if the synced disk agrees with it; a delivery is right if it is the lowest message that nobody has.
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
    """All that was ever sent in one run, and where it is."""

    def __init__(self, now_s: Callable[[], float], disks: Sequence[MemoryDisk]) -> None:
        self.disks = disks
        self.messages: dict[int, Message] = {}
        self.entities: list[Entity] = []
        self.area_states: dict[bytes, AreaState] = {}
        self.pending_operations: list[SendOperation | SettlementOperation] = []
        """All that is to be answered; what was, is taken out at the next look."""
        self._now_s = now_s
        self._commits: dict[ChangeBatch, ExpectedCommit] = {}

    def add_entity(self, entity: Entity) -> None:
        self.entities.append(entity)
        self.area_states |= {shelf.prefix: shelf for shelf in entity.area_states}

    def existing_area_states(self, store: int) -> list[AreaState]:
        found = [entity for entity in self.entities if entity.store == store and not entity.is_deleted]
        return [shelf for entity in found for shelf in entity.area_states]

    def available_sequence_numbers(self, area_state: AreaState) -> list[int]:
        """The sequence numbers that can be handed out, in the order in which they must be."""
        messages = self.messages
        return sorted([number for number, live in area_state.visible.items() if messages[live.identity].is_idle])

    # --- what clients ask and are told --------------------------------------------------------------------------------

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
            where, what = message.location, settlement
            if settlement.kind is SettlementKind.COMPLETE:
                _check(where is None, "%s was answered, and is still on disk: %s", what, message)
                message.is_deleted = True
                continue
            _check(where is not None, "%s was answered, and is not on disk: %s", what, message)
            assert where is not None
            is_counted = settlement.kind is SettlementKind.ABANDON or (
                settlement.kind is SettlementKind.DEAD_LETTER and settlement.area_state is dead
            )
            _check(
                where.stored.delivery_count == count + is_counted,
                "%s was answered, and counted wrongly: %s",
                what,
                message,
            )
            if settlement.kind is SettlementKind.DEAD_LETTER:
                _check(where.area_state is dead, "%s was answered, and is elsewhere: %s", what, message)

    def _check_answer(self, operation: SendOperation | SettlementOperation, error: ServiceBusError | None) -> None:
        _check(not operation.is_answered, "%s was answered twice", operation)
        _check(error is not None or not operation.is_void, "%s succeeded though its store failed meanwhile", operation)
        operation.is_answered = True

    # --- what clients are given ---------------------------------------------------------------------------------------

    def messages_locked(self, consumer: SimulatedConsumer, deliveries: list[Delivery], deadline_s: float) -> list[Lock]:
        shelf = consumer.area_state
        idle = self.available_sequence_numbers(shelf)
        locks = []
        for index, (payload, tag) in enumerate(deliveries):
            message, sequence = self._check_delivery(shelf, payload)
            _check(message.is_idle, "handed out though it is not free: %s", message)
            _check(
                index < len(idle) and idle[index] == sequence,
                "%s: %s was handed out, not %s: %s",
                shelf,
                sequence,
                idle[index : index + 1],
                message,
            )
            record = self.disks[shelf.entity.store].synced[Table.LOG].values.get(shelf.prefix + pack_sequence(sequence))
            _check(
                record is not None and matches_record(payload, record), "not the bytes that are on disk: %s", message
            )
            locks.append(Lock(message, shelf, sequence, tag, deadline_s))
        for lock in locks:
            _check(lock.message.lock is None, "%s was handed out twice at once", lock.message)
            lock.message.lock = lock
        return locks

    def _check_delivery(self, area_state: AreaState, payload: bytes) -> tuple[Message, int]:
        """A delivery shows what is on the synced disk, to the byte."""
        identity, sequence, count = read_delivery(payload)
        message = self.messages.get(identity)
        if message is None:
            _fail(f"message {identity} was never sent")
        where = message.location
        _check(
            where is not None
            and where.area_state is area_state
            and where.sequence == sequence
            and where.stored.delivery_count == count,
            "%s: %s was handed out with count %s, which no disk has: %s",
            area_state,
            sequence,
            count,
            message,
        )
        return message, sequence

    def messages_reserved(self, consumer: SimulatedConsumer, count: int) -> None:
        """Some are being deleted, to be delivered then. They are the lowest ones, as always."""
        shelf = consumer.area_state
        idle = self.available_sequence_numbers(shelf)
        _check(len(idle) >= count, "%s: %s were reserved, and there are %s", shelf, count, len(idle))
        for sequence in idle[:count]:
            self.messages[shelf.visible[sequence].identity].deleting_consumer = consumer

    def messages_refused(self, deliveries: list[Delivery]) -> None:
        """What was deleted is not taken: it must come back."""
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

    # --- what stores are asked and do ---------------------------------------------------------------------------------

    def commit_submitted(self, batch: ChangeBatch) -> ExpectedCommit:
        """A batch is right if each change in it follows from something."""
        commit = ExpectedCommit()
        self._commits[batch] = commit
        final: dict[bytes, bytes | None] = {}
        marks: dict[bytes, bytes] = {}
        for key, value, table in batch.changes:
            if isinstance(value, tuple):
                continue  # of an entity that is deleted: nobody sees it any more
            if table is Table.LOG:
                final[key] = value
            elif value is not None:
                marks[key] = value
        self._check_changes(commit, final)
        for shelf, sequence, live in commit.changes:
            _apply_change(shelf.submitted, sequence, live)
        touched = {shelf.prefix for shelf, _, _ in commit.changes}
        _check(touched <= marks.keys(), "a batch without the marks of a fragment that it changes")
        for prefix, value in marks.items():
            if not self.area_states[prefix].entity.is_deleted:
                self._check_marks(self.area_states[prefix], value, self.area_states[prefix].submitted)
        return commit

    def _check_changes(self, commit: ExpectedCommit, final: dict[bytes, bytes | None]) -> None:
        removed: dict[int, StoredLocation] = {}
        added: dict[int, StoredLocation] = {}
        for key, record in final.items():
            shelf, sequence = self.area_states[key[:AREA_KEY_BYTES]], sequence_of_key(key)
            if shelf.entity.is_deleted:
                continue
            old = shelf.submitted.get(sequence)
            if record is not None:
                identity, count = read_record_fields(record)
                live = StoredMessage(identity, count, len(record))
                _check(identity in self.messages, "message %s was stored, and never sent", identity)
                if old is None:
                    added[identity] = StoredLocation(shelf, sequence, live)
                else:
                    self._check_rewrite(commit, old, StoredLocation(shelf, sequence, live))
                    commit.changes.append((shelf, sequence, live))
            else:
                _check(old is not None, "%s: %s was deleted, and is not there", shelf, sequence)
                assert old is not None
                removed[old.identity] = StoredLocation(shelf, sequence, old)
        for identity, place in removed.items():
            self._check_removal(commit, self.messages[identity], place, added.get(identity))
            commit.changes.append((place.area_state, place.sequence, None))
        for identity, place in added.items():
            if identity not in removed:
                self._check_arrival(commit, self.messages[identity], place, added)
            shelf = place.area_state
            shelf.highest_submitted = max(shelf.highest_submitted, place.sequence)
            commit.changes.append((shelf, place.sequence, place.stored))
        for shelf, _, _ in commit.changes:
            shelf.entity.recent_max_delivery_counts = {shelf.entity.description.max_delivery_count}

    def _check_rewrite(self, commit: ExpectedCommit, old: StoredMessage, new: StoredLocation) -> None:
        """Only to count one delivery more, and only below the limit."""
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
            _check(all(one in added for one in sending.identities), "%s was stored in part", sending)
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

    def _check_marks(self, area_state: AreaState, marks: bytes, held: dict[int, StoredMessage]) -> None:
        read = MessageCounters(*COUNTERS_STRUCT.unpack(marks)[1:])
        following, low, count, size = read.next_sequence, read.low_watermark, read.active_count, read.active_bytes
        _check(count == len(held), "%s: the marks say %s messages, and there are %s", area_state, count, len(held))
        total = sum([live.size for live in held.values()])
        _check(size == total, "%s: the marks say %s bytes, and there are %s", area_state, size, total)
        _check(
            following > area_state.highest_synced,
            "%s: number %s is next, %s was",
            area_state,
            following,
            area_state.highest_synced,
        )
        highest, lowest = max(held, default=0), min(held, default=low)
        _check(following > highest, "%s: number %s is next, and there is %s", area_state, following, highest)
        _check(low <= lowest, "%s: the low-water mark is %s, above %s", area_state, low, lowest)

    def commit_synced(self, batch: ChangeBatch) -> None:
        """A batch is safe."""
        commit = self._commits.pop(batch)
        for shelf, sequence, live in commit.changes:
            old = shelf.synced.get(sequence)
            _apply_change(shelf.synced, sequence, live)
            shelf.highest_synced = max(shelf.highest_synced, sequence)
            if live is None:
                assert old is not None
                self.messages[old.identity].location = None
                continue
            message = self.messages[live.identity]
            _check(message.location is None or message.location[:2] == (shelf, sequence), "stored twice: %s", message)
            message.location = StoredLocation(shelf, sequence, live)
            message.was_synced = True
            message.synced_versions.add((shelf.prefix, sequence, live.delivery_count))

    def commit_visible(self, commit: ExpectedCommit) -> None:
        """The broker is about to hear that a batch is safe: now everyone may see it."""
        for shelf, _, _ in commit.changes:
            shelf.min_shown_count = len(shelf.visible)
        for shelf, sequence, live in commit.changes:
            shelf.min_shown_count -= live is None
            _apply_change(shelf.visible, sequence, live)
        for message in commit.messages:
            message.pending_commit = None
            if message.deleting_consumer is not None and message.location is not None:
                message.deleting_consumer, message.is_refused = None, False  # stored again

    def check_shown(self, commit: ExpectedCommit) -> None:
        for shelf in {shelf.prefix: shelf for shelf, _, _ in commit.changes}.values():
            if not shelf.entity.is_deleted:
                self.check_counters(shelf)

    def check_counters(self, area_state: AreaState) -> None:
        shown, held = area_state.fragment, area_state.visible
        _check(
            shown.active_count == len(held),
            "%s: %s messages are shown, and there are %s",
            area_state,
            shown.active_count,
            len(held),
        )
        total = sum([live.size for live in held.values()])
        _check(shown.size == total, "%s: %s bytes are shown, and there are %s", area_state, shown.size, total)

    def store_lost(self, store: int) -> None:
        """A store failed, or all did: locks are void, and of what was on its way the disk holds what it holds."""
        for asked in self.pending_operations:
            entity = asked.entity if isinstance(asked, SendOperation) else asked.area_state.entity
            asked.is_void = asked.is_void or (entity.store == store and not asked.is_answered)
        for message in self.messages.values():
            if message.send.entity.store != store:
                continue
            message.lock = message.settlement = message.pending_commit = None
            if message.deleting_consumer is not None:
                message.is_lost = message.location is None
                message.deleting_consumer, message.is_refused = None, False
        for entity in self.entities:
            if entity.store == store:
                for shelf in entity.area_states:
                    shelf.lose_unsynced()

    def process_lost(self) -> None:
        """The process is gone, and with it everyone who was to be answered."""
        for number in range(len(self.disks)):
            self.store_lost(number)
            self.check_disk(number)
        self.pending_operations.clear()

    # --- what a disk holds --------------------------------------------------------------------------------------------

    def check_disk(self, store: int) -> None:
        """The synced disk holds what the commits made of it, and its marks agree."""
        disk = self.disks[store]
        log, index = disk.synced[Table.LOG], disk.synced[Table.INDEX]
        found: dict[bytes, dict[int, StoredMessage]] = {}
        for key, record in log.values.items():
            held = found.setdefault(key[:AREA_KEY_BYTES], {})
            held[sequence_of_key(key)] = StoredMessage(*read_record_fields(record), len(record))
        for shelf in self.existing_area_states(store):
            held = found.get(shelf.prefix, {})
            _check(held == shelf.synced, "%s: the disk holds %s, not %s", shelf, held, shelf.synced)
            marks = index.values.get(shelf.prefix)
            if marks is not None:
                self._check_marks(shelf, marks, held)
            else:
                _check(not held, "%s: messages without marks", shelf)
        for entity in self.entities:
            if entity.is_cleaned_up and entity.store == store:
                start, end = entity_key_range(entity.id)
                left = [key for records in (log, index) for key in records.keys if start <= key < end]
                _check(not left, "%s was deleted, and its records are still there: %s", entity, left)

    def check_answered(self, store: int) -> None:
        """When a store has nothing more to do, nobody waits for it."""
        self.pending_operations = [asked for asked in self.pending_operations if not asked.is_answered]
        for asked in self.pending_operations:
            entity = asked.entity if isinstance(asked, SendOperation) else asked.area_state.entity
            _check(entity.store != store, "%s is not answered", asked)
        for message in self.messages.values():
            if message.deleting_consumer is not None and not message.send.entity.is_deleted:
                _check(message.send.entity.store != store, "received by nobody: %s", message)

    def check_area(self, area_state: AreaState, max_locks: int) -> None:
        """... and whoever is hungry has been fed."""
        _check(area_state.visible == area_state.synced == area_state.submitted, "%s: a commit was not told", area_state)
        self.check_counters(area_state)
        taken = [self.messages[live.identity] for live in area_state.visible.values()]
        for message in taken:
            _check(message.settlement is None and message.pending_commit is None, "never finished: %s", message)
        out = sum([not message.is_idle for message in taken])
        _check(out <= max_locks, "%s: %s messages are out, more than %s", area_state, out, max_locks)
        if out < max_locks and (idle := self.available_sequence_numbers(area_state)):
            for consumer in area_state.consumers:
                _check(
                    not consumer.wants_messages, "%s: %s gets nothing, though there are %s", area_state, consumer, idle
                )


def _apply_change(messages: dict[int, StoredMessage], sequence: int, stored: StoredMessage | None) -> None:
    if stored is None:
        messages.pop(sequence, None)
    else:
        messages[sequence] = stored


def _check(holds: object, otherwise: str, *parts: object) -> None:
    """The text is made only when it is needed: there are a hundred checks to a step."""
    if not holds:
        _fail(otherwise % parts)


def _fail(what: str) -> NoReturn:
    raise Violation(what)
