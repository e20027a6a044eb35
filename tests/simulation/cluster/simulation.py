"""A simulated namespace of several processes, with their disks and the messages between them.

Owns: the running processes, and the order of events. Only `actions` make anything happen.
"""

from __future__ import annotations

import sys
from itertools import count
from typing import TYPE_CHECKING

from tests.simulation.cluster.checker import ClusterChecker
from tests.simulation.cluster.peer_connection import PeerConnection
from tests.simulation.cluster.process import Process, run_step
from tests.support.delivery_checker.problems import Violation
from twinbus.model.partition_key import fragment_of
from twinbus.model.path import SubQueue
from twinbus.model.queue import QueueDescription
from twinbus.store.memory import MemoryDisk
from twinbus.testing.clock import FakeClock

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from tests.simulation.broker.settings import Settings
    from tests.simulation.cluster.message_copies import Lock
    from tests.simulation.cluster.receivers import SimulatedReceiver

MAX_STEPS = 40_000
"""Limit of calls, peer messages and store steps until the simulation is idle: more means an endless loop."""
LOCK_S = 60.0


class ClusterSimulation:
    def __init__(self, random: Random, settings: Settings, *, processes: int | None, is_tracing: bool) -> None:
        """Start `processes` (None: two or three). A single process has a partitioned queue, on several disks."""
        self.random = random
        self.settings = settings
        self.is_tracing = is_tracing
        self.clock = FakeClock()
        self.count = processes or random.choice((2, 2, 3))
        disks = (self.count, 4, 2 * self.count) if self.count > 1 else (1, 2, 4, 4)
        self.disks = [MemoryDisk() for _ in range(random.choice(disks))]
        dead_letters_often = random.random() < 0.2
        self.description = QueueDescription(
            enable_partitioning=random.random() < 0.75 or self.count == 1,
            requires_session=random.random() < 0.4 and self.count > 1,
            max_delivery_count=3 if dead_letters_often else 1_000_000,
        )
        self._plain_store = random.randrange(len(self.disks))
        self.checker = ClusterChecker(len(self.disks), self.clock.wall_ms, self.store_of)
        self.checker.dead_letters_often, self.checker.is_plain = (
            dead_letters_often,
            not self.description.enable_partitioning,
        )
        self.checker.is_single_process = self.count == 1
        self.given_locks: list[Lock] = []
        """Locks given to receivers and not settled."""
        self.numbers = count(1)
        self.processes: list[Process | None] = [None] * self.count
        self.connections: list[PeerConnection] = []
        for number in range(self.count):
            self.start(number)

    def trace(self, line: str) -> None:
        if self.is_tracing:
            sys.stdout.write(f"{self.clock.monotonic_s():10.3f}  {line}\n")

    # --- lookups -----------------------------------------------------------------------------------------------------

    def stores_of(self, process: int) -> list[int]:
        return list(range(process, len(self.disks), self.count))

    def store_of(self, fragment: int) -> int:
        return fragment % len(self.disks) if self.description.enable_partitioning else self._plain_store

    @property
    def running_processes(self) -> list[Process]:
        return [process for process in self.processes if process is not None]

    @property
    def responsive_processes(self) -> list[Process]:
        return [process for process in self.running_processes if not process.is_silent]

    @property
    def receivers(self) -> list[SimulatedReceiver]:
        return [receiver for process in self.responsive_processes for receiver in process.receivers]

    def owner_of(self, fragment: int) -> Process | None:
        return self.processes[self.store_of(fragment) % self.count]

    def connection(self, caller: Process, owner: Process) -> PeerConnection | None:
        return next(
            (
                connection
                for connection in self.connections
                if connection.caller is caller and connection.owner is owner
            ),
            None,
        )

    @property
    def is_complete(self) -> bool:
        """Whether all processes are running, responsive and connected, and all stores work."""
        return (
            len(self.responsive_processes) == self.count
            and not self._missing_connections()
            and not any(process.has_overdue_timers or not process.is_healthy for process in self.running_processes)
        )

    def knows_lock(self, lock: Lock) -> bool:
        """Whether the owner still has a lock, that is, neither its process nor its store has failed since."""
        number = lock.copy.sequence >> 48
        owner = self.owner_of(number)
        if owner is None:
            return False
        fragment = owner.fragments(SubQueue.DEAD_LETTER if lock.copy.is_dead else SubQueue.MAIN)[number]
        return fragment.lock_numbers([lock.tag]) != [0]

    def knows_session(self, session: str, until_ms: int) -> bool:
        """Whether the owner still has a session lock, that is, its process has not been killed since."""
        number = fragment_of(session.encode()) if self.description.enable_partitioning else 0
        owner = self.owner_of(number)
        sessions = owner.fragments(SubQueue.MAIN)[number].local.sessions if owner is not None else None
        hold = sessions.session_locks.get(session.encode()) if sessions is not None else None
        return hold is not None and hold.locked_until_ms == until_ms

    # --- failing processes -------------------------------------------------------------------------------------------

    def start(self, number: int) -> None:
        self.processes[number] = process = Process(self, number, next(self.numbers))
        self.trace(f"  {process!r} is started")

    def kill(self, process: Process) -> None:
        """Kill a process; its disks keep the synced writes and a random part of the unsynced ones."""
        self._drop_process(process)
        for connection in self.connections:
            if connection.is_cut and process in (connection.caller, connection.owner):
                connection.both_lost()
            elif connection.owner is process:
                connection.owner_lost(self.random)
            elif connection.caller is process:
                connection.caller_lost(self.random)
        self._remove_closed_connections()

    def crash(self) -> None:
        """Cut the power of all processes."""
        for process in self.running_processes:
            self._drop_process(process)
        self.connections.clear()
        if self.count == 1:
            self.start(0)

    def _drop_process(self, process: Process) -> None:
        checker = self.checker
        self.record_incident()
        self.processes[process.number] = None
        for number, store in process.stores.items():
            self.disks[number].crash(self.random)
            store.lose()
        checker.owner_lost(list(process.stores))
        checker.process_lost(process.life)
        for receiver in list(process.receivers):
            receiver.end()
        for transaction in list(process.open_transactions):
            transaction.process_lost()
        self.given_locks = [
            lock for lock in self.given_locks if lock.receiver.process is not process or self.random.random() < 0.5
        ]

    def record_incident(self) -> None:
        """Record a failure: messages on their way may be counted as delivered, and deleted messages may be lost."""
        self.checker.incidents += 1
        self.checker.deletions.mark_possible_losses()

    def make_silent(self, process: Process) -> None:
        process.is_silent = True
        self.checker.incidents += 1
        for store in process.stores:
            self.checker.store_failures[store] += 1

    def make_responsive(self, process: Process) -> None:
        process.is_silent, process.has_overdue_timers = False, True

    def store_failed(self, store: int) -> None:
        self.checker.store_lost(store)
        for process in self.running_processes:
            for receiver in process.receivers:
                receiver.last_sequence = 0

    # --- event loop --------------------------------------------------------------------------------------------------

    def step(self) -> bool:
        """Run a random one of the pending calls, store steps and peer messages. Return False if there are none."""
        choices: list[Callable[[], object]] = []
        for process in self.responsive_processes:
            choices += process.possible_steps()
        for connection in self.connections:
            if connection.calls and connection.owner in self.responsive_processes:
                choices.append(connection.calls.popleft)
            if connection.answers and connection.caller in self.responsive_processes:
                choices.append(connection.answers.popleft)
        choices += [lambda pair=pair: self._connect(*pair) for pair in self._missing_connections()]  # type: ignore[misc]
        if not choices:
            return False
        run_step(choices[int(self.random.random() * len(choices))])
        self._remove_closed_connections()
        return True

    def run_until_idle(self) -> None:
        for _ in range(MAX_STEPS):
            if not self.step():
                return
        raise Violation(f"still busy after {MAX_STEPS} steps")

    def _missing_connections(self) -> list[tuple[Process, Process]]:
        """Return pairs of processes that can connect now."""
        return [
            (caller, owner)
            for caller in self.responsive_processes
            for owner in self.running_processes
            if caller is not owner and not caller.peer_client(owner.number).is_connected
        ]

    def _connect(self, caller: Process, owner: Process) -> None:
        self.trace(f"  {caller!r} finds {owner!r}")
        for store in owner.stores:
            self.checker.store_failures[store] += 1  # until now no send could reach it
        self.connections.append(PeerConnection(caller, owner))

    def _remove_closed_connections(self) -> None:
        if any(connection.is_over for connection in self.connections):
            self.connections = [connection for connection in self.connections if not connection.is_over]

    @property
    def pending_messages(self) -> int:
        """Number of messages on their way between processes."""
        return sum([len(connection.calls) + len(connection.answers) for connection in self.connections])

    def pass_time(self, seconds: float) -> None:
        if seconds >= LOCK_S and self.pending_messages:
            self.record_incident()
        self.clock.advance(seconds)
        processes = self.responsive_processes
        self.random.shuffle(processes)
        for process in processes:
            process.run_overdue_timers()
        for process in self.running_processes:
            process.record_unavailable_stores()
        for browser in [
            each for process in self.responsive_processes if not process.has_overdue_timers for each in process.browsers
        ]:
            browser.check()
        for receiver in self.receivers:
            is_late = receiver.drain_until_s is not None and receiver.drain_until_s <= self.clock.monotonic_s()
            if is_late and not receiver.process.has_overdue_timers:
                raise Violation(f"a drain is not answered in time: {receiver!r}")
