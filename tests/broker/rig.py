"""A namespace with one queue on stores in memory, in one process or two. Nothing happens but by `settle` and the clock.

Owns: the clock, the disks, the loop of all processes, and the way between two processes. Tests choose the description
of the queue, the number of stores and the number of processes. Store s is owned by process s mod `processes`, and the
fragment f of a partitioned entity lies in store f mod `stores`.
"""

from __future__ import annotations

from collections import deque
from random import Random
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from tests.broker.consumers import Answers, SessionConsumer, TestConsumer
from tests.broker.messages import message
from tests.parts import part_of
from twinbus.amqp.message import data
from twinbus.broker.keys import KIND_BYTES, MARKS, PREFIX_BYTES
from twinbus.broker.line import Line
from twinbus.broker.namespace import Namespace
from twinbus.broker.ports.incoming import Parcel
from twinbus.broker.remote.owner import Owner
from twinbus.broker.work import UNITS
from twinbus.model.description import FRAGMENTS
from twinbus.model.message import BATCH_FORMAT
from twinbus.model.queue import QueueDescription
from twinbus.server.peers.channel import ANSWERS, CALLS
from twinbus.server.peers.desk import Desk
from twinbus.store.memory import MemoryDisk, MemoryStore
from twinbus.store.protocol import Table
from twinbus.testing.clock import FakeClock

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinbus.broker.fragment import Fragment
    from twinbus.broker.journal import Journal
    from twinbus.broker.ports.fragment import FragmentPort
    from twinbus.broker.ports.peer_protocol import Answer, Call
    from twinbus.broker.queue import Queue
    from twinbus.broker.topic import Topic
    from twinbus.broker.window import Window
    from twinbus.model.limits import NamespaceLimits

    ConsumerKind = TypeVar("ConsumerKind", bound=TestConsumer)

PARTITIONED = QueueDescription(enable_partitioning=True)
STORES = 4
"""Of a rig with a partitioned queue, unless a test says otherwise."""
QUEUE_ID = 7
_encode = msgspec.msgpack.encode


class Keeping(Random):
    """A choice of which unsynced changes are on disk after a failure: all of them, or none."""

    def __init__(self, *, all_of_it: bool) -> None:
        super().__init__(0)
        self._all_of_it = all_of_it

    def randint(self, a: int, b: int) -> int:
        return b if self._all_of_it else a


class Process:
    """A process with its own stores, and the stores of the other process as remote ones."""

    queue: Queue
    owner: Owner
    """The other process, as this one knows it; only if there are two."""
    desk: Desk | None = None

    def __init__(self, rig: Rig, number: int) -> None:
        self._rig = rig
        self.number = number
        self.random = Random(number + 1)
        self.namespace = Namespace(
            clock=rig.clock,
            random=self.random,
            defer=rig.turn.append,
            on_failed=rig.failed.append,
            limits=rig.limits,
            work_units=rig.work_units,
        )
        if rig.process_count > 1:
            self.owner = Owner(f"process {1 - number}", clock=rig.clock, timers=self.namespace.timers, timeout_s=10.0)
        for place, store in enumerate(rig.stores):
            if place % rig.process_count == number:
                self.namespace.add_store(store)
            else:
                self.namespace.add_remote_store(str(place), self.owner)

    def add_queue(self, entity_id: int, path: str, description: QueueDescription, store: int = 0) -> Queue:
        """Add a queue; a plain one lies in `store`."""
        places = self._rig.places(store, is_partitioned=description.enable_partitioning)
        return self.namespace.add_queue(entity_id, path, description, places, created_ms=0, updated_ms=0)

    @property
    def fragments(self) -> list[FragmentPort]:
        """The fragments of the queue, as this process reaches them."""
        return [part.main for part in self.queue.parts]


