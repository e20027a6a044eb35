"""A namespace with one queue on a store in memory, moved by hand."""

from __future__ import annotations

from collections import deque
from random import Random
from typing import TYPE_CHECKING, Any

from tests.parts import part_of
from twinbus.amqp.message import Header, Message, Properties, Section, build, data
from twinbus.amqp.types import Timestamp
from twinbus.broker.keys import KIND_BYTES, MARKS, PREFIX_BYTES
from twinbus.broker.line import Line
from twinbus.broker.namespace import Namespace
from twinbus.broker.ports.incoming import Parcel
from twinbus.broker.work import UNITS
from twinbus.model.queue import QueueDescription
from twinbus.store.memory import MemoryDisk, MemoryStore
from twinbus.store.protocol import Table
from twinbus.testing.clock import FakeClock

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinbus.broker.fragment import Fragment
    from twinbus.broker.journal import Journal
    from twinbus.broker.ports.consumer import Delivery
    from twinbus.broker.ports.fragment import Hold
    from twinbus.broker.window import Window
    from twinbus.model.errors import ServiceBusError
    from twinbus.model.limits import NamespaceLimits


class Answers(list["ServiceBusError | None"]):
    """Everything that was answered; is what one passes as `answer`."""

    def __call__(self, error: ServiceBusError | None) -> None:
        self.append(error)


class TestConsumer:
    """A receiving link that counts as the server's does."""

    __test__ = False

    def __init__(self, fragment: Fragment, *, deletes: bool = False) -> None:
        self._begin(fragment, deletes=deletes)
        assert isinstance(fragment.line, Line)
        fragment.line.add(self)

    def _begin(self, fragment: Fragment, *, deletes: bool) -> None:
        self.deletes = deletes
        self.is_gone = False
        self.credit = 0
        self.reserved = 0
        self.deliveries: list[Delivery] = []
        self.errors: list[ServiceBusError] = []
        self.drains = 0
        self._fragment = fragment

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
        self._fragment.line.feed(self)

    def drain(self) -> None:
        self._fragment.line.drain(self, self._drained)

    def _drained(self) -> None:
        self.drains += 1
        self.credit = 0

    def leave(self) -> None:
        self.is_gone = True
        self._fragment.line.remove(self)

    @property
    def messages(self) -> list[Message]:
        return [Message(payload) for payload, _ in self.deliveries]

    @property
    def bodies(self) -> list[bytes]:
        return [message.data[0] for message in self.messages]

    def numbers(self) -> list[int]:
        return self._fragment.lock_numbers([tag for _, tag in self.deliveries])


class SessionConsumer(TestConsumer):
    """A receiving link that accepts a session, the one of an id or any."""

    def __init__(self, fragment: Fragment, session: bytes | None = None, *, deletes: bool = False) -> None:
        self._begin(fragment, deletes=deletes)
        assert fragment.sessions is not None
        self.sessions = fragment.sessions
        self.hold: Hold | None = None
        if session is None:
            self.sessions.accept_any(self, self._granted)
        else:
            self.sessions.accept(self, session, self._granted)

    def _granted(self, hold: Hold) -> None:
        self.hold = hold

    @property
    def session(self) -> bytes | None:
        return self.hold.session if self.hold is not None else None


