"""A simulated process with one queue on one disk, through crashes and restarts. Only `actions` make anything happen.

Owns: the event loop, the store and its failures, and the checks when the queue is idle.
"""

from __future__ import annotations

import sys
from collections import deque
from random import Random
from typing import TYPE_CHECKING

from tests.simulation.queue.model_state import ACTIVE, DEAD, DEFERRED, MAIN, SCHEDULED, Lock, Message, Violation
from tests.simulation.queue.reference_model import ReferenceModel
from tests.simulation.queue.watched_disk import ENTITY, WatchedDisk, WatchedStore
from tests.support.parts import local_part
from twinbus.broker import store_keys
from twinbus.broker.namespace import Namespace
from twinbus.store.protocol import Table
from twinbus.testing.clock import FakeClock

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.simulation.queue.links import BrowsingLink, Receiver
    from tests.simulation.queue.settings import Settings
    from twinbus.broker.commit_log import CommitLog
    from twinbus.broker.entities.queue import Queue
    from twinbus.broker.fragment.fragment import Fragment
    from twinbus.model.errors import ServiceBusError

MAX_STEPS = 20_000
"""Limit of calls and store steps until the simulation is idle: more means an endless loop."""
PATH = "orders"
TIMEOUT_S = 10.0
GRACE_S = 13.0
"""Time within which the queue handles an expired message: time indexes use whole seconds, and sparse scans."""
DUE_GRACE_S = 1.1
"""Time within which the queue activates a due message: it reads the wall clock every second."""


