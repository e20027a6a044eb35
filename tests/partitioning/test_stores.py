"""The assignment of fragments to stores, restarts, and the limits of partitioned entities."""

from __future__ import annotations

import dataclasses

import pytest

from tests.support.partitioned_namespace import (
    FRAGMENTS,
    numbered_messages,
    one_per_fragment,
    partitioned_namespace,
    receive,
    receive_all,
    send_all,
    texts,
)
from twinbus.broker.entities.queue import Queue
from twinbus.client import BrokeredMessage, NamespaceManager
from twinbus.model.errors import QuotaExceeded
from twinbus.model.limits import NamespaceLimits
from twinbus.model.queue import QueueDescription
from twinbus.testing import InMemoryNamespace, in_virtual_time


@in_virtual_time
@pytest.mark.parametrize("stores", [1, 3, 4, 16, 20])
async def test_q35_fragment_f_is_stored_in_store_f_mod_s(stores: int) -> None:
    async with partitioned_namespace(stores=stores) as orders:
        queue = orders.namespace.broker.find("orders")
        assert isinstance(queue, Queue)
        store_numbers = [orders.namespace.broker.stores.index(part.main.local.commit_log) for part in queue.parts]
        assert store_numbers == [number % stores for number in range(FRAGMENTS)]


@in_virtual_time
async def test_q35_with_16_stores_each_fragment_has_its_own_store() -> None:
    async with partitioned_namespace(stores=16) as orders:
        await send_all(orders.client, one_per_fragment())
        for store in range(15):
            await orders.probe_store(store)
        await orders.client.send(BrokeredMessage("x"))
        assert {message.text for message in await receive_all(orders.client)} == {"15", "x"}


@in_virtual_time
async def test_r092_the_namespace_manager_creates_and_updates_partitioned_queues() -> None:
    async with InMemoryNamespace() as namespace:
        manager = NamespaceManager.from_connection_string(namespace.admin_connection_string)
        await manager.create_queue("orders", QueueDescription(enable_partitioning=True, max_size_mb=3072))
        shown = await manager.get_queue("orders")
        assert (shown.enable_partitioning, shown.max_size_mb) == (True, 16 * 3072)
        changed = await manager.update_queue("orders", dataclasses.replace(shown, max_delivery_count=3))
        assert (changed.max_size_mb, changed.max_delivery_count) == (16 * 3072, 3)
        await manager.close()


@in_virtual_time
async def test_all_messages_are_available_after_a_kill() -> None:
    async with partitioned_namespace() as orders:
        await send_all(orders.client, [*one_per_fragment(), *numbered_messages(50)])
        for message in await receive(orders.client, 20):
            await orders.client.complete(message)
        left = await orders.texts()
        orders.namespace.kill()
        await orders.namespace.start()
        assert await orders.texts() == left
        client = orders.namespace.factory().create_queue_client("orders")
        await client.send(BrokeredMessage("new"))
        assert sorted(texts(await receive_all(client))) == sorted([*left, "new"])


@in_virtual_time
async def test_a_deleted_queue_leaves_nothing_in_any_store() -> None:
    async with partitioned_namespace() as orders:
        await send_all(orders.client, one_per_fragment())
        await orders.namespace.entities.delete("orders")
        await orders.queue("orders")
        assert await orders.fragments() == []
        await send_all(orders.client, one_per_fragment())
        assert len(await orders.fragments()) == FRAGMENTS


@in_virtual_time
async def test_r122_q30_the_101st_partitioned_entity_is_refused() -> None:
    async with InMemoryNamespace() as namespace:
        for number in range(50):
            await namespace.create_queue(f"queue-{number}", enable_partitioning=True)
            await namespace.create_topic(f"topic-{number}", enable_partitioning=True)
        with pytest.raises(QuotaExceeded, match="100 partitioned"):
            await namespace.create_queue("one-more", enable_partitioning=True)
        with pytest.raises(QuotaExceeded, match="100 partitioned"):
            await namespace.create_topic("one-more", enable_partitioning=True)
        await namespace.create_queue("plain")
        await namespace.create_subscription("topic-1", "all")
        await namespace.entities.delete("queue-7")
        await namespace.create_topic("one-more", enable_partitioning=True)


@in_virtual_time
async def test_q30_the_number_of_partitioned_entities_is_a_setting() -> None:
    async with InMemoryNamespace(limits=NamespaceLimits(max_partitioned=1)) as namespace:
        await namespace.create_queue("orders", enable_partitioning=True)
        with pytest.raises(QuotaExceeded, match="1 partitioned"):
            await namespace.create_topic("news", enable_partitioning=True)


@in_virtual_time
async def test_r123_a_partitioned_entity_counts_as_one_entity() -> None:
    async with InMemoryNamespace(limits=NamespaceLimits(max_entities=3)) as namespace:
        await namespace.create_queue("orders", enable_partitioning=True)
        await namespace.create_topic("news", enable_partitioning=True)
        await namespace.create_queue("plain")
        for is_partitioned in (True, False):
            with pytest.raises(QuotaExceeded, match="3 entities"):
                await namespace.create_queue("one-more", enable_partitioning=is_partitioned)
