"""A fragment: one ordered part of an entity, from a message's arrival to its settlement.

Owns: the numbers and counters of its messages, which of them are out, and who gets the next one. Its records are in a
store, which it changes through its `journal` only; its window and its locks are in memory.

What is out stays out until that is changed on disk: a message being deleted, or written again with a higher delivery
count, is neither locked nor ready, and no second settlement finds it.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from struct import Struct
from typing import TYPE_CHECKING, Final, TypeAlias

from twinbus.broker.keys import pack_sequence, sequence_of
from twinbus.broker.locks import Lock, Locks, pack_number
from twinbus.broker.record import change_record, render_locked, render_open, take_apart
from twinbus.broker.window import WINDOW_BYTES, WINDOW_MESSAGES, Window
from twinbus.model.errors import InternalFault, MessageLockLost, ServiceBusError, StoreUnavailable
from twinbus.store.protocol import StoreError, Table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from twinbus.broker.clock import Clock, Timer, Timers
    from twinbus.broker.consumer import Consumer, Delivery
    from twinbus.broker.journal import Answered, Journal
    from twinbus.store.protocol import Batch, Row

_MARKS: Final = Struct(">BQQQQ")
"""Version, next sequence number, low-water mark, messages, bytes."""
_MARKS_VERSION: Final = 1
EXPIRE_AT_ONCE: Final = 500
"""Locks that are ended in one turn when many expire."""
_SHARE: Final = 100
"""Messages one of several consumers gets before it is the next one's turn."""
_HEAP_SLACK: Final = 1_000
_PAUSE_S: Final = 0.01
DRAIN_PATIENCE_S: Final = 0.1


Held: TypeAlias = tuple[Lock, bytes]
"""A message that is out: its lock, which has ended, and its record."""


class Policy:
    """What a fragment does with messages, as its queue's description says. Changes when that does."""

    __slots__ = ("lock_duration_ms", "max_delivery_count", "max_locks")

    def __init__(self, *, lock_duration_ms: int, max_delivery_count: int | None, max_locks: int) -> None:
        """`max_delivery_count` is None where messages are never dead-lettered for it."""
        self.lock_duration_ms = lock_duration_ms
        self.max_delivery_count = max_delivery_count
        self.max_locks = max_locks