class QueueSimulation:
    def __init__(self, random: Random, settings: Settings, *, is_tracing: bool = False) -> None:
        self.random = random
        self.settings = settings
        self.is_tracing = is_tracing
        self.clock = FakeClock()
        self.model = ReferenceModel(self.clock, settings.description)
        self.model.is_idle = lambda: not self._has_work and self.is_working and not self.store.is_failing
        self.model.trace = self.trace
        self.disk = WatchedDisk(self.model)
        self.locks: list[Lock] = []
        """Locks given to receivers, including settled and void locks."""
        self.browsing_links: list[BrowsingLink] = []
        self.namespace: Namespace
        self.queue: Queue
        self.commit_log: CommitLog
        self.store: WatchedStore
        self.is_closed = False
        """Whether the store has failed and released its disk."""
        self.is_disabled = False
        """Whether receiving is disabled, so that receivers are detached."""
        self._deferred_calls: deque[Callable[[], object]] = deque()
        self._store_callbacks: deque[Callable[[], object]] = deque()

    def trace(self, line: str) -> None:
        if self.is_tracing:
            offset_s = (self.clock.wall_ms() - 1_700_000_000_000) / 1000
            sys.stdout.write(f"{self.clock.monotonic_s():9.3f} {offset_s:11.3f}  {line}\n")

    def fragment(self, area: str) -> Fragment:
        return local_part(self.queue).main if area == MAIN else local_part(self.queue).dead_letters

    # --- process -----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start a process with the content of the disk."""
        self._deferred_calls, self._store_callbacks = deque(), deque()
        self.is_closed = False
        self.browsing_links.clear()
        self.store = self._open()
        self.namespace = Namespace(
            clock=self.clock,
            random=Random(self.random.getrandbits(32)),
            call_at_turn_end=self._deferred_calls.append,
            on_failed=self._on_store_failed,
            limits=self.settings.limits,
            store_timeout_s=TIMEOUT_S,
        )
        self.commit_log = self.namespace.add_store(self.store)
        self.queue = self.namespace.add_queue(ENTITY, PATH, self.model.description, [0], created_ms=0, updated_ms=0)
        fragments = deque([local_part(self.queue).dead_letters, local_part(self.queue).main])

        def load_next(error: ServiceBusError | None = None) -> None:
            if error is not None:
                raise Violation(f"a fragment cannot be loaded: {error}")
            if fragments:
                fragments.popleft().load(load_next)

        load_next()
        self.run_until_idle()

    def crash(self) -> None:
        """Cut the power, and restart: memory is lost, and a random part of the unsynced writes."""
        self.disk.crash(self.random)
        self.model.memory_lost(is_restart=True)
        self.start()

    # --- event loop --------------------------------------------------------------------------------------------------

    def _open(self) -> WatchedStore:
        return WatchedStore(self.disk, name="0", post_call=self._store_callbacks.append)

    @property
    def _has_work(self) -> bool:
        return bool(self._deferred_calls or self._store_callbacks or self.store.has_work)

    def step(self) -> bool:
        """Run a random one of the pending calls and store steps. Return False if there are none."""
        choices = [bool(self._deferred_calls), bool(self._store_callbacks), self.store.has_work]
        possible = [number for number, is_possible in enumerate(choices) if is_possible]
        if not possible:
            return False
        chosen = possible[int(self.random.random() * len(possible))] if len(possible) > 1 else possible[0]
        if chosen == 0:
            self._deferred_calls.popleft()()
        elif chosen == 1:
            self._store_callbacks.popleft()()
        else:
            self.store.step()
        return True

    def run_until_idle(self) -> None:
        """Run all pending calls, store steps and due timers."""
        for _ in range(MAX_STEPS):
            if not self.step():
                due_s = self.namespace.timers.due_in_s()
                if due_s is None or due_s > 0:
                    return
                self.namespace.timers.run_due()
        raise Violation(f"still busy after {MAX_STEPS} steps")

    def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)
        lost = self.model.clock_changed()
        self.namespace.timers.run_due()
        for hold in lost:
            if not hold.receiver.is_closed:
                raise Violation(f"{hold.receiver!r} was not notified of its lost session")
        now_s = self.clock.monotonic_s()
        for receiver in self.model.receivers:
            if receiver.drain_until_s is not None and receiver.drain_until_s <= now_s:
                raise Violation(f"{receiver!r} waits for its drain too long")

    def set_wall_clock(self, wall_ms: int) -> None:
        self.clock.set_wall_ms(wall_ms)
        self.model.clock_changed()

    # --- failing store -----------------------------------------------------------------------------------------------

    def _on_store_failed(self, commit_log: CommitLog) -> None:
        self.trace("  the store failed")
        self.model.memory_lost(is_restart=False)
        commit_log.store.close(lambda _: self._store_closed())

    def _store_closed(self) -> None:
        self.is_closed = True

    def reopen(self) -> None:
        self.is_closed = False
        self.store = self._open()
        self.commit_log.reopen(self.store)

    @property
    def is_working(self) -> bool:
        return self.commit_log.unavailable_reason is None and not self.store.is_hanging and not self.is_closed

    # --- available messages ------------------------------------------------------------------------------------------

    def available_for(self, receiver: Receiver) -> list[Message]:
        """Return the messages that this receiver should get."""
        if self.has_sessions(receiver.area):
            return self.available_in_session(receiver.session, is_strict=True) if receiver.session is not None else []
        return [message for message in self.model.by_location.values() if self._is_available(message, receiver.area)]

    def available_in_session(self, session: bytes | None, *, is_strict: bool = False) -> list[Message]:
        """Return the messages of a session; unless `is_strict`, including messages that have just expired."""
        if is_strict:
            messages = [message for message in self.model.by_location.values() if self._is_available(message, MAIN)]
        else:
            messages = [
                message
                for message in self.model.by_location.values()
                if message.visible_location and message.visible_location[:2] == (MAIN, ACTIVE)
            ]
        return [message for message in messages if message.session == session]

    def _is_available(self, message: Message, area: str) -> bool:
        location = message.visible_location
        if location is None or location.kind != ACTIVE or location.area != area or not message.is_idle:
            return False
        if message.was_due or self.model.is_expired(message):
            return False
        return not any(operation.applies_to(message) for operation in self.model.pending("remove", "resubmit"))

    def has_sessions(self, area: str) -> bool:
        return area == MAIN and self.model.description.requires_session

    def is_full(self, area: str) -> bool:
        """Whether the limit of locked messages is reached."""
        in_flight = [
            message
            for message in self.model.messages.values()
            if message.visible_location
            and message.visible_location[:2] == (area, ACTIVE)
            and (message.lock or message.is_busy or message.is_deleted_for_receiver)
        ]
        return len(in_flight) >= self.settings.limits.max_locks

    # --- checks ------------------------------------------------------------------------------------------------------

    def check_when_idle(self) -> None:
        """Run until idle, and compare the queue with the model."""
        self.run_until_idle()
        if not self.is_working:
            return
        model = self.model
        for operation in model.operations:
            if not operation.is_answered:
                raise Violation(f"{operation.kind} is never answered")
        model.became_idle()
        for message in model.messages.values():
            self._check_idle_message(message)
        for area in (MAIN, DEAD):
            self._check_memory(area)
            self._check_receivers_served(area)
        self.disk.check_index()
        self.disk.check_ids()
        self._check_states()
        for link in self.browsing_links:
            link.check()

    def _check_idle_message(self, message: Message) -> None:
        now_s, model = self.clock.monotonic_s(), self.model
        if message.is_deleted_for_receiver:
            if not message.may_be_deleted:
                raise Violation(f"{message} was deleted for a receiver, and nobody got it")
            message.is_deleted_for_receiver = False
        if message.pending_operation is not None:
            due_s = self.namespace.timers.due_in_s()
            if message.pending_operation.kind != "expire" or due_s is None or due_s > 0.02:
                raise Violation(f"{message} has a pending operation that never ends")
            return
        location, since_s = message.location, message.due_since_s
        if location is None or since_s is None or message.lock is not None:
            return
        if location.kind == SCHEDULED and now_s - since_s > DUE_GRACE_S:
            raise Violation(f"{message} is due since {now_s - since_s} s")
        max_delay_s = GRACE_S + self.settings.longest_lock_ms / 1000
        is_clock_set_back = self.clock.wall_ms() < model.latest_wall_ms
        if (
            location.kind == ACTIVE
            and now_s - max(since_s, message.idle_since_s) > max_delay_s
            and not is_clock_set_back
        ):
            raise Violation(f"{message} has expired {now_s - since_s} s ago")

    def _check_memory(self, area: str) -> None:
        fragment, model = self.fragment(area), self.model
        if not fragment.is_loaded:
            raise Violation(f"{area} is not loaded")
        if fragment.message_table.committed != self.disk.counters(area):
            raise Violation(f"{area} shows {fragment.message_table.committed}, the disk has {self.disk.counters(area)}")
        for kind, in_flight in ((ACTIVE, fragment.in_flight.locks), (DEFERRED, fragment.deferred_in_flight)):
            expected = {
                message.location.number
                for message in model.messages_at(area, kind)
                if message.location and (message.lock or message.pending_operation)
            }
            if set(in_flight) != expected:
                raise Violation(f"{area}: {sorted(in_flight)} {kind} ones are out, and someone has {sorted(expected)}")
        runtime = self.queue.runtime()
        counts = (runtime.active_count, runtime.scheduled_count, runtime.dead_letter_count, runtime.deferred_count)
        deferred = len(model.messages_at(MAIN, DEFERRED)) + len(model.messages_at(DEAD, DEFERRED))
        expected_counts = (
            len(model.messages_at(MAIN, ACTIVE)),
            len(model.messages_at(MAIN, SCHEDULED)),
            len(model.messages_at(DEAD, ACTIVE)),
            deferred,
        )
        if counts != expected_counts:
            raise Violation(f"{counts} messages are shown, and there are {expected_counts}")

    def _check_receivers_served(self, area: str) -> None:
        if self.is_full(area):
            return
        for receiver in self.model.receivers:
            if receiver.area != area:
                continue
            if receiver.is_waiting:
                free = [
                    message
                    for message in self.model.by_location.values()
                    if self._is_available(message, MAIN) and message.session not in self.model.session_holds
                ]
                if free:
                    raise Violation(f"{receiver!r} waits for a session, and there is {free}")
            elif receiver.available_credit > 0 and self.available_for(receiver):
                raise Violation(f"{receiver!r} gets nothing, and there is {self.available_for(receiver)}")

    def _check_states(self) -> None:
        for session, possible in self.model.states.items():
            key = (
                self.fragment(MAIN).message_table.key_prefix
                + store_keys.SESSION_STATE
                + store_keys.pack_session_id(session)
            )
            value = self.disk.synced[Table.INDEX].values.get(key)
            state = value[8:] if value is not None else None
            if state not in possible:
                raise Violation(f"session {session!r} remembers {state!r}, not {possible}")
            self.model.states[session] = [state]
