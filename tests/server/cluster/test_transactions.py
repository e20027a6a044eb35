"""Transactions on partitioned entities: the client is connected to one of two processes, and uses fragments of both."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.multi_process_server import connect_client
from tests.support.partitioned_namespace import fragment_of_message, key_for_fragment, numbered_messages, receive, texts
from twinbus.amqp.message import Properties, build, data
from twinbus.client import BrokeredMessage
from twinbus.model.errors import NotAllowed, TransactionRolledBack
from twinbus.model.partition_key import fragment_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.support.multi_process_server import MultiProcessServer
    from twinbus.client import MessagingFactory, QueueClient, Transaction

KEYS = [key_for_fragment(0), key_for_fragment(1)]
"""One key for a fragment of each process."""


class OrdersQueue:
    """A queue with two clients: one uses it, the other peeks."""

    def __init__(self, factory: MessagingFactory, other: MessagingFactory, queue: str) -> None:
        self.factory = factory
        self.client: QueueClient = factory.create_queue_client(queue)
        self._other: QueueClient = other.create_queue_client(queue)

    async def visible_texts(self) -> list[str]:
        """The bodies that another client can peek."""
        peeked = await self._other.peek_batch(100, from_sequence_number=0)
        return sorted(texts(peeked))

    async def refuses(self, message: BrokeredMessage, *, because: str, transaction: Transaction | None = None) -> None:
        """Check that a send is refused with `amqp:not-allowed`, and that its whole transaction is rolled back."""
        transaction = transaction or self.factory.transaction()
        with pytest.raises(NotAllowed, match=because):
            await self.client.send(message, transaction=transaction)
        with pytest.raises(TransactionRolledBack):
            await transaction.commit()
        assert await self.visible_texts() == []


@asynccontextmanager
async def orders_queue(server: MultiProcessServer, **elements: Any) -> AsyncIterator[OrdersQueue]:  # noqa: ANN401  # elements of a description
    queue = server.create_queue(**{"EnablePartitioning": "true"} | elements)
    async with connect_client(server) as factory, connect_client(server) as other:
        yield OrdersQueue(factory, other, queue)


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("name", ["session_id", "partition_key"])
async def test_r096_r115_r126_r127_a_committed_transactions_messages_appear_together_in_one_fragment(
    two_workers: MultiProcessServer, name: str, key: str
) -> None:
    async with orders_queue(two_workers) as orders:
        transaction = orders.factory.transaction()
        for message in numbered_messages(3, **{name: key}):
            await orders.client.send(message, transaction=transaction)
        await orders.client.send_batch(numbered_messages(2, **{name: key}), transaction=transaction)
        assert await orders.visible_texts() == []
        assert await orders.client.receive(timeout=0) is None
        await transaction.commit()
        received = await receive(orders.client, 5)
        assert texts(received) == ["0", "1", "2", "0", "1"]
        assert {fragment_of_message(message) for message in received} == {fragment_of(key.encode())}


@pytest.mark.parametrize("partitioned", ["true", "false"])
async def test_r127_nothing_of_a_transaction_is_visible_without_a_commit_or_after_a_rollback(
    two_workers: MultiProcessServer, partitioned: str
) -> None:
    async with orders_queue(two_workers, EnablePartitioning=partitioned) as orders:
        for key in KEYS:
            await orders.client.send(BrokeredMessage("order", partition_key=key))
            (order,) = await receive(orders.client, 1)
            transaction = orders.factory.transaction()
            await orders.client.complete(order, transaction=transaction)
            await orders.client.send(BrokeredMessage("answer", partition_key=key), transaction=transaction)
            assert await orders.visible_texts() == ["order"]
            await transaction.rollback()
            assert await orders.visible_texts() == ["order"]
            await orders.client.complete(order)  # it is still locked
            assert await orders.visible_texts() == []
            async with connect_client(two_workers) as lost:  # its connection ends without a commit
                sender = lost.create_message_sender(orders.client.path)
                await sender.send(BrokeredMessage("forgotten", partition_key=key), transaction=lost.transaction())
            assert await orders.visible_texts() == []


async def test_r115_q26_a_message_id_is_a_key_only_with_duplicate_detection(
    two_workers: MultiProcessServer,
) -> None:
    async with orders_queue(two_workers, RequiresDuplicateDetection="true") as orders:
        for _ in range(2):
            async with orders.factory.transaction() as transaction:
                await orders.client.send(BrokeredMessage("x", message_id="order 1"), transaction=transaction)
        assert await orders.visible_texts() == ["x"]
    async with orders_queue(two_workers) as orders:
        await orders.refuses(
            BrokeredMessage("x", message_id="order 1"), because="must have a session id or a partition key"
        )


async def test_r116_messages_of_several_keys_are_refused(two_workers: MultiProcessServer) -> None:
    async with orders_queue(two_workers) as orders:
        for first, second in (
            KEYS,
            (key_for_fragment(3, 0), key_for_fragment(3, 1)),
        ):  # two keys of one fragment as well
            transaction = orders.factory.transaction()
            await orders.client.send(BrokeredMessage("x", partition_key=first), transaction=transaction)
            message = BrokeredMessage("y", partition_key=second)
            await orders.refuses(message, because="have the same", transaction=transaction)


async def test_r117_with_sessions_a_message_needs_a_session_id_equal_to_its_partition_key(
    two_workers: MultiProcessServer,
) -> None:
    async with orders_queue(two_workers, RequiresSession="true") as orders:
        await orders.refuses(BrokeredMessage("x", partition_key="apples"), because="session")
        for key in ("pears", "apples"):  # our client refuses keys that differ, so encode the message here
            transaction = orders.factory.transaction()
            payload = build(
                message_annotations={"x-opt-partition-key": key},
                properties=Properties(message_id="1", group_id="apples"),
                body=data(b"x"),
            )
            if key == "pears":
                with pytest.raises(NotAllowed, match=r"(?s)'pears'.*'apples'"):
                    await transaction.send(orders.client.sender, payload, 0)
                with pytest.raises(TransactionRolledBack):
                    await transaction.commit()
                assert await orders.visible_texts() == []
            else:
                await transaction.send(orders.client.sender, payload, 0)
                await transaction.commit()
                assert await orders.visible_texts() == ["x"]


@pytest.mark.parametrize("partitioned", ["true", "false"])
async def test_r118_only_plain_entities_allow_several_sessions_in_one_transaction(
    two_workers: MultiProcessServer, partitioned: str
) -> None:
    async with orders_queue(two_workers, EnablePartitioning=partitioned, RequiresSession="true") as orders:
        transaction = orders.factory.transaction()
        await orders.client.send(BrokeredMessage("x", session_id=KEYS[0]), transaction=transaction)
        other = BrokeredMessage("y", session_id=KEYS[1])
        if partitioned == "true":
            await orders.refuses(other, because="have the same", transaction=transaction)
        else:
            await orders.client.send(other, transaction=transaction)
            await transaction.commit()
            assert await orders.visible_texts() == ["x", "y"]
