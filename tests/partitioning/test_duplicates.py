"""Duplicates are dropped where all copies of a message meet: in the fragment of its key."""

from __future__ import annotations

import asyncio

from tests.support.partitioned_namespace import key_for_fragment, numbered_messages, partitioned_namespace, send_all
from twinbus.client import BrokeredMessage
from twinbus.testing import in_virtual_time


@in_virtual_time
async def test_r112_all_copies_of_a_message_meet_and_one_is_kept() -> None:
    async with partitioned_namespace(requires_duplicate_detection=True) as orders:
        for _ in range(3):
            for number in range(50):
                await orders.client.send(BrokeredMessage(f"{number}", message_id=f"order {number}"))
        assert len(await orders.fragments()) == 50


@in_virtual_time
async def test_q26_messages_of_one_id_and_two_keys_are_two_also_in_one_fragment() -> None:
    async with partitioned_namespace(requires_duplicate_detection=True) as orders:
        for key in (key_for_fragment(2), key_for_fragment(9), key_for_fragment(9, 1)):
            await send_all(orders.client, numbered_messages(2, message_id="order 1", partition_key=key))
        assert await orders.fragments() == [2, 9, 9]


@in_virtual_time
async def test_q26_a_copy_that_comes_when_the_window_is_over_is_no_duplicate() -> None:
    async with partitioned_namespace(requires_duplicate_detection=True, duplicate_window_ms=20_000) as orders:
        await orders.client.send(BrokeredMessage("x", message_id="order 1"))
        await asyncio.sleep(15)
        await orders.client.send(BrokeredMessage("x", message_id="order 1"))
        assert len(await orders.fragments()) == 1
        await asyncio.sleep(60)
        await orders.client.send(BrokeredMessage("x", message_id="order 1"))
        assert len(await orders.fragments()) == 2


@in_virtual_time
async def test_a_restart_forgets_no_copy() -> None:
    async with partitioned_namespace(requires_duplicate_detection=True) as orders:
        for number in range(20):
            await orders.client.send(BrokeredMessage("x", message_id=f"order {number}"))
        orders.namespace.kill()
        await orders.namespace.start()
        client = orders.namespace.factory().create_queue_client("orders")
        for number in range(20):
            await client.send(BrokeredMessage("x", message_id=f"order {number}"))
        assert len(await orders.fragments()) == 20