class Rig:
    """Nothing happens but by `settle` and by the clock."""

    def __init__(
        self,
        description: QueueDescription | None = None,
        *,
        limits: NamespaceLimits | None = None,
        path: str = "orders",
        work_units: int = UNITS,
    ) -> None:
        self.clock = FakeClock()
        self.turn: deque[Callable[[], object]] = deque()
        self.mail: deque[Callable[[], object]] = deque()
        self.disk = MemoryDisk()
        self.store = MemoryStore(self.disk, name="0", post=self.mail.append)
        self.failed: list[Journal] = []
        self.random = Random(1)
        self.namespace = Namespace(
            clock=self.clock,
            random=self.random,
            defer=self.turn.append,
            on_failed=self.failed.append,
            limits=limits,
            work_units=work_units,
        )
        self.journal = self.namespace.add_store(self.store)
        self.path = path
        self.queue = self.namespace.add_queue(
            7, path, description or QueueDescription(), [0], created_ms=0, updated_ms=0
        )
        self.main, self.dead_letters = part_of(self.queue).main, part_of(self.queue).dead_letters

    @property
    def window(self) -> Window:
        assert isinstance(self.main.line, Line)
        return self.main.line.window

    def settle(self) -> None:
        """Until nothing is left to do but wait."""
        while self.turn or self.mail or self.store.pending:
            self.step()

    def settle_reads(self) -> None:
        """... or until a commit has been made and is not answered yet."""
        while not self.store.waiting and (self.turn or self.mail or self.store.pending):
            self.step()

    def step(self) -> None:
        """The next thing, where there is one."""
        if self.turn:
            self.turn.popleft()()
        elif self.mail:
            self.mail.popleft()()
        else:
            self.store.step()

    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.namespace.timers.run_due()
        self.settle()

    def send(self, *bodies: bytes) -> Answers:
        """All in one call, and not settled."""
        parcel = Parcel()
        for body in bodies:
            self.namespace.intake.add_to(parcel, message(body), 0, self.clock.wall_ms(), self.queue.terms)
        answers = Answers()
        self.queue.send(parcel, answers)
        return answers

    def send_one(self, body: bytes = b"", **details: Any) -> Answers:  # noqa: ANN401  # as `message` takes them
        parcel, answers = Parcel(), Answers()
        self.namespace.intake.add_to(parcel, message(body, **details), 0, self.clock.wall_ms(), self.queue.terms)
        self.queue.send(parcel, answers)
        return answers

    def store_one(self, body: bytes = b"", **details: Any) -> None:  # noqa: ANN401  # as `message` takes them
        answers = self.send_one(body, **details)
        self.settle()
        assert answers == [None]

    def accept(self, session: bytes | None = None, credit: int = 0, *, deletes: bool = False) -> SessionConsumer:
        consumer = SessionConsumer(self.main, session, deletes=deletes)
        self.settle()
        if credit:
            consumer.grant(credit)
            self.settle()
        return consumer

    def counts(self) -> tuple[int, int, int, int]:
        """Active, deferred, scheduled and dead messages, as they are shown."""
        shown = self.main.holdings.shown
        return shown.active_count, shown.deferred_count, shown.scheduled_count, self.dead_letters.count

    def rows(self, *kinds: bytes) -> int:
        """What is on disk of some kinds; of none, all that is beside messages and marks."""
        found = [key[PREFIX_BYTES : PREFIX_BYTES + KIND_BYTES] for key in self.disk.synced[Table.INDEX].values]
        return sum(kind in kinds if kinds else kind != MARKS for kind in found)

    def restart(self) -> None:
        """Another life of the same store: what is in memory is lost, what is synced is not."""
        self.fail()
        self.send_one(b"lost", session="s")
        self.settle()
        self.reopen()
        self.settle()

    def stored(self, *bodies: bytes) -> None:
        answers = self.send(*bodies)
        self.settle()
        assert answers == [None]

    def consumer(self, credit: int = 0, *, deletes: bool = False, of: Fragment | None = None) -> TestConsumer:
        consumer = TestConsumer(of or self.main, deletes=deletes)
        if credit:
            consumer.grant(credit)
            self.settle()
        return consumer

    def fail(self, *, is_kept: bool = False) -> None:
        """The next sync fails, and nothing of it is on disk; or all of it is, all the same."""
        self.store.fail_next("input/output error", _All() if is_kept else _Nothing())

    def reopen(self) -> None:
        self.store.close(lambda _: None)
        self.settle()
        self.store = MemoryStore(self.disk, name="0", post=self.mail.append)
        self.journal.resume(self.store)


class _Nothing(Random):
    """Chance leaves nothing of what was not synced."""

    def randint(self, a: int, _b: int) -> int:
        return a


class _All(Random):
    def randint(self, _a: int, b: int) -> int:
        return b


def property_of(found: Message, name: str) -> object:
    return found.lookup(Section.APPLICATION_PROPERTIES, name)


def annotation_of(found: Message, name: str) -> Any:  # noqa: ANN401  # whatever it is
    return found.lookup(Section.MESSAGE_ANNOTATIONS, name)


def message(
    body: bytes,
    *,
    message_id: str = "m",
    session: str | None = None,
    ttl_ms: int | None = None,
    due_ms: int | None = None,
) -> bytes:
    return build(
        header=Header(ttl=ttl_ms) if ttl_ms is not None else None,
        message_annotations={"x-opt-scheduled-enqueue-time": Timestamp(due_ms)} if due_ms is not None else None,
        properties=Properties(message_id=message_id, group_id=session),
        body=data(body),
    )
