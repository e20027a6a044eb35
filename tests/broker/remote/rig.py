"""One namespace over two processes, both moved by hand: each has two of four stores, and words go between them."""

from __future__ import annotations

from collections import deque
from random import Random
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from tests.broker.partitioned.rig import GatheringConsumer, Keeping
from tests.broker.rig import Answers
from twinbus.broker.namespace import Namespace
from twinbus.broker.ports.consumer import Card
from twinbus.broker.ports.gathering import Gathering
from twinbus.broker.ports.incoming import Parcel
from twinbus.broker.remote.owner import Owner
from twinbus.model.description import FRAGMENTS
from twinbus.model.partition_key import fragment_of
from twinbus.model.queue import QueueDescription
from twinbus.server.peers.channel import ANSWERS, CALLS
from twinbus.server.peers.desk import Desk
from twinbus.store.memory import MemoryDisk, MemoryStore
from twinbus.testing.clock import FakeClock

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from twinbus.broker.journal import Journal
    from twinbus.broker.ports.fragment import FragmentPort, Hold
    from twinbus.broker.ports.peer_protocol import Answer, Call
    from twinbus.broker.queue import Queue
    from twinbus.model.limits import NamespaceLimits

STORES = 4
PROCESSES = 2
QUEUE_ID = 7
_encode = msgspec.msgpack.encode
ReceiverKind = TypeVar("ReceiverKind", bound="Receiver")


class Process:
    """One of the two. It has the stores whose number leaves its own when divided by two."""

    def __init__(self, rig: TwoProcesses, number: int) -> None:
        self.number = number
        self.failed: list[Journal] = []
        self.namespace = Namespace(
            clock=rig.clock,
            random=Random(number),
            defer=rig.turn.append,
            on_failed=self.failed.append,
            limits=rig.limits,
        )
        self.owner = Owner(f"process {1 - number}", clock=rig.clock, timers=self.namespace.timers, timeout_s=10.0)
        """The other one, as this one knows it."""
        for place, store in enumerate(rig.stores):
            if place % PROCESSES == number:
                self.namespace.add_store(store)
            else:
                self.namespace.add_remote_store(str(place), self.owner)
        self.desk: Desk | None = None

    def add_queue(self, entity_id: int, path: str, description: QueueDescription, store: int = 0) -> Any:  # noqa: ANN401  # plain or partitioned
        times = {"created_ms": 0, "updated_ms": 0}
        if description.enable_partitioning:
            places = [number % STORES for number in range(FRAGMENTS)]
            return self.namespace.add_queue(entity_id, path, description, places, **times)
        return self.namespace.add_queue(entity_id, path, description, [store], **times)


