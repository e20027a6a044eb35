"""Client transactions of the simulation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.cluster.message_copies import ExpectedTransaction
from tests.support.delivery_checker.problems import Violation
from twinbus.broker.entities.transaction import Transaction
from twinbus.model.errors import ServiceBusError, StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.simulation.cluster.message_copies import Lock, Message
    from tests.simulation.cluster.process import Process
    from twinbus.broker.ports.settlement import Disposition


class OpenTransaction:
    """A transaction that is not discharged yet."""

    def __init__(self, process: Process, number: int, key: str) -> None:
        """Declare a transaction on fragment `number`, to which `key` maps."""
        self.process = process
        self.number = number
        self._key = key
        self.expected = ExpectedTransaction(process.life)
        self.transaction = Transaction(process.namespace.intake)
        process.open_transactions.append(self)

    def send(self, count: int, make: Callable[[Message], bytes]) -> None:
        sending = self.process.simulation.checker.send_started([self._key] * count, self.process.life)
        sending.is_answered = True  # the outcome is that of the transaction
        for message in sending.messages:
            message.transaction = self.expected
            try:
                self.transaction.send(self.process.queue.parts[self.number], make(message), 0)
            except ServiceBusError:
                return
            self.expected.messages.append(message)

    def settle(self, locks: list[Lock], how: Disposition) -> None:
        part = self.process.queue.parts[self.number]
        numbers = part.main.lock_numbers([lock.tag for lock in locks])
        try:
            lost = self.transaction.settle(part, part.main, numbers, how, None, self._on_settled)
        except ServiceBusError as error:
            self.transaction.fail(error)
            return
        if lost:
            self.transaction.fail(StoreUnavailable("a lock is lost"))
        kept = [lock for lock, number in zip(locks, numbers, strict=True) if number not in lost]
        if kept:
            self.expected.settle(kept, how, is_certain=not part.owner.decides_capacity)

    def _on_settled(self, is_done: bool) -> None:  # noqa: FBT001
        if is_done and not self.expected.settlements:
            raise Violation(f"{self.expected!r} settles nothing, but a settlement was reported")

    def commit(self) -> None:
        self.process.open_transactions.remove(self)
        self.expected.commit_requested()
        was_failed = self.transaction.failure is not None

        def answered(error: ServiceBusError | None) -> None:
            self.process.simulation.trace(f"  {self.expected!r}: {error or 'done'}")
            if error is None and was_failed:
                raise Violation(f"{self.expected!r} had failed, and was committed")
            is_known = error is None or not isinstance(error, StoreUnavailable)
            self.expected.ended(is_done=error is None if is_known else None)

        self.transaction.commit(answered)

    def roll_back(self) -> None:
        self.process.open_transactions.remove(self)
        self.expected.ended(is_done=False)
        self.transaction.roll_back()

    def process_lost(self) -> None:
        """Record the loss of its process: the transaction is never committed."""
        self.process.open_transactions.remove(self)
        self.expected.ended(is_done=False)
