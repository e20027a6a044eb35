"""C01, C03, C04: usage of receives: each delivery, and each wait without a message."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.server.usage.usage_totals import nonzero_counts, total_usage
from twinbus.client import BrokeredMessage, ReceiveMode
from twinbus.model.errors import OperationTimeout
from twinbus.model.usage import document_operations, operations
from twinbus.testing import InMemoryNamespace, in_virtual_time

FIFTEEN_MINUTES_S = 900


async def create_filled_queue(namespace: InMemoryNamespace, count: int, **description: Any) -> None:  # noqa: ANN401  # fields of the description
    """Create a queue with `count` messages."""
    await namespace.create_queue("orders", **description)
    sender = namespace.factory().create_message_sender("orders")
    await sender.send_batch([BrokeredMessage(str(number), session_id="s") for number in range(count)])


@in_virtual_time
async def test_c03_a_peek_lock_receive_and_completion_are_two_and_receive_and_delete_is_one() -> None:
    async with InMemoryNamespace() as namespace:
        await create_filled_queue(namespace, 2)
        queue = namespace.factory().create_queue_client("orders")
        message = await queue.receive(1)
        assert message is not None
        await queue.complete(message)
        row = total_usage(namespace)
        assert (row.receives, row.settlements) == (1, 1)
        assert operations(row) - row.send_units == 2
        assert await namespace.factory().create_queue_client("orders", ReceiveMode.RECEIVE_AND_DELETE).receive(1)
        row = total_usage(namespace)
        assert (row.receives, row.settlements, row.empty_receives) == (2, 1, 0)
        assert operations(row) - row.send_units == 3
        assert document_operations(row) - row.send_units == 2


@in_virtual_time
async def test_c01_each_receive_without_a_message_is_counted() -> None:
    async with InMemoryNamespace() as namespace:
        await create_filled_queue(namespace, 3)
        receiver = namespace.factory().create_message_receiver("orders")
        for _ in range(3):
            assert await receiver.receive(1)
        for _ in range(2):
            assert await receiver.receive(1) is None
        await receiver.close()
        row = total_usage(namespace)
        assert (row.receives, row.empty_receives) == (3, 2)


@in_virtual_time
async def test_c01_a_poll_of_fifteen_minutes_is_one_receive() -> None:
    async with InMemoryNamespace() as namespace:
        await namespace.create_queue("orders")
        receiver = namespace.factory().create_message_receiver("orders")
        assert await receiver.receive(FIFTEEN_MINUTES_S) is None
        assert nonzero_counts(total_usage(namespace)) == {"empty_receives": 1}


@in_virtual_time
async def test_c01_partly_used_credit_is_counted_by_received_messages() -> None:
    async with InMemoryNamespace() as namespace:
        await create_filled_queue(namespace, 3)
        receiver = namespace.factory().create_message_receiver("orders")
        assert len(await receiver.receive_batch(10, 5)) == 3
        row = total_usage(namespace)
        assert (row.receives, row.empty_receives) == (3, 0)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_c01_a_link_closed_with_credit_is_an_empty_receive_if_it_received_nothing(count: int) -> None:
    @in_virtual_time
    async def end() -> None:
        async with InMemoryNamespace() as namespace:
            await create_filled_queue(namespace, count or 1)
            if not count:
                assert (
                    await namespace.factory().create_queue_client("orders", ReceiveMode.RECEIVE_AND_DELETE).receive(1)
                )
            before = total_usage(namespace).receives
            factory = namespace.factory()
            receiver = factory.create_message_receiver("orders", prefetch=100)
            await receiver.open()
            await asyncio.sleep(20)
            await factory.close()
            row = total_usage(namespace)
            assert (row.receives - before, row.empty_receives) == (count, 0 if count else 1)

    end()


@pytest.mark.parametrize("end", ["deleted", "cut"])
def test_c01_a_wait_ended_by_a_lost_queue_or_connection_is_an_empty_receive(end: str) -> None:
    @in_virtual_time
    async def lose() -> None:
        async with InMemoryNamespace() as namespace:
            await namespace.create_queue("orders")
            receiver = namespace.factory().create_message_receiver("orders", prefetch=10)
            await receiver.open()
            await asyncio.sleep(1)
            assert nonzero_counts(total_usage(namespace)) == {}
            if end == "deleted":
                await namespace.entities.delete("orders")
            else:
                namespace.outage.cut()
            await asyncio.sleep(1)
            assert nonzero_counts(total_usage(namespace)) == {"empty_receives": 1}

    lose()


@in_virtual_time
async def test_c03_each_delivery_and_each_settlement_is_counted() -> None:
    async with InMemoryNamespace() as namespace:
        await create_filled_queue(namespace, 1)
        receiver = namespace.factory().create_message_receiver("orders")
        for _ in range(3):
            message = await receiver.receive(1)
            assert message is not None
            await receiver.abandon(message)
        message = await receiver.receive(1)
        assert message is not None
        await receiver.dead_letter(message, "bad")
        row = total_usage(namespace)
        assert (row.receives, row.settlements) == (4, 4)
        dead = namespace.factory().create_message_receiver("orders/$DeadLetterQueue")
        dead_letter = await dead.receive(1)
        assert dead_letter is not None
        await dead.complete(dead_letter)
        assert nonzero_counts(total_usage(namespace, "orders/$DeadLetterQueue")) == {
            "receives": 1,
            "receive_units": 1,
            "settlements": 1,
        }


@in_virtual_time
async def test_r084_c04_a_receive_from_a_partitioned_queue_costs_the_same() -> None:
    async with InMemoryNamespace(stores=2) as namespace:
        await create_filled_queue(namespace, 20, enable_partitioning=True)
        receiver = namespace.factory().create_message_receiver("orders")
        received: list[BrokeredMessage] = []
        while batch := await receiver.receive_batch(7, 1):
            received += batch
        await receiver.complete_batch(received)
        row = total_usage(namespace)
        assert (len(received), row.receives, row.receive_units, row.settlements, row.empty_receives) == (
            20,
            20,
            20,
            20,
            1,
        )


@in_virtual_time
async def test_c01_session_receives_are_counted_and_a_wait_for_a_session_is_an_empty_receive() -> None:
    async with InMemoryNamespace() as namespace:
        await create_filled_queue(namespace, 2, requires_session=True)
        queue = namespace.factory().create_queue_client("orders")
        session = await queue.accept_session("s")
        while message := await session.receive(1):
            await session.complete(message)
        await session.set_state(b"x" * 70_000)
        assert await session.get_state()
        await session.renew_session_lock()
        await session.close()
        row = total_usage(namespace)
        assert (row.receives, row.settlements, row.empty_receives) == (2, 2, 1)
        assert (row.session_calls, row.renewals) == (4, 1)
        await namespace.create_queue("more", requires_session=True)
        with pytest.raises(OperationTimeout):
            await namespace.factory().create_queue_client("more").accept_session(timeout=5)
        assert nonzero_counts(total_usage(namespace, "more")) == {"empty_receives": 1}
