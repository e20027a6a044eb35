"""What must hold: every change that the broker asks of a store, every answer and every delivery is judged here.

The ledger sees a broker from both of its sides: what clients asked and were told, and what stores were asked to write.
A commit is right if each of its changes follows from something that a client asked, or from a lock that expired; an
answer is right if the synced disk agrees with it; a delivery is right if it is the lowest message that nobody has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from tests.ledger.problems import Violation
from tests.simulation.letter import is_of, read_delivery, read_record
from tests.simulation.shelf import Commit, Entity, Kind, Live, Lock, Message, Place, Sending, Settlement, Shelf
from twinbus.broker.holdings import MARKS, Marks
from twinbus.broker.keys import KIND_BYTES, PREFIX_BYTES, Area, entity_range, pack_sequence, sequence_of
from twinbus.store.protocol import Table

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.simulation.consumer import SimulatedConsumer
    from twinbus.broker.ports.consumer import Delivery
    from twinbus.model.errors import ServiceBusError
    from twinbus.store.changes import Changes
    from twinbus.store.memory import MemoryDisk

PLACE_BYTES = PREFIX_BYTES + KIND_BYTES


class Ledger:
    """All that was ever sent in one run, and where it is."""

    def __init__(self, now_s: Callable[[], float], disks: Sequence[MemoryDisk]) -> None:
        self.disks = disks
        self.messages: dict[int, Message] = {}
        self.entities: list[Entity] = []
        self.shelves: dict[bytes, Shelf] = {}
        self.asked: list[Sending | Settlement] = []
        """All that is to be answered; what was, is taken out at the next look."""
        self._now_s = now_s
        self._commits: dict[Changes, Commit] = {}

    def add_entity(self, entity: Entity) -> None:
        self.entities.append(entity)
        self.shelves |= {shelf.prefix: shelf for shelf in entity.shelves}

    def live_shelves(self, store: int) -> list[Shelf]:
        found = [entity for entity in self.entities if entity.store == store and not entity.is_deleted]
        return [shelf for entity in found for shelf in entity.shelves]

    def idle(self, shelf: Shelf) -> list[int]:
        """The sequence numbers that can be handed out, in the order in which they must be."""
        messages = self.messages
        return sorted([number for number, live in shelf.visible.items() if messages[live.identity].is_idle])

    # --- what clients ask and are told --------------------------------------------------------------------------------

    def send(self, entity: Entity, identities: list[int]) -> Sending:
        sending = Sending(entity, identities)
        for identity in identities:
            self.messages[identity] = Message(identity, sending)
        self.asked.append(sending)
        return sending

    def sent(self, sending: Sending, error: ServiceBusError | None) -> None:
        self._answered(sending, error)
        if error is not None or sending.entity.is_deleted:
            return
        for identity in sending.identities:
            message = self.messages[identity]
            _check(message.was_synced, "message %s was accepted before it was on disk", identity)
        main = sending.entity.main
        main.least_shown += len(sending.identities)
        shown = main.fragment.count
        _check(shown >= main.least_shown, "%s was accepted, and only %s messages are shown", sending, shown)

    def settle(self, kind: Kind, shelf: Shelf, locks: list[Lock]) -> Settlement:
        settlement = Settlement(kind, shelf, [lock.message for lock in locks])
        for lock in locks:
            lock.message.lock = None
            lock.message.settlement = settlement
        self.asked.append(settlement)
        return settlement

    def settled(self, settlement: Settlement, error: ServiceBusError | None) -> None:
        self._answered(settlement, error)
        for message in settlement.messages:
            if message.settlement is settlement:
                message.settlement = None
        if error is not None or settlement.shelf.entity.is_deleted:
            return
        dead = settlement.shelf.entity.dead
        for message, count in zip(settlement.messages, settlement.counts, strict=True):
            where, what = message.where, settlement
            if settlement.kind is Kind.COMPLETE:
                _check(where is None, "%s was answered, and is still on disk: %s", what, message)
                message.is_gone = True
                continue
            _check(where is not None, "%s was answered, and is not on disk: %s", what, message)
            assert where is not None
            is_counted = settlement.kind is Kind.ABANDON or (
                settlement.kind is Kind.DEAD_LETTER and settlement.shelf is dead
            )
            _check(
                where.live.delivered == count + is_counted, "%s was answered, and counted wrongly: %s", what, message
            )
            if settlement.kind is Kind.DEAD_LETTER:
                _check(where.shelf is dead, "%s was answered, and is elsewhere: %s", what, message)

    def _answered(self, asked: Sending | Settlement, error: ServiceBusError | None) -> None:
        _check(not asked.is_answered, "%s was answered twice", asked)
        _check(error is not None or not asked.is_void, "%s succeeded though its store failed meanwhile", asked)
        asked.is_answered = True

    # --- what clients are given ---------------------------------------------------------------------------------------

    def lend(self, consumer: SimulatedConsumer, deliveries: list[Delivery], deadline_s: float) -> list[Lock]:
        shelf = consumer.shelf
        idle = self.idle(shelf)
        locks = []
        for index, (payload, tag) in enumerate(deliveries):
            message, sequence = self._read(shelf, payload)
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
            _check(record is not None and is_of(payload, record), "not the bytes that are on disk: %s", message)
            locks.append(Lock(message, shelf, sequence, tag, deadline_s))
        for lock in locks:
            _check(lock.message.lock is None, "%s was handed out twice at once", lock.message)
            lock.message.lock = lock
        return locks

    def _read(self, shelf: Shelf, payload: bytes) -> tuple[Message, int]:
        """A delivery shows what is on the synced disk, to the byte."""
        identity, sequence, count = read_delivery(payload)
        message = self.messages.get(identity)
        if message is None:
            _fail(f"message {identity} was never sent")
        where = message.where
        _check(
            where is not None and where.shelf is shelf and where.sequence == sequence and where.live.delivered == count,
            "%s: %s was handed out with count %s, which no disk has: %s",
            shelf,
            sequence,
            count,
            message,
        )
        return message, sequence

    def reserve(self, consumer: SimulatedConsumer, count: int) -> None:
        """Some are being deleted, to be delivered then. They are the lowest ones, as always."""
        shelf = consumer.shelf
        idle = self.idle(shelf)
        _check(len(idle) >= count, "%s: %s were reserved, and there are %s", shelf, count, len(idle))
        for sequence in idle[:count]:
            self.messages[shelf.visible[sequence].identity].handed = consumer

    def refuse(self, deliveries: list[Delivery]) -> None:
        """What was deleted is not taken: it must come back."""
        for payload, _ in deliveries:
            self.messages[read_delivery(payload)[0]].is_refused = True

    def hand_over(self, consumer: SimulatedConsumer, deliveries: list[Delivery]) -> None:
        for payload, _ in deliveries:
            identity, sequence, count = read_delivery(payload)
            message = self.messages.get(identity)
            if message is None:
                _fail(f"message {identity} was never sent")
            _check(not message.is_gone, "received once more: %s", message)
            _check(message.handed is consumer, "received by another consumer: %s", message)
            _check(message.where is None, "received before it was deleted: %s", message)
            _check(
                (consumer.shelf.prefix, sequence, count) in message.seen_synced,
                "%s: %s with count %s was never on disk: %s",
                consumer.shelf,
                sequence,
                count,
                message,
            )
            message.handed, message.is_gone = None, True

    # --- what stores are asked and do ---------------------------------------------------------------------------------

    def submit(self, batch: Changes) -> Commit:
        """A batch is right if each change in it follows from something."""
        commit = Commit()
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
        self._explain_all(commit, final)
        for shelf, sequence, live in commit.changes:
            _change(shelf.submitted, sequence, live)
        touched = {shelf.prefix for shelf, _, _ in commit.changes}
        _check(touched <= marks.keys(), "a batch without the marks of a fragment that it changes")
        for prefix, value in marks.items():
            if not self.shelves[prefix].entity.is_deleted:
                self._check_marks(self.shelves[prefix], value, self.shelves[prefix].submitted)
        return commit

    def _explain_all(self, commit: Commit, final: dict[bytes, bytes | None]) -> None:
        removed: dict[int, Place] = {}
        added: dict[int, Place] = {}
        for key, record in final.items():
            shelf, sequence = self.shelves[key[:PLACE_BYTES]], sequence_of(key)
            if shelf.entity.is_deleted:
                continue
            old = shelf.submitted.get(sequence)
            if record is not None:
                identity, count = read_record(record)
                live = Live(identity, count, len(record))
                _check(identity in self.messages, "message %s was stored, and never sent", identity)
                if old is None:
                    added[identity] = Place(shelf, sequence, live)
                else:
                    self._explain_rewrite(commit, old, Place(shelf, sequence, live))
                    commit.changes.append((shelf, sequence, live))
            else:
                _check(old is not None, "%s: %s was deleted, and is not there", shelf, sequence)
                assert old is not None
                removed[old.identity] = Place(shelf, sequence, old)
        for identity, place in removed.items():
            self._explain_removal(commit, self.messages[identity], place, added.get(identity))
            commit.changes.append((place.shelf, place.sequence, None))
        for identity, place in added.items():
            if identity not in removed:
                self._explain_arrival(commit, self.messages[identity], place, added)
            shelf = place.shelf
            shelf.highest_submitted = max(shelf.highest_submitted, place.sequence)
            commit.changes.append((shelf, place.sequence, place.live))
        for shelf, _, _ in commit.changes:
            shelf.entity.mosts = {shelf.entity.description.max_delivery_count}

    def _explain_rewrite(self, commit: Commit, old: Live, new: Place) -> None:
        """Only to count one delivery more, and only below the limit."""
        message = self.messages[old.identity]
        _check(new.live.identity == old.identity, "%s was overwritten by %s", message, new)
        self._explain_count(message, old, new.live, new.shelf)
        is_below = new.shelf.area is Area.DEAD_LETTER or any(
            new.live.delivered < most for most in new.shelf.entity.mosts
        )
        _check(is_below, "delivered %s times and not dead-lettered: %s", new.live.delivered, message)
        self._begin(commit, message)

    def _explain_count(self, message: Message, old: Live, new: Live, shelf: Shelf) -> None:
        _check(new.delivered == old.delivered + 1, "the delivery count became %s: %s", new.delivered, message)
        settlement, lock = message.settlement, message.lock
        if settlement is not None:
            is_abandon = settlement.kind is Kind.ABANDON or (
                settlement.kind is Kind.DEAD_LETTER and shelf.area is Area.DEAD_LETTER
            )
            _check(is_abandon, "a delivery was counted by %s", settlement)
            return
        _check(lock is not None and lock.deadline_s <= self._now_s(), "counted without a reason: %s", message)
        message.lock = None

    def _explain_removal(self, commit: Commit, message: Message, old: Place, new: Place | None) -> None:
        _check(message.changing is None, "changed by two commits at once: %s", message)
        settlement = message.settlement
        if new is None:
            is_complete = settlement is not None and settlement.kind is Kind.COMPLETE
            _check(is_complete or message.handed is not None, "deleted without a reason: %s", message)
        else:
            is_move = new.shelf is old.shelf.entity.dead and old.shelf is old.shelf.entity.main
            _check(is_move, "moved to %s: %s", new, message)
            self._check_new_number(message, new)
            if settlement is not None and settlement.kind is Kind.DEAD_LETTER:
                _check(new.live.delivered == old.live.delivered, "counted by a dead-letter: %s", message)
            else:
                self._explain_count(message, old.live, new.live, old.shelf)
                is_due = any(new.live.delivered >= most for most in old.shelf.entity.mosts)
                _check(is_due, "dead-lettered after %s deliveries: %s", new.live.delivered, message)
        self._begin(commit, message)

    def _explain_arrival(self, commit: Commit, message: Message, new: Place, added: dict[int, Place]) -> None:
        consumer = message.handed
        if consumer is not None:
            is_wanted = not consumer.is_gone and not message.is_refused
            _check(not is_wanted, "stored again though its consumer is there: %s", message)
            _check((new.shelf.prefix, new.sequence, new.live.delivered) in message.seen_synced, "%s: %s", message, new)
        else:
            sending = message.sending
            _check(not message.was_synced and message.changing is None, "appeared once more: %s", message)
            _check(not (sending.is_answered or sending.is_void), "%s was refused, and stored later", sending)
            _check(new.shelf is sending.entity.main and new.live.delivered == 0, "arrived as %s: %s", new, message)
            _check(all(one in added for one in sending.identities), "%s was stored in part", sending)
            _check(message.identity > new.shelf.latest_arrival, "overtook another: %s", message)
            new.shelf.latest_arrival = message.identity
            self._check_new_number(message, new)
        self._begin(commit, message)

    def _check_new_number(self, message: Message, new: Place) -> None:
        _check(new.sequence > new.shelf.highest_submitted, "number %s was used before: %s", new.sequence, message)

    def _begin(self, commit: Commit, message: Message) -> None:
        _check(message.changing is None, "changed by two commits at once: %s", message)
        message.changing = commit
        commit.messages.append(message)

    def _check_marks(self, shelf: Shelf, marks: bytes, held: dict[int, Live]) -> None:
        read = Marks(*MARKS.unpack(marks)[1:])
        following, low, count, size = read.next, read.low, read.active_count, read.active_bytes
        _check(count == len(held), "%s: the marks say %s messages, and there are %s", shelf, count, len(held))
        total = sum([live.size for live in held.values()])
        _check(size == total, "%s: the marks say %s bytes, and there are %s", shelf, size, total)
        _check(
            following > shelf.highest_synced, "%s: number %s is next, %s was", shelf, following, shelf.highest_synced
        )
        highest, lowest = max(held, default=0), min(held, default=low)
        _check(following > highest, "%s: number %s is next, and there is %s", shelf, following, highest)
        _check(low <= lowest, "%s: the low-water mark is %s, above %s", shelf, low, lowest)

    def sync(self, batch: Changes) -> None:
        """A batch is safe."""
        commit = self._commits.pop(batch)
        for shelf, sequence, live in commit.changes:
            old = shelf.synced.get(sequence)
            _change(shelf.synced, sequence, live)
            shelf.highest_synced = max(shelf.highest_synced, sequence)
            if live is None:
                assert old is not None
                self.messages[old.identity].where = None
                continue
            message = self.messages[live.identity]
            _check(message.where is None or message.where[:2] == (shelf, sequence), "stored twice: %s", message)
            message.where = Place(shelf, sequence, live)
            message.was_synced = True
            message.seen_synced.add((shelf.prefix, sequence, live.delivered))

    def apply(self, commit: Commit) -> None:
        """The broker is about to hear that a batch is safe: now everyone may see it."""
        for shelf, _, _ in commit.changes:
            shelf.least_shown = len(shelf.visible)
        for shelf, sequence, live in commit.changes:
            shelf.least_shown -= live is None
            _change(shelf.visible, sequence, live)
        for message in commit.messages:
            message.changing = None
            if message.handed is not None and message.where is not None:
                message.handed, message.is_refused = None, False  # stored again

    def check_shown(self, commit: Commit) -> None:
        for shelf in {shelf.prefix: shelf for shelf, _, _ in commit.changes}.values():
            if not shelf.entity.is_deleted:
                self.check_counters(shelf)

    def check_counters(self, shelf: Shelf) -> None:
        shown, held = shelf.fragment, shelf.visible
        _check(shown.count == len(held), "%s: %s messages are shown, and there are %s", shelf, shown.count, len(held))
        total = sum([live.size for live in held.values()])
        _check(shown.size == total, "%s: %s bytes are shown, and there are %s", shelf, shown.size, total)

    def lose(self, store: int) -> None:
        """A store failed, or all did: locks are void, and of what was on its way the disk holds what it holds."""
        for asked in self.asked:
            entity = asked.entity if isinstance(asked, Sending) else asked.shelf.entity
            asked.is_void = asked.is_void or (entity.store == store and not asked.is_answered)
        for message in self.messages.values():
            if message.sending.entity.store != store:
                continue
            message.lock = message.settlement = message.changing = None
            if message.handed is not None:
                message.is_lost = message.where is None
                message.handed, message.is_refused = None, False
        for entity in self.entities:
            if entity.store == store:
                for shelf in entity.shelves:
                    shelf.lose_unsynced()

    def lose_all(self) -> None:
        """The process is gone, and with it everyone who was to be answered."""
        for number in range(len(self.disks)):
            self.lose(number)
            self.audit(number)
        self.asked.clear()

    # --- what a disk holds --------------------------------------------------------------------------------------------

    def audit(self, store: int) -> None:
        """The synced disk holds what the commits made of it, and its marks agree."""
        disk = self.disks[store]
        log, index = disk.synced[Table.LOG], disk.synced[Table.INDEX]
        found: dict[bytes, dict[int, Live]] = {}
        for key, record in log.values.items():
            held = found.setdefault(key[:PLACE_BYTES], {})
            held[sequence_of(key)] = Live(*read_record(record), len(record))
        for shelf in self.live_shelves(store):
            held = found.get(shelf.prefix, {})
            _check(held == shelf.synced, "%s: the disk holds %s, not %s", shelf, held, shelf.synced)
            marks = index.values.get(shelf.prefix)
            if marks is not None:
                self._check_marks(shelf, marks, held)
            else:
                _check(not held, "%s: messages without marks", shelf)
        for entity in self.entities:
            if entity.is_buried and entity.store == store:
                start, end = entity_range(entity.id)
                left = [key for records in (log, index) for key in records.keys if start <= key < end]
                _check(not left, "%s was deleted, and its records are still there: %s", entity, left)

    def check_answered(self, store: int) -> None:
        """When a store has nothing more to do, nobody waits for it."""
        self.asked = [asked for asked in self.asked if not asked.is_answered]
        for asked in self.asked:
            entity = asked.entity if isinstance(asked, Sending) else asked.shelf.entity
            _check(entity.store != store, "%s is not answered", asked)
        for message in self.messages.values():
            if message.handed is not None and not message.sending.entity.is_deleted:
                _check(message.sending.entity.store != store, "received by nobody: %s", message)

    def check_shelf(self, shelf: Shelf, max_locks: int) -> None:
        """... and whoever is hungry has been fed."""
        _check(shelf.visible == shelf.synced == shelf.submitted, "%s: a commit was not told", shelf)
        self.check_counters(shelf)
        taken = [self.messages[live.identity] for live in shelf.visible.values()]
        for message in taken:
            _check(message.settlement is None and message.changing is None, "never finished: %s", message)
        out = sum([not message.is_idle for message in taken])
        _check(out <= max_locks, "%s: %s messages are out, more than %s", shelf, out, max_locks)
        if out < max_locks and (idle := self.idle(shelf)):
            for consumer in shelf.consumers:
                _check(not consumer.is_hungry, "%s: %s gets nothing, though there are %s", shelf, consumer, idle)


def _change(held: dict[int, Live], sequence: int, live: Live | None) -> None:
    if live is None:
        held.pop(sequence, None)
    else:
        held[sequence] = live


def _check(holds: object, otherwise: str, *parts: object) -> None:
    """The text is made only when it is needed: there are a hundred checks to a step."""
    if not holds:
        _fail(otherwise % parts)


def _fail(what: str) -> NoReturn:
    raise Violation(what)
