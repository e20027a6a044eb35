"""One process with one queue on one disk, from start to crash and to the next start. Nothing happens by itself.

Owns: the loop, the store and its failures, and the looking when nothing is going on. What is done is chosen by
`actions`.
"""

from __future__ import annotations

import sys
from collections import deque
from random import Random
from typing import TYPE_CHECKING

from tests.model.disk import ENTITY, WatchedDisk, WatchedStore
from tests.model.model import Model
from tests.model.things import ACTIVE, DEAD, DEFERRED, MAIN, SCHEDULED, Lock, Message
from tests.model.violation import Violation
from tests.parts import part_of
from twinbus.broker import keys
from twinbus.broker.namespace import Namespace
from twinbus.store.protocol import Table
from twinbus.testing.clock import FakeClock

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.model.people import Looker, Receiver
    from tests.model.settings import Settings
    from twinbus.broker.fragment import Fragment
    from twinbus.broker.journal import Journal
    from twinbus.broker.queue import Queue
    from twinbus.model.errors import ServiceBusError

MAX_WORK = 20_000
"""Calls and store steps until nothing is left to do: more is a loop without end."""
PATH = "orders"
TIMEOUT_S = 10.0
GRACE_S = 13.0
"""A message is looked at so soon after its time is over: agendas look at whole seconds, and far ones now and then."""
DUE_GRACE_S = 1.1
"""... and one that is due: the wall clock is looked at every second."""