class Fragment:
    """One ordered part of an entity."""

    def __init__(
        self,
        prefix: bytes,
        journal: Journal,
        policy: Policy,
        *,
        clock: Clock,
        timers: Timers,
        make_life: Callable[[], bytes],
        dead_letters: Fragment | None = None,
    ) -> None:
        """A fragment without messages; one that may have some is loaded first (`load`).

        `prefix` is how its keys start; `make_life` gives eight bytes that were never given before.
        """
        self.policy = policy
        self.is_loaded = True
        self.count = 0
        """Messages on disk, as far as is known to be synced; so are the bytes."""
        self.bytes = 0
        self._prefix = prefix
        self._journal = journal
        self._clock = clock
        self._timers = timers
        self._make_life = make_life
        self._dead_letters = dead_letters
        self._next = 1
        self._synced = 1
        self._low = 1
        self._written_count = 0
        self._written_bytes = 0
        self._window = Window(1)
        self._locks = Locks(make_life())
        self._out: set[int] = set()
        self._out_heap: list[int] = []
        self._highest_out = 0
        self._expiry: Timer | None = None
        self._expiry_s = 0.0
        self._is_expiring = False
        self._is_expiry_put_off = False
        self._consumers: set[Consumer] = set()
        self._hungry: OrderedDict[Consumer, None] = OrderedDict()
        self._draining: dict[Consumer, Callable[[], None]] = {}
        self._handing: dict[Consumer, int] = {}
        """Who will get how many messages once they are deleted."""
        self._end: ServiceBusError | None = None
        """Why nobody gets anything from it any more: its entity was deleted."""
        journal.keepers[self] = None

    # --- sending ------------------------------------------------------------------------------------------------------

    @property
    def pending_bytes(self) -> int:
        """What it will hold once all that was taken in is synced."""
        return self._written_bytes

    def enqueue(self, records: Sequence[bytes], answer: Answered) -> None:
        """Store messages: all or none. `answer` hears when they are on disk."""
        journal = self._journal
        journal.check_takes_sends()
        self._check_loaded()
        put, prefix, sequence, size = journal.batch.put, self._prefix, self._next, 0
        fresh = []
        for record in records:
            put(prefix + pack_sequence(sequence), record)
            fresh.append((sequence, record))
            size += len(record)
            sequence += 1
        self._next = sequence
        self._written_count += len(fresh)
        self._written_bytes += size
        journal.add(self, size, lambda: self._arrive(fresh, size), answer)

    def _arrive(self, fresh: list[tuple[int, bytes]], size: int) -> None:
        """Messages are on disk: now they are there for everyone."""
        self.count += len(fresh)
        self.bytes += size
        self._synced = fresh[-1][0] + 1
        if self._consumers:
            self._window.extend(fresh, size)

    # --- receiving ----------------------------------------------------------------------------------------------------

    def add_consumer(self, consumer: Consumer) -> None:
        """A receiver has come; it says when it is hungry."""
        self._consumers.add(consumer)

    def remove_consumer(self, consumer: Consumer) -> None:
        """A receiver has gone. Its locks stay: it may settle by another way until they expire."""
        self._consumers.discard(consumer)
        self._draining.pop(consumer, None)
        self._hungry.pop(consumer, None)
        if not self._consumers:
            self._window.clear()

    def feed(self, consumer: Consumer) -> None:
        """A receiver has room."""
        if consumer in self._consumers:
            self._hungry.setdefault(consumer)
        self._dispatch()

    def drain(self, consumer: Consumer, drained: Callable[[], None]) -> None:
        """Give a receiver what there is now; `drained` is called when that was all, or after a tenth of a second."""
        self._draining[consumer] = drained
        self._timers.call_at(self._clock.monotonic_s() + DRAIN_PATIENCE_S, lambda: self._end_drain(consumer, drained))
        self.feed(consumer)

    def _end_drain(self, consumer: Consumer, drained: Callable[[], None]) -> None:
        if self._draining.get(consumer) is drained:
            del self._draining[consumer]
            drained()

    def _dispatch(self) -> None:
        window, hungry = self._window, self._hungry
        if self._journal.trouble is not None or not self.is_loaded:
            return  # what is handed out now could not be settled
        while window.ready and hungry:
            free = self.policy.max_locks - len(self._out)
            if free <= 0:
                break
            consumer = next(iter(hungry))
            count = min(consumer.room, len(window.ready), free)
            if count <= 0:
                del hungry[consumer]
                continue
            if len(hungry) > 1:
                count = min(count, _SHARE, len(window.ready) // len(hungry) or 1)
                hungry.move_to_end(consumer)
            if consumer.deletes:
                self._hand_over(consumer, window.take(count))
            else:
                self._lend(consumer, window.take(count))
        self._read_on()
        if self._draining and not window.is_reading:
            self._finish_drains()

    def _finish_drains(self) -> None:
        is_empty = not self._window.ready
        for consumer, drained in list(self._draining.items()):
            if consumer in self._handing:
                continue
            if is_empty or consumer.room <= 0 or len(self._out) >= self.policy.max_locks:
                self._end_drain(consumer, drained)

    def _lend(self, consumer: Consumer, items: list[tuple[int, bytes]]) -> None:
        """Deliver under locks."""
        duration_ms = self.policy.lock_duration_ms
        deadline_s = self._clock.monotonic_s() + duration_ms / 1000
        until_ms = self._clock.wall_ms() + duration_ms
        locks = self._locks
        token_prefix, tag_prefix = locks.token_prefix, locks.tag_prefix
        deliveries: list[Delivery] = []
        for number, (sequence, record) in enumerate(items, locks.add(items, deadline_s)):
            suffix = pack_number(number)
            deliveries.append((render_locked(record, sequence, token_prefix + suffix, until_ms), tag_prefix + suffix))
        self._note_out(items)
        self._watch_expiry(deadline_s)
        taken = consumer.deliver(deliveries)
        assert taken == len(deliveries)

    def _hand_over(self, consumer: Consumer, items: list[tuple[int, bytes]]) -> None:
        """Delete, and deliver when that is on disk: so it is received once, or never."""
        self._note_out(items)
        consumer.reserve(len(items))
        self._handing[consumer] = self._handing.get(consumer, 0) + len(items)
        for sequence, record in items:
            self._delete(sequence, len(record))
        size = sum([len(record) for _, record in items])

        def applied() -> None:
            self._deleted([sequence for sequence, _ in items], size)
            left = self._handing.pop(consumer, 0) - len(items)
            if left > 0:
                self._handing[consumer] = left
            taken = 0
            if not consumer.is_gone:
                taken = consumer.deliver(
                    [(render_open(record, number), pack_sequence(number)) for number, record in items]
                )
            if taken < len(items):
                self._store_again(items[taken:])

        self._journal.add(self, 0, applied, _nobody)

    def _store_again(self, items: list[tuple[int, bytes]]) -> None:
        """Messages were deleted for somebody who does not take them: nobody has seen them, so they come back."""
        if self._end is not None:
            return
        for sequence, record in items:
            self._journal.batch.put(self._prefix + pack_sequence(sequence), record)
            self._written_count += 1
            self._written_bytes += len(record)
        self._note_out(items)

        def applied() -> None:
            self.count += len(items)
            for sequence, record in items:
                self.bytes += len(record)
                self._bring_back(sequence, record)

        self._journal.add(self, 0, applied, _nobody)

    def _note_out(self, items: list[tuple[int, bytes]]) -> None:
        sequences = [sequence for sequence, _ in items]
        if len(self._out_heap) > 2 * len(self._out) + _HEAP_SLACK:  # one held for long keeps all that pass it
            self._out_heap = sorted(self._out)
        self._out.update(sequences)
        if sequences[0] > self._highest_out:  # higher than all before: at its end the heap stays one
            self._out_heap += sequences
            self._highest_out = sequences[-1]
        else:
            for sequence in sequences:
                heapq.heappush(self._out_heap, sequence)
            self._highest_out = max(self._highest_out, sequences[-1])

    def _read_on(self) -> None:
        window = self._window
        if self._consumers and window.wants_more(self._synced) and self._journal.trouble is None:
            window.is_reading = True
            start, end = window.next_read, self._synced
            self._journal.scan(
                self._prefix + pack_sequence(start),
                self._prefix + pack_sequence(end),
                lambda rows: self._was_read(window, rows, start, end),
                limit=WINDOW_MESSAGES - len(window.ready),
                max_bytes=WINDOW_BYTES,
            )

    def _was_read(self, window: Window, rows: list[Row] | StoreError, start: int, end: int) -> None:
        if window is not self._window:
            return  # the fragment was loaded anew
        if isinstance(rows, StoreError):
            self._journal.fail(str(rows))
            return
        window.fill(rows, start, end, self._out.__contains__)
        if not self._consumers:
            window.clear()
        self._dispatch()

    # --- settling -----------------------------------------------------------------------------------------------------

    def lock_numbers(self, tags: Iterable[bytes]) -> list[int]:
        """The numbers by which the other calls know locks, in tags or tokens; 0 where one is not of this life."""
        return self._locks.numbers_in(tags)

    def complete(self, numbers: Iterable[int], answer: Answered) -> list[int]:
        """Delete messages that are locked. Returns those whose lock is lost; `answer` hears of the others."""
        locks, lost = self._take_locks(numbers)
        if not locks:
            return lost
        delete, prefix = self._journal.batch.delete, self._prefix
        sequences = [lock.sequence for lock in locks]
        for sequence in sequences:
            delete(prefix + pack_sequence(sequence))
        size = sum([lock.size for lock in locks])
        self._written_count -= len(locks)
        self._written_bytes -= size
        self._journal.add(self, 0, lambda: self._deleted(sequences, size), answer)
        return lost

    def release(self, numbers: Iterable[int], answer: Answered) -> list[int]:
        """Give messages back as if they had not been handed out."""
        locks, lost = self._take_locks(numbers)
        if locks:
            self._read_out(locks, answer, self._return_unchanged)
        return lost

    def abandon(
        self, numbers: Iterable[int], answer: Answered, properties: Mapping[str, object] | None = None
    ) -> list[int]:
        """Give messages back with a delivery more on their count, and perhaps with changed properties."""
        locks, lost = self._take_locks(numbers)
        if locks:
            self._read_out(locks, answer, lambda found, answer: self._return_counted(found, answer, properties))
        return lost

    def dead_letter(
        self,
        numbers: Iterable[int],
        answer: Answered,
        *,
        reason: str | None = None,
        description: str | None = None,
        properties: Mapping[str, object] | None = None,
    ) -> list[int]:
        """Move messages to the dead-letter queue; those of a dead-letter queue stay there, and count a delivery."""
        if self._dead_letters is None:
            return self.abandon(numbers, answer, properties)
        changes = dict(properties or {}) | reasons(reason, description)
        locks, lost = self._take_locks(numbers)
        if locks:
            self._read_out(locks, answer, lambda found, answer: self._bury_all(found, answer, changes))
        return lost

    def renew(self, number: int) -> int:
        """Let a lock last its duration from now; the time on the wall clock until when. MessageLockLost."""
        self._journal.check_works()
        now_s, duration_ms = self._clock.monotonic_s(), self.policy.lock_duration_ms
        if not self._locks.renew(number, now_s, now_s + duration_ms / 1000):
            raise lock_lost()
        self._watch_expiry(now_s + duration_ms / 1000)
        return self._clock.wall_ms() + duration_ms

    def holds(self, number: int) -> bool:
        """A lock is there and has not expired."""
        lock = self._locks.by_number.get(number)
        return lock is not None and lock.deadline_s > self._clock.monotonic_s()

    def _take_locks(self, numbers: Iterable[int]) -> tuple[list[Lock], list[int]]:
        self._journal.check_works()
        now_s, take = self._clock.monotonic_s(), self._locks.take
        found, lost = [], []
        for number in numbers:
            lock = take(number, now_s)
            if lock is None:
                lost.append(number)
            else:
                found.append(lock)
        return found, lost

    def _read_out(self, locks: list[Lock], answer: Answered, then: Callable[[list[Held], Answered], None]) -> None:
        """Read the records of messages that are out. They are not kept in memory: most are completed unseen."""
        window = self._window

        def read(values: list[bytes | None] | StoreError) -> None:
            if window is not self._window or isinstance(values, StoreError):
                answer(StoreUnavailable("the store failed before the message was given back; its lock is void"))
                if isinstance(values, StoreError) and window is self._window:
                    self._journal.fail(str(values))
                return
            found = [(lock, record) for lock, record in zip(locks, values, strict=True) if record is not None]
            try:
                then(found, answer)
            except Exception:
                self._return_unchanged(found, _nobody)  # what cannot be done to them must not keep them out for ever
                answer(InternalFault("the message could not be changed; it is there as it was"))
                raise

        self._journal.get([self._prefix + pack_sequence(lock.sequence) for lock in locks], read)

    def _return_unchanged(self, found: list[Held], answer: Answered) -> None:
        for lock, record in found:
            self._bring_back(lock.sequence, record)
        answer(None)
        self._dispatch()

    def _return_counted(self, found: list[Held], answer: Answered, properties: Mapping[str, object] | None) -> None:
        most = self.policy.max_delivery_count
        returned: list[tuple[int, bytes]] = []
        exhausted_ones: list[Held] = []
        growth = 0
        for lock, record in found:  # nothing is put into the batch before all could be changed
            count = take_apart(record).delivery_count + 1
            if most is not None and count >= most:
                changed = change_record(record, delivery_count=count, properties=exhausted(most, properties))
                exhausted_ones.append((lock, changed))
                continue
            changed = change_record(record, delivery_count=count, properties=properties)
            growth += len(changed) - lock.size
            returned.append((lock.sequence, changed))
        for lock, changed in exhausted_ones:
            self._bury(lock, changed)
        for sequence, changed in returned:
            self._journal.batch.put(self._prefix + pack_sequence(sequence), changed)
        self._written_bytes += growth

        def applied() -> None:
            self.bytes += growth
            for sequence, record in returned:
                self._bring_back(sequence, record)

        self._journal.add(self, max(0, growth), applied, answer)

    def _bury_all(self, found: list[Held], answer: Answered, changes: Mapping[str, object]) -> None:
        for lock, record in [(lock, change_record(record, properties=changes)) for lock, record in found]:
            self._bury(lock, record)
        self._journal.add(self, 0, _nothing, answer)

    def _bury(self, lock: Lock, record: bytes) -> None:
        """Move one message to the dead-letter queue, in the batch of this turn."""
        assert self._dead_letters is not None
        self._delete(lock.sequence, lock.size)
        self._dead_letters.take_in(change_record(record, annotations={"x-opt-enqueue-sequence-number": lock.sequence}))
        self._journal.add(self, 0, lambda: self._deleted([lock.sequence], lock.size), _nobody)

    def take_in(self, record: bytes) -> None:
        """Store a message that comes from another fragment of the same store, in the batch of this turn.

        Its enqueued time is not changed: it is that of the message's arrival.
        """
        sequence, size = self._next, len(record)
        self._next += 1
        self._journal.batch.put(self._prefix + pack_sequence(sequence), record)
        self._written_count += 1
        self._written_bytes += size
        self._journal.add(self, size, lambda: self._arrive([(sequence, record)], size), _nobody)

    def _bring_back(self, sequence: int, record: bytes) -> None:
        self._out.discard(sequence)
        if self._consumers and sequence < self._window.next_read:
            self._window.put_back(sequence, record)
        else:
            self._window.next_read = min(self._window.next_read, sequence)

    def _delete(self, sequence: int, size: int) -> None:
        self._journal.batch.delete(self._prefix + pack_sequence(sequence))
        self._written_count -= 1
        self._written_bytes -= size

    def _deleted(self, sequences: list[int], size: int) -> None:
        """Messages are gone from the disk."""
        self.count -= len(sequences)
        self.bytes -= size
        self._out.difference_update(sequences)

    # --- locks that expire --------------------------------------------------------------------------------------------

    def _watch_expiry(self, deadline_s: float) -> None:
        """Look at the locks when this deadline is over, or before."""
        if self._expiry is not None:
            if self._expiry_s <= deadline_s:
                return
            self._expiry.cancel()
        self._expiry_s = max(deadline_s, self._clock.monotonic_s() + _PAUSE_S)
        self._expiry = self._timers.call_at(self._expiry_s, self._expire)

    def _expire(self) -> None:
        self._expiry = None
        if self._journal.trouble is not None:
            self._is_expiry_put_off = True  # until the store speaks again
            return
        if not self._is_expiring:
            expired = self._locks.take_expired(self._clock.monotonic_s(), EXPIRE_AT_ONCE)
            if expired:
                self._is_expiring = True
                self._read_out(expired, self._expired, lambda found, answer: self._return_counted(found, answer, None))
        deadline_s = self._locks.next_deadline_s()
        if deadline_s is not None:
            self._watch_expiry(deadline_s)

    def _expired(self, _error: ServiceBusError | None) -> None:
        """Locks that expired are dealt with: the next may follow."""
        self._is_expiring = False

    # --- browsing -----------------------------------------------------------------------------------------------------

    def peek(
        self, from_sequence: int, count: int, max_bytes: int, done: Callable[[list[bytes] | ServiceBusError], None]
    ) -> None:
        """Messages from a sequence number on, whether out or not, as they are; nothing changes."""
        self._journal.check_works()
        self._check_loaded()
        found: list[bytes] = []
        promise = self._journal.promise(lambda error: done(error if error is not None else found))

        def read(rows: list[Row] | StoreError) -> None:
            if isinstance(rows, StoreError):
                promise.give(StoreUnavailable(f"the store is unavailable: {rows}"))
                return
            found.extend([render_open(record, sequence_of(key)) for key, record in rows])
            promise.give(None)

        start = min(max(from_sequence, self._low), self._synced)
        self._journal.scan(
            self._prefix + pack_sequence(start),
            self._prefix + pack_sequence(self._synced),
            read,
            limit=count,
            max_bytes=max_bytes,
        )

    # --- the journal calls these --------------------------------------------------------------------------------------

    def write_marks(self, batch: Batch) -> None:
        """The numbers that a restart starts from, with every batch that changes them."""
        if self._end is not None:
            return  # all that it had is removed
        heap, out = self._out_heap, self._out
        while heap and heap[0] not in out:
            heapq.heappop(heap)
        lowest = self._window.lowest
        self._low = min(heap[0], lowest) if heap else lowest
        marks = _MARKS.pack(_MARKS_VERSION, self._next, self._low, self._written_count, self._written_bytes)
        batch.put(self._prefix, marks, Table.INDEX)

    def settled_down(self) -> None:
        """A commit was applied, or the store speaks again: there may be something to hand out."""
        if self._is_expiry_put_off:
            self._is_expiry_put_off = False
            self._expire()
        self._dispatch()

    def lose_store(self) -> None:
        """The store failed. Whatever is out or on its way will be read from disk again."""
        self.is_loaded = False
        for consumer, count in self._handing.items():
            consumer.reserve(-count)
            if consumer in self._consumers:
                self._hungry.setdefault(consumer)
        self._forget()

    def find_store(self) -> None:
        """The store was opened anew."""
        self.load(lambda error: self._journal.fail(str(error)) if error is not None else self._dispatch())

    def load(self, done: Callable[[ServiceBusError | None], None]) -> None:
        """Read the marks from the store."""
        self.is_loaded = False

        def read(values: list[bytes | None] | StoreError) -> None:
            if isinstance(values, StoreError):
                done(StoreUnavailable(str(values)))
                return
            if values[0] is not None:
                _, self._next, self._low, self._written_count, self._written_bytes = _MARKS.unpack(values[0])
            else:
                self._next, self._low, self._written_count, self._written_bytes = 1, 1, 0, 0
            self._synced, self.count, self.bytes = self._next, self._written_count, self._written_bytes
            self._forget()
            self.is_loaded = self._end is None
            done(None)

        self._journal.get([self._prefix], read, Table.INDEX)

    def close(self, error: ServiceBusError) -> None:
        """The entity is deleted: nobody gets anything from it any more."""
        self._journal.keepers.pop(self, None)
        self._end = error
        self.is_loaded = False
        for consumer in list(self._consumers):
            consumer.entity_gone(error)
        self._consumers.clear()
        self._hungry.clear()
        self._draining.clear()
        self._forget()

    def _forget(self) -> None:
        self._window = Window(self._low)
        self._locks = Locks(self._make_life())
        self._out.clear()
        self._out_heap.clear()
        self._highest_out = 0
        self._handing.clear()
        self._is_expiring = self._is_expiry_put_off = False
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None

    def _check_loaded(self) -> None:
        if self._end is not None:
            raise self._end
        if not self.is_loaded:
            raise StoreUnavailable(f"store {self._journal.store.name} is being opened: try again in a moment")


def lock_lost() -> MessageLockLost:
    """Whoever settles or renews has no lock."""
    return MessageLockLost(
        "The lock supplied is invalid. Either the lock expired, or the message has already been removed from the queue."
    )


def reasons(reason: str | None, description: str | None) -> dict[str, object]:
    """Why a message was dead-lettered, as its properties say it."""
    found = {"DeadLetterReason": reason, "DeadLetterErrorDescription": description}
    return {name: text for name, text in found.items() if text is not None}


def exhausted(most: int, properties: Mapping[str, object] | None) -> dict[str, object]:
    """The properties of a message that was delivered too often."""
    why = reasons("MaxDeliveryCountExceeded", f"Message could not be consumed after {most} delivery attempts.")
    return dict(properties or {}) | why


def _nothing() -> None:
    """What a commit changed is told by others."""


def _nobody(_error: ServiceBusError | None) -> None:
    """Nobody waits for this."""
