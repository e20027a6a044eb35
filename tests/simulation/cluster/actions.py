"""Random actions of the cluster simulation."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from tests.simulation.broker.payloads import make_payload, read_delivery
from tests.simulation.cluster.browsers import SimulatedBrowser
from tests.simulation.cluster.invariants import check_idle, check_settled
from tests.simulation.cluster.receivers import SimulatedReceiver, SimulatedSessionReceiver
from tests.simulation.cluster.settlements import renew, settle
from tests.simulation.cluster.simulation import LOCK_S
from tests.simulation.cluster.transactions import OpenTransaction
from tests.support.delivery_checker.problems import Violation
from twinbus.amqp.message import build
from twinbus.broker.ports.incoming_batch import IncomingBatch
from twinbus.broker.ports.settlement import Disposition
from twinbus.model.annotations import PARTITION_KEY
from twinbus.model.errors import QuotaExceeded, ServerBusy, ServiceBusError, StoreUnavailable
from twinbus.model.partition_key import fragment_of
from twinbus.model.path import SubQueue

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    from tests.simulation.cluster.message_copies import Lock, Message
    from tests.simulation.cluster.process import Process
    from tests.simulation.cluster.simulation import ClusterSimulation

    Do: TypeAlias = Callable[[Process], None]

WEIGHTS = {
    "run_steps": 60.0,
    "check": 3,
    "check_settled": 1,
    "send": 10,
    "send_with_key": 10,
    "send_several": 5,
    "attach": 5,
    "attach_deleting": 1,
    "attach_to_dead_letters": 1,
    "detach": 3,
    "grant": 10,
    "drain": 3,
    "open_browser": 1,
    "grant_browser": 3,
    "drain_browser": 1,
    "close_browser": 1,
    "complete": 9,
    "abandon": 3,
    "release": 3,
    "defer": 1,
    "dead_letter": 1,
    "renew": 2,
    "peek": 1,
    "declare": 2,
    "send_in_transaction": 2,
    "settle_in_transaction": 3,
    "commit": 3,
    "roll_back": 1,
    "wait": 6,
    "wait_long": 1.5,
    "hang": 0.7,
    "resume": 3,
    "fail_sync": 0.7,
    "reopen": 4,
    "silence": 1,
    "wake": 2,
    "kill": 0.7,
    "start": 3,
    "crash": 0.2,
}
SINGLE_PROCESS_WEIGHTS = WEIGHTS | {
    "send": 14,
    "hang": 1.5,
    "fail_sync": 1.5,
    "silence": 0,
    "wake": 0,
    "kill": 0,
    "start": 0,
    "crash": 0.5,
}
"""Frequencies for a single process, whose stores fail one by one."""
ALWAYS = frozenset({"run_steps", "check", "send_with_key", "attach", "grant", "wake", "start", "resume", "reopen"})
"""Actions that no run leaves out."""
KEYS = [f"key-{number}" for number in range(6)]
MAX_RECEIVERS = 6


TRANSACTIONAL_SETTLEMENTS = [how for how in Disposition if how is not Disposition.RECLAIM]
"""Dispositions that clients can request: RECLAIM is internal."""


class Actions:
    """Actions on the simulation, or on a random responsive process."""

    def __init__(self, simulation: ClusterSimulation) -> None:
        self._simulation = simulation
        self._random = simulation.random

    def do(self, name: str) -> None:
        process = (
            self._random.choice(self._simulation.responsive_processes)
            if self._simulation.responsive_processes
            else None
        )
        self._simulation.trace(f"{name}, {process!r}")
        act: Do | Callable[[], None] = getattr(self, f"_{name}")
        if name in _SIMULATION_ACTIONS:
            act()  # type: ignore[call-arg]
        elif process is not None:
            act(process)  # type: ignore[call-arg]

    # --- event loop --------------------------------------------------------------------------------------------------

    def _run_steps(self) -> None:
        for _ in range(self._random.randint(1, 40)):
            self._simulation.step()

    def _check(self) -> None:
        check_idle(self._simulation)

    def _check_settled(self) -> None:
        check_settled(self._simulation)

    def _wait(self) -> None:
        self._simulation.pass_time(self._random.choice((0.001, 0.05, 0.12, 0.26, 3.0)))

    def _wait_long(self) -> None:
        self._simulation.pass_time(self._random.choice((10.5, LOCK_S + 1)))

    # --- sending -----------------------------------------------------------------------------------------------------

    @property
    def _has_sessions(self) -> bool:
        return self._simulation.description.requires_session

    def _key(self) -> str:
        return self._random.choice(KEYS)

    def _send(self, process: Process) -> None:
        key = self._key() if self._has_sessions else None
        self._send_all(process, [key] * self._random.choice((1, 1, 1, 3)))

    def _send_with_key(self, process: Process) -> None:
        self._send_all(process, [self._key()] * self._random.choice((1, 1, 2)))

    def _send_several(self, process: Process) -> None:
        keyless: list[str | None] = [] if self._has_sessions else [None]
        self._send_all(process, [self._random.choice([*KEYS, *keyless]) for _ in range(self._random.randint(2, 5))])

    def _send_all(self, process: Process, keys: list[str | None]) -> None:
        simulation = self._simulation
        sending, stores_before = simulation.checker.send_started(keys, process.life), process.stores_accepting_sends()
        batch = IncomingBatch()
        for message in sending.messages:
            payload = self.payload(message)
            process.namespace.intake.add_to(
                batch, payload, 0, simulation.clock.wall_ms(), process.queue.validation_policy
            )

        def on_sent(error: ServiceBusError | None) -> None:
            is_full = (
                isinstance(error, ServerBusy | QuotaExceeded) or simulation.settings.limits.max_pending_bytes < 10**6
            )
            is_excused = is_full and simulation.count > 1  # this process may not know that another one is full
            working = (
                [] if is_excused else [store for store in process.stores_accepting_sends() if store in stores_before]
            )
            simulation.checker.send_answered(sending, error, working)

        try:
            process.queue.send(batch, on_sent)
        except ServiceBusError as error:
            on_sent(error)

    def payload(self, message: Message) -> bytes:
        padding = self._random.randint(0, self._simulation.settings.max_padding)
        if self._has_sessions:
            return make_payload(message.identity, padding, session=message.key)
        annotations = build(message_annotations={PARTITION_KEY: message.key}) if message.key is not None else b""
        return annotations + make_payload(message.identity, padding)

    # --- receiving ---------------------------------------------------------------------------------------------------

    def _attach(self, process: Process) -> None:
        self._attach_receiver(process, deletes=False)

    def _attach_deleting(self, process: Process) -> None:
        self._attach_receiver(process, deletes=True)

    def _attach_receiver(self, process: Process, *, deletes: bool) -> None:
        if len(self._simulation.receivers) >= MAX_RECEIVERS:
            return
        number = next(self._simulation.numbers)
        if self._has_sessions:
            wanted = self._key() if self._random.random() < 0.5 else None
            receiver: SimulatedReceiver = SimulatedSessionReceiver(process, number, wanted=wanted, deletes=deletes)
        else:
            receiver = SimulatedReceiver(process, number, deletes=deletes)
        if self._random.random() < 0.5 and not receiver.is_closed:
            receiver.grant(self._credit())

    def _attach_to_dead_letters(self, process: Process) -> None:
        if len(self._simulation.receivers) < MAX_RECEIVERS:
            SimulatedReceiver(process, next(self._simulation.numbers), sub_queue=SubQueue.DEAD_LETTER)

    def _detach(self) -> None:
        if self._simulation.receivers:
            self._random.choice(self._simulation.receivers).leave()

    def _credit(self) -> int:
        return self._random.choice((1, 1, 2, 5, 40))

    def _grant(self) -> None:
        if self._simulation.receivers:
            self._random.choice(self._simulation.receivers).grant(self._credit())

    def _drain(self) -> None:
        if self._simulation.receivers:
            receiver = self._random.choice(self._simulation.receivers)
            receiver.credit += self._random.choice((0, 0, 1, 5))
            receiver.drain()

    # --- browsing ----------------------------------------------------------------------------------------------------

    def _open_browser(self, process: Process) -> None:
        if len(process.browsers) < 2:
            with suppress(StoreUnavailable):  # the owner of a plain queue may not be running
                SimulatedBrowser(process, next(self._simulation.numbers))

    def _grant_browser(self, process: Process) -> None:
        if process.browsers:
            self._random.choice(process.browsers).grant(self._credit())

    def _drain_browser(self, process: Process) -> None:
        if process.browsers:
            browser = self._random.choice(process.browsers)
            browser.link.credit += self._credit()
            browser.drain()

    def _close_browser(self, process: Process) -> None:
        if process.browsers:
            self._random.choice(process.browsers).leave()

    def _peek(self, process: Process) -> None:
        """Peek a page of any fragment through any process, and check its order."""
        number = self._random.randrange(len(process.parts()))
        count = self._random.choice((1, 3, 100))

        def done(page: list[bytes] | ServiceBusError) -> None:
            if isinstance(page, ServiceBusError):
                return
            numbers = [read_delivery(payload).sequence for payload in page]
            if (
                numbers != sorted(set(numbers))
                or len(numbers) > count
                or any(sequence >> 48 != number for sequence in numbers)
            ):
                raise Violation(f"fragment {number}: peeked {numbers}, asked for {count}")

        with suppress(StoreUnavailable):
            process.fragments(SubQueue.MAIN)[number].browser.peek(0, count, 100_000, done)

    # --- settling ----------------------------------------------------------------------------------------------------

    def _complete(self, process: Process) -> None:
        self._settle(process, Disposition.COMPLETE)

    def _abandon(self, process: Process) -> None:
        self._settle(process, Disposition.ABANDON)

    def _release(self, process: Process) -> None:
        self._settle(process, Disposition.RELEASE)

    def _defer(self, process: Process) -> None:
        self._settle(process, Disposition.DEFER)

    def _dead_letter(self, process: Process) -> None:
        self._settle(process, Disposition.DEAD_LETTER)

    def _settle(self, process: Process, how: Disposition) -> None:
        """Settle some locks, mostly through the process of their receivers."""
        simulation = self._simulation
        locks_of_process = [lock for lock in simulation.given_locks if lock.receiver.process is process]
        locks = locks_of_process if locks_of_process and self._random.random() < 0.8 else simulation.given_locks
        if not locks:
            return
        chosen = self._random.sample(locks, self._random.randint(1, min(6, len(locks))))
        if self._random.random() < 0.9:  # otherwise the locks may be settled once more later
            simulation.given_locks = [lock for lock in simulation.given_locks if lock not in chosen]
        settle(process, chosen, how)

    def _renew(self, process: Process) -> None:
        if self._simulation.given_locks and not self._has_sessions:
            renew(process, self._random.choice(self._simulation.given_locks))

    # --- transactions ------------------------------------------------------------------------------------------------

    def _declare(self, process: Process) -> None:
        if len(process.open_transactions) < 2:
            key = self._key()
            OpenTransaction(process, 0 if self._simulation.checker.is_plain else fragment_of(key.encode()), key)

    def _pick_transaction(self, process: Process) -> OpenTransaction | None:
        return self._random.choice(process.open_transactions) if process.open_transactions else None

    def _send_in_transaction(self, process: Process) -> None:
        transaction = self._pick_transaction(process)
        if transaction is not None:
            transaction.send(self._random.choice((1, 1, 2)), self.payload)

    def _settle_in_transaction(self, process: Process) -> None:
        transaction, simulation = self._pick_transaction(process), self._simulation
        if transaction is None:
            return

        def is_suitable(lock: Lock) -> bool:
            is_in_fragment = lock.receiver.process is process and lock.copy.sequence >> 48 == transaction.number
            return is_in_fragment and not lock.copy.is_dead and not lock.is_settling and not lock.is_late

        suitable = [lock for lock in simulation.given_locks if is_suitable(lock)]
        if suitable:
            chosen = self._random.sample(suitable, self._random.randint(1, min(3, len(suitable))))
            simulation.given_locks = [lock for lock in simulation.given_locks if lock not in chosen]
            transaction.settle(chosen, self._random.choice(TRANSACTIONAL_SETTLEMENTS))

    def _commit(self, process: Process) -> None:
        transaction = self._pick_transaction(process)
        if transaction is not None:
            transaction.commit()

    def _roll_back(self, process: Process) -> None:
        transaction = self._pick_transaction(process)
        if transaction is not None:
            transaction.roll_back()

    # --- failures ----------------------------------------------------------------------------------------------------

    def _any_store(self, process: Process) -> int:
        return self._random.choice(list(process.stores))

    def _hang(self, process: Process) -> None:
        store = self._any_store(process)
        self._simulation.checker.store_failures[store] += 1
        process.hang(store)

    def _resume(self, process: Process) -> None:
        process.resume(self._any_store(process))

    def _fail_sync(self, process: Process) -> None:
        store = self._any_store(process)
        self._simulation.checker.store_failures[store] += 1
        process.stores[store].fail_next_sync("input/output error", self._random)

    def _reopen(self, process: Process) -> None:
        store = self._any_store(process)
        if store in process.closed:
            process.reopen(store)

    def _silence(self, process: Process) -> None:
        self._simulation.make_silent(process)

    def _wake(self) -> None:
        silent = [process for process in self._simulation.running_processes if process.is_silent]
        if silent:
            self._simulation.make_responsive(self._random.choice(silent))

    def _kill(self) -> None:
        if self._simulation.running_processes:
            self._simulation.kill(self._random.choice(self._simulation.running_processes))

    def _start(self) -> None:
        missing = [number for number, process in enumerate(self._simulation.processes) if process is None]
        if missing:
            self._simulation.start(self._random.choice(missing))

    def _crash(self) -> None:
        self._simulation.crash()


_SIMULATION_ACTIONS = frozenset(
    {
        "run_steps",
        "check",
        "check_settled",
        "wait",
        "wait_long",
        "detach",
        "grant",
        "drain",
        "wake",
        "kill",
        "start",
        "crash",
    }
)