class World:
    def __init__(self, random: Random, settings: Settings, *, is_tracing: bool = False) -> None:
        self.random = random
        self.settings = settings
        self.is_tracing = is_tracing
        self.clock = FakeClock()
        self.model = Model(self.clock, settings.description)
        self.model.is_quiet = lambda: not self._has_work and self.is_working and not self.store.is_failing
        self.model.say = self.say
        self.disk = WatchedDisk(self.model)
        self.locks: list[Lock] = []
        """What receivers were given, also what they settled already and what is void."""
        self.lookers: list[Looker] = []
        self.namespace: Namespace
        self.queue: Queue
        self.journal: Journal
        self.store: WatchedStore
        self.is_closed = False
        """The store failed, and let go of its disk."""
        self.is_disabled = False
        """Nobody may receive: those who do are told so."""
        self._turn: deque[Callable[[], object]] = deque()
        self._mail: deque[Callable[[], object]] = deque()

    def say(self, line: str) -> None:
        if self.is_tracing:
            offset_s = (self.clock.wall_ms() - 1_700_000_000_000) / 1000
            sys.stdout.write(f"{self.clock.monotonic_s():9.3f} {offset_s:11.3f}  {line}\n")

    def fragment(self, shelf: str) -> Fragment:
        return part_of(self.queue).main if shelf == MAIN else part_of(self.queue).dead_letters

    # --- a process ----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """A process begins with what the disk holds."""
        self._turn, self._mail = deque(), deque()
        self.is_closed = False
        self.lookers.clear()
        self.store = self._open()
        self.namespace = Namespace(
            clock=self.clock,
            random=Random(self.random.getrandbits(32)),
            defer=self._turn.append,
            on_failed=self._failed,
            limits=self.settings.limits,
            store_timeout_s=TIMEOUT_S,
        )
        self.journal = self.namespace.add_store(self.store)
        self.queue = self.namespace.add_queue(ENTITY, PATH, self.model.description, [0], created_ms=0, updated_ms=0)
        waiting = deque([part_of(self.queue).dead_letters, part_of(self.queue).main])

        def load_next(error: ServiceBusError | None = None) -> None:
            if error is not None:
                raise Violation(f"a fragment cannot be loaded: {error}")
            if waiting:
                waiting.popleft().load(load_next)

        load_next()
        self.work_all()

    def crash(self) -> None:
        """Power is cut: what was in memory is gone, and of what was written and not synced a part."""
        self.disk.crash(self.random)
        self.model.lose(is_restart=True)
        self.start()

    # --- the loop -----------------------------------------------------------------------------------------------------

    def _open(self) -> WatchedStore:
        return WatchedStore(self.disk, name="0", post=self._mail.append)

    @property
    def _has_work(self) -> bool:
        return bool(self._turn or self._mail or self.store.pending)

    def work(self) -> bool:
        """Do one thing of all that is waiting to be done, whichever comes. False if nothing is."""
        choices = [bool(self._turn), bool(self._mail), self.store.pending]
        able = [number for number, is_able in enumerate(choices) if is_able]
        if not able:
            return False
        chosen = able[int(self.random.random() * len(able))] if len(able) > 1 else able[0]
        if chosen == 0:
            self._turn.popleft()()
        elif chosen == 1:
            self._mail.popleft()()
        else:
            self.store.step()
        return True

    def work_all(self) -> None:
        """Until nothing is waiting but for time."""
        for _ in range(MAX_WORK):
            if not self.work():
                due_s = self.namespace.timers.due_in_s()
                if due_s is None or due_s > 0:
                    return
                self.namespace.timers.run_due()
        raise Violation(f"still busy after {MAX_WORK} steps")

    def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)
        lost = self.model.clock_changed()
        self.namespace.timers.run_due()
        for hold in lost:
            if not hold.receiver.is_gone:
                raise Violation(f"{hold.receiver!r} is not told that it has lost its session")
        now_s = self.clock.monotonic_s()
        for receiver in self.model.receivers:
            if receiver.drain_until_s is not None and receiver.drain_until_s <= now_s:
                raise Violation(f"{receiver!r} waits for its drain too long")

    def jump(self, wall_ms: int) -> None:
        self.clock.set_wall_ms(wall_ms)
        self.model.clock_changed()

    # --- stores that fail ---------------------------------------------------------------------------------------------

    def _failed(self, journal: Journal) -> None:
        self.say("  the store failed")
        self.model.lose(is_restart=False)
        journal.store.close(lambda _: self._let_go())

    def _let_go(self) -> None:
        self.is_closed = True

    def reopen(self) -> None:
        self.is_closed = False
        self.store = self._open()
        self.journal.resume(self.store)

    @property
    def is_working(self) -> bool:
        return self.journal.trouble is None and not self.store.is_hanging and not self.is_closed

    # --- who could have what ------------------------------------------------------------------------------------------

    def waiting(self, receiver: Receiver) -> list[Message]:
        """What this receiver should get next."""
        if self.has_sessions(receiver.shelf):
            return self.waiting_in(receiver.session, is_strict=True) if receiver.session is not None else []
        return [one for one in self.model.by_place.values() if self._is_waiting(one, receiver.shelf)]

    def waiting_in(self, session: bytes | None, *, is_strict: bool = False) -> list[Message]:
        """What this session has; strictly, or with what has just expired."""
        if is_strict:
            found = [one for one in self.model.by_place.values() if self._is_waiting(one, MAIN)]
        else:
            found = [one for one in self.model.by_place.values() if one.shown and one.shown[:2] == (MAIN, ACTIVE)]
        return [one for one in found if one.session == session]

    def _is_waiting(self, message: Message, shelf: str) -> bool:
        place = message.shown
        if place is None or place.kind != ACTIVE or place.shelf != shelf or not message.is_idle:
            return False
        if message.was_alarmed or self.model.is_expired(message):
            return False
        return not any(deed.covers(message) for deed in self.model.pending("remove", "resubmit"))

    def has_sessions(self, shelf: str) -> bool:
        return shelf == MAIN and self.model.description.requires_session

    def is_full(self, shelf: str) -> bool:
        """No more messages may be out."""
        out = [
            one
            for one in self.model.messages.values()
            if one.shown and one.shown[:2] == (shelf, ACTIVE) and (one.lock or one.is_busy or one.is_handed)
        ]
        return len(out) >= self.settings.limits.max_locks

    # --- looking ------------------------------------------------------------------------------------------------------

    def settle_down(self) -> None:
        """Let everything finish that can, and see whether all is as it should be."""
        self.work_all()
        if not self.is_working:
            return
        model = self.model
        for deed in model.deeds:
            if not deed.is_answered:
                raise Violation(f"{deed.kind} is never answered")
        model.come_to_rest()
        for message in model.messages.values():
            self._check_rest(message)
        for shelf in (MAIN, DEAD):
            self._check_memory(shelf)
            self._check_nobody_starves(shelf)
        self.disk.check_index()
        self.disk.check_ids()
        self._check_states()
        for looker in self.lookers:
            looker.check()

    def _check_rest(self, message: Message) -> None:
        now_s, model = self.clock.monotonic_s(), self.model
        if message.is_handed:
            if not message.is_perhaps_gone:
                raise Violation(f"{message} was deleted for a receiver, and nobody got it")
            message.is_handed = False
        if message.busy is not None:
            due_s = self.namespace.timers.due_in_s()
            if message.busy.kind != "expire" or due_s is None or due_s > 0.02:
                raise Violation(f"{message}: nothing becomes of it")
            return
        place, since_s = message.place, message.alarmed_s
        if place is None or since_s is None or message.lock is not None:
            return
        if place.kind == SCHEDULED and now_s - since_s > DUE_GRACE_S:
            raise Violation(f"{message} is due since {now_s - since_s} s")
        patience_s = GRACE_S + self.settings.longest_lock_ms / 1000
        is_set_back = self.clock.wall_ms() < model.latest_wall_ms
        if place.kind == ACTIVE and now_s - max(since_s, message.idle_s) > patience_s and not is_set_back:
            raise Violation(f"{message} has expired {now_s - since_s} s ago")

    def _check_memory(self, shelf: str) -> None:
        fragment, model = self.fragment(shelf), self.model
        if not fragment.is_loaded:
            raise Violation(f"{shelf} is not loaded")
        if fragment.holdings.shown != self.disk.marks(shelf):
            raise Violation(f"{shelf} shows {fragment.holdings.shown}, the disk has {self.disk.marks(shelf)}")
        for kind, out in ((ACTIVE, fragment.out.locks), (DEFERRED, fragment.deferred_out)):
            held = {one.place.number for one in model.at(shelf, kind) if one.place and (one.lock or one.busy)}
            if set(out) != held:
                raise Violation(f"{shelf}: {sorted(out)} {kind} ones are out, and someone has {sorted(held)}")
        runtime = self.queue.runtime()
        counts = (runtime.active_count, runtime.scheduled_count, runtime.dead_letter_count, runtime.deferred_count)
        deferred = len(model.at(MAIN, DEFERRED)) + len(model.at(DEAD, DEFERRED))
        there = (len(model.at(MAIN, ACTIVE)), len(model.at(MAIN, SCHEDULED)), len(model.at(DEAD, ACTIVE)), deferred)
        if counts != there:
            raise Violation(f"{counts} messages are shown, and there are {there}")

    def _check_nobody_starves(self, shelf: str) -> None:
        if self.is_full(shelf):
            return
        for receiver in self.model.receivers:
            if receiver.shelf != shelf:
                continue
            if receiver.is_waiting:
                free = [
                    one
                    for one in self.model.by_place.values()
                    if self._is_waiting(one, MAIN) and one.session not in self.model.holds
                ]
                if free:
                    raise Violation(f"{receiver!r} waits for a session, and there is {free}")
            elif receiver.room > 0 and self.waiting(receiver):
                raise Violation(f"{receiver!r} gets nothing, and there is {self.waiting(receiver)}")

    def _check_states(self) -> None:
        for session, possible in self.model.states.items():
            key = self.fragment(MAIN).holdings.prefix + keys.STATE + keys.pack_session(session)
            value = self.disk.synced[Table.INDEX].values.get(key)
            state = value[8:] if value is not None else None
            if state not in possible:
                raise Violation(f"session {session!r} remembers {state!r}, not {possible}")
            self.model.states[session] = [state]