class TwoProcesses:
    """Nothing happens but by `settle` and by the clock."""

    def __init__(self, description: QueueDescription | None = None, *, limits: NamespaceLimits | None = None) -> None:
        self.limits = limits
        self.clock = FakeClock()
        self.turn: deque[Callable[[], object]] = deque()
        self.mail: deque[Callable[[], object]] = deque()
        self.words: deque[Callable[[], object]] = deque()
        """On their way between the two."""
        self.silent: set[int] = set()
        """Processes that do nothing now."""
        self.hung: set[int] = set()
        """Stores that do nothing now."""
        self._kept: deque[tuple[int, Callable[[], object]]] = deque()
        self.disks = [MemoryDisk() for _ in range(STORES)]
        self.stores = [MemoryStore(disk, name=str(at), post=self.mail.append) for at, disk in enumerate(self.disks)]
        self.description = description or QueueDescription(enable_partitioning=True)
        self.near, self.far = Process(self, 0), Process(self, 1)
        for process in (self.near, self.far):
            process.add_queue(QUEUE_ID, "orders", self.description)
        self.connect()

    # --- the way between them -----------------------------------------------------------------------------------------

    def connect(self) -> None:
        """Both find each other."""
        for asker, asked in ((self.near, self.far), (self.far, self.near)):
            self._connect(asker, asked)
        self.settle()

    def _connect(self, asker: Process, asked: Process) -> None:
        def call(number: int, word: Call) -> None:
            written = _encode((number, word))
            self._carry(asked.number, lambda: desk.receive(*CALLS.decode(written)) if desk is asked.desk else None)

        def respond(number: int, word: Answer) -> None:
            written = _encode((number, word))
            self._carry(
                asker.number, lambda: asker.owner.receive(*ANSWERS.decode(written)) if desk is asked.desk else None
            )

        desk = asked.desk = Desk(asked.namespace, respond, _refuse)
        asker.owner.connected(call)

    def _carry(self, number: int, hear: Callable[[], object]) -> None:
        if number in self.silent:
            self._kept.append((number, hear))
        else:
            self.words.append(hear)

    def disconnect(self) -> None:
        """Neither finds the other any more."""
        for process in (self.near, self.far):
            assert process.desk is not None
            desk, process.desk = process.desk, None
            desk.close()
            process.owner.disconnected()
        self.words.clear()
        self.settle()

    def wake(self) -> None:
        """Those that were silent hear all that they were told meanwhile."""
        self.silent.clear()
        while self._kept:
            self.words.append(self._kept.popleft()[1])
        self.settle()

    # --- time ---------------------------------------------------------------------------------------------------------

    def settle(self, steps: int = 1_000_000) -> None:
        """Until nothing is left to do but wait."""
        for _ in range(steps):
            if not self._step():
                return
        raise AssertionError("it does not come to rest")

    def _step(self) -> bool:
        for line in (self.turn, self.mail, self.words):
            if line:
                line.popleft()()
                return True
        working = (store for number, store in enumerate(self.stores) if number not in self.hung)
        store = next((store for store in working if store.pending), None)
        if store is None:
            return False
        store.step()
        return True

    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)
        for process in (self.near, self.far):
            process.namespace.timers.run_due()
        self.settle()

    def break_down(self, store: int) -> None:
        """It fails now, with what it holds on disk."""
        process = (self.near, self.far)[store % PROCESSES]
        self.disks[store].crash(Keeping(all_of_it=True))
        process.namespace.journal(store).fail("it broke")
        self.settle()

    def reopen(self, store: int) -> None:
        """It works again."""
        self.stores[store] = MemoryStore(self.disks[store], name=str(store), post=self.mail.append)
        (self.near, self.far)[store % PROCESSES].namespace.journal(store).resume(self.stores[store])
        self.settle()

    # --- messages -----------------------------------------------------------------------------------------------------

    def queue(self, process: Process | None = None) -> Queue:
        found: Any = (process or self.near).namespace.entities["orders"]
        return found  # type: ignore[no-any-return]

    def send(self, *payloads: bytes, by: Process | None = None, numbers: list[int] | None = None) -> Answers:
        """Together, and settled."""
        process, answers, parcel = by or self.near, Answers(), Parcel()
        queue = self.queue(process)
        for payload in payloads:
            process.namespace.intake.add_to(parcel, payload, 0, self.clock.wall_ms(), queue.terms)
        queue.send(parcel, answers, numbers)
        self.settle()
        return answers

    def stored(self, *payloads: bytes, by: Process | None = None) -> None:
        """Each for itself."""
        for payload in payloads:
            assert self.send(payload, by=by) == [None]

    def counts(self) -> list[int]:
        """Active messages, fragment by fragment, as their owners know."""
        return [
            self.queue((self.near, self.far)[number % PROCESSES]).parts[number].main.local.count
            for number in range(len(self.queue().parts))
        ]

    def receiver(self, credit: int = 0, *, of: Process | None = None, deletes: bool = False) -> Receiver:
        receiver = Receiver([part.main for part in self.queue(of).parts], deletes=deletes)
        return self.begun(receiver, credit)

    def session_receiver(
        self, credit: int = 0, *, of: Process | None = None, session: bytes | None = None, deletes: bool = False
    ) -> SessionReceiver:
        receiver = SessionReceiver([part.main for part in self.queue(of).parts], session, deletes=deletes)
        return self.begun(receiver, credit)

    def begun(self, receiver: ReceiverKind, credit: int = 0) -> ReceiverKind:
        self.settle()
        if credit:
            receiver.grant(credit)
            self.settle()
        return receiver


class Receiver(GatheringConsumer):
    """A receiving link over fragments of both processes."""

    def __init__(
        self, fragments: Sequence[FragmentPort], *, deletes: bool = False, epoch: int | None = None, client: int = 1
    ) -> None:
        self.card = Card(client=client, epoch=epoch, link=next(_links))
        self.let_in_count = 0
        super().__init__(fragments, deletes=deletes)

    def begin(self) -> None:
        self.gathering.add(self)

    def feed(self) -> None:
        if self.credit and not self.is_gone:
            self.gathering.feed(self)

    def let_in(self) -> None:
        self.let_in_count += 1


class SessionReceiver(Receiver):
    """A receiving link that wants a session: one that it names, or any."""

    def __init__(
        self, fragments: Sequence[FragmentPort], session: bytes | None = None, *, deletes: bool = False
    ) -> None:
        self.holds: list[Hold] = []
        self._wanted = session
        super().__init__(fragments, deletes=deletes)

    def begin(self) -> None:
        if self._wanted is not None:
            self.gathering = Gathering([self.gathering.fragments[fragment_of(self._wanted)]])
            self.gathering.fragments[0].line.accept(self, self._wanted, self._granted)
            return
        for fragment in self.gathering.fragments:
            fragment.line.wait(self, self._granted)

    def _granted(self, hold: Hold) -> None:
        self.holds.append(hold)
        for fragment in self.gathering.fragments:
            if fragment.line.gave(hold):
                self.gathering = Gathering([fragment])
            else:
                fragment.line.give_up(self)
        self.feed()


_links = iter(range(1, 1_000_000))


def _refuse(desk: Desk, call: object, tell: object) -> None:
    raise AssertionError(desk, call, tell)