class Rig:
    def __init__(
        self,
        description: QueueDescription | None = None,
        *,
        stores: int | None = None,
        processes: int = 1,
        limits: NamespaceLimits | None = None,
        path: str = "orders",
        work_units: int = UNITS,
    ) -> None:
        """`stores`: 4 for a partitioned queue, else 1."""
        self.description = description or QueueDescription()
        self.path = path
        self.limits = limits
        self.work_units = work_units
        self.process_count = processes
        self.clock = FakeClock()
        self.turn: deque[Callable[[], object]] = deque()
        self.mail: deque[Callable[[], object]] = deque()
        self.words: deque[Callable[[], object]] = deque()
        """Messages on their way between two processes."""
        self.silent: set[int] = set()
        """Processes that hear nothing now."""
        self._unheard: list[Callable[[], object]] = []
        self.failed: list[Journal] = []
        count = stores or (STORES if self.description.enable_partitioning else 1)
        self.disks = [MemoryDisk() for _ in range(count)]
        self._start()
        if processes > 1:
            self.connect()

    def _start(self) -> None:
        self.stores = [self._open(number) for number in range(len(self.disks))]
        self.processes = [Process(self, number) for number in range(self.process_count)]
        self.near, self.far = self.processes[0], self.processes[-1]
        self.namespace, self.random = self.near.namespace, self.near.random
        for process in self.processes:
            process.queue = process.add_queue(QUEUE_ID, self.path, self.description)
        self.queue = self.near.queue

    def _open(self, store: int) -> MemoryStore:
        return MemoryStore(self.disks[store], name=str(store), post=self.mail.append)

    def add_queue(self, entity_id: int, path: str, description: QueueDescription, store: int = 0) -> Queue:
        """Add another queue in all processes; return that of the first."""
        queue, *_ = [process.add_queue(entity_id, path, description, store) for process in self.processes]
        return queue

    def places(self, store: int = 0, *, is_partitioned: bool) -> list[int]:
        """Return the stores of the fragments of an entity."""
        return [number % len(self.disks) for number in range(FRAGMENTS)] if is_partitioned else [store]

    # --- the first store, and the first fragment ----------------------------------------------------------------------

    @property
    def disk(self) -> MemoryDisk:
        return self.disks[0]

    @property
    def store(self) -> MemoryStore:
        return self.stores[0]

    @property
    def journal(self) -> Journal:
        return self.journals[0]

    @property
    def journals(self) -> list[Journal]:
        """The journals of all stores, in the processes that own them."""
        owners = [self.processes[number % self.process_count] for number in range(len(self.stores))]
        return [owner.namespace.journal(number) for number, owner in enumerate(owners)]

    @property
    def main(self) -> Fragment:
        return part_of(self.queue).main

    @property
    def dead_letters(self) -> Fragment:
        return part_of(self.queue).dead_letters

    @property
    def window(self) -> Window:
        assert isinstance(self.main.line, Line)
        return self.main.line.window

    # --- all fragments ------------------------------------------------------------------------------------------------

    @property
    def mains(self) -> list[Fragment]:
        """The fragments of the queue, in the processes that own them."""
        owners = [self.processes[number % self.process_count] for number in range(len(self.queue.parts))]
        return [owner.queue.parts[number].main.local for number, owner in enumerate(owners)]

    def counts_by_fragment(self) -> list[int]:
        """Return the number of active messages in each fragment."""
        return [main.count for main in self.mains]

    def counts(self) -> tuple[int, int, int, int]:
        """Return how many messages a plain queue shows: active, deferred, scheduled and dead ones."""
        shown = self.main.holdings.shown
        return shown.active_count, shown.deferred_count, shown.scheduled_count, self.dead_letters.count

    def rows(self, *kinds: bytes) -> int:
        """Count the rows of some kinds in the index on disk (default: of all kinds but marks)."""
        found = [key[PREFIX_BYTES : PREFIX_BYTES + KIND_BYTES] for key in self.disk.synced[Table.INDEX].values]
        return sum(kind in kinds if kinds else kind != MARKS for kind in found)

    # --- time ---------------------------------------------------------------------------------------------------------

    def step(self) -> bool:
        """Do the next thing. Return False if there is none."""
        for line in (self.turn, self.mail, self.words):
            if line:
                line.popleft()()
                return True
        store = next((store for store in self.stores if store.pending), None)
        if store is not None:
            store.step()
        return store is not None

    def settle(self, steps: int = 1_000_000) -> None:
        """Go on until nothing is left to do but wait."""
        for _ in range(steps):
            if not self.step():
                return
        raise AssertionError(f"still busy after {steps} steps")

    def settle_reads(self) -> None:
        """Go on until nothing is left to do, or a commit has been made and is not answered yet."""
        while not any(store.waiting for store in self.stores) and self.step():
            pass

    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)
        for process in self.processes:
            process.namespace.timers.run_due()
        self.settle()

    # --- the way between two processes --------------------------------------------------------------------------------

    def connect(self) -> None:
        """Both processes find each other."""
        for asker, asked in ((self.near, self.far), (self.far, self.near)):
            self._connect(asker, asked)
        self.settle()

    def _connect(self, asker: Process, asked: Process) -> None:
        def call(number: int, word: Call) -> None:
            written = _encode((number, word))
            self._carry(asked, lambda: desk.receive(*CALLS.decode(written)) if desk is asked.desk else None)

        def respond(number: int, word: Answer) -> None:
            written = _encode((number, word))
            self._carry(asker, lambda: asker.owner.receive(*ANSWERS.decode(written)) if desk is asked.desk else None)

        desk = asked.desk = Desk(asked.namespace, respond, _refuse)
        asker.owner.connected(call)

    def _carry(self, to: Process, hear: Callable[[], object]) -> None:
        (self._unheard if to.number in self.silent else self.words).append(hear)

    def disconnect(self) -> None:
        """Neither process finds the other any more."""
        for process in self.processes:
            assert process.desk is not None
            desk, process.desk = process.desk, None
            desk.close()
            process.owner.disconnected()
        self.words.clear()
        self.settle()

    def wake(self) -> None:
        """Silent processes hear all that they were told meanwhile."""
        self.silent.clear()
        self.words.extend(self._unheard)
        self._unheard.clear()
        self.settle()

    # --- failures -----------------------------------------------------------------------------------------------------

    def fail(self, store: int = 0, *, is_kept: bool = False) -> None:
        """Let the next sync of a store fail: nothing of it is on disk, or all of it all the same."""
        self.stores[store].fail_next("input/output error", Keeping(all_of_it=is_kept))

    def break_down(self, *stores: int) -> None:
        """Let stores fail now, with what they hold on disk."""
        for store in stores:
            self.journals[store].fail("it broke")
        self.settle()

    def reopen(self) -> None:
        """Open all stores that failed. Nothing is settled."""
        for number, journal in enumerate(self.journals):
            if journal in self.failed:
                self.stores[number].close(lambda _: None)
                self.settle()
                self.stores[number] = self._open(number)
                journal.resume(self.stores[number])
        self.failed.clear()

    def recover(self) -> None:
        """Open all stores that failed, and settle."""
        self.reopen()
        self.settle()

    def restart(self) -> None:
        """Lose what is in memory of a plain queue, and load what is on disk: its store fails and is opened again."""
        self.fail()
        self.send(b"lost", session="s")
        self.settle()
        self.recover()

    def crash(self) -> None:
        """Cut the power of the only process: unsynced changes are lost, and another process loads what is left."""
        for disk in self.disks:
            disk.crash(Keeping(all_of_it=False))
        for line in (self.turn, self.mail, self.failed):
            line.clear()
        self._start()
        self.load(self.queue)

    def load(self, *entities: Any) -> None:  # noqa: ANN401  # whatever can be loaded
        answers = Answers()
        for entity in entities:
            entity.load(answers)
        self.settle()
        assert answers == [None] * len(entities)
        for entity in entities:
            entity.settled_down()
        self.settle()

    # --- sending ------------------------------------------------------------------------------------------------------

    def parcel(self, *payloads: bytes, to: Queue | Topic | None = None, message_format: int = 0) -> Parcel:
        """Put encoded messages in one parcel for an entity (default: the queue)."""
        parcel, terms = Parcel(), (to or self.queue).terms
        for payload in payloads:
            self.namespace.intake.add_to(parcel, payload, message_format, self.clock.wall_ms(), terms)
        return parcel

    def send_messages(
        self,
        *payloads: bytes,
        to: Queue | Topic | None = None,
        by: Process | None = None,
        numbers: list[int] | None = None,
    ) -> Answers:
        """Send encoded messages in one call. Nothing is settled.

        They go to an entity, or to the queue by one of the processes (default: by the first).
        """
        answers, entity = Answers(), to or (by or self.near).queue
        entity.send(self.parcel(*payloads, to=entity), answers, numbers)
        return answers

    def sent(self, *payloads: bytes, **details: Any) -> Answers:  # noqa: ANN401  # as `send_messages` takes them
        """Send encoded messages in one call, and settle."""
        answers = self.send_messages(*payloads, **details)
        self.settle()
        return answers

    def send_batch(
        self, *payloads: bytes, to: Queue | Topic | None = None, numbers: list[int] | None = None
    ) -> Answers:
        """Send encoded messages as one AMQP message. Nothing is settled."""
        answers = Answers()
        entity = to or self.queue
        entity.send(self.parcel(data(*payloads), to=entity, message_format=BATCH_FORMAT), answers, numbers)
        return answers

    def store_messages(self, *payloads: bytes, to: Queue | Topic | None = None, by: Process | None = None) -> None:
        """Send encoded messages, each in a call of its own, and wait until all are stored."""
        answers = [self.send_messages(payload, to=to, by=by) for payload in payloads]
        self.settle()
        assert answers == [[None]] * len(payloads)

    def send(self, *bodies: bytes, to: Queue | Topic | None = None, **details: Any) -> Answers:  # noqa: ANN401  # as `message` takes them
        """Send a message with each of these bodies, in one call. Nothing is settled."""
        return self.send_messages(*[message(body, **details) for body in bodies], to=to)

    def stored(self, *bodies: bytes, to: Queue | Topic | None = None, **details: Any) -> None:  # noqa: ANN401
        """Send a message with each of these bodies, in one call, and wait until all are stored."""
        answers = self.send(*bodies, to=to, **details)
        self.settle()
        assert answers == [None]

    # --- receiving ----------------------------------------------------------------------------------------------------

    def consumer(
        self, credit: int = 0, *, of: FragmentPort | None = None, by: Process | None = None, deletes: bool = False
    ) -> TestConsumer:
        """Add a consumer of one fragment, or of all fragments of the queue by one of the processes."""
        fragments = [of] if of is not None else (by or self.near).fragments
        return self.begun(TestConsumer(*fragments, deletes=deletes), credit)

    def accept(
        self, session: bytes | None = None, credit: int = 0, *, by: Process | None = None, deletes: bool = False
    ) -> SessionConsumer:
        """Add a consumer that accepts a session (default: any)."""
        consumer = SessionConsumer(*(by or self.near).fragments, session=session, deletes=deletes)
        self.settle()
        return self.begun(consumer, credit)

    def begun(self, consumer: ConsumerKind, credit: int = 0) -> ConsumerKind:
        """Grant credit to a consumer, after the other process has admitted it."""
        if self.process_count > 1:
            self.settle()
        if credit:
            consumer.grant(credit)
            self.settle()
        return consumer


def _refuse(desk: Desk, call: object, tell: object) -> None:
    raise AssertionError(desk, call, tell)
