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

from twinbus.broker.hold import READ_AHEAD, READ_AHEAD_BYTES, LocalHold
from twinbus.broker.keys import LAST_SEQUENCE, pack_sequence, pack_session, sequence_of
from twinbus.broker.line import SPAN, LocalDispatch
from twinbus.broker.ports.gathering import DRAIN_PATIENCE_S
from twinbus.broker.ports.settlement import session_lock_lost
from twinbus.broker.record import session_of
from twinbus.model.callbacks import ignore
from twinbus.model.errors import ServiceBusError, SessionCannotBeLocked
from twinbus.store.protocol import StoreError, Table

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinbus.broker.fragment import Fragment
    from twinbus.broker.locks import Lock
    from twinbus.broker.ports.consumer import Consumer
    from twinbus.broker.ports.fragment import Hold
    from twinbus.store.protocol import Row

    Granted: TypeAlias = Callable[[Hold], None]

CANDIDATES: Final = 10_000
"""Free sessions that are remembered."""
SEARCHED_AT_ONCE: Final = 500
SEARCHED_BYTES: Final = 2_097_152
SERVED_AT_ONCE: Final = 100
"""Sessions whose receivers get messages in one turn."""
REMOVALS: Final = 1_000
"""After so many messages are gone it is looked where the oldest is now."""


