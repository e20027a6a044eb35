"""A fragment: one ordered part of an entity, from the arrival of a message to its removal.

Owns: the consistency of a fragment's components with each other and with the disk. `message_table` is the state on
disk, `dispatcher` chooses the consumer for the next message, `in_flight` and `locks` are the messages that receivers
hold, `settlement` settles locked messages, and `schedule` holds scheduled messages. All components write only through
the `commit_log`.

A message stays in flight until its change is on disk: a message that is being deleted, or rewritten with a higher
delivery count, is neither locked nor available, and cannot be settled a second time.
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
from twinbus.broker.fragment.message_search import MessageSearch
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
    from twinbus.broker.ports.read_limiter import ReadLimiter
    from twinbus.broker.ports.search import OnFound, SearchCriteria
    from twinbus.broker.work_budget import WorkBudget
    from twinbus.store.protocol import Batch, OnResult, Row

SequencedRecord: TypeAlias = "tuple[int, bytes]"
"""The sequence number and the record of a message."""


class FragmentPolicy:
    """The settings of a fragment, from the description of its entity; replaced when the description changes."""

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
        """Create a policy; if `max_delivery_count` is None, the delivery count never dead-letters a message."""
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
        """Create a fragment without messages; call `load` first if its store may hold messages.

        `key_prefix` is the prefix of the fragment's keys, and `token_source` generates its lock tokens. `shared_bodies`
        holds bodies that messages may share with other subscriptions of a topic.
        """
        super().__init__(fragment_of_prefix(key_prefix), time_services, has_sessions=has_sessions)
        self.policy = policy
        self.commit_log = commit_log
        self.dead_letters = dead_letters
        self.is_loaded = True
        self.is_publishing = False
        """Whether a topic is still evaluating a send: later sends wait (`run_in_order`). Always False for queues."""
        self.incarnation = 0
        """A number that changes whenever the state in memory is discarded."""
        self.message_table = message_table = MessageTable(key_prefix, commit_log)
        message_table.shared_bodies = shared_bodies
        self.in_flight = InFlight()
        self.deferred_in_flight: dict[int, Lock] = {}
        """The locks of deferred messages, by sequence number."""
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
        """The forwarder to another entity, which is then the only consumer, or None."""
        self.check_quota: Callable[[int], None] = _no_quota
        """A check, set by the entity's part, that raises QuotaExceeded if so many bytes do not fit into the entity."""
        self.browse_cursors: dict[BrowseCursor, None] = {}
        self.returnable: dict[Consumer, dict[int, bytes]] = {}
        """For each consumer that may return messages: the messages deleted for the consumer, by sequence number."""
        self._uncertain_sequences: set[int] = set()
        """Sequence numbers of messages whose deletion for a receiver, or whose restoration, is not on disk yet."""
        self._token_source = token_source
        self._closed_error: ServiceBusError | None = None
        """The error for all operations after the entity was deleted, or None."""
        message_table.expiry_index = TimeIndex(
            key_prefix, store_keys.EXPIRY, commit_log, time_services, self._settlement.expire_messages, is_sparse=True
        )
        message_table.due_index = TimeIndex(
            key_prefix, store_keys.DUE, commit_log, time_services, self.schedule.activate, is_sparse=False
        )
        commit_log.participants[self] = None

    @property
    def dispatcher(self) -> LocalDispatcher:
        """The session dispatcher, or a plain dispatcher if the fragment has no sessions or is forwarded."""
        return self._dispatcher

    @property
    def settlement(self) -> Settlement:
        """The settlement of locked messages."""
        return self._settlement

    @property
    def browser(self) -> MessageBrowser:
        """The browser, which reads messages without locking them."""
        return self._browser

    @property
    def local(self) -> Fragment:
        """The fragment itself, since it is in this process."""
        return self

    @property
    def is_in_use(self) -> bool:
        """Whether a receiver or browser is attached."""
        return bool(self._dispatcher.consumers or self.browse_cursors)

    def check_available(self) -> None:
        """Raise StoreUnavailable if the store is unavailable."""
        self.commit_log.check_available()

    def check_accepts_sends(self) -> None:
        """Raise StoreUnavailable, DiskFull or ServerBusy if the store accepts no messages now."""
        self.commit_log.check_accepts_sends()

    def track_exclusive_locks(self) -> LocalExclusiveLocks:
        """Track the locks of an exclusive receiver from now on."""
        self.redelivery.set_tracking(is_on=True)
        return LocalExclusiveLocks(self)

    @property
    def active_count(self) -> int:
        """The number of active messages on disk."""
        return self.message_table.committed.active_count

    @property
    def size(self) -> int:
        """The size of all messages and session states on disk, in bytes."""
        return self.message_table.committed.size

    # --- sending ------------------------------------------------------------------------------------------------------

    @property
    def is_available(self) -> bool:
        """Whether the store is available and the fragment is loaded."""
        return self.is_loaded and self.commit_log.unavailable_reason is None

    @property
    def accepts_sends(self) -> bool:
        """Whether the fragment is loaded and its store accepts messages."""
        return self.is_loaded and self.commit_log.accepts_sends

    def run_in_order(self, call: Callable[[], None], on_error: OnDone, size: int) -> None:  # noqa: ARG002
        """Run a call when all earlier sends are in a batch: at once, unless a topic is still evaluating a send.

        If the call cannot run, `on_error` gets the error. `size` is the size of the messages to be sent, in bytes.
        """
        call()

    def enqueue(self, records: Sequence[bytes], on_done: OnDone, on_batched: Callable[[], None] | None = None) -> int:
        """Store messages, all or none; `on_done` is called when they are on disk.

        `on_batched` is called when the messages are put into a batch, and may put changes into the same batch. Return
        the first sequence number; the numbers of the other messages follow it.
        """
        self.commit_log.check_accepts_sends()
        self.check_loaded()
        message_table = self.message_table
        enqueued_ms = enqueued_time_of(records[-1])
        if enqueued_ms < message_table.last_enqueued_ms:  # the wall clock was set back: enqueued times never decrease
            records = [with_enqueued_time(record, message_table.last_enqueued_ms) for record in records]
        else:
            message_table.last_enqueued_ms = enqueued_ms
        put, active_prefix, size, scheduled_bytes = self.commit_log.batch.put, message_table.active_prefix, 0, 0
        first = sequence = message_table.next_sequence
        new_messages = []
        for record in records:
            if record[1] & HAS_EXTRA_ROWS:
                if record[3] == SCHEDULED_STATE:
                    message_table.schedule(sequence, record)
                    scheduled_bytes += len(record)
                    sequence += 1
                    continue
                message_table.add_index_rows(sequence, record)
            put(active_prefix + pack_sequence(sequence), record)
            new_messages.append((sequence, record))
            size += len(record)
            sequence += 1
        message_table.next_sequence = sequence
        message_table.active_count += len(new_messages)
        message_table.active_bytes += size
        self.commit_log.add(
            self, size + scheduled_bytes, lambda: self._dispatcher.add_messages(new_messages, size), on_done
        )
        if on_batched is not None:
            on_batched()
        return first

    def ping(self, on_done: OnDone) -> None:
        """Commit an empty change, to find out whether the store accepts messages."""
        self.commit_log.check_accepts_sends()
        self.check_loaded()
        self.commit_log.add_without_participant(on_done)

    @property
    def activation_batch_size(self) -> int:
        """The maximum number of scheduled messages that become active in one batch."""
        return SCAN_BATCH_SIZE

    def activate_scheduled(self, records: list[bytes], on_batched: Callable[[], None], on_applied: OnApplied) -> None:
        """Enqueue scheduled messages that are due; `on_applied` is called when they are on disk."""
        on_batched()
        messages = [(self.message_table.add(record), record) for record in records]
        size = sum([len(record) for record in records])

        def on_stored() -> None:
            self._dispatcher.add_messages(messages, size)
            on_applied()

        self.commit_log.add(self, 0, on_stored, ignore)

    def publish_on_commit(self, messages: list[SequencedRecord], size: int) -> None:
        """Make messages available when the batch of this turn, which contains them, is on disk."""
        self.commit_log.add(self, size, lambda: self._dispatcher.add_messages(messages, size), ignore)

    def store_moved(self, record: bytes) -> None:
        """Store a message from another fragment in the same store, in the batch of this turn.

        The message keeps its enqueued time.
        """
        sequence, size = self.message_table.add(record), len(record)
        self.commit_log.add(self, size, lambda: self._dispatcher.add_messages([(sequence, record)], size), ignore)

    # --- delivering ---------------------------------------------------------------------------------------------------

    @property
    def available_locks(self) -> int:
        """The number of further messages that may be in flight."""
        return self.policy.max_locks - len(self.in_flight.locks)

    def deliver_to(
        self, consumer: Consumer, messages: list[SequencedRecord], session_locked_until_ms: int | None = None
    ) -> None:
        """Deliver messages, except expired messages, to a consumer that has enough credit.

        The locks of messages of a session last as long as the session's lock.
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
        unexpired, expired = [], []
        for item in messages:
            sequence, record = item
            if record[1] & HAS_DUE_TIME and due_time_of(record) <= now_ms:
                lock = Lock(0, sequence, len(record), NEVER_EXPIRES_S)
                lock.load_from_record(record)
                expired.append((lock, record))
            else:
                unexpired.append(item)
        if expired:
            self._settlement.expire_undelivered(expired)
        return unexpired

    def _deliver_locked(
        self, consumer: Consumer, messages: list[SequencedRecord], deadline_s: float, locked_until_ms: int
    ) -> None:
        """Lock messages and deliver them."""
        token_prefix, tag_prefix = self.locks.token_prefix, self.locks.tag_prefix
        deliveries: list[Delivery] = []
        locks = self.locks.add(messages, deadline_s)
        if self.redelivery.has_possible_redeliveries:
            messages = self._with_delivery_counts(messages)
        for at, (sequence, record) in enumerate(messages):
            suffix = pack_lock_number(locks[at].number)
            deliveries.append(
                (render_locked(record, sequence, token_prefix + suffix, locked_until_ms), tag_prefix + suffix)
            )
        self.in_flight.add(locks)
        if self.sessions is not None:
            self.sessions.attach_locks(locks)
        delivered_count = consumer.deliver(deliveries)
        assert delivered_count == len(deliveries)

    def _with_delivery_counts(self, messages: list[SequencedRecord]) -> list[SequencedRecord]:
        """Return the messages; messages that may have been delivered before get a delivery count of at least 1."""
        as_delivered = self.redelivery.as_delivered
        return [(sequence, as_delivered(sequence, record)) for sequence, record in messages]

    def _delete_and_deliver(self, consumer: Consumer, messages: list[SequencedRecord]) -> None:
        """Delete messages, and deliver them when the deletion is on disk: each message is received at most once."""
        dispatcher, message_table = self._dispatcher, self.message_table
        sequences = [sequence for sequence, _ in messages]
        self.in_flight.add_deleting(sequences)
        self._uncertain_sequences.update(sequences)
        dispatcher.begin_pending_delivery(consumer, len(messages))
        for sequence, record in messages:
            message_table.remove_active(sequence, len(record))
            if record[1] & HAS_EXTRA_ROWS:
                message_table.remove_index_rows(sequence, record)

        def on_applied() -> None:
            for sequence in sequences:
                self.in_flight.remove(sequence)
            self._uncertain_sequences.difference_update(sequences)
            dispatcher.end_pending_delivery(consumer, len(messages))
            delivered_count = 0
            if not consumer.is_closed:
                returnable = self.returnable.get(consumer)
                if returnable is not None:
                    returnable.update(messages)
                delivered = (
                    self._with_delivery_counts(messages) if self.redelivery.has_possible_redeliveries else messages
                )
                delivered_count = consumer.deliver(
                    [(render_unlocked(record, number), pack_sequence(number)) for number, record in delivered]
                )
            if delivered_count < len(messages):
                self.restore_deleted(messages[delivered_count:], ignore)

        self.commit_log.add(self, 0, on_applied, ignore)

    def restore_deleted(self, messages: list[SequencedRecord], on_done: OnDone) -> None:
        """Restore messages that were deleted for a consumer but not delivered to the consumer."""
        try:
            self.check_loaded()
        except ServiceBusError as error:  # the messages are lost, as receive-and-delete allows
            on_done(error)
            return
        for sequence, record in messages:
            self.message_table.put(sequence, with_own_body(record))
        sequences = [sequence for sequence, _ in messages]
        self.in_flight.add_deleting(sequences)
        self._uncertain_sequences.update(sequences)

        def on_applied() -> None:
            self._uncertain_sequences.difference_update(sequences)
            for sequence, record in messages:
                self.in_flight.remove(sequence)
                self._dispatcher.requeue(sequence, record)

        self.commit_log.add(self, 0, on_applied, on_done)

    def first_uncertain_sequence(self, start: int) -> int:
        """Return the lowest sequence number, from `start` on, of a message that may be restored, or UNLIMITED."""
        sequences = chain(self._uncertain_sequences, *self.returnable.values())
        return min([sequence for sequence in sequences if sequence >= start], default=UNLIMITED)

    def find_session_lock(self, session_id: bytes, consumer: Consumer) -> LocalSessionLock:
        """Return the lock of a session that a receiver holds. Raises SessionLockLost."""
        assert self.sessions is not None
        return self.sessions.find_lock(session_id, consumer)

    def renew_session_lock(self, session_lock: SessionLock) -> int:
        """Renew a session lock for the lock duration; return its new expiry on the wall clock."""
        assert self.sessions is not None
        assert isinstance(session_lock, LocalSessionLock)
        return self.sessions.renew(session_lock)

    # --- reading ------------------------------------------------------------------------------------------------------

    def read(self, record_keys: list[bytes], on_result: OnResult[list[bytes | None]]) -> None:
        """Read records by their keys, with their bodies."""
        bodies = self.message_table.shared_bodies
        if bodies is None:
            self.commit_log.get(record_keys, on_result)
            return

        def on_records(records: list[bytes | None] | StoreError) -> None:
            if isinstance(records, StoreError):
                on_result(records)
            else:
                bodies.complete_records(record_keys, records, on_result)

        self.commit_log.get(record_keys, on_records)

    def scan(self, start: bytes, end: bytes, on_result: OnResult[list[Row]], *, limit: int, max_bytes: int) -> None:
        """Read a range of records with their bodies; stop after the record that exceeds `max_bytes`."""
        bodies = self.message_table.shared_bodies
        if bodies is None:
            self.commit_log.scan(start, end, on_result, limit=limit, max_bytes=max_bytes)
            return

        def on_rows(rows: list[Row] | StoreError) -> None:
            if isinstance(rows, StoreError):
                on_result(rows)
                return

            def on_complete(complete_rows: list[Row] | StoreError) -> None:
                # All rows may have been removed meanwhile, but an empty result would mean the end of the range.
                if rows and not complete_rows:
                    self.scan(rows[0][0] + b"\0", end, on_result, limit=limit, max_bytes=max_bytes)
                else:
                    on_result(complete_rows)

            bodies.complete_rows(rows, max_bytes, on_complete)

        self.commit_log.scan(start, end, on_rows, limit=limit, max_bytes=max_bytes)

    def search(
        self, criteria: SearchCriteria, work_budget: WorkBudget, limiter: ReadLimiter, on_found: OnFound
    ) -> None:
        """Search messages, like `MessageSearch`. Raises StoreUnavailable."""
        MessageSearch(self, criteria, work_budget, limiter, on_found).start()

    # --- messages in flight -------------------------------------------------------------------------------------------

    def lock_numbers(self, tags: Iterable[bytes]) -> list[int]:
        """Return the lock numbers in delivery tags or tokens, with 0 for tags or tokens of an earlier incarnation."""
        return self.locks.lock_numbers_of(tags)

    def remove(self, locks: list[Lock], on_done: OnDone) -> None:
        """Delete messages that are in flight; `on_done` is called when the deletion is on disk."""
        message_table, in_flight = self.message_table, self.in_flight.locks
        delete, active_prefix = self.commit_log.batch.delete, message_table.active_prefix
        count = size = 0
        for lock in locks:
            if lock.has_extra_rows:
                message_table.remove(lock)
            else:
                delete(active_prefix + pack_sequence(lock.sequence))
                count += 1
                size += lock.size
            if not lock.is_deferred:
                in_flight[lock.sequence] = None
        message_table.active_count -= count
        message_table.active_bytes -= size
        self.commit_log.add(self, 0, lambda: self._on_removed(locks), on_done)

    def _on_removed(self, locks: list[Lock]) -> None:
        for lock in locks:
            self.end_in_flight(lock)
        if self.redelivery.has_possible_redeliveries:
            self.redelivery.forget([lock.sequence for lock in locks])

    def end_in_flight(self, lock: Lock) -> None:
        """Remove a message from the in-flight messages."""
        if lock.is_deferred:
            self.deferred_in_flight.pop(lock.sequence, None)
        else:
            self.in_flight.remove(lock.sequence)

    def requeue(self, lock: Lock, record: bytes) -> None:
        """Make an in-flight message available again, or expire it if it is due."""
        if record[1] & HAS_DUE_TIME and not lock.is_deferred and due_time_of(record) <= self.clock.wall_ms():
            self._settlement.expire_undelivered([(lock, record)])
            return
        self.end_in_flight(lock)
        if not lock.is_deferred:
            self._dispatcher.requeue(lock.sequence, record)

    # --- called by the commit log -------------------------------------------------------------------------------------

    def write_counters(self, batch: Batch) -> None:
        """Add the counters, which are loaded on restart, to a batch."""
        if self._closed_error is None:  # otherwise the fragment's records are removed
            self.message_table.low_watermark = self.in_flight.lowest(self._dispatcher.lowest_available)
            if self.returnable:
                uncertain = self.first_uncertain_sequence(0)
                self.message_table.low_watermark = min(self.message_table.low_watermark, uncertain)
            self.message_table.write_counters(batch)

    def publish_counters(self) -> None:
        """Make the counters of the oldest uncommitted batch visible: the batch is on disk."""
        if self._closed_error is None:
            self.message_table.publish_counters()

    def resume(self) -> None:
        """Continue dispatching and other pending work after a commit, or when the store is available again."""
        self._settlement.resume()
        self.message_table.expiry_index.resume()
        self.message_table.due_index.resume()
        self._dispatcher.dispatch()
        if self.message_table.shared_bodies is not None:
            self.message_table.shared_bodies.resume()
        self.advance_browsers()

    def advance_browsers(self) -> None:
        """Let browsers continue: there may be more messages."""
        if self.browse_cursors:
            for cursor in list(self.browse_cursors):
                cursor.advance()

    def on_store_failed(self) -> None:
        """Discard the state in memory, because the store failed; it is loaded again from disk."""
        self._reset()

    def on_store_reopened(self) -> None:
        """Load the fragment from the reopened store, and continue."""
        self.load(lambda error: self.commit_log.fail(str(error)) if error is not None else self.resume())

    def load(self, on_done: Callable[[ServiceBusError | None], None]) -> None:
        """Load the counters from the store."""
        self.is_loaded = False

        def on_read(values: list[bytes | None] | StoreError) -> None:
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

        self.commit_log.get([self.message_table.counters_key, self.redelivery.key], on_read, Table.INDEX)

    def close(self, error: ServiceBusError) -> None:
        """Detach all receivers, because the entity was deleted; all operations fail with `error` from now on."""
        self.commit_log.participants.pop(self, None)
        self._closed_error = error
        self.detach_receivers(error)
        self._reset()

    def detach_receivers(self, error: ServiceBusError) -> None:
        """Detach all receivers and browsers with an error."""
        self._dispatcher.close(error)
        for cursor in list(self.browse_cursors):
            cursor.reader.force_detach(error)
        self.browse_cursors.clear()

    def begin_forwarding(self) -> None:
        """Dispatch messages to the forwarder, in the order of their sequence numbers and regardless of sessions."""
        if self.sessions is not None and self._dispatcher is self.sessions:
            low_watermark = self.in_flight.lowest(self.sessions.lowest_available)
            self._dispatcher = Dispatcher(self)
            self._dispatcher.reset(low_watermark)

    def end_forwarding(self) -> None:
        """Dispatch messages by session again, if the fragment has sessions."""
        if self.sessions is not None and self._dispatcher is not self.sessions:
            low_watermark = self.in_flight.lowest(self._dispatcher.lowest_available)
            self._dispatcher = self.sessions
            self.sessions.reset(low_watermark)

    def _reset(self) -> None:
        """Discard the state in memory, and begin a new incarnation."""
        self.is_loaded = False
        self.incarnation += 1
        self._dispatcher.reset(self.message_table.low_watermark)
        self.locks = Locks(self._token_source, self.number)
        self.in_flight.clear()
        self._uncertain_sequences.clear()
        self.deferred_in_flight.clear()
        self._settlement.reset()
        self.redelivery.reset()
        for cursor in self.browse_cursors:
            cursor.reset()
        self.schedule.reset()
        self.session_states.reset()
        self.duplicate_detection.reset()
        self.forwarding_inbox.reset()
        if self.forwarder is not None:
            self.forwarder.on_store_failed()
        self.message_table.stop_time_indexes()

    def check_loaded(self) -> None:
        """Raise StoreUnavailable if the fragment is not loaded, or the error for a deleted entity."""
        if self._closed_error is not None:
            raise self._closed_error
        if not self.is_loaded:
            raise StoreUnavailable(f"store {self.commit_log.store.name} is being opened: try again in a moment")


def _no_quota(_size: int) -> None:
    """Accept any size. This is the default check for a fragment without an entity."""
