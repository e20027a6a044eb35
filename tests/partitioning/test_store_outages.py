"""One failed or hanging store: the other stores keep working, and administrators see limited availability."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.partitioned_namespace import (
    FRAGMENTS,
    fragment_of_message,
    key_for_fragment,
    numbered_messages,
    one_per_fragment,
    partitioned_namespace,
    receive,
    receive_all,
    send_all,
)
from twinbus.client import BrokeredMessage, NamespaceManager
from twinbus.model.errors import StoreUnavailable
from twinbus.model.queue import QueueDescription
from twinbus.model.topic import TopicDescription
from twinbus.testing import in_virtual_time

MINUTE_S = 60.0


@in_virtual_time
@pytest.mark.parametrize("kind", ["fails", "hangs"])
async def test_r095_an_outage_of_one_store_does_not_make_the_queue_unavailable(kind: str) -> None:
    async with partitioned_namespace() as orders:
        await send_all(orders.client, one_per_fragment())
        (orders.namespace.outage.fail_store if kind == "fails" else orders.namespace.outage.hang_store)(1)
        await asyncio.gather(*[orders.client.send(message) for message in numbered_messages(100)])
        received = await receive_all(orders.client)
        assert {fragment_of_message(message) % 4 for message in received} == {0, 2, 3}
        assert {message.text for message in received} >= {f"{number}" for number in range(100)}
        orders.namespace.outage.restore()
        await asyncio.sleep(MINUTE_S)
        late = await receive_all(orders.client)
        assert {message.text for message in late} >= {"1", "5", "9", "13"}, "nothing was lost"


@in_virtual_time
async def test_r095_locked_messages_can_be_settled_in_available_stores() -> None:
    async with partitioned_namespace() as orders:
        await send_all(orders.client, one_per_fragment())
        held = await receive(orders.client, FRAGMENTS)
        await orders.probe_store(3)
        for message in held:
            if fragment_of_message(message) % 4 != 3:
                await orders.client.complete(message)
        orders.namespace.outage.restore()
        await asyncio.sleep(MINUTE_S)
        left = [stored for stored in await orders.namespace.messages("orders") if stored.text != "the last"]
        assert [fragment_of_message(message) for message in left] == [3, 7, 11, 15]


@in_virtual_time
async def test_q29_a_receive_is_empty_only_if_all_available_stores_are_empty() -> None:
    async with partitioned_namespace() as orders:
        await send_all(orders.client, one_per_fragment())
        await orders.probe_store(0)
        assert len(await receive_all(orders.client)) == 12
        assert await orders.client.receive(timeout=1) is None
        await orders.client.send(BrokeredMessage("new", partition_key=key_for_fragment(15)))
        assert await orders.client.receive(timeout=0) is not None


@in_virtual_time
async def test_q34_get_reports_limited_availability() -> None:
    async with partitioned_namespace() as orders:
        await orders.namespace.create_topic("news", enable_partitioning=True)
        await orders.namespace.create_subscription("news", "all")
        async with NamespaceManager.from_connection_string(orders.namespace.admin_connection_string) as manager:

            async def availability() -> list[bool]:
                """Return whether EntityAvailabilityStatus is Available, and not Limited, for each entity."""
                queue, topic = await manager.get_queue_runtime("orders"), await manager.get_topic_runtime("news")
                subscription = await manager.get_subscription_runtime("news", "all")
                return [queue.is_available, topic.is_available, subscription.is_available]

            assert await availability() == [True, True, True]
            await orders.probe_store(2)
            assert await availability() == [False, False, False]
            orders.namespace.outage.restore()
            await asyncio.sleep(MINUTE_S)
            assert await availability() == [True, True, True]


@in_virtual_time
async def test_q34_create_fails_cleanly_and_can_be_repeated() -> None:
    async with partitioned_namespace() as orders:
        entities = orders.namespace.entities
        await entities.create_topic("before", TopicDescription(enable_partitioning=True))
        await orders.probe_store(2)
        for _ in range(2):
            with pytest.raises(StoreUnavailable, match="store 2"):
                await entities.create_queue("new", QueueDescription(enable_partitioning=True))
            with pytest.raises(StoreUnavailable, match="store 2"):
                await entities.create_topic("news", TopicDescription(enable_partitioning=True))
            with pytest.raises(StoreUnavailable, match="store 2"):
                await orders.namespace.create_subscription("before", "all")
        orders.namespace.outage.restore()
        await asyncio.sleep(MINUTE_S)
        await entities.create_queue("new", QueueDescription(enable_partitioning=True))
        await entities.create_topic("news", TopicDescription(enable_partitioning=True))
        await orders.namespace.create_subscription("before", "all")


@in_virtual_time
async def test_q34_update_and_delete_fail_cleanly_and_can_be_repeated() -> None:
    async with partitioned_namespace() as orders:
        entities = orders.namespace.entities
        changed = QueueDescription(enable_partitioning=True, max_delivery_count=3)
        await orders.probe_store(2)
        for _ in range(2):
            with pytest.raises(StoreUnavailable, match="store 2"):
                await entities.update("orders", changed)
            with pytest.raises(StoreUnavailable, match="store 2"):
                await entities.delete("orders")
        assert (await entities.get("orders")).description.max_delivery_count == 10  # type: ignore[union-attr]
        await orders.client.send(BrokeredMessage("x"))
        orders.namespace.outage.restore()
        await asyncio.sleep(MINUTE_S)
        await entities.update("orders", changed)
        await entities.delete("orders")
        await orders.queue("orders")
        assert await orders.fragments() == [], "messages of the deleted queue do not come back"


@in_virtual_time
async def test_q34_an_idle_queue_is_deleted_when_its_stores_are_available_again() -> None:
    async with partitioned_namespace(auto_delete_on_idle_ms=300_000) as orders:
        await orders.probe_store(2)
        await orders.factory.close()
        await asyncio.sleep(400)
        assert (await orders.namespace.entities.get("orders")).path == "orders"
        orders.namespace.outage.restore()
        await asyncio.sleep(2 * MINUTE_S)
        assert "orders" not in orders.namespace.broker.entities
