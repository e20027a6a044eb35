"""Messages without a key go to all fragments in turn, and skip unavailable ones."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from tests.support.partitioned_namespace import (
    FRAGMENTS,
    fragment_of_message,
    key_for_fragment,
    numbered_messages,
    partitioned_namespace,
    send_all,
)
from twinbus.client import BrokeredMessage
from twinbus.model.errors import FragmentUnavailable, InternalFault
from twinbus.testing import InMemoryNamespace, in_virtual_time


@in_virtual_time
async def test_r099_q25_messages_without_a_key_go_to_all_fragments_in_turn() -> None:
    async with partitioned_namespace() as orders:
        await send_all(orders.client, numbered_messages(5 * FRAGMENTS))
        stored = sorted(await orders.namespace.messages("orders"), key=lambda message: int(message.text))
        fragments = [fragment_of_message(message) for message in stored]
        start = fragments[0]
        assert fragments == [(start + number) % FRAGMENTS for number in range(5 * FRAGMENTS)]


@in_virtual_time
async def test_q25_the_first_fragment_is_random() -> None:
    async with InMemoryNamespace() as namespace:
        client = namespace.factory()
        for number in range(40):
            await namespace.create_queue(f"queue-{number}", enable_partitioning=True)
            await client.create_queue_client(f"queue-{number}").send(BrokeredMessage("x"))
        starts = {fragment_of_message((await namespace.messages(f"queue-{number}"))[0]) for number in range(40)}
        assert len(starts) > FRAGMENTS // 2


@in_virtual_time
async def test_r095_r100_q25_a_send_without_a_key_succeeds_in_another_fragment() -> None:
    async with partitioned_namespace() as orders:
        await orders.probe_store(1)
        await send_all(orders.client, numbered_messages(4 * FRAGMENTS))
        orders.namespace.outage.restore()
        await asyncio.sleep(60)
        used = Counter(
            fragment_of_message(message)
            for message in await orders.namespace.messages("orders")
            if message.text != "the last"
        )
        assert sum(used.values()) == 4 * FRAGMENTS
        assert set(used) == {number for number in range(FRAGMENTS) if number % 4 != 1}
        await send_all(orders.client, numbered_messages(FRAGMENTS))
        assert set(await orders.fragments()) == set(range(FRAGMENTS)), "all fragments are used again"


@in_virtual_time
async def test_r100_pending_messages_of_a_failed_store_are_stored_by_others() -> None:
    """It is unknown which changes of a failed sync are on disk: some messages may be stored twice, and none is lost."""
    async with partitioned_namespace() as orders:
        orders.fail(2)
        await asyncio.gather(*[orders.client.send(message) for message in numbered_messages(100)])
        orders.namespace.outage.restore()
        await asyncio.sleep(60)
        assert set(await orders.texts()) == {f"{number}" for number in range(100)}


@in_virtual_time
async def test_r101_a_send_with_a_key_of_an_unavailable_fragment_fails() -> None:
    async with partitioned_namespace() as orders:
        orders.fail(1)
        for fragment in (1, 5, 9, 13):
            with pytest.raises(FragmentUnavailable, match=f"fragment {fragment}: store 1 is unavailable") as caught:
                await orders.client.send(BrokeredMessage("x", partition_key=key_for_fragment(fragment)))
            assert caught.value.fragment == fragment
            assert caught.value.is_retriable
        for fragment in (0, 2, 7, 12):
            await orders.client.send(BrokeredMessage("x", session_id=key_for_fragment(fragment)))
        assert sorted(await _available_fragments(orders.namespace)) == [0, 2, 7, 12]


@in_virtual_time
async def test_r102_a_sender_with_a_timeout_over_15_seconds_does_not_notice_a_hanging_store() -> None:
    async with partitioned_namespace() as orders:
        orders.namespace.outage.hang_store(3)
        began_s = asyncio.get_running_loop().time()
        await asyncio.gather(
            *[orders.client.sender.send(message, timeout=15.1) for message in numbered_messages(2 * FRAGMENTS)]
        )
        assert asyncio.get_running_loop().time() - began_s < 15
        began_s = asyncio.get_running_loop().time()
        await send_all(orders.client, numbered_messages(2 * FRAGMENTS))
        assert asyncio.get_running_loop().time() - began_s < 1, "the store is known to be unavailable by now"


@in_virtual_time
async def test_a_send_fails_if_all_stores_are_unavailable() -> None:
    async with partitioned_namespace() as orders:
        for store in range(4):
            orders.fail(store)
        with pytest.raises(InternalFault, match="unavailable"):
            await orders.client.send(BrokeredMessage("x"))


async def _available_fragments(namespace: InMemoryNamespace) -> list[int]:
    client = namespace.factory().create_queue_client("orders")
    return [fragment_of_message(message) for message in await client.peek_batch(100)]
