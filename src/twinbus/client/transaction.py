"""Transactions: sends and settlements that are committed together or rolled back together.

    async with factory.transaction() as transaction:
        await orders.send(message, transaction=transaction)
        await requests.complete(request, transaction=transaction)

Leaving the block commits; an exception rolls back. Owns the link to the coordinator and the state of the transaction.
The broker decides which operations one transaction may contain: operations on one entity, and sends `via` that entity
(`docs/transactions.md`).
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from contextlib import asynccontextmanager
from enum import Enum
from typing import TYPE_CHECKING, Self, TypeVar

from twinbus.amqp.message import build, value
from twinbus.amqp.outcomes import Declare, Declared, Discharge, TransactionalState
from twinbus.amqp.terminus import Coordinator, Source
from twinbus.client.errors import ConnectionFailed, TimedOut, UnknownAnswer, may_have_happened
from twinbus.client.events import TransactionEnded
from twinbus.model.errors import InvalidOperation, ServiceBusError, TransactionRolledBack

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable
    from types import TracebackType

    from twinbus.amqp.codec.composite import Composite
    from twinbus.amqp.delivery import IncomingDelivery
    from twinbus.client.amqp.receiver_link import ReceiverLink
    from twinbus.client.amqp.sender_link import SenderLink
    from twinbus.client.factory import MessagingFactory
    from twinbus.client.receiver import MessageReceiver
    from twinbus.client.sender import MessageSender
    from twinbus.model.message import BrokeredMessage

T = TypeVar("T")


class TransactionState(Enum):
    """State of a transaction."""

    NEW = "new"
    ACTIVE = "active"
    COMMITTED = "committed"
    ROLLED_BACK = "rolled back"
    IN_DOUBT = "in doubt"
    """The response to the commit was lost, so either all operations were carried out, or none."""


class Transaction:
    """A transaction, declared to the coordinator with its first operation."""

    def __init__(self, factory: MessagingFactory) -> None:
        """Create a transaction. Applications call `MessagingFactory.transaction` instead."""
        self.factory = factory
        self.key = uuid.uuid4().hex
        """Name of the transaction in events."""
        self.state = TransactionState.NEW
        self._coordinator: SenderLink | None = None
        self._transaction_id = b""
        self._declare_lock = asyncio.Lock()
        self._failure: BaseException | None = None
        """Error of a failed operation, after which the transaction can only be rolled back."""
        self._settlements: list[tuple[MessageReceiver, BrokeredMessage]] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self.state not in (TransactionState.NEW, TransactionState.ACTIVE):
            return
        if error is None:
            await self.commit()
        else:
            await self._roll_back_quietly()

    async def commit(self) -> None:
        """Commit all operations. Raise TransactionRolledBack if the transaction was rolled back instead.

        If the response is lost, the error's `may_have_happened` is True and the state is IN_DOUBT.
        """
        if self._failure is not None:
            await self._roll_back_quietly()
            raise TransactionRolledBack(f"an operation of the transaction has failed: {self._failure}")
        if self.state is not TransactionState.NEW:
            self._check_active()
            try:
                await self._commit()
            finally:
                outcome = "unknown" if self.state is TransactionState.IN_DOUBT else self.state.value
                self.factory.events.publish(TransactionEnded(self.key, outcome))
        self.state = TransactionState.COMMITTED
        for receiver, message in self._settlements:
            receiver.mark_settled(message)

    async def _commit(self) -> None:
        self.state = TransactionState.IN_DOUBT
        try:
            await self._discharge(fail=False)
        except ConnectionFailed as error:
            self.state = TransactionState.ROLLED_BACK
            raise TransactionRolledBack(f"the transaction was lost with its connection: {error}") from error
        except ServiceBusError as error:
            if not may_have_happened(error):
                self.state = TransactionState.ROLLED_BACK
            raise
        self.state = TransactionState.COMMITTED

    async def rollback(self) -> None:
        """Roll back all operations. Messages settled in the transaction are locked, as before the settlement."""
        if self.state is not TransactionState.NEW:
            self._check_active()
            self.state = TransactionState.ROLLED_BACK
            self.factory.events.publish(TransactionEnded(self.key, self.state.value))
            await self._discharge(fail=True)
        self.state = TransactionState.ROLLED_BACK

    # --- for senders and receivers ------------------------------------------------------------------------------------

    async def send(self, sender: MessageSender, payload: bytes, message_format: int) -> None:
        """Send an encoded message or batch as part of the transaction."""
        async with self._operation(sender.via or sender.path):
            await sender.open()
            self._check_connected()
            await self._with_timeout(
                sender.send_in_transaction(TransactionalState(txn_id=self._transaction_id), payload, message_format)
            )

    async def settle(
        self,
        receiver: MessageReceiver,
        message: BrokeredMessage,
        link: ReceiverLink,
        delivery: IncomingDelivery,
        outcome: Composite,
    ) -> None:
        """Settle a message as part of the transaction."""
        async with self._operation(receiver.path):
            await self._with_timeout(
                link.settle(delivery, TransactionalState(txn_id=self._transaction_id, outcome=outcome))
            )
            self._settlements.append((receiver, message))

    @asynccontextmanager
    async def _operation(self, path: str) -> AsyncIterator[None]:
        if self.state is not TransactionState.NEW:
            self._check_active()
        try:
            await self._ensure_declared(path)
            yield
        except ServiceBusError as error:
            self._failure = error
            if not error.may_have_happened:
                raise
            # The transaction cannot be committed any more, so this operation will not take effect either.
            raise error.copy_with(may_have_happened=False) from error
        except BaseException as error:
            self._failure = error
            raise

    # --- implementation -----------------------------------------------------------------------------------------------

    def _check_active(self) -> None:
        if self.state is not TransactionState.ACTIVE:
            raise InvalidOperation(f"the transaction is {self.state.value}")

    async def _ensure_declared(self, path: str) -> None:
        async with self._declare_lock:
            if self.state is TransactionState.NEW:
                await self._declare(path)
        self._check_active()
        self._check_connected()

    def _check_connected(self) -> None:
        assert self._coordinator is not None
        if self._coordinator.failure is not None:
            raise TransactionRolledBack(f"the transaction was lost with its connection: {self._coordinator.failure}")

    async def _declare(self, path: str) -> None:
        connection = await self.factory.authorized_connection(path)
        coordinator = connection.attach_sender("coordinator", target=Coordinator(), source=Source(address=path))
        try:
            await self._with_timeout(coordinator.wait_attached())
            declared = await self._with_timeout(coordinator.send(build(body=value(Declare()))))
        except BaseException:
            coordinator.detach()  # a transaction declared on this link ends with the link
            raise
        if not isinstance(declared, Declared):
            coordinator.detach()
            raise UnknownAnswer("the coordinator accepted a declare without a transaction id")
        self._coordinator, self._transaction_id = coordinator, declared.txn_id
        self.state = TransactionState.ACTIVE

    async def _discharge(self, *, fail: bool) -> None:
        assert self._coordinator is not None
        coordinator = self._coordinator
        discharge = coordinator.send(build(body=value(Discharge(txn_id=self._transaction_id, fail=fail))))
        try:
            await self._with_timeout(discharge)
        except TimedOut as error:
            raise error.copy_with(may_have_happened=not coordinator.withdraw(discharge)) from None
        finally:
            coordinator.detach()

    async def _roll_back_quietly(self) -> None:
        """Roll back and ignore errors. If no discharge arrives, the server rolls back when the link ends."""
        with contextlib.suppress(ServiceBusError):
            await self.rollback()

    async def _with_timeout(self, awaitable: Awaitable[T]) -> T:
        limit_s = self.factory.settings.operation_timeout_s
        try:
            async with asyncio.timeout(limit_s):
                return await awaitable
        except TimeoutError:
            raise TimedOut(f"an operation of a transaction took longer than {limit_s:g} s") from None
