"""A namespace with one queue on stores in memory, in one process or two.

Nothing runs until a test steps the harness or its clock. Owns the clock, the disks, the loop of all processes, and the
connection between two processes. Tests choose the description of the queue, the number of stores and the number of
processes. Process s mod `processes` owns store s, and fragment f of a partitioned entity is stored in store f mod
`stores`.
"""

from __future__ import annotations

from collections import deque
from random import Random
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from tests.broker.consumers import FakeConsumer, FakeSessionConsumer, Results
from tests.broker.messages import message
from tests.support.parts import local_part
from twinbus.amqp.message import data
from twinbus.broker.fragment.dispatcher import Dispatcher
from twinbus.broker.namespace import Namespace
from twinbus.broker.ports.incoming_batch import IncomingBatch
from twinbus.broker.remote.peer_client import PeerClient
from twinbus.broker.store_keys import COUNTERS, KIND_BYTES, PREFIX_BYTES
from twinbus.broker.work_budget import UNITS_PER_TURN
from twinbus.model.description import FRAGMENT_COUNT
from twinbus.model.message import BATCH_FORMAT
from twinbus.model.queue import QueueDescription
from twinbus.server.cluster.message_channel import REPLY_DECODER, REQUEST_DECODER
from twinbus.server.cluster.peer_server import PeerServer
from twinbus.store.memory import MemoryDisk, MemoryStore
from twinbus.store.protocol import Table
from twinbus.testing.clock import FakeClock

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinbus.broker.commit_log import CommitLog
    from twinbus.broker.entities.queue import Queue
    from twinbus.broker.entities.topic import Topic
    from twinbus.broker.fragment.fragment import Fragment
    from twinbus.broker.fragment.window import Window
    from twinbus.broker.ports.fragment import FragmentPort
    from twinbus.broker.ports.peer_protocol import Reply, Request
    from twinbus.model.limits import NamespaceLimits

    ConsumerKind = TypeVar("ConsumerKind", bound=FakeConsumer)

PARTITIONED = QueueDescription(enable_partitioning=True)
STORES = 4
"""Number of stores of a harness with a partitioned queue (default)."""
QUEUE_ID = 7
_encode = msgspec.msgpack.encode


class FixedLoss(Random):
    """Decide which unsynced changes survive a failure: all of them, or none."""

    def __init__(self, *, keeps_all: bool) -> None:
        super().__init__(0)
        self._keeps_all = keeps_all

    def randint(self, a: int, b: int) -> int:
        return b if self._keeps_all else a


class Process:
    """A process with its own stores, and the stores of the other process as remote stores."""

    queue: Queue
    peer_client: PeerClient
    """The client of the other process; set only if there are two processes."""
    peer_server: PeerServer | None = None

    def __init__(self, harness: BrokerHarness, number: int) -> None:
        self._harness = harness
        self.number = number
        self.random = Random(number + 1)
        self.namespace = Namespace(
            clock=harness.clock,
            random=self.random,
            call_at_turn_end=harness.deferred_calls.append,
            on_failed=harness.failed_logs.append,
            limits=harness.limits,
            work_units=harness.work_units,
        )
        if harness.process_count > 1:
            self.peer_client = PeerClient(
                f"process {1 - number}", clock=harness.clock, timers=self.namespace.timers, timeout_s=10.0
            )
        for store_number, store in enumerate(harness.stores):
            if store_number % harness.process_count == number:
                self.namespace.add_store(store)
            else:
                self.namespace.add_remote_store(str(store_number), self.peer_client)

    def add_queue(self, entity_id: int, path: str, description: QueueDescription, store: int = 0) -> Queue:
        """Add a queue; a plain queue is stored in `store`."""
        stores = self._harness.store_numbers(store, is_partitioned=description.enable_partitioning)
        return self.namespace.add_queue(entity_id, path, description, stores, created_ms=0, updated_ms=0)

    @property
    def fragments(self) -> list[FragmentPort]:
        """The ports of the queue's fragments in this process."""
        return [part.main for part in self.queue.parts]


