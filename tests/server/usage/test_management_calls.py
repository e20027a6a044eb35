"""C01, C03: usage of calls other than sends and receives: `$management`, browse links and forwarding."""

from __future__ import annotations

import asyncio
import datetime as dt
from typing import Any

import pytest

from tests.server.usage.usage_totals import nonzero_counts, total_usage
from twinbus.client import BrokeredMessage
from twinbus.model.errors import MessageNotFound, NotAllowed, ServiceBusError
from twinbus.server.amqp.management.node import OPERATIONS
from twinbus.server.usage.management_operations import OPERATION_COUNTERS
from twinbus.testing import InMemoryNamespace, in_virtual_time


async def create_filled_queue(namespace: InMemoryNamespace, count: int, **description: Any) -> None:  # noqa: ANN401  # fields of the description
    """Create a queue with `count` messages."""
    await namespace.create_queue("orders", **description)
    await send(namespace, count)


async def send(namespace: InMemoryNamespace, count: int) -> None:
    sender = namespace.factory().create_message_sender("orders")
    await sender.send_batch([BrokeredMessage(str(number)) for number in range(count)])


def counts_without_sends(namespace: InMemoryNamespace) -> dict[str, int]:
    return {
        name: count
        for name, count in nonzero_counts(total_usage(namespace, "orders")).items()
        if not name.startswith("send")
    }


def test_every_management_operation_has_a_counter() -> None:
    assert OPERATION_COUNTERS.keys() == OPERATIONS.keys()


@in_virtual_time
async def test_a_peek_is_one_call_whatever_it_returns() -> None:
    async with InMemoryNamespace() as namespace:
        await create_filled_queue(namespace, 5)
        queue = namespace.factory().create_queue_client("orders")
        assert len(await queue.peek_batch(10)) == 5
        assert await queue.peek_batch(10) == []
        assert counts_without_sends(namespace) == {"peeks": 2}


@in_virtual_time
async def test_each_browsed_message_is_a_peek_and_each_completed_message_a_settlement() -> None:
    async with InMemoryNamespace() as namespace:
        await create_filled_queue(namespace, 5)
        browser = namespace.factory().create_message_browser("orders")
        messages = await browser.receive_batch(5)
        assert len(messages) == 5
        await browser.complete_up_to(messages[2].sequence_number)
        assert counts_without_sends(namespace) == {"peeks": 5, "settlements": 3}
        await browser.complete_up_to(messages[2].sequence_number)
        assert counts_without_sends(namespace)["settlements"] == 4, "nothing was left to complete, and it was a call"


@in_virtual_time
async def test_withholding_is_not_charged_whether_it_is_allowed_or_not() -> None:
    async with InMemoryNamespace() as namespace:
        await namespace.create_queue("orders")
        factory = namespace.factory()
        receiver = factory.create_message_receiver("orders", epoch=1)
        body = {"property": "to", "values": ["a", "b"]}
        with pytest.raises(NotAllowed):
            await factory.request("orders", "twinbus:withhold", body, timeout_s=5)
        assert await receiver.receive(0.5) is None
        before = nonzero_counts(total_usage(namespace))
        await factory.request("orders", "twinbus:withhold", body, timeout_s=5)
        assert nonzero_counts(total_usage(namespace)) == before == {"empty_receives": 1}


@in_virtual_time
async def test_schedules_are_counted_by_units_and_cancellations_by_message() -> None:
    async with InMemoryNamespace() as namespace:
        await namespace.create_queue("orders")
        queue = namespace.factory().create_queue_client("orders")
        later = dt.datetime.fromtimestamp(namespace.clock.wall_ms() / 1000, dt.UTC) + dt.timedelta(hours=1)
        numbers = [await queue.schedule(BrokeredMessage(b"x" * size), later) for size in (10, 100_000)]
        await queue.cancel_scheduled(*numbers)
        assert nonzero_counts(total_usage(namespace)) == {"schedules": 5}


@in_virtual_time
async def test_c01_each_lock_renewal_is_counted_also_of_a_lost_lock() -> None:
    async with InMemoryNamespace() as namespace:
        await create_filled_queue(namespace, 2, lock_duration_ms=10_000)
        receiver = namespace.factory().create_message_receiver("orders")
        messages = await receiver.receive_batch(2, 1)
        await receiver.renew_locks(messages)
        assert counts_without_sends(namespace)["renewals"] == 2
        await asyncio.sleep(30)
        with pytest.raises(ServiceBusError):
            await receiver.renew_lock(messages[0])
        assert counts_without_sends(namespace)["renewals"] == 3


@in_virtual_time
async def test_c01_a_deferred_message_is_a_receive_and_a_missing_one_an_empty_receive() -> None:
    async with InMemoryNamespace() as namespace:
        await create_filled_queue(namespace, 2)
        receiver = namespace.factory().create_message_receiver("orders")
        messages = await receiver.receive_batch(2, 1)
        for message in messages:
            await receiver.defer(message)
        deferred = await receiver.receive_deferred(*[message.sequence_number for message in messages])
        for message in deferred:
            await receiver.complete(message)
        with pytest.raises(MessageNotFound):
            await receiver.receive_deferred(999)
        assert counts_without_sends(namespace) == {
            "receives": 4,
            "receive_units": 4,
            "settlements": 4,
            "empty_receives": 1,
        }


@pytest.mark.parametrize("partitioned", [False, True])
def test_each_message_of_a_batch_delete_is_counted(partitioned: bool) -> None:  # noqa: FBT001  # as pytest gives it
    @in_virtual_time
    async def delete() -> None:
        async with InMemoryNamespace() as namespace:
            await create_filled_queue(namespace, 5, enable_partitioning=partitioned)
            receiver = namespace.factory().create_message_receiver("orders")
            removed = await receiver.delete_batch(4)
            assert counts_without_sends(namespace) == {"settlements": removed}
            assert 0 < removed <= 4

    delete()


@in_virtual_time
async def test_c03_a_forward_is_counted_for_the_source_entity_and_for_no_client() -> None:
    async with InMemoryNamespace() as namespace:
        await namespace.create_queue("target")
        await create_filled_queue(namespace, 1, forward_to="target")
        await send(namespace, 3)
        await asyncio.sleep(5)
        assert len(await namespace.messages("target")) == 4
        (row,) = [row for row in namespace.usage() if row.forwards]
        assert (row.entity, row.client, nonzero_counts(row)) == ("orders", "", {"forwards": 4})
        assert nonzero_counts(total_usage(namespace, "target")) == {}


@in_virtual_time
async def test_c07_a_message_to_a_topic_is_sent_once_and_received_from_each_subscription() -> None:
    async with InMemoryNamespace() as namespace:
        await namespace.create_topic("news")
        for name in ("a", "b"):
            await namespace.create_subscription("news", name)
        factory = namespace.factory()
        await factory.create_topic_client("news").send(BrokeredMessage("rain"))
        for name in ("a", "b"):
            subscription = factory.create_subscription_client("news", name)
            message = await subscription.receive(1)
            assert message is not None
            await subscription.complete(message)
        assert nonzero_counts(total_usage(namespace, "news")) == {"sends": 1, "send_units": 1}
        expected = {"receives": 1, "receive_units": 1, "settlements": 1}
        assert nonzero_counts(total_usage(namespace, "news/Subscriptions/a")) == expected
        assert nonzero_counts(total_usage(namespace, "news/Subscriptions/b")) == expected
