"""A fragment: one ordered part of an entity, from a message's arrival to its end.

Owns: that the rooms of a message's way agree with each other, and with the disk. Its `holdings` are what is on disk,
`line` (or, where the queue has sessions, `sessions`) is who gets what next, `out` and `locks` are what someone has,
`settlement` is what becomes of that, `schedule` is what comes later. All change the disk through the `journal` only.

What is out stays out until that is changed on disk: a message being deleted, or written again with a higher delivery
count, is neither locked nor ready, and no second settlement finds it.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, TypeAlias

from twinbus.broker import store_keys
from twinbus.broker.fragment.deferral import Deferral
from twinbus.broker.fragment.dispatcher import Dispatcher, LocalDispatcher
from twinbus.broker.fragment.duplicate_detection import DuplicateDetection
from twinbus.broker.fragment.forwarding import ForwardingInbox
from twinbus.broker.fragment.in_flight import InFlight
from twinbus.broker.fragment.locks import NEVER_EXPIRES_S, LocalExclusiveLocks, Lock, Locks, pack_lock_number
from twinbus.broker.fragment.message_browser import MessageBrowser
from twinbus.broker.fragment.message_table import MessageTable
from twinbus.broker.fragment.redelivery import RedeliveryTracker
from twinbus.broker.fragment.removal import Removal
from twinbus.broker.fragment.schedule import Schedule
from twinbus.broker.fragment.session_dispatcher import SessionDispatcher
from twinbus.broker.fragment.session_lock import LocalSessionLock
from twinbus.broker.fragment.session_state import SessionStates
from twinbus.broker.fragment.settlement import Settlement
from twinbus.broker.fragment.time_index import SCAN_BATCH_SIZE, TimeIndex
from twinbus.broker.message_record import (
    HAS_DUE_TIME,
    HAS_EXTRA_ROWS,
    SCHEDULED_STATE,
    due_time_of,
    enqueued_time_of,
    render_locked,
    render_unlocked,
    with_enqueued_time,
    with_own_body,
)
from twinbus.broker.ports.fragment import UNLIMITED, FragmentPort
from twinbus.broker.store_keys import fragment_of_prefix, pack_sequence
from twinbus.model.callbacks import ignore
from twinbus.model.errors import ServiceBusError, StoreUnavailable
from twinbus.store.protocol import StoreError, Table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from twinbus.broker.clock import TimeServices
    from twinbus.broker.commit_log import CommitLog, OnApplied
    from twinbus.broker.fragment.forwarding import Forwarder
    from twinbus.broker.fragment.locks import TokenSource
    from twinbus.broker.fragment.message_browser import BrowseCursor
    from twinbus.broker.fragment.shared_bodies import SharedBodies
    from twinbus.broker.ports.callbacks import OnDone
    from twinbus.broker.ports.consumer import Consumer, Delivery
    from twinbus.broker.ports.fragment import SessionLock
    from twinbus.store.protocol import Batch, OnResult, Row

SequencedRecord: TypeAlias = "tuple[int, bytes]"
"""A message that is next: its sequence number and its record."""


class FragmentPolicy:
    """What a fragment does with messages, as its queue's description says. Changes when that does."""

    __slots__ = (
        "dead_letters_expired",
        "duplicate_window_ms",
        "lock_duration_ms",
        "max_delivery_count",
        "max_locks",
        "max_properties_bytes",
    )

    def __init__(
        self,
        *,
        lock_duration_ms: int,
        max_delivery_count: int | None,
        max_locks: int,
        dead_letters_expired: bool = False,
        duplicate_window_ms: int = 0,
        max_properties_bytes: int = 65_536,
    ) -> None:
        """`max_delivery_count` is None where messages are never dead-lettered for it."""
        self.lock_duration_ms = lock_duration_ms
        self.max_delivery_count = max_delivery_count
        self.max_locks = max_locks
        self.dead_letters_expired = dead_letters_expired
        self.duplicate_window_ms = duplicate_window_ms
        self.max_properties_bytes = max_properties_bytes


