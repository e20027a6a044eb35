"""Transactions: all operations take effect, or none, whichever step fails."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from tests.client.bus import cut_connection, numbered_messages, receive, receive_one, texts
from twinbus.client import BrokeredMessage
from twinbus.client.errors import ConnectionLost
from twinbus.client.transaction import TransactionState
from twinbus.model.errors import InvalidOperation, NotAllowed, TransactionRolledBack

if TYPE_CHECKING:
    from tests.client.bus import Bus


async def test_sends_and_settlements_take_effect_together_at_commit(every_bus: Bus) -> None:
    queue = every_bus.create_queue()
    await queue.send_batch(numbered_messages(2))
    done, bad = await receive(queue, 2)
    async with every_bus.shared_factory.transaction() as transaction:
        await queue.send(BrokeredMessage("answer"), transaction=transaction)
        await queue.send_batch(numbered_messages(3), transaction=transaction)
        await queue.complete(done, transaction=transaction)
        await queue.receiver.dead_letter(bad, "why", transaction=transaction)
        assert every_bus.message_counts(queue) == (2, 0), "nothing takes effect before the commit"
    assert transaction.state is TransactionState.COMMITTED
    assert every_bus.message_counts(queue) == (4, 1)
    assert (done.lock_token, bad.lock_token) == (None, None)
    assert texts(await receive(queue, 4)) == ["answer", "0", "1", "2"]


async def test_an_error_in_the_block_rolls_back_and_messages_can_be_settled_again(bus: Bus) -> None:
    queue = bus.create_queue()
    await queue.send(BrokeredMessage("order"))
    message = await receive_one(queue)
    transaction = bus.shared_factory.transaction()

    async def answer() -> None:
        async with transaction:
            await queue.send(BrokeredMessage("answer"), transaction=transaction)
            await queue.complete(message, transaction=transaction)
            raise LookupError

    with pytest.raises(LookupError):
        await answer()
    assert transaction.state is TransactionState.ROLLED_BACK
    assert bus.message_counts(queue) == (1, 0)
    await queue.complete(message)
    assert bus.message_counts(queue) == (0, 0)


async def test_a_transaction_refuses_operations_after_an_explicit_rollback(bus: Bus) -> None:
    queue = bus.create_queue()
    async with bus.shared_factory.transaction() as transaction:
        await queue.send(BrokeredMessage("x"), transaction=transaction)
        await transaction.rollback()
        with pytest.raises(InvalidOperation):
            await queue.send(BrokeredMessage("x"), transaction=transaction)
        with pytest.raises(InvalidOperation):
            await transaction.commit()
    assert bus.message_counts(queue) == (0, 0)


async def test_a_failed_operation_rolls_back_the_transaction_even_if_its_error_was_caught(bus: Bus) -> None:
    queue, other = bus.create_queue(), bus.create_queue()
    transaction = bus.shared_factory.transaction()
    await queue.send(BrokeredMessage("x"), transaction=transaction)
    with pytest.raises(NotAllowed):
        await other.send(BrokeredMessage("x"), transaction=transaction)
    with pytest.raises(TransactionRolledBack):
        await transaction.commit()
    assert transaction.state is TransactionState.ROLLED_BACK
    assert (bus.message_counts(queue), bus.message_counts(other)) == ((0, 0), (0, 0))


async def test_a_lost_connection_rolls_back_its_transactions(bus: Bus) -> None:
    queue = bus.create_queue()
    await queue.send(BrokeredMessage("order"))
    message = await receive_one(queue)
    committed, continued, settled = (bus.shared_factory.transaction() for _ in range(3))
    await queue.send(BrokeredMessage("x"), transaction=committed)
    await queue.send(BrokeredMessage("x"), transaction=continued)
    await cut_connection(bus.shared_factory)
    with pytest.raises(TransactionRolledBack):
        await committed.commit()
    assert committed.state is TransactionState.ROLLED_BACK
    with pytest.raises(TransactionRolledBack):
        await queue.send(BrokeredMessage("x"), transaction=continued)
    with pytest.raises(TransactionRolledBack):
        await continued.commit()
    with pytest.raises(ConnectionLost):
        await queue.complete(message, transaction=settled)
    await settled.rollback()
    await queue.complete(message)
    assert bus.message_counts(queue) == (0, 0)


async def test_a_transaction_can_send_to_another_queue_via_the_source_queue(bus: Bus) -> None:
    requests, answers = bus.create_queue(), bus.create_queue()
    await requests.send(BrokeredMessage("question"))
    question = await receive_one(requests)
    sender = bus.shared_factory.create_message_sender(answers.path, via=requests.path)
    async with bus.shared_factory.transaction() as transaction:
        await sender.send(BrokeredMessage("answer"), transaction=transaction)
        await requests.complete(question, transaction=transaction)
    assert (await receive_one(answers)).text == "answer"
    assert bus.message_counts(requests) == (0, 0)


async def test_an_empty_transaction_is_committed_or_rolled_back_without_connecting(bus: Bus) -> None:
    async with bus.shared_factory.transaction() as transaction:
        pass
    assert transaction.state is TransactionState.COMMITTED
    with pytest.raises(ZeroDivisionError):
        async with bus.shared_factory.transaction() as transaction:
            _ = 1 / 0
    assert transaction.state is TransactionState.ROLLED_BACK
    assert not bus.shared_factory.is_connected


async def test_operations_of_one_transaction_can_run_concurrently(bus: Bus) -> None:
    queue = bus.create_queue()
    async with bus.shared_factory.transaction() as transaction:
        await asyncio.gather(*[queue.send(message, transaction=transaction) for message in numbered_messages(20)])
    assert sorted(texts(await receive(queue, 20)), key=int) == [f"{number}" for number in range(20)]
