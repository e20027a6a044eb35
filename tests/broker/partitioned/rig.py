"""A namespace with one partitioned queue over several stores in memory, moved by hand."""

from __future__ import annotations

from collections import deque
from random import Random
from typing import TYPE_CHECKING, Any

from tests.broker.rig import Answers
from twinbus.amqp.message import Message, Properties, build, data
from twinbus.amqp.types import Timestamp
from twinbus.broker.namespace import Namespace
from twinbus.broker.ports.gathering import Gathering
from twinbus.broker.ports.incoming import Parcel
from twinbus.model.annotations import PARTITION_KEY, SCHEDULED_TIME
from twinbus.model.description import FRAGMENTS
from twinbus.model.message import BATCH_FORMAT
from twinbus.model.partition_key import fragment_of
from twinbus.model.queue import QueueDescription
from twinbus.store.memory import MemoryDisk, MemoryStore
from twinbus.testing.clock import FakeClock

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from twinbus.broker.fragment import Fragment
    from twinbus.broker.journal import Journal
    from twinbus.broker.ports.consumer import Delivery
    from twinbus.broker.ports.fragment import FragmentPort
    from twinbus.broker.queue import Queue
    from twinbus.broker.topic import Topic
    from twinbus.model.errors import ServiceBusError
    from twinbus.model.limits import NamespaceLimits

STORES = 4
QUEUE_ID = 7


class Keeping(Random):
    """What of the unsynced is on disk after a failure: all, or nothing."""

    def __init__(self, *, all_of_it: bool) -> None:
        super().__init__(0)
        self._all_of_it = all_of_it

    def randint(self, a: int, b: int) -> int:
        return b if self._all_of_it else a


class PartitionedRig:
    """Nothing happens but by `settle` and by the clock. Fragment f lies in store f mod `STORES`."""

    def __init__(self, description: QueueDescription | None = None, *, limits: NamespaceLimits | None = None) -> None:
        self.clock = FakeClock()
        self.random = Random(1)
        self.disks = [MemoryDisk() for _ in range(STORES)]
        self._limits = limits
        self.turn: deque[Callable[[], object]] = deque()
        self.mail: deque[Callable[[], object]] = deque()
        self.failed: list[Journal] = []
        self.path = "orders"
        self.description = description or QueueDescription(enable_partitioning=True)
        self._open()
        self.queue = self.add_queue(QUEUE_ID, self.path, self.description)

    def _open(self) -> None:
        self.turn.clear()
        self.mail.clear()
        self.failed.clear()
        self.stores = [MemoryStore(disk, name=str(at), post=self.mail.append) for at, disk in enumerate(self.disks)]
        self.namespace = Namespace(
            clock=self.clock,
            random=self.random,
            defer=self.turn.append,
            on_failed=self.failed.append,
            limits=self._limits,
        )
        for store in self.stores:
            self.namespace.add_store(store)

    def add_queue(self, entity_id: int, path: str, description: QueueDescription) -> Queue:
        places = [number % STORES for number in range(FRAGMENTS)]
        return self.namespace.add_queue(entity_id, path, description, places, created_ms=0, updated_ms=0)

    @property
    def mains(self) -> list[Fragment]:
        return [part.main.local for part in self.queue.parts]

    # --- time ---------------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Until nothing is left to do but wait."""
        while self.step():
            pass

    def step(self) -> bool:
        """The next thing. False if there is none."""
        if self.turn:
            self.turn.popleft()()
        elif self.mail:
            self.mail.popleft()()
        else:
            store = next((store for store in self.stores if store.pending), None)
            if store is None:
                return False
            store.step()
        return True

    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.namespace.timers.run_due()
        self.settle()

    # --- what goes wrong ----------------------------------------------------------------------------------------------

    def fail(self, store: int, *, is_kept: bool = False) -> None:
        """The next sync of a store fails: nothing of it is on disk, or all of it all the same."""
        self.stores[store].fail_next("input/output error", Keeping(all_of_it=is_kept))

    def break_down(self, *stores: int) -> None:
        """They fail now, with what they hold on disk."""
        for store in stores:
            self.namespace.journal(store).fail("it broke")
        self.settle()

    def reopen(self) -> None:
        """All stores that failed work again."""
        for journal in self.failed:
            number = self.namespace.journals.index(journal)
            self.stores[number].close(lambda _: None)
            self.settle()
            self.stores[number] = MemoryStore(self.disks[number], name=str(number), post=self.mail.append)
            journal.resume(self.stores[number])
        self.failed.clear()
        self.settle()

    def crash(self) -> None:
        """Power is cut, and nothing that was not synced is left; another process loads what there is."""
        for disk in self.disks:
            disk.crash(Keeping(all_of_it=False))
        self._open()
        self.queue = self.add_queue(QUEUE_ID, self.path, self.description)
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

    # --- messages -----------------------------------------------------------------------------------------------------

    def parcel(self, *payloads: bytes, to: Queue | Topic | None = None) -> Parcel:
        parcel = Parcel()
        for payload in payloads:
            terms = (to or self.queue).terms
            self.namespace.intake.add_to(parcel, payload, 0, self.clock.wall_ms(), terms)
        return parcel

    def send(self, *payloads: bytes, numbers: list[int] | None = None) -> Answers:
        """Together, and not settled."""
        answers = Answers()
        self.queue.send(self.parcel(*payloads), answers, numbers)
        return answers

    def send_batch(self, *payloads: bytes) -> Answers:
        parcel, answers = Parcel(), Answers()
        self.namespace.intake.add_to(parcel, data(*payloads), BATCH_FORMAT, self.clock.wall_ms(), self.queue.terms)
        self.queue.send(parcel, answers)
        return answers

    def stored(self, *payloads: bytes) -> None:
        """Each for itself."""
        answers = [self.send(payload) for payload in payloads]
        self.settle()
        assert answers == [[None]] * len(payloads)

    def counts(self) -> list[int]:
        """Active messages, fragment by fragment."""
        return [main.count for main in self.mains]

    def consumer(self, credit: int = 0, *, deletes: bool = False) -> GatheringConsumer:
        consumer = GatheringConsumer(self.mains, deletes=deletes)
        if credit:
            consumer.grant(credit)
            self.settle()
        return consumer


