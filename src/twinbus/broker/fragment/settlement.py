"""Settlement: what becomes of the messages of a fragment that are out.

Owns: from a lock's number, or its expiry, to the change on disk, and the watch over locks and times to live. A message
is not kept in memory while it is out, since most are completed unseen: what has to change it reads it first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

from twinbus.amqp.message import Message, Section
from twinbus.broker.fragment.locks import NEVER_EXPIRES_S, Lock
from twinbus.broker.message_record import (
    ACTIVE_STATE,
    NEVER_MS,
    as_deferred,
    change_record,
    make_record,
    parse_record,
    session_id_of,
    shared_body_of,
    with_original_sequence,
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
"""Locks that are ended in one turn when many expire."""
READ_BATCH_SIZE: Final = 500
"""Messages that are read and changed in one turn, if many come back together."""
_MIN_EXPIRY_DELAY_S: Final = 0.01

DEAD_LETTER_SPARE_BYTES: Final = 512
"""What a reason may add to a message that is dead-lettered, also in a full entity and on a full disk: dead-lettering is
a way to get on with the messages there. A message is dead-lettered once, so it grows by this once."""
DEAD_LETTER_PROPERTY_NAMES: Final = frozenset({"DeadLetterReason", "DeadLetterErrorDescription"})
"""Properties that a message gets when it is dead-lettered."""
DEFERRAL_SPARE_BYTES: Final = 64
"""What a deferral may add, also to a full entity and on a full disk: the mark of a possible duplicate, once. If it were
refused, the message would be delivered again at once, and again, while those behind it in its session are deferred."""

LONG_AGO_S: Final = float("-inf")
"""No lock has expired by then."""

InFlightRecord: TypeAlias = "tuple[Lock, bytes]"
"""A message that is out: as what, and its record."""


_SPARE_BYTES: Final = {Disposition.DEAD_LETTER: DEAD_LETTER_SPARE_BYTES, Disposition.DEFER: DEFERRAL_SPARE_BYTES}


class Settlement(SettlementPort):
    """The ends of locks, of one fragment."""

    def __init__(self, fragment: Fragment) -> None:
        """Made by its fragment."""
        self._fragment = fragment
        self._expiry_timer: Timer | None = None
        self._expiry_timer_s = 0.0
        self._is_expiring = False
        self._is_expiry_postponed = False
        self._postponed_releases: list[tuple[list[Lock], OnDone]] = []
        self._last_deferral = 0
        self._pending_deferrals: set[int] = set()
        """Numbers of deferrals that have begun and are not on disk."""
        self._waiting_for_deferrals: list[tuple[int, Callable[[], None]]] = []
        """What waits for them, with the number of the last one that it waits for."""

    # --- what receivers ask -------------------------------------------------------------------------------------------

    def complete(self, lock_numbers: Iterable[int], on_done: OnDone) -> list[int]:
        """Delete messages that are locked. Returns those whose lock is lost; `answer` hears of the others."""
        locks, lost = self._end_valid_locks(lock_numbers)
        if locks:
            self._fragment.remove(locks, on_done)
        return lost

    def release(self, lock_numbers: Iterable[int], on_done: OnDone) -> list[int]:
        """Give messages back as they are: nobody has seen them.

        A release writes nothing. So while the disk does not answer, it is postponed instead of refused: otherwise the
        locks of messages that reached nobody would expire, and count a delivery.
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
        """Give messages back at once, when their receiver is gone for good; they come with a delivery on their count.

        Nothing is written: before they were handed to an exclusive receiver, that was noted (`redelivery`). So this
        works while the disk does not answer, too, and for locks that have expired meanwhile.
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
        """Give messages back with a delivery more on their count, and perhaps with changed properties."""
        locks, lost = self._end_valid_locks(lock_numbers)
        if locks:
            on_done = self._keep_order(on_done)
            self._read(locks, on_done, lambda found, answer: self._write_returned(found, answer, properties))
        return lost

    def _keep_order(self, on_done: OnDone) -> OnDone:
        """An exclusive receiver gets nothing that is behind messages on their way back before these are there."""
        redelivery = self._fragment.redelivery
        return redelivery.block_until_returned(on_done) if redelivery.noted_blocks else on_done

    def defer(
        self, lock_numbers: Iterable[int], on_done: OnDone, properties: Mapping[str, object] | None = None
    ) -> list[int]:
        """Set messages aside: whoever wants one has to know its sequence number. That is not counted as a delivery."""
        locks, lost = self._end_valid_locks(lock_numbers)
        if locks:
            on_done = self._track_deferral(on_done)
            self._read(locks, on_done, lambda found, answer: self._defer(found, answer, properties))
        return lost

    def _track_deferral(self, on_done: OnDone) -> OnDone:
        """Note a deferral that has begun, until it is answered."""
        self._last_deferral += 1
        number = self._last_deferral
        self._pending_deferrals.add(number)

        def deferred(error: ServiceBusError | None) -> None:
            self._pending_deferrals.discard(number)
            on_done(error)
            if self._waiting_for_deferrals:
                self._run_after_deferrals()

        return deferred

    def after_deferrals(self, call: Callable[[], None]) -> None:
        """Call `then` when the deferrals that have begun are on disk; at once if there are none.

        A receiver that takes the place of another one looks for deferred messages before it receives anything. One that
        it does not find because its deferral is still being written would come behind later messages of its session.
        """
        if self._pending_deferrals:
            self._waiting_for_deferrals.append((self._last_deferral, call))
        else:
            call()

    def _run_after_deferrals(self) -> None:
        first = min(self._pending_deferrals) if self._pending_deferrals else self._last_deferral + 1
        ready = [then for last, then in self._waiting_for_deferrals if last < first]
        self._waiting_for_deferrals = [item for item in self._waiting_for_deferrals if item[0] >= first]
        for then in ready:
            then()

    def dead_letter(
        self,
        lock_numbers: Iterable[int],
        on_done: OnDone,
        *,
        reason: str | None = None,
        description: str | None = None,
        properties: Mapping[str, object] | None = None,
    ) -> list[int]:
        """Move messages to the dead-letter queue; those of a dead-letter queue stay there, and count a delivery."""
        if self._fragment.dead_letters is None:
            return self.abandon(lock_numbers, on_done, _without_reasons(properties))
        changes = dict(properties or {}) | dead_letter_properties(reason, description)
        locks, lost = self._end_valid_locks(lock_numbers)
        if locks:
            self._read(locks, on_done, lambda found, answer: self._dead_letter_all(found, answer, changes))
        return lost

    def renew(self, lock_number: int) -> int:
        """Let a lock last its duration from now; the time on the wall clock until when. MessageLockLost."""
        fragment = self._fragment
        fragment.commit_log.check_available()
        now_s, duration_ms = fragment.clock.monotonic_s(), fragment.policy.lock_duration_ms
        lock = fragment.locks.by_number.get(lock_number)
        if lock is not None and lock.session_id is not None:
            raise NotAllowed("the message is locked as long as its session is: renew the lock of that")
        if not fragment.locks.renew(lock_number, now_s, now_s + duration_ms / 1000):
            raise lock_lost_error()
        self.schedule_expiry(now_s + duration_ms / 1000)
        return fragment.clock.wall_ms() + duration_ms

    def renew_lock(self, lock_number: int, on_result: Callable[[int | ServiceBusError], None]) -> None:
        """Renew a lock, and tell until when."""
        on_result(self.renew(lock_number))

    def find_locked_message(
        self, lock_number: int, on_result: Callable[[tuple[int, str | None] | ServiceBusError], None]
    ) -> None:
        """Find the message that a lock is on. Its record is not in memory."""
        lock = self._fragment.locks.by_number.get(lock_number)
        if lock is None or not self.is_lock_valid(lock_number):
            raise lock_lost_error()
        holdings, sequence = self._fragment.message_table, lock.sequence

        def read(values: list[bytes | None] | StoreError) -> None:
            if isinstance(values, StoreError):
                on_result(StoreUnavailable("the store failed before the message was found: try again in a moment"))
                return
            record = values[0]
            on_result(
                (sequence, message_id_text(Message(parse_record(record).bare_message)) if record is not None else None)
            )

        area = holdings.deferred_prefix if lock.is_deferred else holdings.active_prefix
        self._fragment.commit_log.get([area + pack_sequence(sequence)], read)

    def is_lock_valid(
        self, lock_number: int, session_holder_of: Callable[[bytes], Consumer | None] | None = None
    ) -> bool:
        """Whether a lock is there, has not expired, and may be ended by the caller.

        The messages of a session may be settled by the receiver that holds the session and by nobody else: `holder_of`
        gives the caller's receiver that holds a session, or None.
        """
        now_s = self._fragment.clock.monotonic_s()
        lock = self._fragment.locks.by_number.get(lock_number)
        if lock is None or lock.deadline_s <= now_s:
            return False
        if self._fragment.sessions is None:
            return True
        session, hold = lock.session_id, lock.session_lock
        if session_holder_of is None or session is None or hold is None or hold.has_ended or hold.deadline_s <= now_s:
            return False
        return session_holder_of(session) is hold.consumer

    # --- in a transaction ---------------------------------------------------------------------------------------------

    def reserve_locks(self, lock_numbers: Iterable[int]) -> tuple[list[Lock], list[int]]:
        """Locked messages that nobody else settles, and that do not expire, until it is known what becomes of them.

        And those whose lock is lost.
        """
        return self._end_valid_locks(lock_numbers)

    def restore_locks(self, locks: list[Lock]) -> None:
        """What was set apart is locked as it was before; where its time is over meanwhile, that ends it now.

        Where its session is not its receiver's any more, it is free.
        """
        fragment = self._fragment
        free = [lock for lock in locks if lock.session_lock is not None and lock.session_lock.has_ended]
        kept = [lock for lock in locks if lock.session_lock is None or not lock.session_lock.has_ended]
        for lock in kept:
            fragment.locks.restore(lock)
            self.schedule_expiry(lock.deadline_s)
        if fragment.sessions is not None:
            fragment.sessions.attach_locks(kept)
        if free:
            self._read(free, ignore, self._return_unchanged)

    def prepare(
        self,
        disposition: Disposition,
        locks: list[Lock],
        records: Mapping[int, bytes],
        properties: Mapping[str, object],
    ) -> Callable[[], None]:
        """What settles messages that were set apart, in the batch of the turn in which it is called.

        `records` are theirs, but for those to be completed. MessageTooLarge if they cannot be changed so.
        """
        if disposition is Disposition.COMPLETE:
            return lambda: self._fragment.remove(locks, ignore)
        found = [(lock, records[lock.sequence]) for lock in locks if lock.sequence in records]
        changed = [(lock, self._change(record, properties)) for lock, record in found]
        self._check_growth(found, changed, spare=_SPARE_BYTES.get(disposition, 0))
        if disposition is Disposition.RELEASE:
            return lambda: self._return_unchanged(found, ignore)
        if disposition is Disposition.DEFER:
            return lambda: self._defer(found, ignore, properties, is_checked=True)
        if disposition is Disposition.DEAD_LETTER and self._fragment.dead_letters is not None:
            return lambda: self._dead_letter_all(found, ignore, properties, is_checked=True)
        kept = _without_reasons(properties) if disposition is Disposition.DEAD_LETTER else properties
        return lambda: self._write_returned(found, ignore, kept, is_checked=True)

    def _end_valid_locks(self, lock_numbers: Iterable[int]) -> tuple[list[Lock], list[int]]:
        self._fragment.commit_log.check_available()
        return self._end_locks(lock_numbers, self._fragment.clock.monotonic_s())

    def _end_locks(self, lock_numbers: Iterable[int], now_s: float) -> tuple[list[Lock], list[int]]:
        """End locks that have not expired by `now_s`. Returns them, and the numbers of those that have."""
        take, sessions = self._fragment.locks.take, self._fragment.sessions
        found, lost = [], []
        for number in lock_numbers:
            lock = take(number, now_s)
            if lock is None:
                lost.append(number)
                continue
            if sessions is not None:
                sessions.detach_lock(lock)
            found.append(lock)
        return found, lost

    # --- what is done with messages that are out ----------------------------------------------------------------------

    def return_with_count(self, locks: list[Lock], on_done: OnDone) -> None:
        """Give back messages whose time is over: a delivery more on their count."""
        self._read(locks, on_done, lambda found, answer: self._write_returned(found, answer, None))

    def _read(
        self, locks: list[Lock], on_done: OnDone, on_read: Callable[[list[InFlightRecord], OnDone], None]
    ) -> None:
        """Read the records of messages that are out, a part of them in each turn."""
        if len(locks) <= READ_BATCH_SIZE:
            self._read_batch(locks, on_done, on_read)
            return

        def go_on(error: ServiceBusError | None) -> None:
            told = on_done if error is None else lambda _: on_done(error)
            self._read(locks[READ_BATCH_SIZE:], told, on_read)

        self._read_batch(locks[:READ_BATCH_SIZE], go_on, on_read)

    def _read_batch(
        self, locks: list[Lock], on_done: OnDone, on_read: Callable[[list[InFlightRecord], OnDone], None]
    ) -> None:
        fragment = self._fragment
        life = fragment.incarnation

        def read(values: list[bytes | None] | StoreError) -> None:
            if life != fragment.incarnation or isinstance(values, StoreError):
                on_done(_lock_void_error())
                if isinstance(values, StoreError) and life == fragment.incarnation:
                    fragment.commit_log.fail(str(values))
                return
            found = [(lock, record) for lock, record in zip(locks, values, strict=True) if record is not None]
            try:
                on_read(found, on_done)
            except (MessageTooLarge, QuotaExceeded, StoreUnavailable) as error:
                refusal = error
                for lock, _ in found:
                    fragment.redelivery.add_reclaimed_if_noted(lock.sequence)  # its receiver had something to say of it
                self._return_unchanged(found, lambda _: on_done(refusal))
            except Exception:
                fault = InternalFault("the message could not be changed; it is there as it was")
                self._return_unchanged(found, lambda _: on_done(fault))  # it must not be kept out for ever
                raise

        holdings = fragment.message_table
        places = [holdings.deferred_prefix if lock.is_deferred else holdings.active_prefix for lock in locks]
        keys = [place + pack_sequence(lock.sequence) for place, lock in zip(places, locks, strict=True)]
        fragment.read(keys, read)

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
        most = fragment.policy.max_delivery_count
        returned: list[InFlightRecord] = []
        exhausted_ones: list[InFlightRecord] = []
        for lock, record in messages:  # nothing is put into the batch before all could be changed
            count = parse_record(record).delivery_count + 1
            if most is not None and count >= most:
                exhausted_ones.append((lock, self._change(record, properties, delivery_count=count)))
            else:
                returned.append((lock, self._change(record, properties, delivery_count=count)))
        if properties and not is_checked:
            self._check_growth(messages, returned + exhausted_ones)
        for lock, changed in exhausted_ones:
            assert most is not None
            self._dead_letter_one(lock, change_record(changed, properties=max_delivery_count_properties(most)))
        growth = 0
        for lock, changed in returned:
            growth += len(changed) - lock.size
            fragment.message_table.rewrite(lock, changed)

        def applied() -> None:
            fragment.redelivery.forget([lock.sequence for lock, _ in returned])
            for lock, record in returned:
                fragment.requeue(lock, record)

        fragment.commit_log.add(fragment, max(0, growth), applied, on_done)

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

        def applied() -> None:
            for lock, _ in deferred:
                fragment.end_in_flight(lock)

        fragment.commit_log.add(fragment, 0, applied, on_done)

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
            self._dead_letter_one(lock, record)
        self._fragment.commit_log.add(self._fragment, 0, do_nothing, on_done)

    def _check_growth(self, original: list[InFlightRecord], changed: list[InFlightRecord], *, spare: int = 0) -> None:
        """Refuse properties that a receiver adds to messages if they do not fit; up to `spare` bytes always fit.

        QuotaExceeded if the entity is full, StoreUnavailable if the disk is.
        """
        before = {lock: len(record) for lock, record in original}
        growths = [len(record) - before[lock] for lock, record in changed]
        growth = sum([one for one in growths if one > spare])
        if growth:
            self._fragment.commit_log.check_disk_space()
            self._fragment.check_quota(growth)

    def _change(
        self, record: bytes, properties: Mapping[str, object] | None, *, delivery_count: int | None = None
    ) -> bytes:
        """A message as its receiver wants it to be. MessageTooLarge if that is more than may be."""
        changed = change_record(record, delivery_count=delivery_count, properties=properties)
        most = self._fragment.policy.max_properties_bytes
        if properties and len(changed) > len(record):
            size = Message(parse_record(changed).bare_message).size_of(Section.APPLICATION_PROPERTIES)
            if size > most:
                raise MessageTooLarge(f"the message would have {size} bytes of properties; it can have {most}")
        return changed

    def _dead_letter_one(self, lock: Lock, record: bytes) -> None:
        """Move one message to the dead-letter queue, in the batch of this turn."""
        fragment = self._fragment
        dead_letters = fragment.dead_letters
        assert dead_letters is not None
        fragment.remove([lock], ignore)
        parts = with_original_sequence(parse_record(record), lock.sequence)
        parts = parts._replace(state=ACTIVE_STATE, due_ms=NEVER_MS, session_id=None, shared_body=0)
        if fragment.redelivery.may_have_been_delivered(lock.sequence):
            parts = parts._replace(delivery_count=max(1, parts.delivery_count))
        dead_letters.store_moved(make_record(parts))

    # --- locks that expire --------------------------------------------------------------------------------------------

    def schedule_expiry(self, deadline_s: float) -> None:
        """Look at the locks when this deadline is over, or before."""
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
            self._is_expiry_postponed = True  # until the store speaks again
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
        """Locks that expired are dealt with: the next may follow."""
        self._is_expiring = False

    def resume(self) -> None:
        """The store speaks again."""
        if self._is_expiry_postponed:
            self._is_expiry_postponed = False
            self._expire()
        postponed, self._postponed_releases = self._postponed_releases, []
        for locks, on_done in postponed:
            self._read(locks, on_done, self._return_unchanged)

    def reset(self) -> None:
        """All locks are void."""
        self._is_expiring = self._is_expiry_postponed = False
        postponed, self._postponed_releases = self._postponed_releases, []
        for _, on_done in postponed:
            on_done(_lock_void_error())
        if self._expiry_timer is not None:
            self._expiry_timer.cancel()
            self._expiry_timer = None

    # --- messages that expire -----------------------------------------------------------------------------------------

    def expire_messages(self, entries: TimeEntries) -> None:
        """The agenda says that the time of these messages is over."""
        fragment = self._fragment
        seen_next, out, expiry = (
            fragment.message_table.committed.next_sequence,
            fragment.in_flight.locks,
            fragment.message_table.expiry_index,
        )
        now_ms, duration_ms = fragment.clock.wall_ms(), fragment.policy.lock_duration_ms
        ended: list[Lock] = []
        is_early = False
        low = entries[-1]
        for moment in entries:
            when_ms, sequence = moment
            if sequence >= seen_next:
                low, is_early = moment, True
                break
            lock = out.get(sequence)
            if lock is not None:  # who holds it may still settle it; else its time is over when it comes back
                later_ms = max(now_ms, when_ms) + duration_ms  # the wall clock may have been set back since the look
                expiry.remove(when_ms, sequence)
                expiry.add(later_ms, sequence)
                lock.expiry_ms = later_ms
            elif sequence in out:
                expiry.remove(when_ms, sequence)
            else:
                lock = Lock(0, sequence, 0, NEVER_EXPIRES_S)
                lock.expiry_ms, lock.has_extra_rows = when_ms, True
                ended.append(lock)
        fragment.dispatcher.withdraw({lock.sequence for lock in ended})
        fragment.in_flight.add(sorted(ended, key=_by_sequence))

        def dealt_with(_error: ServiceBusError | None) -> None:
            expiry.mark_processed(low, awaits_commit=is_early)

        # An agenda shows a bounded number of them; in parts, those of another part would be taken for settled ones.
        self._read_batch(ended, dealt_with, lambda found, answer: self._expire_found(ended, found, answer))

    def _expire_found(self, expired: list[Lock], messages: list[InFlightRecord], on_done: OnDone) -> None:
        fragment = self._fragment
        there = {lock.sequence for lock, _ in messages}
        for lock in expired:
            if lock.sequence not in there:  # it was settled, and this row is left of it
                fragment.message_table.expiry_index.remove(lock.expiry_ms, lock.sequence)
                fragment.in_flight.remove(lock.sequence)
        for lock, record in messages:
            lock.size, lock.session_id, lock.shared_body = len(record), session_id_of(record), shared_body_of(record)
        self._drop_expired(messages)
        fragment.commit_log.add(fragment, 0, do_nothing, on_done)

    def expire_undelivered(self, messages: list[InFlightRecord]) -> None:
        """These were to be handed out, and their time is over."""
        self._fragment.in_flight.add([lock for lock, _ in messages])
        self._drop_expired(messages)

    def _drop_expired(self, messages: list[InFlightRecord]) -> None:
        if self._fragment.policy.dead_letters_expired and self._fragment.dead_letters is not None:
            why = dead_letter_properties("TTLExpiredException", "The message expired and was dead lettered.")
            for lock, record in [(lock, change_record(record, properties=why)) for lock, record in messages]:
                self._dead_letter_one(lock, record)
        elif messages:
            self._fragment.remove([lock for lock, _ in messages], ignore)


def _by_sequence(lock: Lock) -> int:
    return lock.sequence


def _lock_void_error() -> StoreUnavailable:
    """Return the error of a caller that gives back a message while the store fails."""
    return StoreUnavailable("the store failed before the message was given back; its lock is void")


def _without_reasons(properties: Mapping[str, object] | None) -> dict[str, object]:
    """Changes without a reason: a message that is a dead letter already keeps the one it has."""
    return {name: value for name, value in (properties or {}).items() if name not in DEAD_LETTER_PROPERTY_NAMES}


def max_delivery_count_properties(max_delivery_count: int) -> dict[str, object]:
    """The properties of a message that was delivered too often."""
    return dead_letter_properties(
        "MaxDeliveryCountExceeded", f"Message could not be consumed after {max_delivery_count} delivery attempts."
    )
