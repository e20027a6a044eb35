"""Several processes that have a namespace together, their disks, and what is on its way between them.

Owns: which of them live, and what happens next. Nothing in it happens by itself.
"""

from __future__ import annotations

import sys
from itertools import count
from typing import TYPE_CHECKING

from tests.ledger.problems import Violation
from tests.simulation.processes.ledger import Ledger
from tests.simulation.processes.process import Process, do
from tests.simulation.processes.wire import Wire
from twinbus.model.partition_key import fragment_of
from twinbus.model.path import SubQueue
from twinbus.model.queue import QueueDescription
from twinbus.store.memory import MemoryDisk
from twinbus.testing.clock import FakeClock

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from tests.simulation.processes.copies import Lock
    from tests.simulation.processes.takers import Taker
    from tests.simulation.settings import Settings

MAX_WORK = 40_000
"""Calls, words and store steps until nothing is left to do: more is a loop without end."""
LOCK_S = 60.0


class World:
    def __init__(self, random: Random, settings: Settings, *, processes: int | None, is_tracing: bool) -> None:
        """With so many `processes`; a queue of one alone is partitioned, over several disks. None: two or three."""
        self.random = random
        self.settings = settings
        self.is_tracing = is_tracing
        self.clock = FakeClock()
        self.count = processes or random.choice((2, 2, 3))
        disks = (self.count, 4, 2 * self.count) if self.count > 1 else (1, 2, 4, 4)
        self.disks = [MemoryDisk() for _ in range(random.choice(disks))]
        few = random.random() < 0.2
        self.description = QueueDescription(
            enable_partitioning=random.random() < 0.75 or self.count == 1,
            requires_session=random.random() < 0.4 and self.count > 1,
            max_delivery_count=3 if few else 1_000_000,
        )
        self._plain_store = random.randrange(len(self.disks))
        self.ledger = Ledger(len(self.disks), self.clock.wall_ms, self.store_of)
        self.ledger.buries_often, self.ledger.is_plain = few, not self.description.enable_partitioning
        self.ledger.is_alone = self.count == 1
        self.held: list[Lock] = []
        """What receivers were given and have not settled."""
        self.numbers = count(1)
        self.processes: list[Process | None] = [None] * self.count
        self.wires: list[Wire] = []
        for number in range(self.count):
            self.start(number)

    def say(self, line: str) -> None:
        if self.is_tracing:
            sys.stdout.write(f"{self.clock.monotonic_s():10.3f}  {line}\n")

    # --- where things are ---------------------------------------------------------------------------------------------

    def stores_of(self, process: int) -> list[int]:
        return list(range(process, len(self.disks), self.count))

    def store_of(self, fragment: int) -> int:
        return fragment % len(self.disks) if self.description.enable_partitioning else self._plain_store

    @property
    def living(self) -> list[Process]:
        return [process for process in self.processes if process is not None]

    @property
    def awake(self) -> list[Process]:
        return [process for process in self.living if not process.is_silent]

    @property
    def takers(self) -> list[Taker]:
        return [taker for process in self.awake for taker in process.takers]

    def owner_of(self, fragment: int) -> Process | None:
        return self.processes[self.store_of(fragment) % self.count]

    def wire(self, asker: Process, asked: Process) -> Wire | None:
        return next((wire for wire in self.wires if wire.asker is asker and wire.asked is asked), None)

    @property
    def is_whole(self) -> bool:
        """All are there and speak to each other, and all of their stores work."""
        return (
            len(self.awake) == self.count
            and not self._missing()
            and not any(process.is_late or not process.is_sound for process in self.living)
        )

    def knows_lock(self, lock: Lock) -> bool:
        """The one that gave it has not died since, nor has its store failed."""
        number = lock.copy.sequence >> 48
        owner = self.owner_of(number)
        if owner is None:
            return False
        fragment = owner.fragments(SubQueue.DEAD_LETTER if lock.copy.is_dead else SubQueue.MAIN)[number]
        return fragment.lock_numbers([lock.tag]) != [0]

    def knows_session(self, session: str, until_ms: int) -> bool:
        """The one that gave it until then has not died since."""
        number = fragment_of(session.encode()) if self.description.enable_partitioning else 0
        owner = self.owner_of(number)
        sessions = owner.fragments(SubQueue.MAIN)[number].local.sessions if owner is not None else None
        hold = sessions.holds.get(session.encode()) if sessions is not None else None
        return hold is not None and hold.until_ms == until_ms

    # --- processes that die -------------------------------------------------------------------------------------------

    def start(self, number: int) -> None:
        self.processes[number] = process = Process(self, number, next(self.numbers))
        self.say(f"  {process!r} is there")

    def die(self, process: Process) -> None:
        """Nothing is left of it but its disks, and of what was not synced a part."""
        self._forget(process)
        for wire in self.wires:
            if wire.is_cut and process in (wire.asker, wire.asked):
                wire.lose_both()
            elif wire.asked is process:
                wire.lose_asked(self.random)
            elif wire.asker is process:
                wire.lose_asker(self.random)
        self._sweep()

    def crash(self) -> None:
        """Power is cut for all of them."""
        for process in self.living:
            self._forget(process)
        self.wires.clear()
        if self.count == 1:
            self.start(0)

    def _forget(self, process: Process) -> None:
        ledger = self.ledger
        self.note_loss()
        self.processes[process.number] = None
        for store in process.stores:
            self.disks[store].crash(self.random)
            ledger.deletions.lose(self.disks[store])
        ledger.lose_owner(list(process.stores))
        ledger.lose_process(process.life)
        for taker in list(process.takers):
            taker.end()
        for deal in list(process.deals):
            deal.forget()
        self.held = [lock for lock in self.held if lock.taker.process is not process or self.random.random() < 0.5]

    def note_loss(self) -> None:
        """What was on its way may be counted as delivered; who received and deleted may not get it."""
        self.ledger.incidents += 1
        self.ledger.deletions.may_lose()

    def silence(self, process: Process) -> None:
        process.is_silent = True
        self.ledger.incidents += 1
        for store in process.stores:
            self.ledger.troubles[store] += 1

    def wake(self, process: Process) -> None:
        process.is_silent, process.is_late = False, True

    def store_failed(self, store: int) -> None:
        self.ledger.deletions.lose(self.disks[store])
        self.ledger.lose(store)
        for process in self.living:
            for taker in process.takers:
                taker.last_sequence = 0

    # --- the loop -----------------------------------------------------------------------------------------------------

    def work(self) -> bool:
        """Do one thing of all that wait to be done, whichever comes. False if nothing does."""
        choices: list[Callable[[], object]] = []
        for process in self.awake:
            choices += process.choices()
        for wire in self.wires:
            if wire.calls and wire.asked in self.awake:
                choices.append(wire.calls.popleft)
            if wire.answers and wire.asker in self.awake:
                choices.append(wire.answers.popleft)
        choices += [lambda pair=pair: self._connect(*pair) for pair in self._missing()]  # type: ignore[misc]
        if not choices:
            return False
        do(choices[int(self.random.random() * len(choices))])
        self._sweep()
        return True

    def work_all(self) -> None:
        for _ in range(MAX_WORK):
            if not self.work():
                return
        raise Violation(f"still busy after {MAX_WORK} steps")

    def _missing(self) -> list[tuple[Process, Process]]:
        """Who may find whom now."""
        return [
            (asker, asked)
            for asker in self.awake
            for asked in self.living
            if asker is not asked and not asker.owner(asked.number).is_there
        ]

    def _connect(self, asker: Process, asked: Process) -> None:
        self.say(f"  {asker!r} finds {asked!r}")
        for store in asked.stores:
            self.ledger.troubles[store] += 1  # until now nothing could be sent there
        self.wires.append(Wire(asker, asked))

    def _sweep(self) -> None:
        if any(wire.is_over for wire in self.wires):
            self.wires = [wire for wire in self.wires if not wire.is_over]

    @property
    def words(self) -> int:
        """How many are on their way."""
        return sum([len(wire.calls) + len(wire.answers) for wire in self.wires])

    def pass_time(self, seconds: float) -> None:
        if seconds >= LOCK_S and self.words:
            self.note_loss()
        self.clock.advance(seconds)
        processes = self.awake
        self.random.shuffle(processes)
        for process in processes:
            process.catch_up()
        for process in self.living:
            for store, journal in enumerate(process.namespace.journals):
                self.ledger.troubles[store] += journal.trouble is not None  # what it was asked took too long
        for reader in [one for process in self.awake if not process.is_late for one in process.readers]:
            reader.check()
        for taker in self.takers:
            is_late = taker.drain_until_s is not None and taker.drain_until_s <= self.clock.monotonic_s()
            if is_late and not taker.process.is_late:
                raise Violation(f"a drain is not answered in time: {taker!r}")
