"""Transactions on partitioned entities, over sockets: the client is connected to one of two broker processes, and the
fragments of both are used.
"""

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
"""One of each process, whichever the client is connected to."""


class OrdersQueue:
    """A queue, with a client of its own and another one that looks at it."""

    def __init__(self, factory: MessagingFactory, other: MessagingFactory, queue: str) -> None:
        self.factory = factory
        self.client: QueueClient = factory.create_queue_client(queue)
        self._other: QueueClient = other.create_queue_client(queue)

    async def seen(self) -> list[str]:
        """The bodies that another client finds."""
        peeked = await self._other.peek_batch(100, from_sequence_number=0)
        return sorted(texts(peeked))

    async def refuses(self, message: BrokeredMessage, *, because: str, transaction: Transaction | None = None) -> None:
        """InvalidOperation, as AMQP names it, which fails all of the transaction."""
        transaction = transaction or self.factory.transaction()
        with pytest.raises(NotAllowed, match=because):
            await self.client.send(message, transaction=transaction)
        with pytest.raises(TransactionRolledBack):
            await transaction.commit()
        assert await self.seen() == []


@asynccontextmanager
async def orders_of(server: MultiProcessServer, **elements: Any) -> AsyncIterator[OrdersQueue]:  # noqa: ANN401  # of a description
    queue = server.create_queue(**{"EnablePartitioning": "true"} | elements)
    async with connect_client(server) as factory, connect_client(server) as other:
        yield OrdersQueue(factory, other, queue)


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("name", ["session_id", "partition_key"])
async def test_r096_r115_r126_r127_the_messages_of_a_transaction_appear_together_in_one_fragment_when_it_is_committed(
    two_workers: MultiProcessServer, name: str, key: str
) -> None:
    async with orders_of(two_workers) as orders:
        transaction = orders.factory.transaction()
        for message in numbered_messages(3, **{name: key}):
            await orders.client.send(message, transaction=transaction)
        await orders.client.send_batch(numbered_messages(2, **{name: key}), transaction=transaction)
        assert await orders.seen() == []
        assert await orders.client.receive(timeout=0) is None
        await transaction.commit()
        found = await receive(orders.client, 5)
        assert texts(found) == ["0", "1", "2", "0", "1"]
        assert {fragment_of_message(message) for message in found} == {fragment_of(key.encode())}


@pytest.mark.parametrize("partitioned", ["true", "false"])
async def test_r127_nothing_of_a_transaction_is_visible_without_a_commit_or_after_a_rollback(
    two_workers: MultiProcessServer, partitioned: str
) -> None:
    async with orders_of(two_workers, EnablePartitioning=partitioned) as orders:
        for key in KEYS:
            await orders.client.send(BrokeredMessage("order", partition_key=key))
            (order,) = await receive(orders.client, 1)
            transaction = orders.factory.transaction()
            await orders.client.complete(order, transaction=transaction)
            await orders.client.send(BrokeredMessage("answer", partition_key=key), transaction=transaction)
            assert await orders.seen() == ["order"]
            await transaction.rollback()
            assert await orders.seen() == ["order"]
            await orders.client.complete(order)  # its lock is what it was
            assert await orders.seen() == []
            async with connect_client(two_workers) as lost:  # its connection ends without a commit
                sender = lost.create_message_sender(orders.client.path)
                await sender.send(BrokeredMessage("forgotten", partition_key=key), transaction=lost.transaction())
            assert await orders.seen() == []


async def test_r115_q26_a_message_id_is_a_key_where_duplicates_are_detected_and_only_there(
    two_workers: MultiProcessServer,
) -> None:
    async with orders_of(two_workers, RequiresDuplicateDetection="true") as orders:
        for _ in range(2):
            async with orders.factory.transaction() as transaction:
                await orders.client.send(BrokeredMessage("x", message_id="order 1"), transaction=transaction)
        assert await orders.seen() == ["x"]
    async with orders_of(two_workers) as orders:
        await orders.refuses(BrokeredMessage("x", message_id="order 1"), because="has a session id or a partition key")


async def test_r116_messages_of_several_keys_are_refused(two_workers: MultiProcessServer) -> None:
    async with orders_of(two_workers) as orders:
        for first, second in (
            KEYS,
            (key_for_fragment(3, 0), key_for_fragment(3, 1)),
        ):  # also if both lead to one fragment
            transaction = orders.factory.transaction()
            await orders.client.send(BrokeredMessage("x", partition_key=first), transaction=transaction)
            message = BrokeredMessage("y", partition_key=second)
            await orders.refuses(message, because="have the same", transaction=transaction)


async def test_r117_to_an_entity_with_sessions_a_message_has_a_session_id_and_no_other_partition_key(
    two_workers: MultiProcessServer,
) -> None:
    async with orders_of(two_workers, RequiresSession="true") as orders:
        await orders.refuses(BrokeredMessage("x", partition_key="apples"), because="session")
        for key in ("pears", "apples"):  # our client refuses two that differ itself, so this is what others send
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
                assert await orders.seen() == []
            else:
                await transaction.send(orders.client.sender, payload, 0)
                await transaction.commit()
                assert await orders.seen() == ["x"]


@pytest.mark.parametrize("partitioned", ["true", "false"])
async def test_r118_several_sessions_in_one_transaction_are_for_plain_entities_only(
    two_workers: MultiProcessServer, partitioned: str
) -> None:
    async with orders_of(two_workers, EnablePartitioning=partitioned, RequiresSession="true") as orders:
        transaction = orders.factory.transaction()
        await orders.client.send(BrokeredMessage("x", session_id=KEYS[0]), transaction=transaction)
        other = BrokeredMessage("y", session_id=KEYS[1])
        if partitioned == "true":
            await orders.refuses(other, because="have the same", transaction=transaction)
        else:
            await orders.client.send(other, transaction=transaction)
            await transaction.commit()
            assert await orders.seen() == ["x", "y"]
