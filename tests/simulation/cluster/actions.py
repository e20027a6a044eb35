"""What may happen in a namespace of several processes."""

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
    "work": 60.0,
    "look": 3,
    "look_well": 1,
    "send": 10,
    "send_with_key": 10,
    "send_several": 5,
    "come": 5,
    "come_and_delete": 1,
    "come_to_the_dead": 1,
    "leave": 3,
    "grant": 10,
    "drain": 3,
    "read": 1,
    "read_on": 3,
    "read_to_the_end": 1,
    "stop_reading": 1,
    "complete": 9,
    "abandon": 3,
    "release": 3,
    "defer": 1,
    "dead_letter": 1,
    "renew": 2,
    "peek": 1,
    "begin": 2,
    "deal_in_sends": 2,
    "deal_in_settlements": 3,
    "commit": 3,
    "roll_back": 1,
    "wait": 6,
    "wait_long": 1.5,
    "hang": 0.7,
    "go_on": 3,
    "fail": 0.7,
    "reopen": 4,
    "fall_silent": 1,
    "wake": 2,
    "die": 0.7,
    "start": 3,
    "crash": 0.2,
}
SINGLE_PROCESS_WEIGHTS = WEIGHTS | {
    "send": 14,
    "hang": 1.5,
    "fail": 1.5,
    "fall_silent": 0,
    "wake": 0,
    "die": 0,
    "start": 0,
    "crash": 0.5,
}
"""For a process that has no others: its stores fail one by one."""
ALWAYS = frozenset({"work", "look", "send_with_key", "come", "grant", "wake", "start", "go_on", "reopen"})
KEYS = [f"key-{number}" for number in range(6)]
MAX_RECEIVERS = 6


TRANSACTIONAL_SETTLEMENTS = [how for how in Disposition if how is not Disposition.RECLAIM]
"""What a client can ask for: no client frees messages."""