class Sessions(LocalDispatch):
    """The sessions of one fragment."""

    def __init__(self, fragment: Fragment) -> None:
        """Nobody has one yet."""
        self.holds: dict[bytes, LocalHold] = {}
        self._fragment = fragment
        self._by_consumer: dict[Consumer, LocalHold] = {}
        self._trying: dict[Consumer, LocalHold] = {}
        """Sessions of which it is being seen whether they have messages, for who waits."""
        self._waiting: OrderedDict[Consumer, Granted] = OrderedDict()
        self._candidates: OrderedDict[bytes, None] = OrderedDict()
        self._busy: OrderedDict[LocalHold, None] = OrderedDict()
        """Those to be looked at by the next dispatch."""
        self._held_up: dict[LocalHold, None] = {}
        """Those that have more messages, were not too many out."""
        self._next_search = first = fragment.holdings.first
        """From this sequence number on there may be sessions that are not remembered."""
        self._is_searching = False
        self._lowest = first
        self._removals = 0

    # --- who has a session --------------------------------------------------------------------------------------------

    def accept(self, consumer: Consumer, session: bytes, granted: Granted) -> None:
        """Give a receiver the session it names, whether that has messages or not. SessionCannotBeLocked."""
        self._fragment.journal.check_works()
        self._fragment.check_loaded()
        held = self.holds.get(session)
        if held is not None and not held.is_open:
            self._take_back(held)  # it is only being looked at, for one who takes any
        elif held is not None:
            raise SessionCannotBeLocked(
                f"The session '{session.decode(errors='replace')}' is locked by another receiver: accept it again when "
                "that has closed it, or its lock has expired."
            )
        self._grant(self._hold(session, consumer, granted))
        self._offer()

    def accept_any(self, consumer: Consumer, granted: Granted) -> None:
        """Give a receiver a session that is free and has messages, as soon as there is one."""
        self._fragment.journal.check_works()
        self._fragment.check_loaded()
        self.wait(consumer, granted)

    def wait(self, consumer: Consumer, granted: Granted) -> None:
        """... also where the store does not work now."""
        self._waiting[consumer] = granted
        self._offer()

    def give_up(self, consumer: Consumer) -> bool:
        """A receiver waits no longer. False if it has a session by now."""
        hold = self._trying.get(consumer)
        if hold is not None:
            self._let_go(hold)
            if hold.session in self._candidates:  # as before: it was the next
                self._candidates.move_to_end(hold.session, last=False)
            self._offer()  # the session that was meant for it may be had by another
            return True
        return self._waiting.pop(consumer, None) is not None

    def gave(self, hold: Hold) -> bool:
        """Whether a session that a receiver has is of this fragment."""
        return self.holds.get(hold.session) is hold

    def _hold(self, session: bytes, consumer: Consumer, granted: Granted) -> LocalHold:
        hold = LocalHold(session, consumer, granted, self._lowest)
        self.holds[session] = hold
        self._candidates.pop(session, None)
        return hold

    def _grant(self, hold: LocalHold) -> None:
        hold.is_open = True
        self._trying.pop(hold.consumer, None)
        self._by_consumer[hold.consumer] = hold
        self.renew(hold)
        self._watch(hold)
        hold.granted(hold)

    def _offer(self) -> None:
        """Try to give those who wait a session each."""
        fragment = self._fragment
        if not fragment.may_hand_out:
            return
        while self._waiting and self._candidates:
            session, _ = self._candidates.popitem(last=False)
            if session not in self.holds:
                consumer, granted = self._waiting.popitem(last=False)
                self._try(self._hold(session, consumer, granted))
        if self._waiting:
            self._search()

    def _try(self, hold: LocalHold) -> None:
        """See whether a session has messages; if not, its would-be receiver waits on, before all others."""
        self._trying[hold.consumer] = hold

        def seen() -> None:
            if hold.ready:
                self._grant(hold)
            elif hold.is_empty:
                self._take_back(hold)
                self._offer()
            else:
                self._read(hold, seen)

        self._read(hold, seen)

    def _take_back(self, hold: LocalHold) -> None:
        """A receiver does not get the session that was meant for it: it waits on, before all others."""
        del self.holds[hold.session]
        self._trying.pop(hold.consumer, None)
        hold.is_over = True
        self._waiting[hold.consumer] = hold.granted
        self._waiting.move_to_end(hold.consumer, last=False)

    def _search(self) -> None:
        """Read the log for sessions that are free and not remembered."""
        fragment = self._fragment
        start = max(self._next_search, self._lowest)
        end = min(fragment.holdings.shown.next, start + SPAN)
        if self._is_searching or start >= end:
            return
        self._is_searching = True
        self._next_search = end
        life, active = fragment.life, fragment.holdings.active

        def found(rows: list[Row] | StoreError) -> None:
            if life != fragment.life:
                return
            self._is_searching = False
            if isinstance(rows, StoreError):
                fragment.journal.fail(str(rows))
                return
            reached = sequence_of(rows[-1][0]) + 1 if rows else end
            self._next_search = min(self._next_search, reached)
            for key, record in rows:
                session = session_of(record)
                if session is not None and session not in self.holds and sequence_of(key) not in fragment.out:
                    self._remember(session, sequence_of(key))
            self._offer()

        fragment.journal.scan(
            active + pack_sequence(start),
            active + pack_sequence(end),
            found,
            limit=SEARCHED_AT_ONCE,
            max_bytes=SEARCHED_BYTES,
        )

    def _remember(self, session: bytes, sequence: int) -> None:
        if session in self._candidates:
            return
        if len(self._candidates) < CANDIDATES:
            self._candidates[session] = None
        else:
            self._next_search = min(self._next_search, sequence)

    def renew(self, hold: LocalHold) -> int:
        """Let a receiver have its session for its duration from now; until when, on the wall clock."""
        fragment = self._fragment
        duration_ms = fragment.policy.lock_duration_ms
        before_s, hold.deadline_s = hold.deadline_s, fragment.clock.monotonic_s() + duration_ms / 1000
        hold.until_ms = fragment.clock.wall_ms() + duration_ms
        if hold.deadline_s < before_s:  # the lock duration was made shorter: it is looked at later than that
            self._watch(hold)
        return hold.until_ms

    def find(self, session: bytes, consumer: Consumer | None = None) -> LocalHold:
        """A session that someone has: this receiver, if one is given. SessionLockLost."""
        hold = self.holds.get(session)
        is_held = hold is not None and hold.is_open and hold.deadline_s > self._fragment.clock.monotonic_s()
        if hold is None or not is_held or (consumer is not None and hold.consumer is not consumer):
            raise session_lock_lost(session)
        return hold

    def _watch(self, hold: LocalHold) -> None:
        if hold.timer is not None:
            hold.timer.cancel()
        hold.timer = self._fragment.timers.call_at(hold.deadline_s, lambda: self._look(hold))

    def _look(self, hold: LocalHold) -> None:
        if hold.is_over:
            return
        if hold.deadline_s > self._fragment.clock.monotonic_s():
            self._watch(hold)
            return
        locks = self._let_go(hold)
        hold.consumer.session_lost(session_lock_lost(hold.session))
        if locks and self._fragment.is_loaded:
            self._fragment.settlement.return_counted(locks, ignore)
        self._offer()

    def _let_go(self, hold: LocalHold) -> list[Lock]:
        """Nobody has the session any more. Returns what its receiver had; it is out as before."""
        hold.is_over = True
        del self.holds[hold.session]
        self._trying.pop(hold.consumer, None)
        if hold.timer is not None:
            hold.timer.cancel()  # or it would keep the hold, and all that belongs to its receiver
        self._by_consumer.pop(hold.consumer, None)
        self._busy.pop(hold, None)
        self._held_up.pop(hold, None)
        by_number = self._fragment.locks.by_number
        locks = [by_number.pop(number) for number in hold.numbers if number in by_number]
        locks.sort(key=_by_serial)
        hold.numbers.clear()
        if locks or not hold.is_empty:
            self._candidates.setdefault(hold.session)
        return locks

    # --- consumers: as of a line --------------------------------------------------------------------------------------

    @property
    def consumers(self) -> list[Consumer]:
        """Who has a session, or waits for one."""
        return [hold.consumer for hold in self.holds.values()] + list(self._waiting)

    def remove(self, consumer: Consumer) -> None:
        """A receiver has gone: its session is free, and what it had is as it was."""
        self.give_up(consumer)
        hold = self._by_consumer.get(consumer)
        if hold is None:
            return
        for lock in self._let_go(hold):
            self._fragment.forget(lock)
            self._fragment.redelivery.take_back_noted(lock.sequence)
        self.dispatch()

    def feed(self, consumer: Consumer) -> None:
        """A receiver has room."""
        hold = self._by_consumer.get(consumer)
        if hold is not None:
            self._busy[hold] = None
        self.dispatch()

    def drain(self, consumer: Consumer, drained: Callable[[], None]) -> None:
        """Give a receiver what there is now; `drained` is called when that was all, or after a tenth of a second."""
        hold = self._by_consumer.get(consumer)
        if hold is None:
            drained()
            return
        hold.drained = drained
        deadline_s = self._fragment.clock.monotonic_s() + DRAIN_PATIENCE_S
        self._fragment.timers.call_at(deadline_s, lambda: self._end_drain(hold, drained))
        self.feed(consumer)

    @staticmethod
    def _end_drain(hold: LocalHold, drained: Callable[[], None]) -> None:
        if hold.drained is drained:
            hold.drained = None
            if not hold.is_over:
                drained()

    def begin_handing(self, consumer: Consumer, count: int) -> None:
        """So many messages are being deleted, to be delivered then."""
        consumer.reserve(count)
        self._by_consumer[consumer].handing += count

    def end_handing(self, consumer: Consumer, count: int) -> None:
        """... and that was done."""
        hold = self._by_consumer.get(consumer)
        if hold is not None:
            hold.handing = max(0, hold.handing - count)
            self._busy[hold] = None

    def close(self, error: ServiceBusError) -> None:
        """Nobody gets anything any more."""
        for consumer in self.consumers:
            consumer.entity_gone(error)
        for hold in list(self.holds.values()):
            for lock in self._let_go(hold):
                self._fragment.forget(lock)
        self._waiting.clear()

    # --- messages: as of a line ---------------------------------------------------------------------------------------

    @property
    def lowest(self) -> int:
        """Below it there is nothing that is not out."""
        return self._lowest

    def arrive(self, fresh: list[tuple[int, bytes]], size: int) -> None:  # noqa: ARG002
        """Messages are on disk: now they are there for everyone."""
        for sequence, record in fresh:
            self._place(sequence, record)

    def _place(self, sequence: int, record: bytes) -> None:
        session = session_of(record)
        assert session is not None
        hold = self.holds.get(session)
        if hold is None:
            self._remember(session, sequence)
        else:
            hold.extend(sequence, record)
            self._busy[hold] = None

    def bring_back(self, sequence: int, record: bytes) -> None:
        """A message that was out is free again."""
        session = session_of(record)
        assert session is not None
        self._lowest = min(self._lowest, sequence)
        hold = self.holds.get(session)
        if hold is None:
            self._candidates.setdefault(session)  # as many as there are receivers
        else:
            hold.put_back(sequence, record)
            self._busy[hold] = None

    def note_locks(self, locks: list[Lock]) -> None:
        """Messages of a session were locked."""
        for lock in locks:
            hold = self.holds.get(lock.session) if lock.session is not None else None
            if hold is not None:
                lock.hold = hold
                hold.numbers.add(lock.number)

    def note_end(self, lock: Lock) -> None:
        """A lock on a message of a session has ended."""
        hold = self.holds.get(lock.session) if lock.session is not None else None
        if hold is not None:
            hold.numbers.discard(lock.number)

    def take_away(self, sequences: set[int]) -> None:
        """Messages that may be next are not: something else is done to them."""
        for hold in self.holds.values():
            hold.take_away(sequences)

    def restart(self, low: int) -> None:
        """What is known of messages is void: they are read again, from `low` on. Who has a session keeps it."""
        self._lowest = self._next_search = low
        self._is_searching = False
        self._candidates.clear()
        for hold in list(self.holds.values()):
            if not hold.is_open:
                self._take_back(hold)
                continue
            if hold.handing:
                hold.consumer.reserve(-hold.handing)
            hold.restart(low)
            self._busy[hold] = None

    def dispatch(self) -> None:
        """Hand out what can be."""
        if not self._fragment.may_hand_out:
            return
        if self._held_up and self._fragment.free_locks > 0:
            self._busy.update(self._held_up)
            self._held_up.clear()
        for _ in range(min(len(self._busy), SERVED_AT_ONCE)):
            if not self._busy:
                break  # whoever was served asked for more at once, and others were served by that
            hold, _ = self._busy.popitem(last=False)
            if hold.is_open and not hold.is_over:
                self._serve(hold)
        if self._busy:
            self._fragment.timers.call_at(self._fragment.clock.monotonic_s(), self.dispatch)
        self._offer()
        self._note_removals()

    def _serve(self, hold: LocalHold) -> None:
        fragment, consumer = self._fragment, hold.consumer
        if hold.deadline_s <= fragment.clock.monotonic_s():
            return  # its time is over, which its receiver is about to be told
        while hold.ready and not hold.is_over:
            free = fragment.free_locks
            if free <= 0:
                self._held_up[hold] = None  # it is not asked for its room: who asks has something for it
                break
            count = min(consumer.room, len(hold.ready), free)
            if count <= 0:
                break
            if fragment.redelivery.is_guarding:
                count = fragment.redelivery.reach(hold.ready, count)
                if not count:
                    self._held_up[hold] = None  # it goes on when that is on disk
                    break
            fragment.hand_out(consumer, hold.take(count), hold.until_ms)
        if hold.wants_more:
            self._read(hold, lambda: self._serve(hold))
        elif hold.drained is not None and not hold.handing and not hold.is_reading:
            self._finish_drain(hold, hold.drained)

    def _finish_drain(self, hold: LocalHold, drained: Callable[[], None]) -> None:
        if hold.is_empty or hold.consumer.room <= 0 or self._fragment.free_locks <= 0:
            self._end_drain(hold, drained)

    def _read(self, hold: LocalHold, then: Callable[[], None]) -> None:
        """Read on in a session: which messages it has, and then these."""
        fragment = self._fragment
        life, end, returns = fragment.life, fragment.holdings.shown.next, hold.returns
        hold.is_reading, hold.has_missed = True, False
        place = fragment.holdings.sessions + pack_session(hold.session)

        def listed(rows: list[Row] | StoreError) -> None:
            if life != fragment.life or hold.is_over:
                return
            if isinstance(rows, StoreError):
                fragment.journal.fail(str(rows))
                return
            numbers = [sequence_of(key) for key, _ in rows]
            reached = end if len(rows) < READ_AHEAD else numbers[-1] + 1
            keys = [fragment.holdings.active + pack_sequence(number) for number in numbers]
            fragment.read(keys, lambda values: read(numbers, values, reached))

        def read(numbers: list[int], values: list[bytes | None] | StoreError, reached: int) -> None:
            if life != fragment.life or hold.is_over:
                return
            if isinstance(values, StoreError):
                fragment.journal.fail(str(values))
                return
            if hold.returns != returns:
                self._read(hold, then)
                return
            items = [
                (number, record)
                for number, record in zip(numbers, values, strict=True)
                if record is not None and number not in fragment.out
            ]
            hold.fill(items, reached, is_last=reached == end)
            then()

        fragment.journal.scan(
            place + pack_sequence(min(hold.next_read, end)),
            place + pack_sequence(end),
            listed,
            limit=READ_AHEAD,
            max_bytes=READ_AHEAD * READ_AHEAD_BYTES,
            table=Table.INDEX,
        )

    def _note_removals(self) -> None:
        """Now and then, find out where the oldest message is: a restart begins to look there."""
        fragment = self._fragment
        holdings = fragment.holdings
        gone = holdings.next - 1 - holdings.active_count
        if gone - self._removals < REMOVALS:
            return
        self._removals = gone
        life, end = fragment.life, holdings.shown.next

        def found(rows: list[Row] | StoreError) -> None:
            if life == fragment.life and not isinstance(rows, StoreError):
                lowest = sequence_of(rows[0][0]) if rows else end
                self._lowest = max(self._lowest, fragment.out.lowest(lowest))

        start = holdings.active + pack_sequence(self._lowest)
        fragment.journal.scan(start, holdings.active + LAST_SEQUENCE, found, limit=1, max_bytes=1)


def _by_serial(lock: Lock) -> int:
    return lock.serial
