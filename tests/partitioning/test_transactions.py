"""A transaction on a partitioned entity is bound to one fragment: all its messages have the same key."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.partitioned_namespace import (
    key_for_fragment,
    numbered_messages,
    partitioned_namespace,
    receive,
    send_all,
    texts,
)
from twinbus.amqp.message import Properties, build, data
from twinbus.client import BrokeredMessage
from twinbus.model.errors import NotAllowed, TransactionRolledBack
from twinbus.testing import in_virtual_time

if TYPE_CHECKING:
    from tests.support.partitioned_namespace import PartitionedNamespace
    from twinbus.client import Transaction


@in_virtual_time
@pytest.mark.parametrize("name", ["session_id", "partition_key"])
async def test_r096_r115_messages_of_one_key_are_sent_in_a_transaction(name: str) -> None:
    async with partitioned_namespace() as orders:
        async with orders.factory.transaction() as transaction:
            for message in numbered_messages(3, **{name: "apples"}):
                await orders.client.send(message, transaction=transaction)
            await orders.client.send_batch(numbered_messages(3, **{name: "apples"}), transaction=transaction)
            assert await orders.fragments() == []
        stored = await orders.namespace.messages("orders")
        assert texts(stored) == ["0", "1", "2", "0", "1", "2"]
        assert len(set(await orders.fragments())) == 1


@in_virtual_time
async def test_r115_q26_a_message_id_is_a_key_with_duplicate_detection() -> None:
    async with partitioned_namespace(requires_duplicate_detection=True) as orders:
        for _ in range(2):
            async with orders.factory.transaction() as transaction:
                await orders.client.send(BrokeredMessage("x", message_id="order 1"), transaction=transaction)
        assert await orders.texts() == ["x"]


@in_virtual_time
async def test_r115_q26_a_message_without_a_key_is_refused() -> None:
    async with partitioned_namespace() as orders:
        await _assert_refused(
            orders, BrokeredMessage("x", message_id="order 1"), because="must have a session id or a partition key"
        )


@in_virtual_time
async def test_r116_messages_of_several_keys_are_refused() -> None:
    async with partitioned_namespace() as orders:
        transaction = orders.factory.transaction()
        await orders.client.send(BrokeredMessage("x", partition_key="apples"), transaction=transaction)
        await _assert_refused(
            orders, BrokeredMessage("y", partition_key="pears"), because="'pears'", transaction=transaction
        )
        transaction = orders.factory.transaction()
        await orders.client.send(BrokeredMessage("x", partition_key=key_for_fragment(3, 0)), transaction=transaction)
        await _assert_refused(
            orders,
            BrokeredMessage("y", partition_key=key_for_fragment(3, 1)),
            because="have the same",  # even if both hash to one fragment, so that no application relies on it
            transaction=transaction,
        )


@in_virtual_time
async def test_r116_messages_of_several_ids_are_refused_with_duplicate_detection() -> None:
    async with partitioned_namespace(requires_duplicate_detection=True) as orders:
        transaction = orders.factory.transaction()
        await orders.client.send(BrokeredMessage("x", message_id="order 1"), transaction=transaction)
        await _assert_refused(
            orders, BrokeredMessage("x", message_id="order 2"), because="same", transaction=transaction
        )


@in_virtual_time
async def test_r117_an_entity_with_sessions_requires_a_session_id() -> None:
    async with partitioned_namespace(requires_session=True) as orders:
        await _assert_refused(orders, BrokeredMessage("x", partition_key="apples"), because="session")
        await _assert_refused(orders, BrokeredMessage("x", message_id="order 1"), because="session")
        async with orders.factory.transaction() as transaction:
            message = BrokeredMessage("x", session_id="apples", partition_key="apples")
            await orders.client.send(message, transaction=transaction)
        assert await orders.texts() == ["x"]


@in_virtual_time
async def test_r117_a_partition_key_that_differs_from_the_session_id_is_refused() -> None:
    async with partitioned_namespace(requires_session=True) as orders:
        bad = build(
            message_annotations={"x-opt-partition-key": "pears"},
            properties=Properties(message_id="1", group_id="apples"),
            body=data(b"x"),
        )
        transaction = orders.factory.transaction()
        with pytest.raises(NotAllowed, match="'pears' and its session id 'apples'"):
            await transaction.send(orders.client.sender, bad, 0)
        with pytest.raises(TransactionRolledBack):
            await transaction.commit()
        assert await orders.fragments() == []


@in_virtual_time
@pytest.mark.parametrize("enable_partitioning", [True, False])
async def test_r118_only_plain_entities_allow_several_sessions_in_one_transaction(*, enable_partitioning: bool) -> None:
    async with partitioned_namespace(requires_session=True, enable_partitioning=enable_partitioning) as orders:
        transaction = orders.factory.transaction()
        await orders.client.send(BrokeredMessage("x", session_id="apples"), transaction=transaction)
        if enable_partitioning:
            message = BrokeredMessage("y", session_id="pears")
            await _assert_refused(orders, message, because="'pears'", transaction=transaction)
        else:
            await orders.client.send(BrokeredMessage("y", session_id="pears"), transaction=transaction)
            await transaction.commit()
            assert await orders.texts() == ["x", "y"]


@in_virtual_time
async def test_a_message_is_completed_and_its_reply_sent_in_one_transaction() -> None:
    async with partitioned_namespace() as orders:
        await send_all(orders.client, numbered_messages(2, partition_key=key_for_fragment(7)))
        done, bad = await receive(orders.client, 2)
        async with orders.factory.transaction() as transaction:
            await orders.client.complete(done, transaction=transaction)
            await orders.client.dead_letter(bad, "why", transaction=transaction)
            await orders.client.send(
                BrokeredMessage("answer", partition_key=key_for_fragment(7)), transaction=transaction
            )
            assert orders.namespace.counts("orders").size_bytes > 0
        assert await orders.texts() == ["answer"]
        assert await orders.texts("orders/$DeadLetterQueue") == ["1"]


@in_virtual_time
async def test_a_message_for_another_fragment_fails_the_transaction() -> None:
    async with partitioned_namespace() as orders:
        await orders.client.send(BrokeredMessage("order", partition_key=key_for_fragment(7)))
        (order,) = await receive(orders.client, 1)
        transaction = orders.factory.transaction()
        await orders.client.complete(order, transaction=transaction)
        reply = BrokeredMessage("answer", partition_key=key_for_fragment(8))
        with pytest.raises(NotAllowed, match="another fragment"):
            await orders.client.send(reply, transaction=transaction)
        with pytest.raises(TransactionRolledBack):
            await transaction.commit()
        await orders.client.complete(order)
        assert await orders.fragments() == []


@in_virtual_time
async def test_a_rollback_discards_sends_and_settlements() -> None:
    async with partitioned_namespace() as orders:
        await orders.client.send(BrokeredMessage("order", partition_key=key_for_fragment(7)))
        (order,) = await receive(orders.client, 1)
        transaction = orders.factory.transaction()
        await orders.client.complete(order, transaction=transaction)
        await orders.client.send(BrokeredMessage("answer", partition_key=key_for_fragment(7)), transaction=transaction)
        await transaction.rollback()
        assert await orders.texts() == ["order"]
        await orders.client.complete(order)


@in_virtual_time
async def test_a_reply_goes_to_another_entity_via_the_fragment_of_the_request() -> None:
    async with partitioned_namespace() as orders:
        await orders.queue("answers")
        await orders.client.send(BrokeredMessage("order", partition_key=key_for_fragment(7)))
        (order,) = await receive(orders.client, 1)
        sender = orders.factory.create_message_sender("answers", via="orders")
        async with orders.factory.transaction() as transaction:
            await orders.client.complete(order, transaction=transaction)
            reply = BrokeredMessage("answer", partition_key=key_for_fragment(2), via_partition_key=key_for_fragment(7))
            await sender.send(reply, transaction=transaction)
        reply_client = orders.factory.create_queue_client("answers")
        assert texts(await receive(reply_client, 1)) == ["answer"]
        assert await orders.fragments("answers") == [2]
        assert await orders.fragments() == []


async def _assert_refused(
    orders: PartitionedNamespace, message: BrokeredMessage, *, because: str, transaction: Transaction | None = None
) -> None:
    """Assert that a send is refused with the AMQP condition of InvalidOperation, and that its transaction fails."""
    transaction = transaction or orders.factory.transaction()
    with pytest.raises(NotAllowed, match=because):
        await orders.client.send(message, transaction=transaction)
    with pytest.raises(TransactionRolledBack):
        await transaction.commit()
    assert await orders.fragments() == []
