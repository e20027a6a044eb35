"""Duplicate detection in partitioned queues: all copies of a message go to the fragment of its key."""

from __future__ import annotations

import asyncio

from tests.support.partitioned_namespace import key_for_fragment, numbered_messages, partitioned_namespace, send_all
from twinbus.client import BrokeredMessage
from twinbus.testing import in_virtual_time


@in_virtual_time
async def test_r112_one_copy_of_each_message_is_stored() -> None:
    async with partitioned_namespace(requires_duplicate_detection=True) as orders:
        for _ in range(3):
            for number in range(50):
                await orders.client.send(BrokeredMessage(f"{number}", message_id=f"order {number}"))
        assert len(await orders.fragments()) == 50


@in_virtual_time
async def test_q26_messages_with_one_id_and_different_keys_are_not_duplicates() -> None:
    async with partitioned_namespace(requires_duplicate_detection=True) as orders:
        for key in (key_for_fragment(2), key_for_fragment(9), key_for_fragment(9, 1)):
            await send_all(orders.client, numbered_messages(2, message_id="order 1", partition_key=key))
        assert await orders.fragments() == [2, 9, 9]


@in_virtual_time
async def test_q26_a_copy_sent_after_the_window_is_not_a_duplicate() -> None:
    async with partitioned_namespace(requires_duplicate_detection=True, duplicate_window_ms=20_000) as orders:
        await orders.client.send(BrokeredMessage("x", message_id="order 1"))
        await asyncio.sleep(15)
        await orders.client.send(BrokeredMessage("x", message_id="order 1"))
        assert len(await orders.fragments()) == 1
        await asyncio.sleep(60)
        await orders.client.send(BrokeredMessage("x", message_id="order 1"))
        assert len(await orders.fragments()) == 2


@in_virtual_time
async def test_duplicates_are_detected_after_a_restart() -> None:
    async with partitioned_namespace(requires_duplicate_detection=True) as orders:
        for number in range(20):
            await orders.client.send(BrokeredMessage("x", message_id=f"order {number}"))
        orders.namespace.kill()
        await orders.namespace.start()
        client = orders.namespace.factory().create_queue_client("orders")
        for number in range(20):
            await client.send(BrokeredMessage("x", message_id=f"order {number}"))
        assert len(await orders.fragments()) == 20