class BrokerHarness:
    def __init__(
        self,
        description: QueueDescription | None = None,
        *,
        stores: int | None = None,
        processes: int = 1,
        limits: NamespaceLimits | None = None,
        path: str = "orders",
        work_units: int = UNITS_PER_TURN,
    ) -> None:
        """`stores` defaults to 4 for a partitioned queue, else 1."""
        self.description = description or QueueDescription()
        self.path = path
        self.limits = limits
        self.work_units = work_units
        self.process_count = processes
        self.clock = FakeClock()
        self.deferred_calls: deque[Callable[[], object]] = deque()
        self.store_callbacks: deque[Callable[[], object]] = deque()
        self.peer_messages: deque[Callable[[], object]] = deque()
        """Messages in flight between two processes."""
        self.silent_processes: set[int] = set()
        """Processes that currently get no messages from the other process."""
        self._undelivered: list[Callable[[], object]] = []
        self.failed_logs: list[CommitLog] = []
        count = stores or (STORES if self.description.enable_partitioning else 1)
        self.disks = [MemoryDisk() for _ in range(count)]
        self._start()
        if processes > 1:
            self.connect()

    def _start(self) -> None:
        self.stores = [self._open(number) for number in range(len(self.disks))]
        self.processes = [Process(self, number) for number in range(self.process_count)]
        self.first_process, self.last_process = self.processes[0], self.processes[-1]
        self.namespace, self.random = self.first_process.namespace, self.first_process.random
        for process in self.processes:
            process.queue = process.add_queue(QUEUE_ID, self.path, self.description)
        self.queue = self.first_process.queue

    def _open(self, store: int) -> MemoryStore:
        return MemoryStore(self.disks[store], name=str(store), post_call=self.store_callbacks.append)

    def add_queue(self, entity_id: int, path: str, description: QueueDescription, store: int = 0) -> Queue:
        """Add another queue in all processes; return the first process's queue."""
        queue, *_ = [process.add_queue(entity_id, path, description, store) for process in self.processes]
        return queue

    def store_numbers(self, store: int = 0, *, is_partitioned: bool) -> list[int]:
        """Return the store of each fragment of an entity."""
        return [number % len(self.disks) for number in range(FRAGMENT_COUNT)] if is_partitioned else [store]

    # --- the first store, and the first fragment ----------------------------------------------------------------------

    @property
    def disk(self) -> MemoryDisk:
        return self.disks[0]

    @property
    def store(self) -> MemoryStore:
        return self.stores[0]

    @property
    def commit_log(self) -> CommitLog:
        return self.commit_logs[0]

    @property
    def commit_logs(self) -> list[CommitLog]:
        """The commit logs of all stores, in the processes that own them."""
        owners = [self.processes[number % self.process_count] for number in range(len(self.stores))]
        return [owner.namespace.commit_log(number) for number, owner in enumerate(owners)]

    @property
    def main_fragment(self) -> Fragment:
        return local_part(self.queue).main

    @property
    def dead_letters(self) -> Fragment:
        return local_part(self.queue).dead_letters

    @property
    def window(self) -> Window:
        assert isinstance(self.main_fragment.dispatcher, Dispatcher)
        return self.main_fragment.dispatcher.window

    # --- all fragments ------------------------------------------------------------------------------------------------

    @property
    def main_fragments(self) -> list[Fragment]:
        """The fragments of the queue, in the processes that own them."""
        owners = [self.processes[number % self.process_count] for number in range(len(self.queue.parts))]
        return [owner.queue.parts[number].main.local for number, owner in enumerate(owners)]

    def counts_by_fragment(self) -> list[int]:
        """Return the number of active messages in each fragment."""
        return [main.active_count for main in self.main_fragments]

    def counts(self) -> tuple[int, int, int, int]:
        """Return the committed counts of a plain queue: active, deferred, scheduled and dead-lettered messages."""
        committed = self.main_fragment.message_table.committed
        return (
            committed.active_count,
            committed.deferred_count,
            committed.scheduled_count,
            self.dead_letters.active_count,
        )

    def index_row_count(self, *kinds: bytes) -> int:
        """Count the rows of some kinds in the index on disk (default: all kinds but counters)."""
        stored_kinds = [key[PREFIX_BYTES : PREFIX_BYTES + KIND_BYTES] for key in self.disk.synced[Table.INDEX].values]
        return sum(kind in kinds if kinds else kind != COUNTERS for kind in stored_kinds)

    # --- time ---------------------------------------------------------------------------------------------------------

    def step(self) -> bool:
        """Run the next pending call, or one step of a store. Return False if nothing is pending."""
        for calls in (self.deferred_calls, self.store_callbacks, self.peer_messages):
            if calls:
                calls.popleft()()
                return True
        store = next((store for store in self.stores if store.has_work), None)
        if store is not None:
            store.step()
        return store is not None

    def run_until_idle(self, steps: int = 1_000_000) -> None:
        """Run all pending calls and store operations."""
        for _ in range(steps):
            if not self.step():
                return
        raise AssertionError(f"still busy after {steps} steps")

    def run_until_commit(self) -> None:
        """Run until a store has a pending commit, or nothing is pending."""
        while not any(store.pending_commits for store in self.stores) and self.step():
            pass

    def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)
        for process in self.processes:
            process.namespace.timers.run_due()
        self.run_until_idle()

    # --- the connection between two processes -------------------------------------------------------------------------

    def connect(self) -> None:
        """Connect both processes to each other."""
        for caller, owner in ((self.first_process, self.last_process), (self.last_process, self.first_process)):
            self._connect(caller, owner)
        self.run_until_idle()

    def _connect(self, caller: Process, owner: Process) -> None:
        def call(number: int, body: Request) -> None:
            encoded = _encode((number, body))
            self._deliver_peer_message(
                owner, lambda: server.receive(*REQUEST_DECODER.decode(encoded)) if server is owner.peer_server else None
            )

        def respond(number: int, body: Reply) -> None:
            encoded = _encode((number, body))
            self._deliver_peer_message(
                caller,
                lambda: (
                    caller.peer_client.receive(*REPLY_DECODER.decode(encoded)) if server is owner.peer_server else None
                ),
            )

        server = owner.peer_server = PeerServer(owner.namespace, respond, _refuse)
        caller.peer_client.on_connected(call)

    def _deliver_peer_message(self, to: Process, deliver: Callable[[], object]) -> None:
        (self._undelivered if to.number in self.silent_processes else self.peer_messages).append(deliver)

    def disconnect(self) -> None:
        """Disconnect the processes from each other."""
        for process in self.processes:
            assert process.peer_server is not None
            server, process.peer_server = process.peer_server, None
            server.close()
            process.peer_client.on_disconnected()
        self.peer_messages.clear()
        self.run_until_idle()

    def end_silence(self) -> None:
        """Deliver all messages that silent processes missed."""
        self.silent_processes.clear()
        self.peer_messages.extend(self._undelivered)
        self._undelivered.clear()
        self.run_until_idle()

    # --- failures -----------------------------------------------------------------------------------------------------

    def fail_next_sync(self, store: int = 0, *, keeps_changes: bool = False) -> None:
        """Make the next sync of a store fail; its changes are lost, or are on disk nevertheless."""
        self.stores[store].fail_next_sync("input/output error", FixedLoss(keeps_all=keeps_changes))

    def fail_stores(self, *stores: int) -> None:
        """Make stores fail now; they keep what is on disk."""
        for store in stores:
            self.commit_logs[store].fail("it broke")
        self.run_until_idle()

    def reopen(self) -> None:
        """Reopen all failed stores, without running pending work."""
        for number, commit_log in enumerate(self.commit_logs):
            if commit_log in self.failed_logs:
                self.stores[number].close(lambda _: None)
                self.run_until_idle()
                self.stores[number] = self._open(number)
                commit_log.reopen(self.stores[number])
        self.failed_logs.clear()

    def recover(self) -> None:
        """Reopen all failed stores, and run until idle."""
        self.reopen()
        self.run_until_idle()

    def restart(self) -> None:
        """Drop a plain queue's state in memory and load it from disk, by failing and reopening its store."""
        self.fail_next_sync()
        self.send(b"lost", session="s")
        self.run_until_idle()
        self.recover()

    def crash(self) -> None:
        """Cut the power of the only process: unsynced changes are lost, and a new process loads the rest."""
        for disk in self.disks:
            disk.crash(FixedLoss(keeps_all=False))
        for pending in (self.deferred_calls, self.store_callbacks, self.failed_logs):
            pending.clear()
        self._start()
        self.load(self.queue)

    def load(self, *entities: Any) -> None:  # noqa: ANN401  # a queue, topic or subscription
        results = Results()
        for entity in entities:
            entity.load(results)
        self.run_until_idle()
        assert results == [None] * len(entities)
        for entity in entities:
            entity.resume()
        self.run_until_idle()

    # --- sending ------------------------------------------------------------------------------------------------------

    def incoming_batch(
        self, *payloads: bytes, to: Queue | Topic | None = None, message_format: int = 0
    ) -> IncomingBatch:
        """Put encoded messages in one batch for an entity (default: the queue)."""
        batch, policy = IncomingBatch(), (to or self.queue).validation_policy
        for payload in payloads:
            self.namespace.intake.add_to(batch, payload, message_format, self.clock.wall_ms(), policy)
        return batch

    def send_messages(
        self,
        *payloads: bytes,
        to: Queue | Topic | None = None,
        by: Process | None = None,
        numbers: list[int] | None = None,
    ) -> Results:
        """Send encoded messages in one call, without running pending work.

        The destination is an entity, or the queue in one of the processes (default: the first).
        """
        results, entity = Results(), to or (by or self.first_process).queue
        entity.send(self.incoming_batch(*payloads, to=entity), results, numbers)
        return results

    def send_and_wait(self, *payloads: bytes, **details: Any) -> Results:  # noqa: ANN401  # as `send_messages` takes them
        """Send encoded messages in one call, and run until idle."""
        results = self.send_messages(*payloads, **details)
        self.run_until_idle()
        return results

    def send_batch(
        self, *payloads: bytes, to: Queue | Topic | None = None, numbers: list[int] | None = None
    ) -> Results:
        """Send encoded messages as one AMQP message, without running pending work."""
        results = Results()
        entity = to or self.queue
        entity.send(self.incoming_batch(data(*payloads), to=entity, message_format=BATCH_FORMAT), results, numbers)
        return results

    def store_messages(self, *payloads: bytes, to: Queue | Topic | None = None, by: Process | None = None) -> None:
        """Send encoded messages in a call each, and wait until all are stored."""
        results = [self.send_messages(payload, to=to, by=by) for payload in payloads]
        self.run_until_idle()
        assert results == [[None]] * len(payloads)

    def send(self, *bodies: bytes, to: Queue | Topic | None = None, **details: Any) -> Results:  # noqa: ANN401  # as `message` takes them
        """Send a message with each of these bodies in one call, without running pending work."""
        return self.send_messages(*[message(body, **details) for body in bodies], to=to)

    def send_stored(self, *bodies: bytes, to: Queue | Topic | None = None, **details: Any) -> None:  # noqa: ANN401
        """Send a message with each of these bodies in one call, and wait until all are stored."""
        results = self.send(*bodies, to=to, **details)
        self.run_until_idle()
        assert results == [None]

    # --- receiving ----------------------------------------------------------------------------------------------------

    def consumer(
        self, credit: int = 0, *, of: FragmentPort | None = None, by: Process | None = None, deletes: bool = False
    ) -> FakeConsumer:
        """Add a consumer of one fragment, or of all the queue's fragments in one of the processes."""
        fragments = [of] if of is not None else (by or self.first_process).fragments
        return self.start_consumer(FakeConsumer(*fragments, deletes=deletes), credit)

    def accept_session(
        self, session: bytes | None = None, credit: int = 0, *, by: Process | None = None, deletes: bool = False
    ) -> FakeSessionConsumer:
        """Add a consumer that accepts a session (default: any)."""
        consumer = FakeSessionConsumer(*(by or self.first_process).fragments, session=session, deletes=deletes)
        self.run_until_idle()
        return self.start_consumer(consumer, credit)

    def start_consumer(self, consumer: ConsumerKind, credit: int = 0) -> ConsumerKind:
        """Grant credit to a consumer after the other process has admitted it."""
        if self.process_count > 1:
            self.run_until_idle()
        if credit:
            consumer.grant(credit)
            self.run_until_idle()
        return consumer


def _refuse(peer_server: PeerServer, call: object, on_reply: object) -> None:
    raise AssertionError(peer_server, call, on_reply)
