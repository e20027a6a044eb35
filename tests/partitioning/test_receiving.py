"""A receiver gets the messages of all fragments, like those of a plain queue."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from tests.support.partitioned_namespace import (
    FRAGMENTS,
    STORES,
    fragment_of_message,
    key_for_fragment,
    numbered_messages,
    one_per_fragment,
    partitioned_namespace,
    receive,
    receive_all,
    send_all,
    texts,
)
from twinbus.client import NO_RETRY, BrokeredMessage, ReceiveMode
from twinbus.model.errors import MessageLockLost
from twinbus.testing import in_virtual_time


@in_virtual_time
async def test_r103_a_receive_returns_the_message_of_any_fragment() -> None:
    async with partitioned_namespace() as orders:
        for fragment in (15, 0, 7, 8, 3):
            await orders.client.send(BrokeredMessage(f"{fragment}", partition_key=key_for_fragment(fragment)))
            message = await orders.client.receive(timeout=1)
            assert message is not None
            assert (message.text, fragment_of_message(message)) == (f"{fragment}", fragment)
            await orders.client.complete(message)


@in_virtual_time
async def test_r103_a_waiting_receiver_gets_the_first_message_of_any_fragment() -> None:
    async with partitioned_namespace() as orders:
        for fragment in (9, 2):
            waiting = asyncio.ensure_future(orders.client.receive(timeout=60))
            await asyncio.sleep(5)
            began_s = asyncio.get_running_loop().time()
            await orders.client.send(BrokeredMessage("x", partition_key=key_for_fragment(fragment)))
            message = await waiting
            assert message is not None
            assert asyncio.get_running_loop().time() - began_s < 1
            await orders.client.complete(message)


@in_virtual_time
async def test_r103_r104_q29_the_server_caches_messages_of_other_stores_for_later_receives() -> None:
    async with partitioned_namespace() as orders:
        await send_all(orders.client, [*one_per_fragment(), *one_per_fragment()])
        orders.namespace.kill()
        await orders.namespace.start()  # with an empty cache
        client = orders.namespace.factory(retry_policy=NO_RETRY).create_queue_client("orders")
        assert client.prefetch == 0, "only the server caches messages"
        first = await client.receive(timeout=1)
        assert first is not None
        assert orders.locks() == 1, "other messages are cached and unlocked"
        for store in range(STORES):
            orders.namespace.outage.hang_store(store)
        later = [await client.receive(timeout=0) for _ in range(2 * FRAGMENTS - 1)]
        assert Counter(texts(message for message in [first, *later] if message is not None)) == {
            f"{number}": 2 for number in range(FRAGMENTS)
        }


@in_virtual_time
@pytest.mark.parametrize("mode", ReceiveMode)
async def test_r105_every_message_is_received_once_by_any_of_several_receivers(mode: ReceiveMode) -> None:
    async with partitioned_namespace() as orders:
        await send_all(orders.client, numbered_messages(200))
        clients = [orders.namespace.factory().create_queue_client("orders", mode) for _ in range(3)]
        received: list[BrokeredMessage] = []

        async def receive_all_of(number: int) -> None:
            client = clients[number]
            client.prefetch = 10 * number
            while page := await client.receive_batch(7, timeout=1):
                received.extend(page)
                for message in page if mode is ReceiveMode.PEEK_LOCK else ():
                    await client.complete(message)

        await asyncio.gather(*map(receive_all_of, range(3)))
        assert Counter(texts(received)) == {f"{number}": 1 for number in range(200)}
        assert orders.namespace.counts("orders").size_bytes == 0


@in_virtual_time
async def test_r105_messages_of_all_fragments_can_be_abandoned_renewed_and_lost() -> None:
    async with partitioned_namespace(lock_duration_ms=30_000) as orders:
        await send_all(orders.client, one_per_fragment())
        held = await receive(orders.client, FRAGMENTS)
        await asyncio.sleep(20)
        await orders.client.receiver.renew_locks(held[:12])
        for message in held[:4]:
            await orders.client.complete(message)
        for message in held[4:8]:
            await orders.client.abandon(message, {"again": True})
        await asyncio.sleep(15)
        for message in held[8:12]:
            await orders.client.complete(message)
        with pytest.raises(MessageLockLost):
            await orders.client.complete(held[12])
        again = await receive(orders.client, 8)
        assert sorted(texts(again)) == sorted(texts(held[4:8] + held[12:]))
        assert {message.delivery_count for message in again} == {2}
        assert sum("again" in message.properties for message in again) == 4


@in_virtual_time
async def test_r105_messages_of_one_key_come_in_the_order_of_sending() -> None:
    async with partitioned_namespace() as orders:
        for number in range(10):
            for fragment in range(FRAGMENTS):
                await orders.client.send(BrokeredMessage(f"{number}", partition_key=key_for_fragment(fragment)))
        received = await receive_all(orders.client)
        for fragment in range(FRAGMENTS):
            assert texts(message for message in received if fragment_of_message(message) == fragment) == [
                f"{number}" for number in range(10)
            ]


@in_virtual_time
async def test_q29_a_receive_is_never_empty_while_a_fragment_has_messages() -> None:
    async with partitioned_namespace() as orders:
        await send_all(orders.client, one_per_fragment())
        await receive(orders.client, FRAGMENTS)
        for fragment in (4, 11, 0):
            await orders.client.send(BrokeredMessage("free", partition_key=key_for_fragment(fragment)))
            message = await orders.client.receive(timeout=0)
            assert message is not None, "the message exists and is unlocked"
            await orders.client.complete(message)
        assert await orders.client.receive(timeout=0) is None


@in_virtual_time
@pytest.mark.parametrize(("prefetch", "requested"), [(0, 1), (0, 5), (0, 40), (1, 1), (5, 1), (20, 3)])
async def test_q29_no_more_messages_are_locked_than_received_and_prefetched(prefetch: int, requested: int) -> None:
    async with partitioned_namespace() as orders:
        await send_all(orders.client, numbered_messages(4 * FRAGMENTS))
        orders.client.prefetch = prefetch
        received = await receive(orders.client, requested)
        await asyncio.sleep(5)
        locked = orders.locks()
        assert requested <= locked <= requested + prefetch
        other = orders.namespace.factory().create_queue_client("orders", ReceiveMode.RECEIVE_AND_DELETE)
        left = await receive(other, 4 * FRAGMENTS - locked)
        assert not set(texts(received)) & set(texts(left))


@in_virtual_time
async def test_q29_waiting_receivers_lock_nothing() -> None:
    async with partitioned_namespace() as orders:
        waiting = [
            asyncio.ensure_future(orders.namespace.factory().create_queue_client("orders").receive(timeout=600))
            for _ in range(3)
        ]
        await asyncio.sleep(1)
        await send_all(orders.client, one_per_fragment())
        received = await asyncio.gather(*waiting)
        assert len({message.text for message in received if message is not None}) == 3
        assert len(await receive(orders.client, FRAGMENTS - 3)) == FRAGMENTS - 3