class GatheringConsumer:
    """A receiving link over several fragments, that counts as the server's does."""

    def __init__(self, fragments: Sequence[FragmentPort], *, deletes: bool = False) -> None:
        self.deletes = deletes
        self.is_gone = False
        self.credit = 0
        self.reserved = 0
        self.deliveries: list[Delivery] = []
        self.errors: list[ServiceBusError] = []
        self.drains = 0
        self.gathering = Gathering(fragments)
        self.begin()

    def begin(self) -> None:
        self.gathering.add(self)

    @property
    def room(self) -> int:
        return self.credit - self.reserved

    def reserve(self, count: int) -> None:
        self.reserved += count

    def deliver(self, deliveries: list[Delivery]) -> int:
        assert len(deliveries) <= self.credit
        self.credit -= len(deliveries)
        if self.deletes:
            self.reserved -= len(deliveries)
        self.deliveries += deliveries
        return len(deliveries)

    def entity_gone(self, error: ServiceBusError) -> None:
        self.is_gone = True
        self.errors.append(error)

    def session_lost(self, error: ServiceBusError) -> None:
        self.entity_gone(error)

    def grant(self, credit: int) -> None:
        self.credit += credit
        self.gathering.feed(self)

    def drain(self, credit: int = 0) -> None:
        self.credit += credit
        self.gathering.drain(self, self._drained)

    def _drained(self) -> None:
        self.drains += 1
        self.credit = 0

    def leave(self) -> None:
        self.is_gone = True
        self.gathering.remove(self)

    @property
    def bodies(self) -> list[bytes]:
        return [Message(payload).data[0] for payload, _ in self.deliveries]

    def complete(self, answers: Answers) -> None:
        """All that it was given."""
        by_fragment: dict[int, list[bytes]] = {}
        for _, tag in self.deliveries:
            by_fragment.setdefault(self.gathering.find(tag).number, []).append(tag)
        for number, tags in by_fragment.items():
            fragment = self.gathering.fragments[number]
            fragment.settlement.complete(fragment.lock_numbers(tags), answers)


def message(
    body: bytes = b"",
    *,
    key: str | None = None,
    session: str | None = None,
    message_id: str = "m",
    due_ms: int | None = None,
    content_type: str | None = None,
) -> bytes:
    annotations: dict[str, object] = {PARTITION_KEY: key} if key is not None else {}
    if due_ms is not None:
        annotations[SCHEDULED_TIME] = Timestamp(due_ms)
    return build(
        message_annotations=annotations or None,
        properties=Properties(message_id=message_id, group_id=session, content_type=content_type),
        body=data(body),
    )


def key_for(fragment: int, salt: int = 0) -> str:
    """A key that leads to a fragment."""
    return next(
        name for name in (f"{salt}-{number}" for number in range(10_000)) if fragment_of(name.encode()) == fragment
    )