class Fragment(FragmentPort):
    """One ordered part of an entity, in a store of this process."""

    def __init__(
        self,
        key_prefix: bytes,
        commit_log: CommitLog,
        policy: FragmentPolicy,
        *,
        time_services: TimeServices,
        token_source: TokenSource,
        dead_letters: Fragment | None = None,
        has_sessions: bool = False,
        shared_bodies: SharedBodies | None = None,
    ) -> None:
        """A fragment without messages; one that may have some is loaded first (`load`).

        `prefix` is how its keys start; `tokens` has the random parts of its lock tokens. `bodies` is where those of its
        messages may lie that others have, too.
        """
        super().__init__(fragment_of_prefix(key_prefix), time_services, has_sessions=has_sessions)
        self.policy = policy
        self.commit_log = commit_log
        self.dead_letters = dead_letters
        self.is_loaded = True
        self.is_publishing = False
        """A topic's: messages that were sent to it are not in a batch yet, and later ones wait (`in_order`)."""
        self.incarnation = 0
        """Another one after each time that what was in memory became void."""
        self.message_table = holdings = MessageTable(key_prefix, commit_log)
        holdings.shared_bodies = shared_bodies
        self.in_flight = InFlight()
        self.deferred_in_flight: dict[int, Lock] = {}
        """Deferred messages that someone has, by their sequence number."""
        self.locks = Locks(token_source, self.number)
        self.redelivery = RedeliveryTracker(self)
        self.sessions = SessionDispatcher(self) if has_sessions else None
        self._dispatcher: LocalDispatcher = self.sessions if self.sessions is not None else Dispatcher(self)
        self._settlement = Settlement(self)
        self.schedule = Schedule(self)
        self.deferral = Deferral(self)
        self.duplicate_detection = DuplicateDetection(self)
        self.session_states = SessionStates(self)
        self._browser = MessageBrowser(self)
        self.removal = Removal(self)
        self.forwarding_inbox = ForwardingInbox(self)
        self.forwarder: Forwarder | None = None
        """Takes its messages to another entity; then nobody else gets any."""
        self.check_quota: Callable[[int], None] = _no_quota
        """QuotaExceeded if so many bytes more do not fit into the entity; the entity says how large it may be."""
        self.browse_cursors: dict[BrowseCursor, None] = {}
        self.returnable: dict[Consumer, dict[int, bytes]] = {}
        """Messages deleted for receivers that may still return them, by sequence numbers."""
        self._uncertain_sequences: set[int] = set()
        """Messages that are being deleted for receivers or stored again: it is not known yet whether they stay."""
        self._token_source = token_source
        self._closed_error: ServiceBusError | None = None
        """Why nobody gets anything from it any more: its entity was deleted."""
        holdings.expiry_index = TimeIndex(
            key_prefix, store_keys.EXPIRY, commit_log, time_services, self._settlement.expire_messages, is_sparse=True
        )
        holdings.due_index = TimeIndex(
            key_prefix, store_keys.DUE, commit_log, time_services, self.schedule.activate, is_sparse=False
        )
        commit_log.participants[self] = None

    @property
    def dispatcher(self) -> LocalDispatcher:
        """Who receives from it, and which message is next."""
        return self._dispatcher

    @property
    def settlement(self) -> Settlement:
        """The ends of its locks."""
        return self._settlement

    @property
    def browser(self) -> MessageBrowser:
        """Looking at its messages."""
        return self._browser

    @property
    def local(self) -> Fragment:
        """It is in this process."""
        return self

    @property
    def is_in_use(self) -> bool:
        """Whether a receiver or browser is attached."""
        return bool(self._dispatcher.consumers or self.browse_cursors)

    def check_available(self) -> None:
        """Raise StoreUnavailable if its store does not work now."""
        self.commit_log.check_available()

    def check_accepts_sends(self) -> None:
        """Raise StoreUnavailable or ServerBusy if its store takes no messages now."""
        self.commit_log.check_accepts_sends()

    def track_exclusive_locks(self) -> LocalExclusiveLocks:
        """Note the locks of an exclusive receiver from now on."""
        self.redelivery.set_tracking(is_on=True)
        return LocalExclusiveLocks(self)

    @property
    def active_count(self) -> int:
        """Active messages, as far as is known to be synced."""
        return self.message_table.committed.active_count

    @property
    def size(self) -> int:
        """What all messages weigh, as far as is known to be synced."""
        return self.message_table.committed.size

    # --- sending ------------------------------------------------------------------------------------------------------

    @property
    def is_available(self) -> bool:
        """Its store works, and what it holds is known."""
        return self.is_loaded and self.commit_log.unavailable_reason is None

    @property
    def accepts_sends(self) -> bool:
        """What is sent now can be stored, as far as is known."""
        return self.is_loaded and self.commit_log.accepts_sends

    def run_in_order(self, call: Callable[[], None], on_error: OnDone, size: int) -> None:  # noqa: ARG002
        """Make a call once all that was sent before is in a batch: at once, but for a topic that is busy.

        If that comes to nothing, `refuse` hears why. `size` is how many bytes wait.
        """
        call()

    def enqueue(self, records: Sequence[bytes], on_done: OnDone, on_batched: Callable[[], None] | None = None) -> int:
        """Store messages: all or none. `answer` hears when they are on disk.

        `beside` is called when they are put into a batch, and may put something into the same. Returns the sequence
        number of the first; the others follow.
        """
        self.commit_log.check_accepts_sends()
        self.check_loaded()
        holdings = self.message_table
        enqueued_ms = enqueued_time_of(records[-1])
        if (
            enqueued_ms < holdings.last_enqueued_ms
        ):  # the wall clock was set back, and no message seems older than another
            records = [with_enqueued_time(record, holdings.last_enqueued_ms) for record in records]
        else:
            holdings.last_enqueued_ms = enqueued_ms
        put, active, size, later = self.commit_log.batch.put, holdings.active_prefix, 0, 0
        first = sequence = holdings.next_sequence
        fresh = []
        for record in records:
            if record[1] & HAS_EXTRA_ROWS:
                if record[3] == SCHEDULED_STATE:
                    holdings.schedule(sequence, record)
                    later += len(record)
                    sequence += 1
                    continue
                holdings.add_index_rows(sequence, record)
            put(active + pack_sequence(sequence), record)
            fresh.append((sequence, record))
            size += len(record)
            sequence += 1
        holdings.next_sequence = sequence
        holdings.active_count += len(fresh)
        holdings.active_bytes += size
        self.commit_log.add(self, size + later, lambda: self._dispatcher.add_messages(fresh, size), on_done)
        if on_batched is not None:
            on_batched()
        return first

    def ping(self, on_done: OnDone) -> None:
        """Commit nothing, and sync it: whoever asks whether messages can be sent knows when that is answered."""
        self.commit_log.check_accepts_sends()
        self.check_loaded()
        self.commit_log.add_without_participant(on_done)

    @property
    def activation_batch_size(self) -> int:
        """How many scheduled messages are made active in one batch."""
        return SCAN_BATCH_SIZE

    def activate_scheduled(self, records: list[bytes], on_batched: Callable[[], None], on_applied: OnApplied) -> None:
        """Store messages that were there for later, as `enqueue`; `applied` is called when that is synced."""
        on_batched()
        fresh = [(self.message_table.add(record), record) for record in records]
        size = sum([len(record) for record in records])

        def arrived() -> None:
            self._dispatcher.add_messages(fresh, size)
            on_applied()

        self.commit_log.add(self, 0, arrived, ignore)

    def announce_on_commit(self, messages: list[SequencedRecord], size: int) -> None:
        """Messages were put into the batch of this turn: they are there when it is synced."""
        self.commit_log.add(self, size, lambda: self._dispatcher.add_messages(messages, size), ignore)

    def store_moved(self, record: bytes) -> None:
        """Store a message that comes from another fragment of the same store, in the batch of this turn.

        Its enqueued time is not changed: it is that of the message's arrival.
        """
        sequence, size = self.message_table.add(record), len(record)
        self.commit_log.add(self, size, lambda: self._dispatcher.add_messages([(sequence, record)], size), ignore)

    # --- handing out --------------------------------------------------------------------------------------------------

    @property
    def available_locks(self) -> int:
        """How many more messages may be out."""
        return self.policy.max_locks - len(self.in_flight.locks)

    def deliver_to(
        self, consumer: Consumer, messages: list[SequencedRecord], session_locked_until_ms: int | None = None
    ) -> None:
        """Give messages to a consumer that has room for them, but for those whose time is over.

        Messages of a session are locked as long as that is.
        """
        now_ms = self.clock.wall_ms()
        for _, record in messages:
            if record[1] & HAS_DUE_TIME:
                messages = self._without_expired(messages, now_ms)
                break
        if not messages:
            return
        if consumer is self.forwarder:
            locks = self.locks.add(messages, NEVER_EXPIRES_S)
            self.in_flight.add(locks)
            self.forwarder.forward(list(zip(locks, [record for _, record in messages], strict=True)))
        elif consumer.receive_and_delete:
            self._delete_and_deliver(consumer, messages)
        elif session_locked_until_ms is not None:
            self._deliver_locked(consumer, messages, NEVER_EXPIRES_S, session_locked_until_ms)
        else:
            duration_ms = self.policy.lock_duration_ms
            deadline_s = self.clock.monotonic_s() + duration_ms / 1000
            self._deliver_locked(consumer, messages, deadline_s, now_ms + duration_ms)
            self._settlement.schedule_expiry(deadline_s)

    def _without_expired(self, messages: list[SequencedRecord], now_ms: int) -> list[SequencedRecord]:
        fresh, stale = [], []
        for item in messages:
            sequence, record = item
            if record[1] & HAS_DUE_TIME and due_time_of(record) <= now_ms:
                lock = Lock(0, sequence, len(record), NEVER_EXPIRES_S)
                lock.load_from_record(record)
                stale.append((lock, record))
            else:
                fresh.append(item)
        if stale:
            self._settlement.expire_undelivered(stale)
        return fresh

    def _deliver_locked(
        self, consumer: Consumer, messages: list[SequencedRecord], deadline_s: float, locked_until_ms: int
    ) -> None:
        """Deliver under locks."""
        token_prefix, tag_prefix = self.locks.token_prefix, self.locks.tag_prefix
        deliveries: list[Delivery] = []
        locks = self.locks.add(messages, deadline_s)
        if self.redelivery.has_suspects:
            messages = self._with_delivery_counts(messages)
        for at, (sequence, record) in enumerate(messages):
            suffix = pack_lock_number(locks[at].number)
            deliveries.append(
                (render_locked(record, sequence, token_prefix + suffix, locked_until_ms), tag_prefix + suffix)
            )
        self.in_flight.add(locks)
        if self.sessions is not None:
            self.sessions.attach_locks(locks)
        taken = consumer.deliver(deliveries)
        assert taken == len(deliveries)

    def _with_delivery_counts(self, messages: list[SequencedRecord]) -> list[SequencedRecord]:
        """The same as they are shown: those that may have been delivered before say so."""
        seen = self.redelivery.as_delivered
        return [(sequence, seen(sequence, record)) for sequence, record in messages]

    def _delete_and_deliver(self, consumer: Consumer, messages: list[SequencedRecord]) -> None:
        """Delete, and deliver when that is on disk: so it is received once, or never."""
        line, holdings = self._dispatcher, self.message_table
        numbers = [sequence for sequence, _ in messages]
        self.in_flight.add_deleting(numbers)
        self._uncertain_sequences.update(numbers)
        line.begin_pending_delivery(consumer, len(messages))
        for sequence, record in messages:
            holdings.remove_active(sequence, len(record))
            if record[1] & HAS_EXTRA_ROWS:
                holdings.remove_index_rows(sequence, record)

        def applied() -> None:
            for sequence in numbers:
                self.in_flight.remove(sequence)
            self._uncertain_sequences.difference_update(numbers)
            line.end_pending_delivery(consumer, len(messages))
            taken = 0
            if not consumer.is_closed:
                returnable = self.returnable.get(consumer)
                if returnable is not None:
                    returnable.update(messages)
                shown = self._with_delivery_counts(messages) if self.redelivery.has_suspects else messages
                taken = consumer.deliver(
                    [(render_unlocked(record, number), pack_sequence(number)) for number, record in shown]
                )
            if taken < len(messages):
                self.restore_deleted(messages[taken:], ignore)

        self.commit_log.add(self, 0, applied, ignore)

    def restore_deleted(self, messages: list[SequencedRecord], on_done: OnDone) -> None:
        """Messages were deleted for somebody who does not take them: nobody has seen them, so they come back."""
        try:
            self.check_loaded()
        except ServiceBusError as error:  # who was to get them was told nothing: once, or never
            on_done(error)
            return
        for sequence, record in messages:
            self.message_table.put(sequence, with_own_body(record))
        numbers = [sequence for sequence, _ in messages]
        self.in_flight.add_deleting(numbers)
        self._uncertain_sequences.update(numbers)

        def applied() -> None:
            self._uncertain_sequences.difference_update(numbers)
            for sequence, record in messages:
                self.in_flight.remove(sequence)
                self._dispatcher.requeue(sequence, record)

        self.commit_log.add(self, 0, applied, on_done)

    def first_uncertain_sequence(self, start: int) -> int:
        """Return the lowest number, from `start` on, of a message that may be stored again; UNLIMITED if none may."""
        numbers = chain(self._uncertain_sequences, *self.returnable.values())
        return min([sequence for sequence in numbers if sequence >= start], default=UNLIMITED)

    def find_session_lock(self, session_id: bytes, consumer: Consumer) -> LocalSessionLock:
        """Return a session that a receiver has now. SessionLockLost."""
        assert self.sessions is not None
        return self.sessions.find_lock(session_id, consumer)

    def renew_session_lock(self, session_lock: SessionLock) -> int:
        """Let a receiver have its session for the lock duration from now; return until when, on the wall clock."""
        assert self.sessions is not None
        assert isinstance(session_lock, LocalSessionLock)
        return self.sessions.renew(session_lock)

    # --- reading ------------------------------------------------------------------------------------------------------

    def read(self, record_keys: list[bytes], on_result: OnResult[list[bytes | None]]) -> None:
        """Records by their keys, whole."""
        bodies = self.message_table.shared_bodies
        if bodies is None:
            self.commit_log.get(record_keys, on_result)
            return

        def found(records: list[bytes | None] | StoreError) -> None:
            if isinstance(records, StoreError):
                on_result(records)
            else:
                bodies.complete_records(record_keys, records, on_result)

        self.commit_log.get(record_keys, found)

    def scan(self, start: bytes, end: bytes, on_result: OnResult[list[Row]], *, limit: int, max_bytes: int) -> None:
        """Records in the order of their keys, whole; not more bytes of them than one record beyond `max_bytes`."""
        bodies = self.message_table.shared_bodies
        if bodies is None:
            self.commit_log.scan(start, end, on_result, limit=limit, max_bytes=max_bytes)
            return

        def found(rows: list[Row] | StoreError) -> None:
            if isinstance(rows, StoreError):
                on_result(rows)
                return

            def joined(whole: list[Row] | StoreError) -> None:
                if rows and not whole:  # all of them were removed meanwhile, and that is not the end
                    self.scan(rows[0][0] + b"\0", end, on_result, limit=limit, max_bytes=max_bytes)
                else:
                    on_result(whole)

            bodies.complete_rows(rows, max_bytes, joined)

        self.commit_log.scan(start, end, found, limit=limit, max_bytes=max_bytes)

    # --- what is out --------------------------------------------------------------------------------------------------

    def lock_numbers(self, tags: Iterable[bytes]) -> list[int]:
        """The numbers by which locks are known, in tags or tokens; 0 where one is not of this life."""
        return self.locks.lock_numbers_of(tags)

    def remove(self, locks: list[Lock], on_done: OnDone) -> None:
        """Delete messages that are out."""
        holdings, out = self.message_table, self.in_flight.locks
        delete, active = self.commit_log.batch.delete, holdings.active_prefix
        count = size = 0
        for lock in locks:
            if lock.has_extra_rows:
                holdings.remove(lock)
            else:
                delete(active + pack_sequence(lock.sequence))
                count += 1
                size += lock.size
            if not lock.is_deferred:
                out[lock.sequence] = None
        holdings.active_count -= count
        holdings.active_bytes -= size
        self.commit_log.add(self, 0, lambda: self._on_removed(locks), on_done)

    def _on_removed(self, locks: list[Lock]) -> None:
        for lock in locks:
            self.end_in_flight(lock)
        if self.redelivery.has_suspects:
            self.redelivery.forget([lock.sequence for lock in locks])

    def end_in_flight(self, lock: Lock) -> None:
        """A message is not out any more."""
        if lock.is_deferred:
            self.deferred_in_flight.pop(lock.sequence, None)
        else:
            self.in_flight.remove(lock.sequence)

    def requeue(self, lock: Lock, record: bytes) -> None:
        """A message that was out is free again, as it is on disk; unless its time is over."""
        if record[1] & HAS_DUE_TIME and not lock.is_deferred and due_time_of(record) <= self.clock.wall_ms():
            self._settlement.expire_undelivered([(lock, record)])
            return
        self.end_in_flight(lock)
        if not lock.is_deferred:
            self._dispatcher.requeue(lock.sequence, record)

    # --- the journal calls these --------------------------------------------------------------------------------------

    def write_counters(self, batch: Batch) -> None:
        """The numbers that a restart starts from, with every batch that changes them."""
        if self._closed_error is None:  # else all that it had is removed
            self.message_table.low_watermark = self.in_flight.lowest(self._dispatcher.lowest_available)
            if self.returnable:
                uncertain = self.first_uncertain_sequence(0)
                self.message_table.low_watermark = min(self.message_table.low_watermark, uncertain)
            self.message_table.write_counters(batch)

    def publish_counters(self) -> None:
        """What was written is there to be seen."""
        if self._closed_error is None:
            self.message_table.publish_counters()

    def resume(self) -> None:
        """A commit was applied, or the store speaks again: there may be something to hand out."""
        self._settlement.resume()
        self.message_table.expiry_index.resume()
        self.message_table.due_index.resume()
        self._dispatcher.dispatch()
        if self.message_table.shared_bodies is not None:
            self.message_table.shared_bodies.resume()
        self.advance_browsers()

    def advance_browsers(self) -> None:
        """Let browsers read on: there may be more messages to show."""
        if self.browse_cursors:
            for browser in list(self.browse_cursors):
                browser.advance()

    def on_store_failed(self) -> None:
        """The store failed. Whatever is out or on its way will be read from disk again."""
        self._reset()

    def on_store_reopened(self) -> None:
        """The store was opened anew."""
        self.load(lambda error: self.commit_log.fail(str(error)) if error is not None else self.resume())

    def load(self, on_done: Callable[[ServiceBusError | None], None]) -> None:
        """Read the marks from the store."""
        self.is_loaded = False

        def read(values: list[bytes | None] | StoreError) -> None:
            if isinstance(values, StoreError):
                on_done(StoreUnavailable(str(values)))
                return
            self.message_table.load_counters(values[0])
            self._reset()
            self.redelivery.load(values[1])
            if self.sessions is None or self.message_table.counts_session_states:
                finish(None)
            else:
                self.session_states.count_stored_bytes(finish)

        def finish(error: ServiceBusError | None) -> None:
            if error is not None:
                on_done(error)
                return
            self.is_loaded = self._closed_error is None
            if self.is_loaded:
                self.message_table.start_time_indexes()
            on_done(None)

        self.commit_log.get([self.message_table.counters_key, self.redelivery.key], read, Table.INDEX)

    def close(self, error: ServiceBusError) -> None:
        """The entity is deleted: nobody gets anything from it any more."""
        self.commit_log.participants.pop(self, None)
        self._closed_error = error
        self.detach_receivers(error)
        self._reset()

    def detach_receivers(self, error: ServiceBusError) -> None:
        """Nobody gets or sees anything any more who is there now."""
        self._dispatcher.close(error)
        for browser in list(self.browse_cursors):
            browser.reader.force_detach(error)
        self.browse_cursors.clear()

    def begin_forwarding(self) -> None:
        """Hand out messages in order, whichever session they belong to: to the forwarder alone."""
        if self.sessions is not None and self._dispatcher is self.sessions:
            low = self.in_flight.lowest(self.sessions.lowest_available)
            self._dispatcher = Dispatcher(self)
            self._dispatcher.reset(low)

    def end_forwarding(self) -> None:
        """Hand out messages by their sessions again, where it has some."""
        if self.sessions is not None and self._dispatcher is not self.sessions:
            low = self.in_flight.lowest(self._dispatcher.lowest_available)
            self._dispatcher = self.sessions
            self.sessions.reset(low)

    def _reset(self) -> None:
        """What is in memory is void."""
        self.is_loaded = False
        self.incarnation += 1
        self._dispatcher.reset(self.message_table.low_watermark)
        self.locks = Locks(self._token_source, self.number)
        self.in_flight.clear()
        self._uncertain_sequences.clear()
        self.deferred_in_flight.clear()
        self._settlement.reset()
        self.redelivery.reset()
        for browser in self.browse_cursors:
            browser.reset()
        self.schedule.reset()
        self.session_states.reset()
        self.duplicate_detection.reset()
        self.forwarding_inbox.reset()
        if self.forwarder is not None:
            self.forwarder.on_store_failed()
        self.message_table.stop_time_indexes()

    def check_loaded(self) -> None:
        """StoreUnavailable while it is not; or why it is no more."""
        if self._closed_error is not None:
            raise self._closed_error
        if not self.is_loaded:
            raise StoreUnavailable(f"store {self.commit_log.store.name} is being opened: try again in a moment")


def _no_quota(_size: int) -> None:
    """Nothing limits a fragment without an entity."""
