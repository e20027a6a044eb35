"""Peeking returns the messages of all fragments by age, page by page, and names unavailable fragments."""

from __future__ import annotations

import asyncio
import datetime as dt
import random
from typing import TYPE_CHECKING

import pytest

from tests.support.partitioned_namespace import (
    FRAGMENTS,
    fragment_of_message,
    key_for_fragment,
    numbered_messages,
    one_per_fragment,
    partitioned_namespace,
    receive,
    send_all,
    texts,
)
from twinbus.amqp.types import Array
from twinbus.client import BrokeredMessage
from twinbus.model.errors import InternalFault
from twinbus.testing import in_virtual_time

if TYPE_CHECKING:
    from tests.support.partitioned_namespace import PartitionedNamespace
    from twinbus.client import QueueClient


@in_virtual_time
async def test_q28_the_top_16_bits_of_a_sequence_number_are_the_fragment() -> None:
    async with partitioned_namespace() as orders:
        for _ in range(2):
            await send_all(orders.client, one_per_fragment())
        stored = await orders.namespace.messages("orders")
        numbers = sorted(message.sequence_number for message in stored)
        assert numbers == [(fragment << 48) + index for fragment in range(FRAGMENTS) for index in (1, 2)]
        assert all(message.text == f"{message.sequence_number >> 48}" for message in stored)


@in_virtual_time
@pytest.mark.parametrize("page", [1, 2, 3, 7, 50, 1_000])
async def test_q28_peek_goes_in_age_order_over_any_number_of_pages(page: int) -> None:
    async with partitioned_namespace() as orders:
        await _send_at_random(orders, 60, seed=page)
        assert [int(message.text) for message in await _peek_all(orders.client, page)] == list(range(60))


@in_virtual_time
@pytest.mark.parametrize("page", [1, 2, 5, 16])
async def test_q28_messages_with_the_same_time_are_each_peeked_once(page: int) -> None:
    async with partitioned_namespace() as orders:
        await orders.client.send_batch([*one_per_fragment(), *one_per_fragment(), *one_per_fragment()])
        await asyncio.sleep(1)
        await orders.client.send_batch(one_per_fragment())
        peeked = await _peek_all(orders.client, page)
        assert len({message.enqueued_time_utc for message in peeked}) == 2
        assert len({message.sequence_number for message in peeked}) == len(peeked) == 4 * FRAGMENTS
        assert peeked == sorted(peeked, key=lambda message: (message.enqueued_time_utc, message.sequence_number))


@in_virtual_time
@pytest.mark.parametrize("page", [1, 3, 10])
async def test_q28_deleting_messages_between_pages_hides_no_others(page: int) -> None:
    """This includes the last message of a page, even if the next message of its fragment is much younger."""
    async with partitioned_namespace() as orders:
        await _send_at_random(orders, 60, seed=1)
        seen: list[BrokeredMessage] = []
        while batch := await orders.client.peek_batch(page):
            seen += batch
            for message in batch:
                await _remove(orders.client, message)
        assert [int(message.text) for message in seen] == list(range(60))


@in_virtual_time
async def test_q28_peeking_from_a_deleted_number_starts_at_the_next_message_of_its_fragment() -> None:
    async with partitioned_namespace() as orders:
        for number, fragment in enumerate((5, 2, 5, 9, 5, 2)):
            await asyncio.sleep(1)
            await orders.client.send(BrokeredMessage(f"{number}", partition_key=key_for_fragment(fragment)))
        await _remove(orders.client, (await orders.client.peek_batch(1, 5 << 48))[0])
        assert texts(await orders.client.peek_batch(10, (5 << 48) + 1)) == ["2", "3", "4", "5"]
        assert texts(await orders.client.peek_batch(10, (5 << 48) + 3)) == ["3", "4", "5"], "message 2 still exists"
        assert texts(await orders.client.peek_batch(10, 9 << 48)) == ["3", "4", "5"]


@in_virtual_time
async def test_q28_peeking_after_the_last_message_returns_nothing() -> None:
    async with partitioned_namespace() as orders:
        await _send_at_random(orders, 30, seed=3)
        peeked = await orders.client.peek_batch(100)
        assert await orders.client.peek_batch(100, peeked[-1].sequence_number + 1) == []
        assert await orders.client.peek_batch(100) == []


