"""A fragment: one ordered part of an entity, from a message's arrival to its end.

Owns: that the rooms of a message's way agree with each other, and with the disk. Its `holdings` are what is on disk,
`line` (or, where the queue has sessions, `sessions`) is who gets what next, `out` and `locks` are what someone has,
`settlement` is what becomes of that, `schedule` is what comes later. All change the disk through the `journal` only.

What is out stays out until that is changed on disk: a message being deleted, or written again with a higher delivery
count, is neither locked nor ready, and no second settlement finds it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from twinbus.broker import keys
from twinbus.broker.agenda import AT_ONCE, Agenda
from twinbus.broker.arrivals import Arrivals
from twinbus.broker.browsing import Browsing
from twinbus.broker.deferral import Deferral
from twinbus.broker.duplicates import Duplicates
from twinbus.broker.hold import LocalHold
from twinbus.broker.holdings import Holdings
from twinbus.broker.keys import fragment_in, pack_sequence
from twinbus.broker.line import Line, LocalDispatch
from twinbus.broker.locks import NEVER_S, Lock, Locks, LockSpan, pack_number
from twinbus.broker.outstanding import Outstanding
from twinbus.broker.ports.fragment import FragmentPort
from twinbus.broker.record import (
    HAS_ALARM,
    IS_SPECIAL,
    SCHEDULED_STATE,
    alarm_of,
    enqueued_of,
    render_locked,
    render_open,
    unshared,
    with_enqueued,
)
from twinbus.broker.redelivery import Redelivery
from twinbus.broker.removal import Removal
from twinbus.broker.schedule import Schedule
from twinbus.broker.session_state import SessionStates
from twinbus.broker.sessions import Sessions
from twinbus.broker.settlement import Settlement
from twinbus.model.callbacks import ignore
from twinbus.model.errors import ServiceBusError, StoreUnavailable
from twinbus.store.protocol import StoreError, Table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from twinbus.broker.bodies import Bodies
    from twinbus.broker.browser import Browser
    from twinbus.broker.clock import Times
    from twinbus.broker.forwarding import Forwarder
    from twinbus.broker.journal import Applied, Journal
    from twinbus.broker.locks import TokenSource
    from twinbus.broker.ports.callbacks import Answered
    from twinbus.broker.ports.consumer import Consumer, Delivery
    from twinbus.broker.ports.fragment import Hold
    from twinbus.store.protocol import Answer, Batch, Row

Item: TypeAlias = "tuple[int, bytes]"
"""A message that is next: its sequence number and its record."""


class Policy:
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
        prefix: bytes,
        journal: Journal,
        policy: Policy,
        *,
        times: Times,
        tokens: TokenSource,
        dead_letters: Fragment | None = None,
        has_sessions: bool = False,
        bodies: Bodies | None = None,
    ) -> None:
        """A fragment without messages; one that may have some is loaded first (`load`).

        `prefix` is how its keys start; `tokens` has the random parts of its lock tokens. `bodies` is where those of its
        messages may lie that others have, too.
        """
        super().__init__(fragment_in(prefix), times, has_sessions=has_sessions)
        self.policy = policy
        self.journal = journal
        self.dead_letters = dead_letters
        self.is_loaded = True
        self.is_busy = False
        """A topic's: messages that were sent to it are not in a batch yet, and later ones wait (`in_order`)."""
        self.life = 0
        """Another one after each time that what was in memory became void."""
        self.holdings = holdings = Holdings(prefix, journal)
        holdings.bodies = bodies
        self.out = Outstanding()
        self.deferred_out: dict[int, Lock] = {}
        """Deferred messages that someone has, by their sequence number."""
        self.locks = Locks(tokens, self.number)
        self.redelivery = Redelivery(self)
        self.sessions = Sessions(self) if has_sessions else None
        self._line: LocalDispatch = self.sessions if self.sessions is not None else Line(self)
        self._settlement = Settlement(self)
        self.schedule = Schedule(self)
        self.deferral = Deferral(self)
        self.duplicates = Duplicates(self)
        self.session_states = SessionStates(self)
        self._browsing = Browsing(self)
        self.removal = Removal(self)
        self.arrivals = Arrivals(self)
        self.forwarder: Forwarder | None = None
        """Takes its messages to another entity; then nobody else gets any."""
        self.check_room: Callable[[int], None] = _always_fits
        """QuotaExceeded if so many bytes more do not fit into the entity; the entity says how large it may be."""
        self.browsers: dict[Browser, None] = {}
        self.returnable: dict[Consumer, dict[int, bytes]] = {}
        """Messages deleted for receivers that may still return them, by sequence numbers."""
        self._tokens = tokens
        self._end: ServiceBusError | None = None
        """Why nobody gets anything from it any more: its entity was deleted."""
        holdings.expiry = Agenda(prefix, keys.EXPIRY, journal, times, self._settlement.end_lives, is_sparse=True)
        holdings.due = Agenda(prefix, keys.DUE, journal, times, self.schedule.activate, is_sparse=False)
        journal.keepers[self] = None

    @property
    def line(self) -> LocalDispatch:
        """Who receives from it, and which message is next."""
        return self._line

    @property
    def settlement(self) -> Settlement:
        """The ends of its locks."""
        return self._settlement

    @property
    def browsing(self) -> Browsing:
        """Looking at its messages."""
        return self._browsing

    @property
    def local(self) -> Fragment:
        """It is in this process."""
        return self

    @property
    def is_in_use(self) -> bool:
        """Whether a receiver or browser is attached."""
        return bool(self._line.consumers or self.browsers)

    def check_works(self) -> None:
        """Raise StoreUnavailable if its store does not work now."""
        self.journal.check_works()

    def check_takes_sends(self) -> None:
        """Raise StoreUnavailable or ServerBusy if its store takes no messages now."""
        self.journal.check_takes_sends()

    def begin_exclusive(self) -> LockSpan:
        """Note the locks of an exclusive receiver from now on."""
        self.redelivery.guard(is_on=True)
        return LockSpan(self)

    @property
    def count(self) -> int:
        """Active messages, as far as is known to be synced."""
        return self.holdings.shown.active_count

    @property
    def size(self) -> int:
        """What all messages weigh, as far as is known to be synced."""
        return self.holdings.shown.size

    # --- sending ------------------------------------------------------------------------------------------------------

    @property
    def is_available(self) -> bool:
        """Its store works, and what it holds is known."""
        return self.is_loaded and self.journal.trouble is None

    @property
    def takes_sends(self) -> bool:
        """What is sent now can be stored, as far as is known."""
        return self.is_loaded and self.journal.takes_sends

    def in_order(self, call: Callable[[], None], refuse: Answered, size: int) -> None:  # noqa: ARG002
        """Make a call once all that was sent before is in a batch: at once, but for a topic that is busy.

        If that comes to nothing, `refuse` hears why. `size` is how many bytes wait.
        """
        call()

    def enqueue(self, records: Sequence[bytes], answer: Answered, beside: Callable[[], None] | None = None) -> int:
        """Store messages: all or none. `answer` hears when they are on disk.

        `beside` is called when they are put into a batch, and may put something into the same. Returns the sequence
        number of the first; the others follow.
        """
        self.journal.check_takes_sends()
        self.check_loaded()
        holdings = self.holdings
        enqueued_ms = enqueued_of(records[-1])
        if enqueued_ms < holdings.latest_ms:  # the wall clock was set back, and no message seems older than another
            records = [with_enqueued(record, holdings.latest_ms) for record in records]
        else:
            holdings.latest_ms = enqueued_ms
        put, active, size, later = self.journal.batch.put, holdings.active, 0, 0
        first = sequence = holdings.next
        fresh = []
        for record in records:
            if record[1] & IS_SPECIAL:
                if record[3] == SCHEDULED_STATE:
                    holdings.schedule(sequence, record)
                    later += len(record)
                    sequence += 1
                    continue
                holdings.add_rows(sequence, record)
            put(active + pack_sequence(sequence), record)
            fresh.append((sequence, record))
            size += len(record)
            sequence += 1
        holdings.next = sequence
        holdings.active_count += len(fresh)
        holdings.active_bytes += size
        self.journal.add(self, size + later, lambda: self._line.arrive(fresh, size), answer)
        if beside is not None:
            beside()
        return first

    def ping(self, answer: Answered) -> None:
        """Commit nothing, and sync it: whoever asks whether messages can be sent knows when that is answered."""
        self.journal.check_takes_sends()
        self.check_loaded()
        self.journal.add_loose(answer)

    @property
    def activates_at_once(self) -> int:
        """How many scheduled messages are made active in one batch."""
        return AT_ONCE

    def make_active(self, records: list[bytes], beside: Callable[[], None], applied: Applied) -> None:
        """Store messages that were there for later, as `enqueue`; `applied` is called when that is synced."""
        beside()
        fresh = [(self.holdings.add(record), record) for record in records]
        size = sum([len(record) for record in records])

        def arrived() -> None:
            self._line.arrive(fresh, size)
            applied()

        self.journal.add(self, 0, arrived, ignore)

    def expect(self, items: list[Item], size: int) -> None:
        """Messages were put into the batch of this turn: they are there when it is synced."""
        self.journal.add(self, size, lambda: self._line.arrive(items, size), ignore)

    def take_in(self, record: bytes) -> None:
        """Store a message that comes from another fragment of the same store, in the batch of this turn.

        Its enqueued time is not changed: it is that of the message's arrival.
        """
        sequence, size = self.holdings.add(record), len(record)
        self.journal.add(self, size, lambda: self._line.arrive([(sequence, record)], size), ignore)

    # --- handing out --------------------------------------------------------------------------------------------------

    @property
    def free_locks(self) -> int:
        """How many more messages may be out."""
        return self.policy.max_locks - len(self.out.locks)

    def hand_out(self, consumer: Consumer, items: list[Item], session_until_ms: int | None = None) -> None:
        """Give messages to a consumer that has room for them, but for those whose time is over.

        Messages of a session are locked as long as that is.
        """
        now_ms = self.clock.wall_ms()
        for _, record in items:
            if record[1] & HAS_ALARM:
                items = self._without_stale(items, now_ms)
                break
        if not items:
            return
        if consumer is self.forwarder:
            locks = self.locks.add(items, NEVER_S)
            self.out.add(locks)
            self.forwarder.take(list(zip(locks, [record for _, record in items], strict=True)))
        elif consumer.deletes:
            self._hand_over(consumer, items)
        elif session_until_ms is not None:
            self._lend(consumer, items, NEVER_S, session_until_ms)
        else:
            duration_ms = self.policy.lock_duration_ms
            deadline_s = self.clock.monotonic_s() + duration_ms / 1000
            self._lend(consumer, items, deadline_s, now_ms + duration_ms)
            self._settlement.watch(deadline_s)

    def _without_stale(self, items: list[Item], now_ms: int) -> list[Item]:
        fresh, stale = [], []
        for item in items:
            sequence, record = item
            if record[1] & HAS_ALARM and alarm_of(record) <= now_ms:
                lock = Lock(0, sequence, len(record), NEVER_S)
                lock.learn(record)
                stale.append((lock, record))
            else:
                fresh.append(item)
        if stale:
            self._settlement.end_stale(stale)
        return fresh

    def _lend(self, consumer: Consumer, items: list[Item], deadline_s: float, until_ms: int) -> None:
        """Deliver under locks."""
        token_prefix, tag_prefix = self.locks.token_prefix, self.locks.tag_prefix
        deliveries: list[Delivery] = []
        locks = self.locks.add(items, deadline_s)
        if self.redelivery.suspects:
            items = self._with_deliveries(items)
        for at, (sequence, record) in enumerate(items):
            suffix = pack_number(locks[at].number)
            deliveries.append((render_locked(record, sequence, token_prefix + suffix, until_ms), tag_prefix + suffix))
        self.out.add(locks)
        if self.sessions is not None:
            self.sessions.note_locks(locks)
        taken = consumer.deliver(deliveries)
        assert taken == len(deliveries)

    def _with_deliveries(self, items: list[Item]) -> list[Item]:
        """The same as they are shown: those that may have been delivered before say so."""
        seen = self.redelivery.seen
        return [(sequence, seen(sequence, record)) for sequence, record in items]

    def _hand_over(self, consumer: Consumer, items: list[Item]) -> None:
        """Delete, and deliver when that is on disk: so it is received once, or never."""
        line, holdings = self._line, self.holdings
        self.out.add_leaving([sequence for sequence, _ in items])
        line.begin_handing(consumer, len(items))
        for sequence, record in items:
            holdings.remove_active(sequence, len(record))
            if record[1] & IS_SPECIAL:
                holdings.remove_rows(sequence, record)

        def applied() -> None:
            for sequence, _ in items:
                self.out.remove(sequence)
            line.end_handing(consumer, len(items))
            taken = 0
            if not consumer.is_gone:
                returnable = self.returnable.get(consumer)
                if returnable is not None:
                    returnable.update(items)
                shown = self._with_deliveries(items) if self.redelivery.suspects else items
                taken = consumer.deliver(
                    [(render_open(record, number), pack_sequence(number)) for number, record in shown]
                )
            if taken < len(items):
                self.store_again(items[taken:], ignore)

        self.journal.add(self, 0, applied, ignore)

    def store_again(self, items: list[Item], answer: Answered) -> None:
        """Messages were deleted for somebody who does not take them: nobody has seen them, so they come back."""
        try:
            self.check_loaded()
        except ServiceBusError as error:  # who was to get them was told nothing: once, or never
            answer(error)
            return
        for sequence, record in items:
            self.holdings.put_again(sequence, unshared(record))
        self.out.add_leaving([sequence for sequence, _ in items])

        def applied() -> None:
            for sequence, record in items:
                self.out.remove(sequence)
                self._line.bring_back(sequence, record)

        self.journal.add(self, 0, applied, answer)

    def find_session(self, session: bytes, consumer: Consumer) -> LocalHold:
        """Return a session that a receiver has now. SessionLockLost."""
        assert self.sessions is not None
        return self.sessions.find(session, consumer)

    def renew_session(self, hold: Hold) -> int:
        """Let a receiver have its session for the lock duration from now; return until when, on the wall clock."""
        assert self.sessions is not None
        assert isinstance(hold, LocalHold)
        return self.sessions.renew(hold)

    # --- reading ------------------------------------------------------------------------------------------------------

    def read(self, places: list[bytes], done: Answer[list[bytes | None]]) -> None:
        """Records by their keys, whole."""
        bodies = self.holdings.bodies
        if bodies is None:
            self.journal.get(places, done)
            return

        def found(records: list[bytes | None] | StoreError) -> None:
            if isinstance(records, StoreError):
                done(records)
            else:
                bodies.join(places, records, done)

        self.journal.get(places, found)

    def scan(self, start: bytes, end: bytes, done: Answer[list[Row]], *, limit: int, max_bytes: int) -> None:
        """Records in the order of their keys, whole; not more bytes of them than one record beyond `max_bytes`."""
        bodies = self.holdings.bodies
        if bodies is None:
            self.journal.scan(start, end, done, limit=limit, max_bytes=max_bytes)
            return

        def found(rows: list[Row] | StoreError) -> None:
            if isinstance(rows, StoreError):
                done(rows)
                return

            def joined(whole: list[Row] | StoreError) -> None:
                if rows and not whole:  # all of them were removed meanwhile, and that is not the end
                    self.scan(rows[0][0] + b"\0", end, done, limit=limit, max_bytes=max_bytes)
                else:
                    done(whole)

            bodies.join_rows(rows, max_bytes, joined)

        self.journal.scan(start, end, found, limit=limit, max_bytes=max_bytes)

    # --- what is out --------------------------------------------------------------------------------------------------

    def lock_numbers(self, tags: Iterable[bytes]) -> list[int]:
        """The numbers by which locks are known, in tags or tokens; 0 where one is not of this life."""
        return self.locks.numbers_in(tags)

    def remove(self, locks: list[Lock], answer: Answered) -> None:
        """Delete messages that are out."""
        holdings, out = self.holdings, self.out.locks
        delete, active = self.journal.batch.delete, holdings.active
        count = size = 0
        for lock in locks:
            if lock.is_special:
                holdings.remove(lock)
            else:
                delete(active + pack_sequence(lock.sequence))
                count += 1
                size += lock.size
            if not lock.is_deferred:
                out[lock.sequence] = None
        holdings.active_count -= count
        holdings.active_bytes -= size
        self.journal.add(self, 0, lambda: self._removed(locks), answer)

    def _removed(self, locks: list[Lock]) -> None:
        for lock in locks:
            self.forget(lock)
        if self.redelivery.suspects:
            self.redelivery.forget([lock.sequence for lock in locks])

    def forget(self, lock: Lock) -> None:
        """A message is not out any more."""
        if lock.is_deferred:
            self.deferred_out.pop(lock.sequence, None)
        else:
            self.out.remove(lock.sequence)

    def bring_back(self, lock: Lock, record: bytes) -> None:
        """A message that was out is free again, as it is on disk; unless its time is over."""
        if record[1] & HAS_ALARM and not lock.is_deferred and alarm_of(record) <= self.clock.wall_ms():
            self._settlement.end_stale([(lock, record)])
            return
        self.forget(lock)
        if not lock.is_deferred:
            self._line.bring_back(lock.sequence, record)

    # --- the journal calls these --------------------------------------------------------------------------------------

    def write_marks(self, batch: Batch) -> None:
        """The numbers that a restart starts from, with every batch that changes them."""
        if self._end is None:  # else all that it had is removed
            self.holdings.low = self.out.lowest(self._line.lowest)
            self.holdings.write_marks(batch)

    def show_marks(self) -> None:
        """What was written is there to be seen."""
        if self._end is None:
            self.holdings.show_marks()

    def settled_down(self) -> None:
        """A commit was applied, or the store speaks again: there may be something to hand out."""
        self._settlement.settled_down()
        self.holdings.expiry.settled_down()
        self.holdings.due.settled_down()
        self._line.dispatch()
        if self.holdings.bodies is not None:
            self.holdings.bodies.settled_down()
        if self.browsers:
            for browser in list(self.browsers):
                browser.go_on()

    def lose_store(self) -> None:
        """The store failed. Whatever is out or on its way will be read from disk again."""
        self._restart()

    def find_store(self) -> None:
        """The store was opened anew."""
        self.load(lambda error: self.journal.fail(str(error)) if error is not None else self.settled_down())

    def load(self, done: Callable[[ServiceBusError | None], None]) -> None:
        """Read the marks from the store."""
        self.is_loaded = False

        def read(values: list[bytes | None] | StoreError) -> None:
            if isinstance(values, StoreError):
                done(StoreUnavailable(str(values)))
                return
            self.holdings.read_marks(values[0])
            self._restart()
            self.redelivery.load(values[1])
            if self.sessions is None or self.holdings.counts_states:
                finish(None)
            else:
                self.session_states.count_all(finish)

        def finish(error: ServiceBusError | None) -> None:
            if error is not None:
                done(error)
                return
            self.is_loaded = self._end is None
            if self.is_loaded:
                self.holdings.start_agendas()
            done(None)

        self.journal.get([self.holdings.marks_key, self.redelivery.key], read, Table.INDEX)

    def close(self, error: ServiceBusError) -> None:
        """The entity is deleted: nobody gets anything from it any more."""
        self.journal.keepers.pop(self, None)
        self._end = error
        self.end_receiving(error)
        self._restart()

    def end_receiving(self, error: ServiceBusError) -> None:
        """Nobody gets or sees anything any more who is there now."""
        self._line.close(error)
        for browser in list(self.browsers):
            browser.reader.entity_gone(error)
        self.browsers.clear()

    def begin_forwarding(self) -> None:
        """Hand out messages in order, whichever session they belong to: to the forwarder alone."""
        if self.sessions is not None and self._line is self.sessions:
            low = self.out.lowest(self.sessions.lowest)
            self._line = Line(self)
            self._line.restart(low)

    def end_forwarding(self) -> None:
        """Hand out messages by their sessions again, where it has some."""
        if self.sessions is not None and self._line is not self.sessions:
            low = self.out.lowest(self._line.lowest)
            self._line = self.sessions
            self.sessions.restart(low)

    def _restart(self) -> None:
        """What is in memory is void."""
        self.is_loaded = False
        self.life += 1
        self._line.restart(self.holdings.low)
        self.locks = Locks(self._tokens, self.number)
        self.out.clear()
        self.deferred_out.clear()
        self._settlement.restart()
        self.redelivery.restart()
        for browser in self.browsers:
            browser.restart()
        self.schedule.restart()
        self.session_states.restart()
        self.duplicates.restart()
        self.arrivals.restart()
        if self.forwarder is not None:
            self.forwarder.store_lost()
        self.holdings.stop_agendas()

    def check_loaded(self) -> None:
        """StoreUnavailable while it is not; or why it is no more."""
        if self._end is not None:
            raise self._end
        if not self.is_loaded:
            raise StoreUnavailable(f"store {self.journal.store.name} is being opened: try again in a moment")


def _always_fits(_size: int) -> None:
    """Nothing limits a fragment without an entity."""
