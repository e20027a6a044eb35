"""C01, C03, C04: what is counted of receives: each delivery, and each wait that nothing came of."""

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


async def filled(namespace: InMemoryNamespace, count: int, **description: Any) -> None:  # noqa: ANN401  # fields of the description
    """A queue with so many messages."""
    await namespace.create_queue("orders", **description)
    sender = namespace.factory().create_message_sender("orders")
    await sender.send_batch([BrokeredMessage(str(number), session_id="s") for number in range(count)])


@in_virtual_time
async def test_c03_a_receive_under_a_lock_and_its_completion_are_two_and_a_receive_and_delete_is_one() -> None:
    async with InMemoryNamespace() as namespace:
        await filled(namespace, 2)
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
async def test_c01_a_receive_that_returns_nothing_is_one_however_often_there_was_something_before() -> None:
    async with InMemoryNamespace() as namespace:
        await filled(namespace, 3)
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
async def test_c01_credit_of_which_some_was_used_is_as_many_receives_as_messages_came() -> None:
    async with InMemoryNamespace() as namespace:
        await filled(namespace, 3)
        receiver = namespace.factory().create_message_receiver("orders")
        assert len(await receiver.receive_batch(10, 5)) == 3
        row = total_usage(namespace)
        assert (row.receives, row.empty_receives) == (3, 0)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_c01_a_link_that_ends_with_credit_is_a_receive_if_nothing_came(count: int) -> None:
    @in_virtual_time
    async def end() -> None:
        async with InMemoryNamespace() as namespace:
            await filled(namespace, count or 1)
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
def test_c01_a_wait_is_one_receive_also_if_the_queue_or_the_connection_is_gone(end: str) -> None:
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
async def test_c03_each_delivery_counts_and_so_does_each_settlement() -> None:
    async with InMemoryNamespace() as namespace:
        await filled(namespace, 1)
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
        buried = await dead.receive(1)
        assert buried is not None
        await dead.complete(buried)
        assert nonzero_counts(total_usage(namespace, "orders/$DeadLetterQueue")) == {
            "receives": 1,
            "receive_units": 1,
            "settlements": 1,
        }


@in_virtual_time
async def test_r084_c04_a_receive_from_a_partitioned_queue_costs_what_any_does() -> None:
    async with InMemoryNamespace(stores=2) as namespace:
        await filled(namespace, 20, enable_partitioning=True)
        receiver = namespace.factory().create_message_receiver("orders")
        got: list[BrokeredMessage] = []
        while some := await receiver.receive_batch(7, 1):
            got += some
        await receiver.complete_batch(got)
        row = total_usage(namespace)
        assert (len(got), row.receives, row.receive_units, row.settlements, row.empty_receives) == (20, 20, 20, 20, 1)


@in_virtual_time
async def test_c01_a_session_that_is_received_from_is_counted_as_any_and_a_wait_for_one_as_an_empty_receive() -> None:
    async with InMemoryNamespace() as namespace:
        await filled(namespace, 2, requires_session=True)
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
