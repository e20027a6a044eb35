"""Settlement of a fragment's locked messages.

Owns: completing, releasing, abandoning, deferring and dead-lettering locked messages, lock expiry, and the expiry of
messages by their time to live. The records of in-flight messages are not kept in memory, since most messages are
completed without being read again. Operations that change a message read its record first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

from twinbus.amqp.message import Message, Section
from twinbus.broker.fragment.dead_lettering import (
    DEAD_LETTER_SPARE_BYTES,
    dead_letter_exhausted,
    dead_letter_expired,
    move_to_dead_letters,
    without_dead_letter_reasons,
)
from twinbus.broker.fragment.locks import NEVER_EXPIRES_S, Lock
from twinbus.broker.message_record import (
    as_deferred,
    change_record,
    parse_record,
    session_id_of,
    shared_body_of,
)
from twinbus.broker.ports.fragment import SettlementPort
from twinbus.broker.ports.settlement import Disposition, dead_letter_properties, lock_lost_error
from twinbus.broker.store_keys import pack_sequence
from twinbus.model.callbacks import do_nothing, ignore
from twinbus.model.errors import (
    InternalFault,
    MessageTooLarge,
    NotAllowed,
    QuotaExceeded,
    ServiceBusError,
    StoreUnavailable,
)
from twinbus.model.message import message_id_text
from twinbus.store.protocol import StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from twinbus.broker.clock import Timer
    from twinbus.broker.fragment.fragment import Fragment
    from twinbus.broker.fragment.time_index import TimeEntries
    from twinbus.broker.ports.callbacks import OnDone
    from twinbus.broker.ports.consumer import Consumer

EXPIRY_BATCH_SIZE: Final = 500
"""The maximum number of expired locks that are released in one turn."""
READ_BATCH_SIZE: Final = 500
"""The maximum number of messages that are read and changed in one turn."""
_MIN_EXPIRY_DELAY_S: Final = 0.01

DEFERRAL_SPARE_BYTES: Final = 64
"""The bytes that a deferral may add to a message even if the entity or the disk is full: the mark of a possible
duplicate. If the deferral were refused, the message would be redelivered repeatedly, while later messages of its
session are deferred."""

LONG_AGO_S: Final = float("-inf")
"""A time before all lock deadlines."""

InFlightRecord: TypeAlias = "tuple[Lock, bytes]"
"""The lock and the record of an in-flight message."""


_SPARE_BYTES: Final = {Disposition.DEAD_LETTER: DEAD_LETTER_SPARE_BYTES, Disposition.DEFER: DEFERRAL_SPARE_BYTES}


class Settlement(SettlementPort):
    """The settlement of one fragment's messages."""

    def __init__(self, fragment: Fragment) -> None:
        """Create the settlement for `fragment`."""
        self._fragment = fragment
        self._expiry_timer: Timer | None = None
        self._expiry_timer_s = 0.0
        self._is_expiring = False
        self._is_expiry_postponed = False
        self._postponed_releases: list[tuple[list[Lock], OnDone]] = []
        self._last_deferral = 0
        self._pending_deferrals: set[int] = set()
        """The numbers of deferrals that are not on disk yet."""
        self._waiting_for_deferrals: list[tuple[int, Callable[[], None]]] = []
        """Calls waiting for deferrals, each with the number of the last deferral that it waits for."""

    # --- called by receivers ------------------------------------------------------------------------------------------

    def complete(self, lock_numbers: Iterable[int], on_done: OnDone) -> list[int]:
        """Delete locked messages; call `on_done` when the deletion is on disk. Return the numbers of lost locks."""
        locks, lost = self._end_valid_locks(lock_numbers)
        if locks:
            self._fragment.remove(locks, on_done)
        return lost

    def release(self, lock_numbers: Iterable[int], on_done: OnDone) -> list[int]:
        """Requeue locked messages unchanged, because no receiver has seen them. Return the numbers of lost locks.

        A release writes nothing. While the disk does not respond, a release is postponed instead of refused. Otherwise,
        the locks of messages that no receiver has seen would expire, which increments the delivery count.
        """
        fragment = self._fragment
        if not fragment.is_loaded:
            fragment.commit_log.check_available()
        locks, lost = self._end_locks(lock_numbers, fragment.clock.monotonic_s())
        if locks:
            on_done = self._keep_order(on_done)
            if fragment.commit_log.unavailable_reason is None:
                self._read(locks, on_done, self._return_unchanged)
            else:
                self._postponed_releases.append((locks, on_done))
        return lost

    def reclaim(self, lock_numbers: Iterable[int]) -> None:
        """Requeue messages locked by a receiver that will not return.

        The messages are then delivered with a delivery count of at least 1.

        Nothing is written: `redelivery` noted the messages on disk before they were delivered to the exclusive
        receiver. So messages can be reclaimed while the disk does not respond, and after their locks have expired.
        """
        locks = self._end_locks(lock_numbers, LONG_AGO_S)[0]
        self._fragment.redelivery.add_reclaimed([lock.sequence for lock in locks])
        for lock in locks:
            self._fragment.end_in_flight(lock)
            if not lock.is_deferred:
                self._fragment.dispatcher.requeue_unread(lock.sequence)

    def abandon(
        self, lock_numbers: Iterable[int], on_done: OnDone, properties: Mapping[str, object] | None = None
    ) -> list[int]:
        """Requeue messages with a higher delivery count and changed properties. Return the numbers of lost locks."""
        locks, lost = self._end_valid_locks(lock_numbers)
        if locks:
            on_done = self._keep_order(on_done)
            self._read(
                locks,
                on_done,
                lambda messages, on_batch_done: self._write_returned(messages, on_batch_done, properties),
            )
        return lost

    def _keep_order(self, on_done: OnDone) -> OnDone:
        """Return a callback; until the callback is called, an exclusive receiver gets no later messages."""
        redelivery = self._fragment.redelivery
        return redelivery.block_until_returned(on_done) if redelivery.noted_blocks else on_done

    def defer(
        self, lock_numbers: Iterable[int], on_done: OnDone, properties: Mapping[str, object] | None = None
    ) -> list[int]:
        """Defer messages without counting a delivery. Return the numbers of lost locks."""
        locks, lost = self._end_valid_locks(lock_numbers)
        if locks:
            on_done = self._track_deferral(on_done)
            self._read(locks, on_done, lambda messages, on_batch_done: self._defer(messages, on_batch_done, properties))
        return lost

    def _track_deferral(self, on_done: OnDone) -> OnDone:
        """Return a callback for a new deferral; until the callback is called, the deferral is pending."""
        self._last_deferral += 1
        number = self._last_deferral
        self._pending_deferrals.add(number)

        def on_deferred(error: ServiceBusError | None) -> None:
            self._pending_deferrals.discard(number)
            on_done(error)
            if self._waiting_for_deferrals:
                self._run_after_deferrals()

        return on_deferred

    def after_deferrals(self, call: Callable[[], None]) -> None:
        """Run a call when all pending deferrals are on disk; at once if there are none.

        A receiver that replaces another receiver looks for deferred messages before it receives. If the new receiver
        missed a message whose deferral is still being written, it would process that message after later messages of
        the session.
        """
        if self._pending_deferrals:
            self._waiting_for_deferrals.append((self._last_deferral, call))
        else:
            call()

    def _run_after_deferrals(self) -> None:
        first = min(self._pending_deferrals) if self._pending_deferrals else self._last_deferral + 1
        ready = [call for last, call in self._waiting_for_deferrals if last < first]
        self._waiting_for_deferrals = [item for item in self._waiting_for_deferrals if item[0] >= first]
        for call in ready:
            call()

    def dead_letter(
        self,
        lock_numbers: Iterable[int],
        on_done: OnDone,
        *,
        reason: str | None = None,
        description: str | None = None,
        properties: Mapping[str, object] | None = None,
    ) -> list[int]:
        """Move messages to the dead-letter queue, or abandon dead letters. Return the numbers of lost locks."""
        if self._fragment.dead_letters is None:
            return self.abandon(lock_numbers, on_done, without_dead_letter_reasons(properties))
        changes = dict(properties or {}) | dead_letter_properties(reason, description)
        locks, lost = self._end_valid_locks(lock_numbers)
        if locks:
            self._read(
                locks, on_done, lambda messages, on_batch_done: self._dead_letter_all(messages, on_batch_done, changes)
            )
        return lost

    def renew(self, lock_number: int) -> int:
        """Renew a lock for its duration; return its new expiry on the wall clock. Raises MessageLockLost."""
        fragment = self._fragment
        fragment.commit_log.check_available()
        now_s, duration_ms = fragment.clock.monotonic_s(), fragment.policy.lock_duration_ms
        lock = fragment.locks.by_number.get(lock_number)
        if lock is not None and lock.session_id is not None:
            raise NotAllowed("the message is locked as long as its session: renew the session lock instead")
        if not fragment.locks.renew(lock_number, now_s, now_s + duration_ms / 1000):
            raise lock_lost_error()
        self.schedule_expiry(now_s + duration_ms / 1000)
        return fragment.clock.wall_ms() + duration_ms

    def renew_lock(self, lock_number: int, on_result: Callable[[int | ServiceBusError], None]) -> None:
        """Renew a lock; `on_result` gets its new expiry on the wall clock."""
        on_result(self.renew(lock_number))

    def find_locked_message(
        self, lock_number: int, on_result: Callable[[tuple[int, str | None] | ServiceBusError], None]
    ) -> None:
        """Read the locked message; `on_result` gets its sequence number and message id. Raises MessageLockLost."""
        lock = self._fragment.locks.by_number.get(lock_number)
        if lock is None or not self.is_lock_valid(lock_number):
            raise lock_lost_error()
        message_table, sequence = self._fragment.message_table, lock.sequence

        def on_read(values: list[bytes | None] | StoreError) -> None:
            if isinstance(values, StoreError):
                on_result(StoreUnavailable("the store failed before the message was found: try again in a moment"))
                return
            record = values[0]
            on_result(
                (sequence, message_id_text(Message(parse_record(record).bare_message)) if record is not None else None)
            )

        prefix = message_table.deferred_prefix if lock.is_deferred else message_table.active_prefix
        self._fragment.commit_log.get([prefix + pack_sequence(sequence)], on_read)

    def is_lock_valid(
        self, lock_number: int, session_holder_of: Callable[[bytes], Consumer | None] | None = None
    ) -> bool:
        """Return whether a lock exists, has not expired, and may be used by the caller.

        Only the receiver that holds a session may settle its messages: `session_holder_of` returns the caller's
        receiver that holds a session, or None.
        """
        now_s = self._fragment.clock.monotonic_s()
        lock = self._fragment.locks.by_number.get(lock_number)
        if lock is None or lock.deadline_s <= now_s:
            return False
        if self._fragment.sessions is None:
            return True
        session_id, session_lock = lock.session_id, lock.session_lock
        if (
            session_holder_of is None
            or session_id is None
            or session_lock is None
            or session_lock.has_ended
            or session_lock.deadline_s <= now_s
        ):
            return False
        return session_holder_of(session_id) is session_lock.consumer

    # --- in a transaction ---------------------------------------------------------------------------------------------

    def reserve_locks(self, lock_numbers: Iterable[int]) -> tuple[list[Lock], list[int]]:
        """Reserve locks for a transaction: until it finishes, the locks do not expire, and nothing else uses them.

        Return the reserved locks, and the numbers of lost locks.
        """
        return self._end_valid_locks(lock_numbers)

    def restore_locks(self, locks: list[Lock]) -> None:
        """Restore reserved locks with their old deadlines after a rollback; expired locks end at once.

        Messages whose session lock has ended are requeued.
        """
        fragment = self._fragment
        ended = [lock for lock in locks if lock.session_lock is not None and lock.session_lock.has_ended]
        kept = [lock for lock in locks if lock.session_lock is None or not lock.session_lock.has_ended]
        for lock in kept:
            fragment.locks.restore(lock)
            self.schedule_expiry(lock.deadline_s)
        if fragment.sessions is not None:
            fragment.sessions.attach_locks(kept)
        if ended:
            self._read(ended, ignore, self._return_unchanged)

    def prepare(
        self,
        disposition: Disposition,
        locks: list[Lock],
        records: Mapping[int, bytes],
        properties: Mapping[str, object],
    ) -> Callable[[], None]:
        """Return a call that settles reserved messages in the batch of the turn in which it runs.

        `records` are the records by sequence number; completing needs no records. Raises MessageTooLarge, QuotaExceeded
        or StoreUnavailable if the changed messages cannot be stored.
        """
        if disposition is Disposition.COMPLETE:
            return lambda: self._fragment.remove(locks, ignore)
        messages = [(lock, records[lock.sequence]) for lock in locks if lock.sequence in records]
        changed = [(lock, self._change(record, properties)) for lock, record in messages]
        self._check_growth(messages, changed, spare=_SPARE_BYTES.get(disposition, 0))
        if disposition is Disposition.RELEASE:
            return lambda: self._return_unchanged(messages, ignore)
        if disposition is Disposition.DEFER:
            return lambda: self._defer(messages, ignore, properties, is_checked=True)
        if disposition is Disposition.DEAD_LETTER and self._fragment.dead_letters is not None:
            return lambda: self._dead_letter_all(messages, ignore, properties, is_checked=True)
        changes = without_dead_letter_reasons(properties) if disposition is Disposition.DEAD_LETTER else properties
        return lambda: self._write_returned(messages, ignore, changes, is_checked=True)

    def _end_valid_locks(self, lock_numbers: Iterable[int]) -> tuple[list[Lock], list[int]]:
        self._fragment.commit_log.check_available()
        return self._end_locks(lock_numbers, self._fragment.clock.monotonic_s())

    def _end_locks(self, lock_numbers: Iterable[int], now_s: float) -> tuple[list[Lock], list[int]]:
        """End locks that have not expired by `now_s`. Return these locks, and the numbers of lost locks."""
        take, sessions = self._fragment.locks.take, self._fragment.sessions
        locks, lost = [], []
        for number in lock_numbers:
            lock = take(number, now_s)
            if lock is None:
                lost.append(number)
                continue
            if sessions is not None:
                sessions.detach_lock(lock)
            locks.append(lock)
        return locks, lost

    # --- changing messages in flight ----------------------------------------------------------------------------------

    def return_with_count(self, locks: list[Lock], on_done: OnDone) -> None:
        """Requeue messages whose locks have expired, with a higher delivery count."""
        self._read(locks, on_done, lambda messages, on_batch_done: self._write_returned(messages, on_batch_done, None))

    def _read(
        self, locks: list[Lock], on_done: OnDone, on_read: Callable[[list[InFlightRecord], OnDone], None]
    ) -> None:
        """Read the records of in-flight messages, a batch per turn, and pass each batch to `on_read`."""
        if len(locks) <= READ_BATCH_SIZE:
            self._read_batch(locks, on_done, on_read)
            return

        def read_next(error: ServiceBusError | None) -> None:
            on_next_done = on_done if error is None else lambda _: on_done(error)
            self._read(locks[READ_BATCH_SIZE:], on_next_done, on_read)

        self._read_batch(locks[:READ_BATCH_SIZE], read_next, on_read)

    def _read_batch(
        self, locks: list[Lock], on_done: OnDone, on_read: Callable[[list[InFlightRecord], OnDone], None]
    ) -> None:
        fragment = self._fragment
        incarnation = fragment.incarnation

        def on_values(values: list[bytes | None] | StoreError) -> None:
            if incarnation != fragment.incarnation or isinstance(values, StoreError):
                on_done(_lock_lost_on_failure_error())
                if isinstance(values, StoreError) and incarnation == fragment.incarnation:
                    fragment.commit_log.fail(str(values))
                return
            messages = [(lock, record) for lock, record in zip(locks, values, strict=True) if record is not None]
            try:
                on_read(messages, on_done)
            except (MessageTooLarge, QuotaExceeded, StoreUnavailable) as error:
                refusal = error
                for lock, _ in messages:
                    fragment.redelivery.add_reclaimed_if_noted(lock.sequence)  # the receiver has seen the message
                self._return_unchanged(messages, lambda _: on_done(refusal))
            except Exception:
                internal_fault = InternalFault(
                    "the message could not be changed, and is available again unchanged: see the server's log"
                )
                # otherwise the messages would stay in flight forever
                self._return_unchanged(messages, lambda _: on_done(internal_fault))
                raise

        message_table = fragment.message_table
        prefixes = [
            message_table.deferred_prefix if lock.is_deferred else message_table.active_prefix for lock in locks
        ]
        keys = [prefix + pack_sequence(lock.sequence) for prefix, lock in zip(prefixes, locks, strict=True)]
        fragment.read(keys, on_values)

    def _return_unchanged(self, messages: list[InFlightRecord], on_done: OnDone) -> None:
        for lock, record in messages:
            self._fragment.requeue(lock, record)
        on_done(None)
        self._fragment.dispatcher.dispatch()

    def _write_returned(
        self,
        messages: list[InFlightRecord],
        on_done: OnDone,
        properties: Mapping[str, object] | None,
        *,
        is_checked: bool = False,
    ) -> None:
        fragment = self._fragment
        max_delivery_count = fragment.policy.max_delivery_count
        returned: list[InFlightRecord] = []
        exhausted: list[InFlightRecord] = []
        for lock, record in messages:  # change all messages before writing any of them, because a change may fail
            count = parse_record(record).delivery_count + 1
            if max_delivery_count is not None and count >= max_delivery_count:
                exhausted.append((lock, self._change(record, properties, delivery_count=count)))
            else:
                returned.append((lock, self._change(record, properties, delivery_count=count)))
        if properties and not is_checked:
            self._check_growth(messages, returned + exhausted)
        for lock, changed in exhausted:
            assert max_delivery_count is not None
            dead_letter_exhausted(fragment, lock, changed, max_delivery_count)
        growth = 0
        for lock, changed in returned:
            growth += len(changed) - lock.size
            fragment.message_table.rewrite(lock, changed)

        def on_applied() -> None:
            fragment.redelivery.forget([lock.sequence for lock, _ in returned])
            for lock, record in returned:
                fragment.requeue(lock, record)

        fragment.commit_log.add(fragment, max(0, growth), on_applied, on_done)

    def _defer(
        self,
        messages: list[InFlightRecord],
        on_done: OnDone,
        properties: Mapping[str, object] | None,
        *,
        is_checked: bool = False,
    ) -> None:
        fragment = self._fragment
        changed = [(lock, self._change(record, properties)) for lock, record in messages] if properties else messages
        if properties and not is_checked:
            self._check_growth(messages, changed, spare=DEFERRAL_SPARE_BYTES)
        deferred = [(lock, as_deferred(record)) for lock, record in changed]
        for lock, record in deferred:
            if lock.is_deferred:
                fragment.message_table.rewrite(lock, record)
            else:
                fragment.message_table.defer(lock, record)
                fragment.in_flight.mark_deleting(lock.sequence)

        def on_applied() -> None:
            for lock, _ in deferred:
                fragment.end_in_flight(lock)

        fragment.commit_log.add(fragment, 0, on_applied, on_done)

    def _dead_letter_all(
        self,
        messages: list[InFlightRecord],
        on_done: OnDone,
        changes: Mapping[str, object],
        *,
        is_checked: bool = False,
    ) -> None:
        changed = [(lock, self._change(record, changes)) for lock, record in messages]
        if changes and not is_checked:
            self._check_growth(messages, changed, spare=DEAD_LETTER_SPARE_BYTES)
        for lock, record in changed:
            move_to_dead_letters(self._fragment, lock, record)
        self._fragment.commit_log.add(self._fragment, 0, do_nothing, on_done)

    def _check_growth(self, original: list[InFlightRecord], changed: list[InFlightRecord], *, spare: int = 0) -> None:
        """Refuse added properties that do not fit; up to `spare` bytes per message are always accepted.

        Raises QuotaExceeded if the entity is full, and DiskFull if the disk is full.
        """
        original_sizes = {lock: len(record) for lock, record in original}
        growths = [len(record) - original_sizes[lock] for lock, record in changed]
        growth = sum([size for size in growths if size > spare])
        if growth:
            self._fragment.commit_log.check_disk_space()
            self._fragment.check_quota(growth)

    def _change(
        self, record: bytes, properties: Mapping[str, object] | None, *, delivery_count: int | None = None
    ) -> bytes:
        """Return a changed record. Raises MessageTooLarge if its properties exceed the limit."""
        changed = change_record(record, delivery_count=delivery_count, properties=properties)
        limit = self._fragment.policy.max_properties_bytes
        if properties and len(changed) > len(record):
            size = Message(parse_record(changed).bare_message).size_of(Section.APPLICATION_PROPERTIES)
            if size > limit:
                raise MessageTooLarge(f"the message would have {size} bytes of properties: the limit is {limit}")
        return changed

    # --- locks that expire --------------------------------------------------------------------------------------------

    def schedule_expiry(self, deadline_s: float) -> None:
        """Check for expired locks at this deadline, or earlier."""
        if self._expiry_timer is not None:
            if self._expiry_timer_s <= deadline_s:
                return
            self._expiry_timer.cancel()
        self._expiry_timer_s = max(deadline_s, self._fragment.clock.monotonic_s() + _MIN_EXPIRY_DELAY_S)
        self._expiry_timer = self._fragment.timers.call_at(self._expiry_timer_s, self._expire)

    def _expire(self) -> None:
        fragment = self._fragment
        self._expiry_timer = None
        if fragment.commit_log.unavailable_reason is not None:
            self._is_expiry_postponed = True  # until the store is available again
            return
        if not self._is_expiring:
            expired = fragment.locks.take_expired(fragment.clock.monotonic_s(), EXPIRY_BATCH_SIZE)
            if expired:
                self._is_expiring = True
                self.return_with_count(expired, self._keep_order(self._on_expired))
        deadline_s = fragment.locks.next_deadline_s()
        if deadline_s is not None:
            self.schedule_expiry(deadline_s)

    def _on_expired(self, _error: ServiceBusError | None) -> None:
        """Allow the next batch of expired locks."""
        self._is_expiring = False

    def resume(self) -> None:
        """Continue postponed expiry and releases when the store is available again."""
        if self._is_expiry_postponed:
            self._is_expiry_postponed = False
            self._expire()
        postponed, self._postponed_releases = self._postponed_releases, []
        for locks, on_done in postponed:
            self._read(locks, on_done, self._return_unchanged)

    def reset(self) -> None:
        """Discard the state in memory: all locks are lost."""
        self._is_expiring = self._is_expiry_postponed = False
        postponed, self._postponed_releases = self._postponed_releases, []
        for _, on_done in postponed:
            on_done(_lock_lost_on_failure_error())
        if self._expiry_timer is not None:
            self._expiry_timer.cancel()
            self._expiry_timer = None

    # --- messages that expire -----------------------------------------------------------------------------------------

    def expire_messages(self, entries: TimeEntries) -> None:
        """Expire messages that the time index reports; locked messages get more time."""
        fragment = self._fragment
        committed_end, in_flight, expiry_index = (
            fragment.message_table.committed.next_sequence,
            fragment.in_flight.locks,
            fragment.message_table.expiry_index,
        )
        now_ms, duration_ms = fragment.clock.wall_ms(), fragment.policy.lock_duration_ms
        expired: list[Lock] = []
        awaits_commit = False
        low_watermark = entries[-1]
        for entry in entries:
            when_ms, sequence = entry
            if sequence >= committed_end:
                low_watermark, awaits_commit = entry, True
                break
            lock = in_flight.get(sequence)
            if lock is not None:  # the receiver may still settle the message; if it is requeued, it expires then
                later_ms = max(now_ms, when_ms) + duration_ms  # the wall clock may have been set back since the scan
                expiry_index.remove(when_ms, sequence)
                expiry_index.add(later_ms, sequence)
                lock.expiry_ms = later_ms
            elif sequence in in_flight:
                expiry_index.remove(when_ms, sequence)
            else:
                lock = Lock(0, sequence, 0, NEVER_EXPIRES_S)
                lock.expiry_ms, lock.has_extra_rows = when_ms, True
                expired.append(lock)
        fragment.dispatcher.withdraw({lock.sequence for lock in expired})
        fragment.in_flight.add(sorted(expired, key=_by_sequence))

        def on_done(_error: ServiceBusError | None) -> None:
            expiry_index.mark_processed(low_watermark, awaits_commit=awaits_commit)

        # The time index limits the size of this batch. `_expire_found` regards messages without a record as settled, so
        # it must get the records of all messages at once.
        self._read_batch(
            expired, on_done, lambda messages, on_batch_done: self._expire_found(expired, messages, on_batch_done)
        )

    def _expire_found(self, expired: list[Lock], messages: list[InFlightRecord], on_done: OnDone) -> None:
        fragment = self._fragment
        existing = {lock.sequence for lock, _ in messages}
        for lock in expired:
            if lock.sequence not in existing:  # the message was settled, and only this row is left
                fragment.message_table.expiry_index.remove(lock.expiry_ms, lock.sequence)
                fragment.in_flight.remove(lock.sequence)
        for lock, record in messages:
            lock.size, lock.session_id, lock.shared_body = len(record), session_id_of(record), shared_body_of(record)
        self._drop_expired(messages)
        fragment.commit_log.add(fragment, 0, do_nothing, on_done)

    def expire_undelivered(self, messages: list[InFlightRecord]) -> None:
        """Expire messages that were about to be delivered or requeued."""
        self._fragment.in_flight.add([lock for lock, _ in messages])
        self._drop_expired(messages)

    def _drop_expired(self, messages: list[InFlightRecord]) -> None:
        if self._fragment.policy.dead_letters_expired and self._fragment.dead_letters is not None:
            dead_letter_expired(self._fragment, messages)
        elif messages:
            self._fragment.remove([lock for lock, _ in messages], ignore)


def _by_sequence(lock: Lock) -> int:
    return lock.sequence


def _lock_lost_on_failure_error() -> StoreUnavailable:
    """Return the error for the settlement of messages whose locks are lost because the store failed."""
    return StoreUnavailable("the store failed before the message was settled: its lock is lost")