@in_virtual_time
@pytest.mark.parametrize("page", [1, 2, 5])
async def test_q28_deferred_and_scheduled_messages_are_peeked_in_order(page: int) -> None:
    async with partitioned_namespace() as orders:
        await _send_at_random(orders, 30, seed=5)
        for message in await receive(orders.client, 30):
            if int(message.text) % 3:
                await orders.client.defer(message)
            else:
                await orders.client.abandon(message)
        later = orders.namespace.clock.wall_ms() / 1000 + 86_400
        for number in range(30, 36):
            await orders.client.schedule(BrokeredMessage(f"{number}"), dt.datetime.fromtimestamp(later, dt.UTC))
            await asyncio.sleep(1)
        for number in range(36, 46):
            await orders.client.send(BrokeredMessage(f"{number}"))
            await asyncio.sleep(1)
        peeked = await _peek_all(orders.client, page)
        assert [int(message.text) for message in peeked] == list(range(46))
        assert [message.state for message in peeked].count("deferred") == 20


@in_virtual_time
async def test_q28_large_messages_end_a_page_and_none_is_skipped() -> None:
    async with partitioned_namespace() as orders:
        for number in range(20):
            await orders.client.send(BrokeredMessage(f"{number}".ljust(90_000)))
            await asyncio.sleep(0.01)
        pages: list[list[BrokeredMessage]] = []
        while page := await orders.client.peek_batch(100):
            pages.append(page)
        assert [int(message.text) for page in pages for message in page] == list(range(20))
        assert len(pages) > 1


@in_virtual_time
async def test_q28_unavailable_fragments_are_named() -> None:
    async with partitioned_namespace() as orders:
        await send_all(orders.client, one_per_fragment())
        await orders.probe_store(1)
        response = await orders.client.receiver._request(  # noqa: SLF001  # the public method returns only the messages
            "com.microsoft:peek-message", {"from-sequence-number": 0, "message-count": 100}
        )
        assert response.body["twinbus:unavailable-fragments"] == [1, 5, 9, 13]
        messages = response.body["messages"]
        assert isinstance(messages, list)
        assert len(messages) == 12
        with pytest.raises(InternalFault, match="store 1"):
            await orders.client.peek_batch(10, 5 << 48)


@in_virtual_time
async def test_q28_a_hanging_store_does_not_block_peeking() -> None:
    async with partitioned_namespace() as orders:
        await send_all(orders.client, one_per_fragment())
        orders.namespace.outage.hang_store(2)
        began_s = asyncio.get_running_loop().time()
        peeked = await orders.client.peek_batch(100)
        assert {fragment_of_message(message) % 4 for message in peeked} == {0, 1, 3}
        assert asyncio.get_running_loop().time() - began_s < 15


@in_virtual_time
async def test_q28_a_session_is_peeked_in_its_fragment() -> None:
    async with partitioned_namespace(requires_session=True) as orders:
        for number in range(20):
            await orders.client.send(BrokeredMessage(f"{number}", session_id=key_for_fragment(number % 4, number % 2)))
        session = await orders.client.accept_session(key_for_fragment(3, 1))
        assert texts(await session.peek_batch(3)) == ["3", "7", "11"]
        assert texts(await session.peek_batch(3)) == ["15", "19"]


async def _send_at_random(orders: PartitionedNamespace, count: int, *, seed: int) -> None:
    """Send runs of messages to random fragments with gaps of all lengths; some messages have the same time."""
    chance = random.Random(seed)  # reproducible
    fragment = 0
    for message in numbered_messages(count):
        fragment = chance.choice([fragment, chance.randrange(FRAGMENTS)])
        message.partition_key = key_for_fragment(fragment)
        await orders.client.send(message)
        await asyncio.sleep(chance.choice([0.001, 0.5, 60]))


async def _peek_all(client: QueueClient, size: int) -> list[BrokeredMessage]:
    peeked: list[BrokeredMessage] = []
    while page := await client.peek_batch(size):
        peeked += page
    return peeked


async def _remove(client: QueueClient, message: BrokeredMessage) -> None:
    body = {"sequence-numbers": Array(int, [message.sequence_number])}
    response = await client._request("twinbus:delete-by-sequence-number", body)  # noqa: SLF001  # there is no public method
    assert response.status == 200
