"""Sessions: who gets the messages of a fragment whose queue requires sessions.

Owns: which sessions someone has and until when, which ones are free and have messages, and who waits for one. A session
belongs to one receiver at a time, which gets its messages in order; it is in place of `Line`, and has the same methods.

Only sessions that someone has, and some that are next, are in memory. Which session comes next is found in the log of
messages: whoever waits gets the session of the oldest message whose session is free, as far as it is remembered; those
that there was no room for are found by reading the log again from where they were.
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
"""Free sessions that are remembered."""
SEARCH_BATCH_SIZE: Final = 500
SEARCH_BATCH_BYTES: Final = 2_097_152
MAX_SERVED_PER_TURN: Final = 100
"""Sessions whose receivers get messages in one turn."""
LOWEST_UPDATE_INTERVAL: Final = 1_000
"""After so many messages are gone it is looked where the oldest is now."""


class SessionDispatcher(LocalDispatcher):
    """The sessions of one fragment."""

    def __init__(self, fragment: Fragment) -> None:
        """Nobody has one yet."""
        self.session_locks: dict[bytes, LocalSessionLock] = {}
        self._fragment = fragment
        self._by_consumer: dict[Consumer, LocalSessionLock] = {}
        self._tentative: dict[Consumer, LocalSessionLock] = {}
        """Sessions of which it is being seen whether they have messages, for who waits."""
        self._waiting_consumers: OrderedDict[Consumer, OnSessionAccepted] = OrderedDict()
        self._free_sessions: OrderedDict[bytes, None] = OrderedDict()
        self._to_serve: OrderedDict[LocalSessionLock, None] = OrderedDict()
        """Those to be looked at by the next dispatch."""
        self._blocked: dict[LocalSessionLock, None] = {}
        """Those that have more messages, were not too many out."""
        self._next_search_sequence = first = fragment.message_table.first_sequence
        """From this sequence number on there may be sessions that are not remembered."""
        self._is_searching = False
        self._lowest = first
        self._removed_count = 0

    # --- who has a session --------------------------------------------------------------------------------------------

    def accept_session(self, consumer: Consumer, session_id: bytes, on_accepted: OnSessionAccepted) -> None:
        """Give a receiver the session it names, whether that has messages or not. SessionCannotBeLocked."""
        self._fragment.commit_log.check_available()
        self._fragment.check_loaded()
        held = self.session_locks.get(session_id)
        if held is not None and not held.is_accepted:
            self._revoke(held)  # it is only being looked at, for one who takes any
        elif held is not None:
            raise SessionCannotBeLocked(
                f"The session '{session_id.decode(errors='replace')}' is locked by another receiver: accept "
                "it again when "
                "that has closed it, or its lock has expired."
            )
        self._grant(self._lock(session_id, consumer, on_accepted))
        self._assign_sessions()

    def accept_any_session(self, consumer: Consumer, on_accepted: OnSessionAccepted) -> None:
        """Give a receiver a session that is free and has messages, as soon as there is one."""
        self._fragment.commit_log.check_available()
        self._fragment.check_loaded()
        self.accept_next_session(consumer, on_accepted)

    def accept_next_session(self, consumer: Consumer, on_accepted: OnSessionAccepted) -> None:
        """... also where the store does not work now."""
        self._waiting_consumers[consumer] = on_accepted
        self._assign_sessions()

    def cancel_accept(self, consumer: Consumer) -> bool:
        """A receiver waits no longer. False if it has a session by now."""
        hold = self._tentative.get(consumer)
        if hold is not None:
            self._release(hold)
            if hold.session_id in self._free_sessions:  # as before: it was the next
                self._free_sessions.move_to_end(hold.session_id, last=False)
            self._assign_sessions()  # the session that was meant for it may be had by another
            return True
        return self._waiting_consumers.pop(consumer, None) is not None

    def owns_session_lock(self, session_lock: SessionLock) -> bool:
        """Whether a session that a receiver has is of this fragment."""
        return self.session_locks.get(session_lock.session_id) is session_lock

    def _lock(self, session_id: bytes, consumer: Consumer, on_accepted: OnSessionAccepted) -> LocalSessionLock:
        hold = LocalSessionLock(session_id, consumer, on_accepted, self._lowest)
        self.session_locks[session_id] = hold
        self._free_sessions.pop(session_id, None)
        return hold

    def _grant(self, session_lock: LocalSessionLock) -> None:
        session_lock.is_accepted = True
        self._tentative.pop(session_lock.consumer, None)
        self._by_consumer[session_lock.consumer] = session_lock
        self.renew(session_lock)
        self._schedule_expiry(session_lock)
        session_lock.on_accepted(session_lock)

    def _assign_sessions(self) -> None:
        """Try to give those who wait a session each."""
        fragment = self._fragment
        if not fragment.can_deliver:
            return
        while self._waiting_consumers and self._free_sessions:
            session, _ = self._free_sessions.popitem(last=False)
            if session not in self.session_locks:
                consumer, granted = self._waiting_consumers.popitem(last=False)
                self._try_session(self._lock(session, consumer, granted))
        if self._waiting_consumers:
            self._search_log()

    def _try_session(self, session_lock: LocalSessionLock) -> None:
        """See whether a session has messages; if not, its would-be receiver waits on, before all others."""
        self._tentative[session_lock.consumer] = session_lock

        def seen() -> None:
            if session_lock.ready:
                self._grant(session_lock)
            elif session_lock.is_empty:
                self._revoke(session_lock)
                self._assign_sessions()
            else:
                self._read_session(session_lock, seen)

        self._read_session(session_lock, seen)

    def _revoke(self, session_lock: LocalSessionLock) -> None:
        """A receiver does not get the session that was meant for it: it waits on, before all others."""
        del self.session_locks[session_lock.session_id]
        self._tentative.pop(session_lock.consumer, None)
        session_lock.has_ended = True
        self._waiting_consumers[session_lock.consumer] = session_lock.on_accepted
        self._waiting_consumers.move_to_end(session_lock.consumer, last=False)

    def _search_log(self) -> None:
        """Read the log for sessions that are free and not remembered."""
        fragment = self._fragment
        start = max(self._next_search_sequence, self._lowest)
        end = min(fragment.message_table.committed.next_sequence, start + MAX_SCAN_SPAN)
        if self._is_searching or start >= end:
            return
        self._is_searching = True
        self._next_search_sequence = end
        life, active = fragment.incarnation, fragment.message_table.active_prefix

        def found(rows: list[Row] | StoreError) -> None:
            if life != fragment.incarnation:
                return
            self._is_searching = False
            if isinstance(rows, StoreError):
                fragment.commit_log.fail(str(rows))
                return
            reached = sequence_of_key(rows[-1][0]) + 1 if rows else end
            self._next_search_sequence = min(self._next_search_sequence, reached)
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
            active + pack_sequence(start),
            active + pack_sequence(end),
            found,
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
        """Let a receiver have its session for its duration from now; until when, on the wall clock."""
        fragment = self._fragment
        duration_ms = fragment.policy.lock_duration_ms
        before_s, session_lock.deadline_s = session_lock.deadline_s, fragment.clock.monotonic_s() + duration_ms / 1000
        session_lock.locked_until_ms = fragment.clock.wall_ms() + duration_ms
        if session_lock.deadline_s < before_s:  # the lock duration was made shorter: it is looked at later than that
            self._schedule_expiry(session_lock)
        return session_lock.locked_until_ms

    def find_lock(self, session_id: bytes, consumer: Consumer | None = None) -> LocalSessionLock:
        """A session that someone has: this receiver, if one is given. SessionLockLost."""
        hold = self.session_locks.get(session_id)
        is_held = hold is not None and hold.is_accepted and hold.deadline_s > self._fragment.clock.monotonic_s()
        if hold is None or not is_held or (consumer is not None and hold.consumer is not consumer):
            raise session_lock_lost_error(session_id)
        return hold

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
        """Nobody has the session any more. Returns what its receiver had; it is out as before."""
        session_lock.has_ended = True
        del self.session_locks[session_lock.session_id]
        self._tentative.pop(session_lock.consumer, None)
        if session_lock.expiry_timer is not None:
            session_lock.expiry_timer.cancel()  # or it would keep the hold, and all that belongs to its receiver
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

    # --- consumers: as of a line --------------------------------------------------------------------------------------

    @property
    def consumers(self) -> list[Consumer]:
        """Who has a session, or waits for one."""
        return [hold.consumer for hold in self.session_locks.values()] + list(self._waiting_consumers)

    def remove(self, consumer: Consumer) -> None:
        """A receiver has gone: its session is free, and what it had is as it was."""
        self.cancel_accept(consumer)
        hold = self._by_consumer.get(consumer)
        if hold is None:
            return
        for lock in self._release(hold):
            self._fragment.end_in_flight(lock)
            self._fragment.redelivery.add_reclaimed_if_noted(lock.sequence)
        self.dispatch()

    def dispatch_to(self, consumer: Consumer) -> None:
        """A receiver has room."""
        hold = self._by_consumer.get(consumer)
        if hold is not None:
            self._to_serve[hold] = None
        self.dispatch()

    def drain(self, consumer: Consumer, on_drained: Callable[[], None]) -> None:
        """Give a receiver what there is now; `drained` is called when that was all, or after a tenth of a second."""
        hold = self._by_consumer.get(consumer)
        if hold is None:
            on_drained()
            return
        hold.on_drained = on_drained
        deadline_s = self._fragment.clock.monotonic_s() + DRAIN_TIMEOUT_S
        self._fragment.timers.call_at(deadline_s, lambda: self._end_drain(hold, on_drained))
        self.dispatch_to(consumer)

    @staticmethod
    def _end_drain(session_lock: LocalSessionLock, on_drained: Callable[[], None]) -> None:
        if session_lock.on_drained is on_drained:
            session_lock.on_drained = None
            if not session_lock.has_ended:
                on_drained()

    def begin_pending_delivery(self, consumer: Consumer, count: int) -> None:
        """So many messages are being deleted, to be delivered then."""
        consumer.reserve_credit(count)
        self._by_consumer[consumer].pending_deliveries += count

    def end_pending_delivery(self, consumer: Consumer, count: int) -> None:
        """... and that was done."""
        hold = self._by_consumer.get(consumer)
        if hold is not None:
            hold.pending_deliveries = max(0, hold.pending_deliveries - count)
            self._to_serve[hold] = None

    def close(self, error: ServiceBusError) -> None:
        """Nobody gets anything any more."""
        for consumer in self.consumers:
            consumer.force_detach(error)
        for hold in list(self.session_locks.values()):
            for lock in self._release(hold):
                self._fragment.end_in_flight(lock)
        self._waiting_consumers.clear()

    # --- messages: as of a line ---------------------------------------------------------------------------------------

    @property
    def lowest_available(self) -> int:
        """Below it there is nothing that is not out."""
        return self._lowest

    def add_messages(self, messages: list[tuple[int, bytes]], size: int) -> None:  # noqa: ARG002
        """Messages are on disk: now they are there for everyone."""
        for sequence, record in messages:
            self._add_message(sequence, record)

    def _add_message(self, sequence: int, record: bytes) -> None:
        session = session_id_of(record)
        assert session is not None
        hold = self.session_locks.get(session)
        if hold is None:
            self._remember_session(session, sequence)
        else:
            hold.append(sequence, record)
            self._to_serve[hold] = None

    def requeue(self, sequence: int, record: bytes) -> None:
        """A message that was out is free again."""
        session = session_id_of(record)
        assert session is not None
        self._lowest = min(self._lowest, sequence)
        hold = self.session_locks.get(session)
        if hold is None:
            self._free_sessions.setdefault(session)  # as many as there are receivers
        else:
            hold.requeue(sequence, record)
            self._to_serve[hold] = None

    def attach_locks(self, locks: list[Lock]) -> None:
        """Messages of a session were locked."""
        for lock in locks:
            hold = self.session_locks.get(lock.session_id) if lock.session_id is not None else None
            if hold is not None:
                lock.session_lock = hold
                hold.lock_numbers.add(lock.number)

    def detach_lock(self, lock: Lock) -> None:
        """A lock on a message of a session has ended."""
        hold = self.session_locks.get(lock.session_id) if lock.session_id is not None else None
        if hold is not None:
            hold.lock_numbers.discard(lock.number)

    def withdraw(self, sequences: set[int]) -> None:
        """Messages that may be next are not: something else is done to them."""
        for hold in self.session_locks.values():
            hold.withdraw(sequences)

    def reset(self, low_watermark: int) -> None:
        """What is known of messages is void: they are read again, from `low` on. Who has a session keeps it."""
        self._lowest = self._next_search_sequence = low_watermark
        self._is_searching = False
        self._free_sessions.clear()
        for hold in list(self.session_locks.values()):
            if not hold.is_accepted:
                self._revoke(hold)
                continue
            if hold.pending_deliveries:
                hold.consumer.reserve_credit(-hold.pending_deliveries)
            hold.reset(low_watermark)
            self._to_serve[hold] = None

    def dispatch(self) -> None:
        """Hand out what can be."""
        if not self._fragment.can_deliver:
            return
        if self._blocked and self._fragment.available_locks > 0:
            self._to_serve.update(self._blocked)
            self._blocked.clear()
        for _ in range(min(len(self._to_serve), MAX_SERVED_PER_TURN)):
            if not self._to_serve:
                break  # whoever was served asked for more at once, and others were served by that
            hold, _ = self._to_serve.popitem(last=False)
            if hold.is_accepted and not hold.has_ended:
                self._serve(hold)
        if self._to_serve:
            self._fragment.timers.call_at(self._fragment.clock.monotonic_s(), self.dispatch)
        self._assign_sessions()
        self._update_lowest()

    def _serve(self, session_lock: LocalSessionLock) -> None:
        fragment, consumer = self._fragment, session_lock.consumer
        if session_lock.deadline_s <= fragment.clock.monotonic_s():
            return  # its time is over, which its receiver is about to be told
        while session_lock.ready and not session_lock.has_ended:
            free = fragment.available_locks
            if free <= 0:
                self._blocked[session_lock] = None  # it is not asked for its room: who asks has something for it
                break
            count = min(consumer.available_credit, len(session_lock.ready), free)
            if count <= 0:
                break
            if fragment.redelivery.is_tracking:
                count = fragment.redelivery.deliverable_count(session_lock.ready, count)
                if not count:
                    self._blocked[session_lock] = None  # it goes on when that is on disk
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
        """Read on in a session: which messages it has, and then these."""
        fragment = self._fragment
        life, end, returns = (
            fragment.incarnation,
            fragment.message_table.committed.next_sequence,
            session_lock.return_count,
        )
        session_lock.is_reading, session_lock.has_unread_arrivals = True, False
        place = fragment.message_table.session_prefix + pack_session_id(session_lock.session_id)

        def listed(rows: list[Row] | StoreError) -> None:
            if life != fragment.incarnation or session_lock.has_ended:
                return
            if isinstance(rows, StoreError):
                fragment.commit_log.fail(str(rows))
                return
            numbers = [sequence_of_key(key) for key, _ in rows]
            reached = end if len(rows) < READ_AHEAD_MESSAGES else numbers[-1] + 1
            keys = [fragment.message_table.active_prefix + pack_sequence(number) for number in numbers]
            fragment.read(keys, lambda values: read(numbers, values, reached))

        def read(numbers: list[int], values: list[bytes | None] | StoreError, reached: int) -> None:
            if life != fragment.incarnation or session_lock.has_ended:
                return
            if isinstance(values, StoreError):
                fragment.commit_log.fail(str(values))
                return
            if session_lock.return_count != returns:
                self._read_session(session_lock, on_read)
                return
            items = [
                (number, record)
                for number, record in zip(numbers, values, strict=True)
                if record is not None and number not in fragment.in_flight
            ]
            session_lock.fill(items, reached, is_last=reached == end)
            on_read()

        fragment.commit_log.scan(
            place + pack_sequence(min(session_lock.next_read, end)),
            place + pack_sequence(end),
            listed,
            limit=READ_AHEAD_MESSAGES,
            max_bytes=READ_AHEAD_MESSAGES * READ_AHEAD_BYTES,
            table=Table.INDEX,
        )

    def _update_lowest(self) -> None:
        """Now and then, find out where the oldest message is: a restart begins to look there."""
        fragment = self._fragment
        holdings = fragment.message_table
        gone = holdings.next_sequence - 1 - holdings.active_count
        if gone - self._removed_count < LOWEST_UPDATE_INTERVAL:
            return
        self._removed_count = gone
        life, end = fragment.incarnation, holdings.committed.next_sequence

        def found(rows: list[Row] | StoreError) -> None:
            if life == fragment.incarnation and not isinstance(rows, StoreError):
                lowest = sequence_of_key(rows[0][0]) if rows else end
                self._lowest = max(self._lowest, fragment.in_flight.lowest(lowest))

        start = holdings.active_prefix + pack_sequence(self._lowest)
        fragment.commit_log.scan(start, holdings.active_prefix + LAST_SEQUENCE, found, limit=1, max_bytes=1)


def _by_serial(lock: Lock) -> int:
    return lock.serial
