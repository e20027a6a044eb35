"""Settlement: what becomes of the messages of a fragment that are out.

Owns: from a lock's number, or its expiry, to the change on disk, and the watch over locks and times to live. A message
is not kept in memory while it is out, since most are completed unseen: what has to change it reads it first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

from twinbus.amqp.message import Message, Section
from twinbus.broker.keys import pack_sequence
from twinbus.broker.locks import NEVER_S, Lock
from twinbus.broker.ports.fragment import SettlementPort
from twinbus.broker.ports.settlement import How, lock_lost, reasons
from twinbus.broker.record import (
    ACTIVE_STATE,
    NEVER_MS,
    change_record,
    make_record,
    numbered,
    session_of,
    set_aside,
    shared_of,
    take_apart,
)
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

    from twinbus.broker.agenda import Moments
    from twinbus.broker.clock import Timer
    from twinbus.broker.fragment import Fragment
    from twinbus.broker.ports.callbacks import Answered
    from twinbus.broker.ports.consumer import Consumer

EXPIRE_AT_ONCE: Final = 500
"""Locks that are ended in one turn when many expire."""
READ_AT_ONCE: Final = 500
"""Messages that are read and changed in one turn, if many come back together."""
_PAUSE_S: Final = 0.01

REASON_BYTES: Final = 512
"""What a reason may add to a message that is dead-lettered, also in a full entity and on a full disk: dead-lettering is
a way to get on with the messages there. A message is dead-lettered once, so it grows by this once."""
NOTED: Final = frozenset({"DeadLetterReason", "DeadLetterErrorDescription"})
"""Properties that a message gets when it is dead-lettered."""
MARK_BYTES: Final = 64
"""What a deferral may add, also to a full entity and on a full disk: the mark of a possible duplicate, once. If it were
refused, the message would be delivered again at once, and again, while those behind it in its session are deferred."""

LONG_AGO_S: Final = float("-inf")
"""No lock has expired by then."""

Held: TypeAlias = "tuple[Lock, bytes]"
"""A message that is out: as what, and its record."""


_SPARE: Final = {How.DEAD_LETTER: REASON_BYTES, How.DEFER: MARK_BYTES}


class Settlement(SettlementPort):
    """The ends of locks, of one fragment."""

    def __init__(self, fragment: Fragment) -> None:
        """Made by its fragment."""
        self._fragment = fragment
        self._watch: Timer | None = None
        self._watch_s = 0.0
        self._is_expiring = False
        self._is_expiry_put_off = False
        self._last_deferral = 0
        self._deferrals: set[int] = set()
        """Numbers of deferrals that have begun and are not on disk."""
        self._after_deferrals: list[tuple[int, Callable[[], None]]] = []
        """What waits for them, with the number of the last one that it waits for."""

    # --- what receivers ask -------------------------------------------------------------------------------------------

    def complete(self, numbers: Iterable[int], answer: Answered) -> list[int]:
        """Delete messages that are locked. Returns those whose lock is lost; `answer` hears of the others."""
        locks, lost = self._take(numbers)
        if locks:
            self._fragment.remove(locks, answer)
        return lost

    def release(self, numbers: Iterable[int], answer: Answered) -> list[int]:
        """Give messages back as they are: nobody has seen them."""
        locks, lost = self._take(numbers)
        if locks:
            self._read(locks, self._in_order(answer), self._return_unchanged)
        return lost

    def free(self, numbers: Iterable[int]) -> None:
        """Give messages back at once, when their receiver is gone for good; they come with a delivery on their count.

        Nothing is written: before they were handed to an exclusive receiver, that was noted (`redelivery`). So this
        works while the disk does not answer, too, and for locks that have expired meanwhile.
        """
        locks = self._end_locks(numbers, LONG_AGO_S)[0]
        self._fragment.redelivery.take_back([lock.sequence for lock in locks])
        for lock in locks:
            self._fragment.forget(lock)
            if not lock.is_deferred:
                self._fragment.line.read_again(lock.sequence)

    def abandon(
        self, numbers: Iterable[int], answer: Answered, properties: Mapping[str, object] | None = None
    ) -> list[int]:
        """Give messages back with a delivery more on their count, and perhaps with changed properties."""
        locks, lost = self._take(numbers)
        if locks:
            answer = self._in_order(answer)
            self._read(locks, answer, lambda found, answer: self._return_counted(found, answer, properties))
        return lost

    def _in_order(self, answer: Answered) -> Answered:
        """An exclusive receiver gets nothing that is behind messages on their way back before these are there."""
        redelivery = self._fragment.redelivery
        return redelivery.hold_up(answer) if redelivery.noted else answer

    def defer(
        self, numbers: Iterable[int], answer: Answered, properties: Mapping[str, object] | None = None
    ) -> list[int]:
        """Set messages aside: whoever wants one has to know its sequence number. That is not counted as a delivery."""
        locks, lost = self._take(numbers)
        if locks:
            answer = self._deferring(answer)
            self._read(locks, answer, lambda found, answer: self._set_aside(found, answer, properties))
        return lost

    def _deferring(self, answer: Answered) -> Answered:
        """Note a deferral that has begun, until it is answered."""
        self._last_deferral += 1
        number = self._last_deferral
        self._deferrals.add(number)

        def deferred(error: ServiceBusError | None) -> None:
            self._deferrals.discard(number)
            answer(error)
            if self._after_deferrals:
                self._tell_deferred()

        return deferred

    def after_deferrals(self, then: Callable[[], None]) -> None:
        """Call `then` when the deferrals that have begun are on disk; at once if there are none.

        A receiver that takes the place of another one looks for deferred messages before it receives anything. One that
        it does not find because its deferral is still being written would come behind later messages of its session.
        """
        if self._deferrals:
            self._after_deferrals.append((self._last_deferral, then))
        else:
            then()

    def _tell_deferred(self) -> None:
        first = min(self._deferrals) if self._deferrals else self._last_deferral + 1
        ready = [then for last, then in self._after_deferrals if last < first]
        self._after_deferrals = [item for item in self._after_deferrals if item[0] >= first]
        for then in ready:
            then()

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
        if self._fragment.dead_letters is None:
            return self.abandon(numbers, answer, _unexplained(properties))
        changes = dict(properties or {}) | reasons(reason, description)
        locks, lost = self._take(numbers)
        if locks:
            self._read(locks, answer, lambda found, answer: self._bury_all(found, answer, changes))
        return lost

    def renew(self, number: int) -> int:
        """Let a lock last its duration from now; the time on the wall clock until when. MessageLockLost."""
        fragment = self._fragment
        fragment.journal.check_works()
        now_s, duration_ms = fragment.clock.monotonic_s(), fragment.policy.lock_duration_ms
        lock = fragment.locks.by_number.get(number)
        if lock is not None and lock.session is not None:
            raise NotAllowed("the message is locked as long as its session is: renew the lock of that")
        if not fragment.locks.renew(number, now_s, now_s + duration_ms / 1000):
            raise lock_lost()
        self.watch(now_s + duration_ms / 1000)
        return fragment.clock.wall_ms() + duration_ms

    def renew_lock(self, number: int, done: Callable[[int | ServiceBusError], None]) -> None:
        """Renew a lock, and tell until when."""
        done(self.renew(number))

    def find_locked(self, number: int, done: Callable[[tuple[int, str | None] | ServiceBusError], None]) -> None:
        """Find the message that a lock is on. Its record is not in memory."""
        lock = self._fragment.locks.by_number.get(number)
        if lock is None or not self.holds(number):
            raise lock_lost()
        holdings, sequence = self._fragment.holdings, lock.sequence

        def read(values: list[bytes | None] | StoreError) -> None:
            if isinstance(values, StoreError):
                done(StoreUnavailable("the store failed before the message was found: try again in a moment"))
                return
            record = values[0]
            done((sequence, message_id_text(Message(take_apart(record).bare)) if record is not None else None))

        area = holdings.deferred if lock.is_deferred else holdings.active
        self._fragment.journal.get([area + pack_sequence(sequence)], read)

    def holds(self, number: int, holder_of: Callable[[bytes], Consumer | None] | None = None) -> bool:
        """Whether a lock is there, has not expired, and may be ended by the caller.

        The messages of a session may be settled by the receiver that holds the session and by nobody else: `holder_of`
        gives the caller's receiver that holds a session, or None.
        """
        now_s = self._fragment.clock.monotonic_s()
        lock = self._fragment.locks.by_number.get(number)
        if lock is None or lock.deadline_s <= now_s:
            return False
        if self._fragment.sessions is None:
            return True
        session, hold = lock.session, lock.hold
        if holder_of is None or session is None or hold is None or hold.is_over or hold.deadline_s <= now_s:
            return False
        return holder_of(session) is hold.consumer

    # --- in a transaction ---------------------------------------------------------------------------------------------

    def set_apart(self, numbers: Iterable[int]) -> tuple[list[Lock], list[int]]:
        """Locked messages that nobody else settles, and that do not expire, until it is known what becomes of them.

        And those whose lock is lost.
        """
        return self._take(numbers)

    def put_back(self, locks: list[Lock]) -> None:
        """What was set apart is locked as it was before; where its time is over meanwhile, that ends it now.

        Where its session is not its receiver's any more, it is free.
        """
        fragment = self._fragment
        free = [lock for lock in locks if lock.hold is not None and lock.hold.is_over]
        kept = [lock for lock in locks if lock.hold is None or not lock.hold.is_over]
        for lock in kept:
            fragment.locks.put_back(lock)
            self.watch(lock.deadline_s)
        if fragment.sessions is not None:
            fragment.sessions.note_locks(kept)
        if free:
            self._read(free, ignore, self._return_unchanged)

    def prepare(
        self, how: How, locks: list[Lock], records: Mapping[int, bytes], properties: Mapping[str, object]
    ) -> Callable[[], None]:
        """What settles messages that were set apart, in the batch of the turn in which it is called.

        `records` are theirs, but for those to be completed. MessageTooLarge if they cannot be changed so.
        """
        if how is How.COMPLETE:
            return lambda: self._fragment.remove(locks, ignore)
        found = [(lock, records[lock.sequence]) for lock in locks if lock.sequence in records]
        changed = [(lock, self._changed(record, properties)) for lock, record in found]
        self._check_growth(found, changed, spare=_SPARE.get(how, 0))
        if how is How.RELEASE:
            return lambda: self._return_unchanged(found, ignore)
        if how is How.DEFER:
            return lambda: self._set_aside(found, ignore, properties, is_checked=True)
        if how is How.DEAD_LETTER and self._fragment.dead_letters is not None:
            return lambda: self._bury_all(found, ignore, properties, is_checked=True)
        kept = _unexplained(properties) if how is How.DEAD_LETTER else properties
        return lambda: self._return_counted(found, ignore, kept, is_checked=True)

    def _take(self, numbers: Iterable[int]) -> tuple[list[Lock], list[int]]:
        self._fragment.journal.check_works()
        return self._end_locks(numbers, self._fragment.clock.monotonic_s())

    def _end_locks(self, numbers: Iterable[int], now_s: float) -> tuple[list[Lock], list[int]]:
        """End locks that have not expired by `now_s`. Returns them, and the numbers of those that have."""
        take, sessions = self._fragment.locks.take, self._fragment.sessions
        found, lost = [], []
        for number in numbers:
            lock = take(number, now_s)
            if lock is None:
                lost.append(number)
                continue
            if sessions is not None:
                sessions.note_end(lock)
            found.append(lock)
        return found, lost

    # --- what is done with messages that are out ----------------------------------------------------------------------

    def return_counted(self, locks: list[Lock], answer: Answered) -> None:
        """Give back messages whose time is over: a delivery more on their count."""
        self._read(locks, answer, lambda found, answer: self._return_counted(found, answer, None))

    def _read(self, locks: list[Lock], answer: Answered, then: Callable[[list[Held], Answered], None]) -> None:
        """Read the records of messages that are out, a part of them in each turn."""
        if len(locks) <= READ_AT_ONCE:
            self._read_part(locks, answer, then)
            return

        def go_on(error: ServiceBusError | None) -> None:
            told = answer if error is None else lambda _: answer(error)
            self._read(locks[READ_AT_ONCE:], told, then)

        self._read_part(locks[:READ_AT_ONCE], go_on, then)

    def _read_part(self, locks: list[Lock], answer: Answered, then: Callable[[list[Held], Answered], None]) -> None:
        fragment = self._fragment
        life = fragment.life

        def read(values: list[bytes | None] | StoreError) -> None:
            if life != fragment.life or isinstance(values, StoreError):
                answer(StoreUnavailable("the store failed before the message was given back; its lock is void"))
                if isinstance(values, StoreError) and life == fragment.life:
                    fragment.journal.fail(str(values))
                return
            found = [(lock, record) for lock, record in zip(locks, values, strict=True) if record is not None]
            try:
                then(found, answer)
            except (MessageTooLarge, QuotaExceeded, StoreUnavailable) as error:
                refusal = error
                for lock, _ in found:
                    fragment.redelivery.take_back_noted(lock.sequence)  # its receiver had something to say of it
                self._return_unchanged(found, lambda _: answer(refusal))
            except Exception:
                fault = InternalFault("the message could not be changed; it is there as it was")
                self._return_unchanged(found, lambda _: answer(fault))  # it must not be kept out for ever
                raise

        holdings = fragment.holdings
        places = [holdings.deferred if lock.is_deferred else holdings.active for lock in locks]
        keys = [place + pack_sequence(lock.sequence) for place, lock in zip(places, locks, strict=True)]
        fragment.read(keys, read)

    def _return_unchanged(self, found: list[Held], answer: Answered) -> None:
        for lock, record in found:
            self._fragment.bring_back(lock, record)
        answer(None)
        self._fragment.line.dispatch()

    def _return_counted(
        self,
        found: list[Held],
        answer: Answered,
        properties: Mapping[str, object] | None,
        *,
        is_checked: bool = False,
    ) -> None:
        fragment = self._fragment
        most = fragment.policy.max_delivery_count
        returned: list[Held] = []
        exhausted_ones: list[Held] = []
        for lock, record in found:  # nothing is put into the batch before all could be changed
            count = take_apart(record).delivery_count + 1
            if most is not None and count >= most:
                exhausted_ones.append((lock, self._changed(record, properties, delivery_count=count)))
            else:
                returned.append((lock, self._changed(record, properties, delivery_count=count)))
        if properties and not is_checked:
            self._check_growth(found, returned + exhausted_ones)
        for lock, changed in exhausted_ones:
            assert most is not None
            self._bury(lock, change_record(changed, properties=exhausted(most)))
        growth = 0
        for lock, changed in returned:
            growth += len(changed) - lock.size
            fragment.holdings.rewrite(lock, changed)

        def applied() -> None:
            fragment.redelivery.forget([lock.sequence for lock, _ in returned])
            for lock, record in returned:
                fragment.bring_back(lock, record)

        fragment.journal.add(fragment, max(0, growth), applied, answer)

    def _set_aside(
        self,
        found: list[Held],
        answer: Answered,
        properties: Mapping[str, object] | None,
        *,
        is_checked: bool = False,
    ) -> None:
        fragment = self._fragment
        changed = [(lock, self._changed(record, properties)) for lock, record in found] if properties else found
        if properties and not is_checked:
            self._check_growth(found, changed, spare=MARK_BYTES)
        deferred = [(lock, set_aside(record)) for lock, record in changed]
        for lock, record in deferred:
            if lock.is_deferred:
                fragment.holdings.rewrite(lock, record)
            else:
                fragment.holdings.defer(lock, record)
                fragment.out.leave(lock.sequence)

        def applied() -> None:
            for lock, _ in deferred:
                fragment.forget(lock)

        fragment.journal.add(fragment, 0, applied, answer)

    def _bury_all(
        self, found: list[Held], answer: Answered, changes: Mapping[str, object], *, is_checked: bool = False
    ) -> None:
        changed = [(lock, self._changed(record, changes)) for lock, record in found]
        if changes and not is_checked:
            self._check_growth(found, changed, spare=REASON_BYTES)
        for lock, record in changed:
            self._bury(lock, record)
        self._fragment.journal.add(self._fragment, 0, do_nothing, answer)

    def _check_growth(self, found: list[Held], changed: list[Held], *, spare: int = 0) -> None:
        """Refuse properties that a receiver adds to messages if they do not fit; up to `spare` bytes always fit.

        QuotaExceeded if the entity is full, StoreUnavailable if the disk is.
        """
        before = {lock: len(record) for lock, record in found}
        growths = [len(record) - before[lock] for lock, record in changed]
        growth = sum([one for one in growths if one > spare])
        if growth:
            self._fragment.journal.check_has_space()
            self._fragment.check_room(growth)

    def _changed(
        self, record: bytes, properties: Mapping[str, object] | None, *, delivery_count: int | None = None
    ) -> bytes:
        """A message as its receiver wants it to be. MessageTooLarge if that is more than may be."""
        changed = change_record(record, delivery_count=delivery_count, properties=properties)
        most = self._fragment.policy.max_properties_bytes
        if properties and len(changed) > len(record):
            size = Message(take_apart(changed).bare).size_of(Section.APPLICATION_PROPERTIES)
            if size > most:
                raise MessageTooLarge(f"the message would have {size} bytes of properties; it can have {most}")
        return changed

    def _bury(self, lock: Lock, record: bytes) -> None:
        """Move one message to the dead-letter queue, in the batch of this turn."""
        fragment = self._fragment
        dead_letters = fragment.dead_letters
        assert dead_letters is not None
        fragment.remove([lock], ignore)
        parts = numbered(take_apart(record), lock.sequence)
        parts = parts._replace(state=ACTIVE_STATE, alarm_ms=NEVER_MS, session=None, shared=0)
        if fragment.redelivery.was_delivered(lock.sequence):
            parts = parts._replace(delivery_count=max(1, parts.delivery_count))
        dead_letters.take_in(make_record(parts))

    # --- locks that expire --------------------------------------------------------------------------------------------

    def watch(self, deadline_s: float) -> None:
        """Look at the locks when this deadline is over, or before."""
        if self._watch is not None:
            if self._watch_s <= deadline_s:
                return
            self._watch.cancel()
        self._watch_s = max(deadline_s, self._fragment.clock.monotonic_s() + _PAUSE_S)
        self._watch = self._fragment.timers.call_at(self._watch_s, self._expire)

    def _expire(self) -> None:
        fragment = self._fragment
        self._watch = None
        if fragment.journal.trouble is not None:
            self._is_expiry_put_off = True  # until the store speaks again
            return
        if not self._is_expiring:
            expired = fragment.locks.take_expired(fragment.clock.monotonic_s(), EXPIRE_AT_ONCE)
            if expired:
                self._is_expiring = True
                self.return_counted(expired, self._in_order(self._expired))
        deadline_s = fragment.locks.next_deadline_s()
        if deadline_s is not None:
            self.watch(deadline_s)

    def _expired(self, _error: ServiceBusError | None) -> None:
        """Locks that expired are dealt with: the next may follow."""
        self._is_expiring = False

    def settled_down(self) -> None:
        """The store speaks again."""
        if self._is_expiry_put_off:
            self._is_expiry_put_off = False
            self._expire()

    def restart(self) -> None:
        """All locks are void."""
        self._is_expiring = self._is_expiry_put_off = False
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None

    # --- messages that expire -----------------------------------------------------------------------------------------

    def end_lives(self, moments: Moments) -> None:
        """The agenda says that the time of these messages is over."""
        fragment = self._fragment
        seen_next, out, expiry = fragment.holdings.shown.next, fragment.out.locks, fragment.holdings.expiry
        now_ms, duration_ms = fragment.clock.wall_ms(), fragment.policy.lock_duration_ms
        ended: list[Lock] = []
        is_early = False
        low = moments[-1]
        for moment in moments:
            when_ms, sequence = moment
            if sequence >= seen_next:
                low, is_early = moment, True
                break
            lock = out.get(sequence)
            if lock is not None:  # who holds it may still settle it; else its time is over when it comes back
                later_ms = max(now_ms, when_ms) + duration_ms  # the wall clock may have been set back since the look
                expiry.remove(when_ms, sequence)
                expiry.add(later_ms, sequence)
                lock.alarm_ms = later_ms
            elif sequence in out:
                expiry.remove(when_ms, sequence)
            else:
                lock = Lock(0, sequence, 0, NEVER_S)
                lock.alarm_ms, lock.is_special = when_ms, True
                ended.append(lock)
        fragment.line.take_away({lock.sequence for lock in ended})
        fragment.out.add(sorted(ended, key=_by_sequence))

        def dealt_with(_error: ServiceBusError | None) -> None:
            expiry.done(low, is_early=is_early)

        # An agenda shows a bounded number of them; in parts, those of another part would be taken for settled ones.
        self._read_part(ended, dealt_with, lambda found, answer: self._end(ended, found, answer))

    def _end(self, ended: list[Lock], found: list[Held], answer: Answered) -> None:
        fragment = self._fragment
        there = {lock.sequence for lock, _ in found}
        for lock in ended:
            if lock.sequence not in there:  # it was settled, and this row is left of it
                fragment.holdings.expiry.remove(lock.alarm_ms, lock.sequence)
                fragment.out.remove(lock.sequence)
        for lock, record in found:
            lock.size, lock.session, lock.shared = len(record), session_of(record), shared_of(record)
        self._drop_expired(found)
        fragment.journal.add(fragment, 0, do_nothing, answer)

    def end_stale(self, found: list[Held]) -> None:
        """These were to be handed out, and their time is over."""
        self._fragment.out.add([lock for lock, _ in found])
        self._drop_expired(found)

    def _drop_expired(self, found: list[Held]) -> None:
        if self._fragment.policy.dead_letters_expired and self._fragment.dead_letters is not None:
            why = reasons("TTLExpiredException", "The message expired and was dead lettered.")
            for lock, record in [(lock, change_record(record, properties=why)) for lock, record in found]:
                self._bury(lock, record)
        elif found:
            self._fragment.remove([lock for lock, _ in found], ignore)


def _by_sequence(lock: Lock) -> int:
    return lock.sequence


def _unexplained(properties: Mapping[str, object] | None) -> dict[str, object]:
    """Changes without a reason: a message that is a dead letter already keeps the one it has."""
    return {name: value for name, value in (properties or {}).items() if name not in NOTED}


def exhausted(most: int) -> dict[str, object]:
    """The properties of a message that was delivered too often."""
    return reasons("MaxDeliveryCountExceeded", f"Message could not be consumed after {most} delivery attempts.")
