"""Transactions: sends and settlements that happen together, or not at all.

    async with factory.transaction() as transaction:
        await orders.send(message, transaction=transaction)
        await requests.complete(request, transaction=transaction)

Leaving the block commits; an exception rolls back. Owns: the link to the coordinator, and whether it is over. What may
be part of one is the broker's affair: one entity, or others `via` it (`docs/transactions.md`).
"""

from __future__ import annotations

import asyncio
import uuid
from enum import Enum
from typing import TYPE_CHECKING, Self

from twinbus.amqp.message import build, value
from twinbus.amqp.outcomes import Declare, Declared, Discharge, TransactionalState
from twinbus.amqp.terminus import Coordinator, Source
from twinbus.client.errors import TimedOut, UnknownAnswer
from twinbus.client.witness import tell
from twinbus.model.errors import InvalidOperation, ServiceBusError, TransactionRolledBack

if TYPE_CHECKING:
    from types import TracebackType

    from twinbus.amqp.composite import Composite
    from twinbus.amqp.delivery import IncomingDelivery
    from twinbus.client.factory import MessagingFactory
    from twinbus.client.receiver import MessageReceiver
    from twinbus.client.receiving_link import ReceivingLink
    from twinbus.client.sender import MessageSender
    from twinbus.client.sending_link import SendingLink


class TransactionState(Enum):
    """What became of it."""

    NEW = "new"
    ACTIVE = "active"
    COMMITTED = "committed"
    ROLLED_BACK = "rolled back"


class Transaction:
    """One transaction. It is declared with its first operation."""

    def __init__(self, factory: MessagingFactory) -> None:
        """Made by a factory."""
        self.factory = factory
        self.key = uuid.uuid4().hex
        """What witnesses know it by."""
        self.state = TransactionState.NEW
        self._coordinator: SendingLink | None = None
        self._id = b""
        self._declaring = asyncio.Lock()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            await self.commit()
        elif self.state is TransactionState.ACTIVE:
            await self._roll_back_quietly()

    async def commit(self) -> None:
        """All of it, now; TransactionRolledBack, and nothing of it, if that cannot be."""
        if self.state is TransactionState.NEW:
            self.state = TransactionState.COMMITTED
            return
        self._check_active()
        self.state = TransactionState.ROLLED_BACK
        outcome = "unknown"
        try:
            await self._discharge(fail=False)
            self.state = TransactionState.COMMITTED
            outcome = self.state.value
        except TransactionRolledBack:
            outcome = self.state.value
            raise
        finally:
            tell(self.factory.witnesses, lambda witness: witness.transaction_over(self.key, outcome))

    async def rollback(self) -> None:
        """Nothing of it."""
        if self.state is not TransactionState.NEW:
            self._check_active()
            self.state = TransactionState.ROLLED_BACK
            tell(self.factory.witnesses, lambda witness: witness.transaction_over(self.key, self.state.value))
            await self._discharge(fail=True)
        self.state = TransactionState.ROLLED_BACK

    # --- for senders and receivers ------------------------------------------------------------------------------------

    async def send(self, sender: MessageSender, payload: bytes, message_format: int) -> None:
        """Send as part of it."""
        await self._declared(sender.via or sender.path)
        await self._in_time(sender.send_in(TransactionalState(txn_id=self._id), payload, message_format))

    async def settle(
        self, receiver: MessageReceiver, link: ReceivingLink, delivery: IncomingDelivery, outcome: Composite
    ) -> None:
        """Settle as part of it."""
        await self._declared(receiver.path)
        await self._in_time(link.settle(delivery, TransactionalState(txn_id=self._id, outcome=outcome)))

    # --- inside -------------------------------------------------------------------------------------------------------

    def _check_active(self) -> None:
        if self.state is not TransactionState.ACTIVE:
            raise InvalidOperation(f"the transaction is {self.state.value}")

    async def _declared(self, path: str) -> None:
        async with self._declaring:
            if self.state is TransactionState.NEW:
                await self._declare(path)
        self._check_active()
        assert self._coordinator is not None
        if self._coordinator.failure is not None:
            raise TransactionRolledBack(f"the transaction was lost with its connection: {self._coordinator.failure}")

    async def _declare(self, path: str) -> None:
        conversation = await self.factory.converse(path)
        coordinator = conversation.attach_sender("coordinator", target=Coordinator(), source=Source(address=path))
        await self._in_time(coordinator.attached)
        declared = await self._in_time(coordinator.send(build(body=value(Declare()))))
        if not isinstance(declared, Declared):
            raise UnknownAnswer("a transaction was asked for, and no id was given for it")
        self._coordinator, self._id = coordinator, declared.txn_id
        self.state = TransactionState.ACTIVE

    async def _discharge(self, *, fail: bool) -> None:
        assert self._coordinator is not None
        discharge = build(body=value(Discharge(txn_id=self._id, fail=fail)))
        try:
            await self._in_time(self._coordinator.send(discharge))
        finally:
            self._coordinator.detach()

    async def _roll_back_quietly(self) -> None:
        """Something failed, and that is what the caller hears. What is not discharged is rolled back, too."""
        try:
            await self.rollback()
        except ServiceBusError:
            self.state = TransactionState.ROLLED_BACK

    async def _in_time(self, awaitable: asyncio.Future[object] | object) -> object:
        limit_s = self.factory.settings.operation_timeout_s
        try:
            async with asyncio.timeout(limit_s):
                return await awaitable  # type: ignore[misc]
        except TimeoutError:
            raise TimedOut(f"a transaction's operation took longer than {limit_s:g} s", was_sent=True) from None
