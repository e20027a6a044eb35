"""Settlements in the simulation: requests through a process, and checks of their outcomes."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from tests.support.delivery_checker.problems import Violation
from twinbus.broker.ports.settlement import SomeLocksLost
from twinbus.model.errors import MessageLockLost, ServiceBusError
from twinbus.model.path import SubQueue

if TYPE_CHECKING:
    from tests.simulation.cluster.message_copies import Lock
    from tests.simulation.cluster.process import Process
    from twinbus.broker.ports.settlement import Disposition


def settle(process: Process, locks: list[Lock], how: Disposition) -> None:
    """Settle locks, with one request for each fragment."""
    groups: dict[tuple[int, bool], list[Lock]] = {}
    for lock in locks:
        groups.setdefault((lock.copy.sequence >> 48, lock.copy.is_dead), []).append(lock)
    for (number, is_dead), group in groups.items():
        sub_queue = SubQueue.DEAD_LETTER if is_dead else SubQueue.MAIN
        _SettlementRequest(process, number, sub_queue, group, how).send()


def renew(process: Process, lock: Lock) -> None:
    """Renew a lock, as a client over HTTP does."""
    now_ms, simulation = process.simulation.clock.wall_ms, process.simulation
    was_lost = not lock.may_be_valid(now_ms())
    sub_queue = SubQueue.DEAD_LETTER if lock.copy.is_dead else SubQueue.MAIN
    fragment = process.fragments(sub_queue)[lock.copy.sequence >> 48]
    numbers = fragment.lock_numbers([lock.tag])

    def renewed(outcome: object) -> None:
        is_held = not lock.is_void and not lock.request_count and lock.until_ms > now_ms() + 1
        if isinstance(outcome, MessageLockLost) and is_held and not lock.copy.transactions:
            raise Violation(f"a lock on {lock.copy!r} is not lost, and is not renewed")
        if isinstance(outcome, int):
            if was_lost:
                raise Violation(f"a lock on {lock.copy!r} was void or over, and is renewed")
            lock.until_ms = max(lock.until_ms, outcome)

    lock.is_renewed = True
    simulation.trace(f"  renewed: {lock.copy!r}")
    try:
        fragment.settlement.renew_lock(numbers[0], renewed)
    except ServiceBusError as error:
        renewed(error)


class _SettlementRequest:
    """A request to settle several locks."""

    def __init__(self, process: Process, number: int, sub_queue: SubQueue, locks: list[Lock], how: Disposition) -> None:
        self._checker = process.simulation.checker
        self._trace = process.simulation.trace
        self._fragment = process.fragments(sub_queue)[number]
        self._locks = locks
        self._numbers = self._fragment.lock_numbers([lock.tag for lock in locks])
        self._how = how
        now_ms = self._checker.now_ms()
        self._were_lost = [not lock.may_be_valid(now_ms) for lock in locks]

    def send(self) -> None:
        settlement, numbers = self._fragment.settlement, self._numbers
        for lock in self._locks:
            lock.request_count += 1
        on_done = partial(self._on_done, [])
        lost: list[int] = on_done.args[0]
        try:
            lost += settlement.settle(self._how, numbers, on_done, {})
        except ServiceBusError as error:
            self._trace(f"  refused: {error}")
            return
        for lock, number in zip(self._locks, numbers, strict=True):
            if number not in lost:
                lock.is_settling = True
                lock.copy.settlement_requested(self._how)
        self._check_lost(lost)

    def _on_done(self, lost: list[int], error: ServiceBusError | None) -> None:
        """Check the outcome for the locks that were not reported as lost at once."""
        if isinstance(error, SomeLocksLost):
            self._check_lost(error.lock_numbers)
            lost = error.lock_numbers
        elif error is not None:
            return
        held = zip(self._locks, self._numbers, self._were_lost, strict=True)
        for lock, was_lost in [(lock, was_lost) for lock, number, was_lost in held if number not in lost]:
            if was_lost:
                raise Violation(f"a lock on {lock.copy!r} was void or over, and settles it")
            if lock.is_settled:
                raise Violation(f"{lock.copy!r} was settled twice under one lock")
            lock.is_settled = True
            lock.copy.settlement_done(self._how)

    def _check_lost(self, lost: list[int]) -> None:
        now_ms = self._checker.now_ms()
        for lock, number in zip(self._locks, self._numbers, strict=True):
            is_held = not lock.is_void and lock.request_count <= 1 and lock.until_ms > now_ms + 1
            if number in lost and is_held:
                raise Violation(f"a lock on {lock.copy!r} is not lost, and is said to be")