class Actions:
    """Whatever is chosen is done by any process that is awake."""

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

    # --- the loop -----------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        for _ in range(self._random.randint(1, 40)):
            self._simulation.step()

    def _look(self) -> None:
        check_idle(self._simulation)

    def _look_well(self) -> None:
        check_settled(self._simulation)

    def _wait(self) -> None:
        self._simulation.pass_time(self._random.choice((0.001, 0.05, 0.12, 0.26, 3.0)))

    def _wait_long(self) -> None:
        self._simulation.pass_time(self._random.choice((10.5, LOCK_S + 1)))

    # --- sending ------------------------------------------------------------------------------------------------------

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
        none: list[str | None] = [] if self._has_sessions else [None]
        self._send_all(process, [self._random.choice([*KEYS, *none]) for _ in range(self._random.randint(2, 5))])

    def _send_all(self, process: Process, keys: list[str | None]) -> None:
        world = self._simulation
        sending, at_first = world.checker.send_started(keys, process.life), process.stores_accepting_sends()
        parcel = IncomingBatch()
        for message in sending.messages:
            payload = self.payload(message)
            process.namespace.intake.add_to(parcel, payload, 0, world.clock.wall_ms(), process.queue.validation_policy)

        def sent(error: ServiceBusError | None) -> None:
            is_full = isinstance(error, ServerBusy | QuotaExceeded) or world.settings.limits.max_pending_bytes < 10**6
            is_excused = is_full and world.count > 1  # another process may be full without this one knowing it
            working = [] if is_excused else [store for store in process.stores_accepting_sends() if store in at_first]
            world.checker.send_answered(sending, error, working)

        try:
            process.queue.send(parcel, sent)
        except ServiceBusError as error:
            sent(error)

    def payload(self, message: Message) -> bytes:
        padding = self._random.randint(0, self._simulation.settings.max_padding)
        if self._has_sessions:
            return make_payload(message.identity, padding, session=message.key)
        annotated = build(message_annotations={PARTITION_KEY: message.key}) if message.key is not None else b""
        return annotated + make_payload(message.identity, padding)

    # --- receiving ----------------------------------------------------------------------------------------------------

    def _come(self, process: Process) -> None:
        self._enter(process, deletes=False)

    def _come_and_delete(self, process: Process) -> None:
        self._enter(process, deletes=True)

    def _enter(self, process: Process, *, deletes: bool) -> None:
        if len(self._simulation.receivers) >= MAX_RECEIVERS:
            return
        number = next(self._simulation.numbers)
        if self._has_sessions:
            wanted = self._key() if self._random.random() < 0.5 else None
            taker: SimulatedReceiver = SimulatedSessionReceiver(process, number, wanted=wanted, deletes=deletes)
        else:
            taker = SimulatedReceiver(process, number, deletes=deletes)
        if self._random.random() < 0.5 and not taker.is_closed:
            taker.grant(self._credit())

    def _come_to_the_dead(self, process: Process) -> None:
        if len(self._simulation.receivers) < MAX_RECEIVERS:
            SimulatedReceiver(process, next(self._simulation.numbers), sub_queue=SubQueue.DEAD_LETTER)

    def _leave(self) -> None:
        if self._simulation.receivers:
            self._random.choice(self._simulation.receivers).leave()

    def _credit(self) -> int:
        return self._random.choice((1, 1, 2, 5, 40))

    def _grant(self) -> None:
        if self._simulation.receivers:
            self._random.choice(self._simulation.receivers).grant(self._credit())

    def _drain(self) -> None:
        if self._simulation.receivers:
            taker = self._random.choice(self._simulation.receivers)
            taker.credit += self._random.choice((0, 0, 1, 5))
            taker.drain()

    # --- looking ------------------------------------------------------------------------------------------------------

    def _read(self, process: Process) -> None:
        if len(process.browsers) < 2:
            with suppress(StoreUnavailable):  # of a plain queue, whose process is not there
                SimulatedBrowser(process, next(self._simulation.numbers))

    def _read_on(self, process: Process) -> None:
        if process.browsers:
            self._random.choice(process.browsers).grant(self._credit())

    def _read_to_the_end(self, process: Process) -> None:
        if process.browsers:
            reader = self._random.choice(process.browsers)
            reader.link.credit += self._credit()
            reader.drain()

    def _stop_reading(self, process: Process) -> None:
        if process.browsers:
            self._random.choice(process.browsers).leave()

    def _peek(self, process: Process) -> None:
        """By way of any process a page of any fragment is seen, in order."""
        number = self._random.randrange(len(process.parts()))
        count = self._random.choice((1, 3, 100))

        def done(page: list[bytes] | ServiceBusError) -> None:
            if isinstance(page, ServiceBusError):
                return
            numbers = [read_delivery(payload).sequence for payload in page]
            if numbers != sorted(set(numbers)) or len(numbers) > count or any(one >> 48 != number for one in numbers):
                raise Violation(f"fragment {number}: peeked {numbers}, asked for {count}")

        with suppress(StoreUnavailable):
            process.fragments(SubQueue.MAIN)[number].browser.peek(0, count, 100_000, done)

    # --- settling -----------------------------------------------------------------------------------------------------

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
        """Some of what receivers have; mostly by way of the process through which they have it."""
        world = self._simulation
        near = [lock for lock in world.given_locks if lock.receiver.process is process]
        held = near if near and self._random.random() < 0.8 else world.given_locks
        if not held:
            return
        chosen = self._random.sample(held, self._random.randint(1, min(6, len(held))))
        if self._random.random() < 0.9:  # else it is tried once more, some time
            world.given_locks = [lock for lock in world.given_locks if lock not in chosen]
        settle(process, chosen, how)

    def _renew(self, process: Process) -> None:
        if self._simulation.given_locks and not self._has_sessions:
            renew(process, self._random.choice(self._simulation.given_locks))

    # --- transactions -------------------------------------------------------------------------------------------------

    def _begin(self, process: Process) -> None:
        if len(process.open_transactions) < 2:
            key = self._key()
            OpenTransaction(process, 0 if self._simulation.checker.is_plain else fragment_of(key.encode()), key)

    def _deal(self, process: Process) -> OpenTransaction | None:
        return self._random.choice(process.open_transactions) if process.open_transactions else None

    def _deal_in_sends(self, process: Process) -> None:
        deal = self._deal(process)
        if deal is not None:
            deal.send(self._random.choice((1, 1, 2)), self.payload)

    def _deal_in_settlements(self, process: Process) -> None:
        deal, world = self._deal(process), self._simulation
        if deal is None:
            return

        def is_fit(lock: Lock) -> bool:
            is_near = lock.receiver.process is process and lock.copy.sequence >> 48 == deal.number
            return is_near and not lock.copy.is_dead and not lock.is_settling and not lock.is_late

        fit = [lock for lock in world.given_locks if is_fit(lock)]
        if fit:
            chosen = self._random.sample(fit, self._random.randint(1, min(3, len(fit))))
            world.given_locks = [lock for lock in world.given_locks if lock not in chosen]
            deal.settle(chosen, self._random.choice(TRANSACTIONAL_SETTLEMENTS))

    def _commit(self, process: Process) -> None:
        deal = self._deal(process)
        if deal is not None:
            deal.commit()

    def _roll_back(self, process: Process) -> None:
        deal = self._deal(process)
        if deal is not None:
            deal.roll_back()

    # --- failures -----------------------------------------------------------------------------------------------------

    def _any_store(self, process: Process) -> int:
        return self._random.choice(list(process.stores))

    def _hang(self, process: Process) -> None:
        store = self._any_store(process)
        self._simulation.checker.store_failures[store] += 1
        process.hang(store)

    def _go_on(self, process: Process) -> None:
        process.go_on(self._any_store(process))

    def _fail(self, process: Process) -> None:
        store = self._any_store(process)
        self._simulation.checker.store_failures[store] += 1
        process.stores[store].fail_next_sync("input/output error", self._random)

    def _reopen(self, process: Process) -> None:
        store = self._any_store(process)
        if store in process.closed:
            process.reopen(store)

    def _fall_silent(self, process: Process) -> None:
        self._simulation.make_silent(process)

    def _wake(self) -> None:
        silent = [process for process in self._simulation.running_processes if process.is_silent]
        if silent:
            self._simulation.make_responsive(self._random.choice(silent))

    def _die(self) -> None:
        if self._simulation.running_processes:
            self._simulation.kill(self._random.choice(self._simulation.running_processes))

    def _start(self) -> None:
        missing = [number for number, process in enumerate(self._simulation.processes) if process is None]
        if missing:
            self._simulation.start(self._random.choice(missing))

    def _crash(self) -> None:
        self._simulation.crash()


_SIMULATION_ACTIONS = frozenset(
    {"work", "look", "look_well", "wait", "wait_long", "leave", "grant", "drain", "wake", "die", "start", "crash"}
)
