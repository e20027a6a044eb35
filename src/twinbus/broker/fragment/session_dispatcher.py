"""The session dispatcher: which receiver gets the messages of a fragment with sessions.

Owns: the session locks, the free sessions with messages, and the receivers waiting for a session. One receiver at a
time holds a session, and gets the session's messages in order. In fragments with sessions, `SessionDispatcher` replaces
`Dispatcher`.

Only locked sessions and a limited number of free sessions are in memory. A waiting receiver gets the session of the
oldest message whose session is free and in memory; if there is none, the messages on disk are searched for sessions
that did not fit into memory.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final, TypeAlias

from twinbus.broker.fragment.dispatcher import MAX_SCAN_SPAN, LocalDispatcher
from twinbus.broker.fragment.session_lock import READ_AHEAD_BYTES, READ_AHEAD_MESSAGES, LocalSessionLock
from twinbus.broker.message_record import session_id_of
from twinbus.broker.ports.multi_fragment_receiver import DRAIN_TIMEOUT_S
from twinbus.broker.ports.settlement import session_lock_lost_error
from twinbus.broker.store_keys import LAST_SEQUENCE, pack_sequence, pack_session_id, sequence_of_key
from twinbus.model.callbacks import ignore
from twinbus.model.errors import ServiceBusError, SessionCannotBeLocked
from twinbus.store.protocol import StoreError, Table

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinbus.broker.fragment.fragment import Fragment
    from twinbus.broker.fragment.locks import Lock
    from twinbus.broker.ports.consumer import Consumer
    from twinbus.broker.ports.fragment import SessionLock
    from twinbus.store.protocol import Row

    OnSessionAccepted: TypeAlias = Callable[[SessionLock], None]

MAX_FREE_SESSIONS: Final = 10_000
"""The maximum number of free sessions in memory."""
SEARCH_BATCH_SIZE: Final = 500
SEARCH_BATCH_BYTES: Final = 2_097_152
MAX_SERVED_PER_TURN: Final = 100
"""The maximum number of sessions that are served in one turn."""
LOWEST_UPDATE_INTERVAL: Final = 1_000
"""The number of removed messages after which the lowest active sequence number is searched again."""


class SessionDispatcher(LocalDispatcher):
    """The dispatcher of a fragment with sessions: it delivers messages to the receiver that holds their session."""

    def __init__(self, fragment: Fragment) -> None:
        """Create a dispatcher without session locks and receivers."""
        self.session_locks: dict[bytes, LocalSessionLock] = {}
        self._fragment = fragment
        self._by_consumer: dict[Consumer, LocalSessionLock] = {}
        self._tentative: dict[Consumer, LocalSessionLock] = {}
        """Locks of sessions that are being checked for messages, for a waiting receiver."""
        self._waiting_consumers: OrderedDict[Consumer, OnSessionAccepted] = OrderedDict()
        self._free_sessions: OrderedDict[bytes, None] = OrderedDict()
        self._to_serve: OrderedDict[LocalSessionLock, None] = OrderedDict()
        """Sessions to serve in the next dispatch."""
        self._blocked: dict[LocalSessionLock, None] = {}
        """Sessions with messages that cannot be delivered now, for example because too many messages are in flight."""
        self._next_search_sequence = first = fragment.message_table.first_sequence
        """The lowest sequence number at which there may be free sessions that are not in memory."""
        self._is_searching = False
        self._lowest = first
        self._removed_count = 0

    # --- session locks ------------------------------------------------------------------------------------------------

    def accept_session(self, consumer: Consumer, session_id: bytes, on_accepted: OnSessionAccepted) -> None:
        """Lock a named session for a receiver, even without messages. Raises SessionCannotBeLocked."""
        self._fragment.commit_log.check_available()
        self._fragment.check_loaded()
        session_lock = self.session_locks.get(session_id)
        if session_lock is not None and not session_lock.is_accepted:
            self._revoke(session_lock)  # the session is only being checked, for a receiver that accepts any session
        elif session_lock is not None:
            raise SessionCannotBeLocked(
                f"The session '{session_id.decode(errors='replace')}' is locked by another receiver: accept "
                "it again when "
                "that receiver has closed the session, or the lock has expired."
            )
        self._grant(self._lock(session_id, consumer, on_accepted))
        self._assign_sessions()

    def accept_any_session(self, consumer: Consumer, on_accepted: OnSessionAccepted) -> None:
        """Lock a free session with messages for a receiver, as soon as there is one. Raises StoreUnavailable."""
        self._fragment.commit_log.check_available()
        self._fragment.check_loaded()
        self.accept_next_session(consumer, on_accepted)

    def accept_next_session(self, consumer: Consumer, on_accepted: OnSessionAccepted) -> None:
        """Lock a free session with messages like `accept_any_session`, but wait if the store is unavailable."""
        self._waiting_consumers[consumer] = on_accepted
        self._assign_sessions()

    def cancel_accept(self, consumer: Consumer) -> bool:
        """Stop waiting for a session. Return False if the receiver was not waiting (it may hold a session already)."""
        session_lock = self._tentative.get(consumer)
        if session_lock is not None:
            self._release(session_lock)
            if session_lock.session_id in self._free_sessions:  # the session is again the first to be assigned
                self._free_sessions.move_to_end(session_lock.session_id, last=False)
            self._assign_sessions()  # another receiver may get the session
            return True
        return self._waiting_consumers.pop(consumer, None) is not None

    def owns_session_lock(self, session_lock: SessionLock) -> bool:
        """Return whether a session lock belongs to this fragment and has not ended."""
        return self.session_locks.get(session_lock.session_id) is session_lock

    def _lock(self, session_id: bytes, consumer: Consumer, on_accepted: OnSessionAccepted) -> LocalSessionLock:
        session_lock = LocalSessionLock(session_id, consumer, on_accepted, self._lowest)
        self.session_locks[session_id] = session_lock
        self._free_sessions.pop(session_id, None)
        return session_lock

    def _grant(self, session_lock: LocalSessionLock) -> None:
        session_lock.is_accepted = True
        self._tentative.pop(session_lock.consumer, None)
        self._by_consumer[session_lock.consumer] = session_lock
        self.renew(session_lock)
        self._schedule_expiry(session_lock)
        session_lock.on_accepted(session_lock)

    def _assign_sessions(self) -> None:
        """Try to lock a free session for each waiting receiver."""
        fragment = self._fragment
        if not fragment.can_deliver:
            return
        while self._waiting_consumers and self._free_sessions:
            session, _ = self._free_sessions.popitem(last=False)
            if session not in self.session_locks:
                consumer, on_accepted = self._waiting_consumers.popitem(last=False)
                self._try_session(self._lock(session, consumer, on_accepted))
        if self._waiting_consumers:
            self._search_log()

    def _try_session(self, session_lock: LocalSessionLock) -> None:
        """Check whether a session has messages; if not, its receiver waits again, ahead of all other receivers."""
        self._tentative[session_lock.consumer] = session_lock

        def on_read() -> None:
            if session_lock.ready:
                self._grant(session_lock)
            elif session_lock.is_empty:
                self._revoke(session_lock)
                self._assign_sessions()
            else:
                self._read_session(session_lock, on_read)

        self._read_session(session_lock, on_read)

    def _revoke(self, session_lock: LocalSessionLock) -> None:
        """Release a tentative lock; the receiver waits again, ahead of all other receivers."""
        del self.session_locks[session_lock.session_id]
        self._tentative.pop(session_lock.consumer, None)
        session_lock.has_ended = True
        self._waiting_consumers[session_lock.consumer] = session_lock.on_accepted
        self._waiting_consumers.move_to_end(session_lock.consumer, last=False)

    def _search_log(self) -> None:
        """Search the messages on disk for free sessions that are not in memory."""
        fragment = self._fragment
        start = max(self._next_search_sequence, self._lowest)
        end = min(fragment.message_table.committed.next_sequence, start + MAX_SCAN_SPAN)
        if self._is_searching or start >= end:
            return
        self._is_searching = True
        self._next_search_sequence = end
        incarnation, active_prefix = fragment.incarnation, fragment.message_table.active_prefix

        def on_rows(rows: list[Row] | StoreError) -> None:
            if incarnation != fragment.incarnation:
                return
            self._is_searching = False
            if isinstance(rows, StoreError):
                fragment.commit_log.fail(str(rows))
                return
            next_sequence = sequence_of_key(rows[-1][0]) + 1 if rows else end
            self._next_search_sequence = min(self._next_search_sequence, next_sequence)
            for key, record in rows:
                session = session_id_of(record)
                if (
                    session is not None
                    and session not in self.session_locks
                    and sequence_of_key(key) not in fragment.in_flight
                ):
                    self._remember_session(session, sequence_of_key(key))
            self._assign_sessions()

        fragment.commit_log.scan(
            active_prefix + pack_sequence(start),
            active_prefix + pack_sequence(end),
            on_rows,
            limit=SEARCH_BATCH_SIZE,
            max_bytes=SEARCH_BATCH_BYTES,
        )

    def _remember_session(self, session_id: bytes, sequence: int) -> None:
        if session_id in self._free_sessions:
            return
        if len(self._free_sessions) < MAX_FREE_SESSIONS:
            self._free_sessions[session_id] = None
        else:
            self._next_search_sequence = min(self._next_search_sequence, sequence)

    def renew(self, session_lock: LocalSessionLock) -> int:
        """Renew a session lock for the lock duration; return its new expiry on the wall clock."""
        fragment = self._fragment
        duration_ms = fragment.policy.lock_duration_ms
        previous_deadline_s, session_lock.deadline_s = (
            session_lock.deadline_s,
            fragment.clock.monotonic_s() + duration_ms / 1000,
        )
        session_lock.locked_until_ms = fragment.clock.wall_ms() + duration_ms
        if session_lock.deadline_s < previous_deadline_s:  # the lock duration was reduced: the timer would be late
            self._schedule_expiry(session_lock)
        return session_lock.locked_until_ms

    def find_lock(self, session_id: bytes, consumer: Consumer | None = None) -> LocalSessionLock:
        """Return the lock of a session, which `consumer` must hold if given. Raises SessionLockLost."""
        session_lock = self.session_locks.get(session_id)
        is_held = (
            session_lock is not None
            and session_lock.is_accepted
            and session_lock.deadline_s > self._fragment.clock.monotonic_s()
        )
        if session_lock is None or not is_held or (consumer is not None and session_lock.consumer is not consumer):
            raise session_lock_lost_error(session_id)
        return session_lock

    def _schedule_expiry(self, session_lock: LocalSessionLock) -> None:
        if session_lock.expiry_timer is not None:
            session_lock.expiry_timer.cancel()
        session_lock.expiry_timer = self._fragment.timers.call_at(
            session_lock.deadline_s, lambda: self._check_expiry(session_lock)
        )

    def _check_expiry(self, session_lock: LocalSessionLock) -> None:
        if session_lock.has_ended:
            return
        if session_lock.deadline_s > self._fragment.clock.monotonic_s():
            self._schedule_expiry(session_lock)
            return
        locks = self._release(session_lock)
        session_lock.consumer.on_session_lock_lost(session_lock_lost_error(session_lock.session_id))
        if locks and self._fragment.is_loaded:
            self._fragment.settlement.return_with_count(locks, ignore)
        self._assign_sessions()

    def _release(self, session_lock: LocalSessionLock) -> list[Lock]:
        """Release a session lock. Return the locks of its messages, which are still in flight."""
        session_lock.has_ended = True
        del self.session_locks[session_lock.session_id]
        self._tentative.pop(session_lock.consumer, None)
        if session_lock.expiry_timer is not None:
            session_lock.expiry_timer.cancel()  # otherwise the timer would keep the lock and its receiver in memory
        self._by_consumer.pop(session_lock.consumer, None)
        self._to_serve.pop(session_lock, None)
        self._blocked.pop(session_lock, None)
        by_number = self._fragment.locks.by_number
        locks = [by_number.pop(number) for number in session_lock.lock_numbers if number in by_number]
        locks.sort(key=_by_serial)
        session_lock.lock_numbers.clear()
        if locks or not session_lock.is_empty:
            self._free_sessions.setdefault(session_lock.session_id)
        return locks

    # --- consumers: the interface of a dispatcher ---------------------------------------------------------------------

    @property
    def consumers(self) -> list[Consumer]:
        """All receivers that hold a session or wait for one."""
        return [session_lock.consumer for session_lock in self.session_locks.values()] + list(self._waiting_consumers)

    def remove(self, consumer: Consumer) -> None:
        """Remove a receiver. Its session becomes free, and its locked messages are available again unchanged."""
        self.cancel_accept(consumer)
        session_lock = self._by_consumer.get(consumer)
        if session_lock is None:
            return
        for lock in self._release(session_lock):
            self._fragment.end_in_flight(lock)
            self._fragment.redelivery.add_reclaimed_if_noted(lock.sequence)
        self.dispatch()

    def dispatch_to(self, consumer: Consumer) -> None:
        """Dispatch messages to a receiver that has new credit."""
        session_lock = self._by_consumer.get(consumer)
        if session_lock is not None:
            self._to_serve[session_lock] = None
        self.dispatch()

    def drain(self, consumer: Consumer, on_drained: Callable[[], None]) -> None:
        """Deliver available messages to a receiver; call `on_drained` when no more are available, or after 0.1 s."""
        session_lock = self._by_consumer.get(consumer)
        if session_lock is None:
            on_drained()
            return
        session_lock.on_drained = on_drained
        deadline_s = self._fragment.clock.monotonic_s() + DRAIN_TIMEOUT_S
        self._fragment.timers.call_at(deadline_s, lambda: self._end_drain(session_lock, on_drained))
        self.dispatch_to(consumer)

    @staticmethod
    def _end_drain(session_lock: LocalSessionLock, on_drained: Callable[[], None]) -> None:
        if session_lock.on_drained is on_drained:
            session_lock.on_drained = None
            if not session_lock.has_ended:
                on_drained()

    def begin_pending_delivery(self, consumer: Consumer, count: int) -> None:
        """Reserve credit for messages that are delivered after their deletion is on disk."""
        consumer.reserve_credit(count)
        self._by_consumer[consumer].pending_deliveries += count

    def end_pending_delivery(self, consumer: Consumer, count: int) -> None:
        """Record that the deletion of `count` messages for a receiver is on disk."""
        session_lock = self._by_consumer.get(consumer)
        if session_lock is not None:
            session_lock.pending_deliveries = max(0, session_lock.pending_deliveries - count)
            self._to_serve[session_lock] = None

    def close(self, error: ServiceBusError) -> None:
        """Detach all receivers with an error, and release their sessions."""
        for consumer in self.consumers:
            consumer.force_detach(error)
        for session_lock in list(self.session_locks.values()):
            for lock in self._release(session_lock):
                self._fragment.end_in_flight(lock)
        self._waiting_consumers.clear()

    # --- messages: the interface of a dispatcher ----------------------------------------------------------------------

    @property
    def lowest_available(self) -> int:
        """The sequence number below which no message is available: all lower messages are in flight or removed."""
        return self._lowest

    def add_messages(self, messages: list[tuple[int, bytes]], size: int) -> None:  # noqa: ARG002
        """Make new messages, which are now on disk, available."""
        for sequence, record in messages:
            self._add_message(sequence, record)

    def _add_message(self, sequence: int, record: bytes) -> None:
        session = session_id_of(record)
        assert session is not None
        session_lock = self.session_locks.get(session)
        if session_lock is None:
            self._remember_session(session, sequence)
        else:
            session_lock.append(sequence, record)
            self._to_serve[session_lock] = None

    def requeue(self, sequence: int, record: bytes) -> None:
        """Make an in-flight message available again."""
        session = session_id_of(record)
        assert session is not None
        self._lowest = min(self._lowest, sequence)
        session_lock = self.session_locks.get(session)
        if session_lock is None:
            # MAX_FREE_SESSIONS does not apply: each receiver that released its session adds at most one session.
            self._free_sessions.setdefault(session)
        else:
            session_lock.requeue(sequence, record)
            self._to_serve[session_lock] = None

    def attach_locks(self, locks: list[Lock]) -> None:
        """Attach message locks to the locks of their sessions."""
        for lock in locks:
            session_lock = self.session_locks.get(lock.session_id) if lock.session_id is not None else None
            if session_lock is not None:
                lock.session_lock = session_lock
                session_lock.lock_numbers.add(lock.number)

    def detach_lock(self, lock: Lock) -> None:
        """Detach a message lock from the lock of its session."""
        session_lock = self.session_locks.get(lock.session_id) if lock.session_id is not None else None
        if session_lock is not None:
            session_lock.lock_numbers.discard(lock.number)

    def withdraw(self, sequences: set[int]) -> None:
        """Remove messages from the windows of all sessions, because another operation has taken them."""
        for session_lock in self.session_locks.values():
            session_lock.withdraw(sequences)

    def reset(self, low_watermark: int) -> None:
        """Discard messages in memory and read them again, from `low_watermark` on; accepted sessions stay locked."""
        self._lowest = self._next_search_sequence = low_watermark
        self._is_searching = False
        self._free_sessions.clear()
        for session_lock in list(self.session_locks.values()):
            if not session_lock.is_accepted:
                self._revoke(session_lock)
                continue
            if session_lock.pending_deliveries:
                session_lock.consumer.reserve_credit(-session_lock.pending_deliveries)
            session_lock.reset(low_watermark)
            self._to_serve[session_lock] = None

    def dispatch(self) -> None:
        """Deliver available messages, and assign free sessions to waiting receivers."""
        if not self._fragment.can_deliver:
            return
        if self._blocked and self._fragment.available_locks > 0:
            self._to_serve.update(self._blocked)
            self._blocked.clear()
        for _ in range(min(len(self._to_serve), MAX_SERVED_PER_TURN)):
            if not self._to_serve:
                break  # a nested dispatch served the remaining sessions
            session_lock, _ = self._to_serve.popitem(last=False)
            if session_lock.is_accepted and not session_lock.has_ended:
                self._serve(session_lock)
        if self._to_serve:
            self._fragment.timers.call_at(self._fragment.clock.monotonic_s(), self.dispatch)
        self._assign_sessions()
        self._update_lowest()

    def _serve(self, session_lock: LocalSessionLock) -> None:
        fragment, consumer = self._fragment, session_lock.consumer
        if session_lock.deadline_s <= fragment.clock.monotonic_s():
            return  # expired: the receiver is about to be notified
        while session_lock.ready and not session_lock.has_ended:
            available_locks = fragment.available_locks
            if available_locks <= 0:
                # do not read `available_credit`, which would notify a remote receiver of available messages
                self._blocked[session_lock] = None
                break
            count = min(consumer.available_credit, len(session_lock.ready), available_locks)
            if count <= 0:
                break
            if fragment.redelivery.is_tracking:
                count = fragment.redelivery.deliverable_count(session_lock.ready, count)
                if not count:
                    self._blocked[session_lock] = None  # continues when `redelivery` has noted a block on disk
                    break
            fragment.deliver_to(consumer, session_lock.take(count), session_lock.locked_until_ms)
        if session_lock.needs_read:
            self._read_session(session_lock, lambda: self._serve(session_lock))
        elif (
            session_lock.on_drained is not None and not session_lock.pending_deliveries and not session_lock.is_reading
        ):
            self._finish_drain(session_lock, session_lock.on_drained)

    def _finish_drain(self, session_lock: LocalSessionLock, on_drained: Callable[[], None]) -> None:
        if session_lock.is_empty or session_lock.consumer.available_credit <= 0 or self._fragment.available_locks <= 0:
            self._end_drain(session_lock, on_drained)

    def _read_session(self, session_lock: LocalSessionLock, on_read: Callable[[], None]) -> None:
        """Read the next messages of a session: first the index rows, then the records."""
        fragment = self._fragment
        incarnation, end, return_count = (
            fragment.incarnation,
            fragment.message_table.committed.next_sequence,
            session_lock.return_count,
        )
        session_lock.is_reading, session_lock.has_unread_arrivals = True, False
        prefix = fragment.message_table.session_prefix + pack_session_id(session_lock.session_id)

        def on_index_rows(rows: list[Row] | StoreError) -> None:
            if incarnation != fragment.incarnation or session_lock.has_ended:
                return
            if isinstance(rows, StoreError):
                fragment.commit_log.fail(str(rows))
                return
            sequences = [sequence_of_key(key) for key, _ in rows]
            next_read = end if len(rows) < READ_AHEAD_MESSAGES else sequences[-1] + 1
            keys = [fragment.message_table.active_prefix + pack_sequence(sequence) for sequence in sequences]
            fragment.read(keys, lambda values: on_records(sequences, values, next_read))

        def on_records(sequences: list[int], values: list[bytes | None] | StoreError, next_read: int) -> None:
            if incarnation != fragment.incarnation or session_lock.has_ended:
                return
            if isinstance(values, StoreError):
                fragment.commit_log.fail(str(values))
                return
            if session_lock.return_count != return_count:
                self._read_session(session_lock, on_read)
                return
            messages = [
                (sequence, record)
                for sequence, record in zip(sequences, values, strict=True)
                if record is not None and sequence not in fragment.in_flight
            ]
            session_lock.fill(messages, next_read, is_last=next_read == end)
            on_read()

        fragment.commit_log.scan(
            prefix + pack_sequence(min(session_lock.next_read, end)),
            prefix + pack_sequence(end),
            on_index_rows,
            limit=READ_AHEAD_MESSAGES,
            max_bytes=READ_AHEAD_MESSAGES * READ_AHEAD_BYTES,
            table=Table.INDEX,
        )

    def _update_lowest(self) -> None:
        """From time to time, update the lowest active sequence number, from which messages are searched on restart."""
        fragment = self._fragment
        message_table = fragment.message_table
        removed_count = message_table.next_sequence - 1 - message_table.active_count
        if removed_count - self._removed_count < LOWEST_UPDATE_INTERVAL:
            return
        self._removed_count = removed_count
        incarnation, end = fragment.incarnation, message_table.committed.next_sequence

        def on_rows(rows: list[Row] | StoreError) -> None:
            if incarnation == fragment.incarnation and not isinstance(rows, StoreError):
                lowest = sequence_of_key(rows[0][0]) if rows else end
                self._lowest = max(self._lowest, fragment.in_flight.lowest(lowest))

        start = message_table.active_prefix + pack_sequence(self._lowest)
        fragment.commit_log.scan(start, message_table.active_prefix + LAST_SEQUENCE, on_rows, limit=1, max_bytes=1)


def _by_serial(lock: Lock) -> int:
    return lock.serial
