"""Peeking goes over all fragments in the order of age, page by page, and says which of them did not answer."""

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
        found = await orders.namespace.messages("orders")
        numbers = sorted(message.sequence_number for message in found)
        assert numbers == [(fragment << 48) + place for fragment in range(FRAGMENTS) for place in (1, 2)]
        assert all(message.text == f"{message.sequence_number >> 48}" for message in found)


@in_virtual_time
@pytest.mark.parametrize("page", [1, 2, 3, 7, 50, 1_000])
async def test_q28_peek_goes_in_age_order_over_any_number_of_pages(page: int) -> None:
    async with partitioned_namespace() as orders:
        await _send_at_random(orders, 60, seed=page)
        assert [int(message.text) for message in await _pages(orders.client, page)] == list(range(60))


@in_virtual_time
@pytest.mark.parametrize("page", [1, 2, 5, 16])
async def test_q28_messages_of_the_same_moment_are_each_seen_once(page: int) -> None:
    async with partitioned_namespace() as orders:
        await orders.client.send_batch([*one_per_fragment(), *one_per_fragment(), *one_per_fragment()])
        await asyncio.sleep(1)
        await orders.client.send_batch(one_per_fragment())
        found = await _pages(orders.client, page)
        assert len({message.enqueued_time_utc for message in found}) == 2
        assert len({message.sequence_number for message in found}) == len(found) == 4 * FRAGMENTS
        assert found == sorted(found, key=lambda one: (one.enqueued_time_utc, one.sequence_number))


@in_virtual_time
@pytest.mark.parametrize("page", [1, 3, 10])
async def test_q28_what_is_deleted_between_pages_hides_nothing_else(page: int) -> None:
    """Not even if it is the message that the last page ended with, and the next of its fragment is much younger."""
    async with partitioned_namespace() as orders:
        await _send_at_random(orders, 60, seed=1)
        seen: list[BrokeredMessage] = []
        while found := await orders.client.peek_batch(page):
            seen += found
            for message in found:
                await _remove(orders.client, message)
        assert [int(message.text) for message in seen] == list(range(60))


@in_virtual_time
async def test_q28_a_number_that_no_message_has_any_more_is_where_the_next_of_its_fragment_is() -> None:
    async with partitioned_namespace() as orders:
        for number, fragment in enumerate((5, 2, 5, 9, 5, 2)):
            await asyncio.sleep(1)
            await orders.client.send(BrokeredMessage(f"{number}", partition_key=key_for_fragment(fragment)))
        await _remove(orders.client, (await orders.client.peek_batch(1, 5 << 48))[0])
        assert texts(await orders.client.peek_batch(10, (5 << 48) + 1)) == ["2", "3", "4", "5"]
        assert texts(await orders.client.peek_batch(10, (5 << 48) + 3)) == ["3", "4", "5"], "2 is there"
        assert texts(await orders.client.peek_batch(10, 9 << 48)) == ["3", "4", "5"]


@in_virtual_time
async def test_q28_behind_the_last_message_there_is_nothing() -> None:
    async with partitioned_namespace() as orders:
        await _send_at_random(orders, 30, seed=3)
        found = await orders.client.peek_batch(100)
        assert await orders.client.peek_batch(100, found[-1].sequence_number + 1) == []
        assert await orders.client.peek_batch(100) == []


@in_virtual_time
@pytest.mark.parametrize("page", [1, 2, 5])
async def test_q28_deferred_and_scheduled_messages_are_seen_in_their_places(page: int) -> None:
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
        found = await _pages(orders.client, page)
        assert [int(message.text) for message in found] == list(range(46))
        assert [message.state for message in found].count("deferred") == 20


@in_virtual_time
async def test_q28_large_messages_end_a_page_and_none_is_left_out() -> None:
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
async def test_q28_fragments_that_do_not_answer_are_named() -> None:
    async with partitioned_namespace() as orders:
        await send_all(orders.client, one_per_fragment())
        await orders.probe_store(1)
        answer = await orders.client.receiver._request(  # noqa: SLF001  # a receiver shows the messages alone
            "com.microsoft:peek-message", {"from-sequence-number": 0, "message-count": 100}
        )
        assert answer.body["twinbus:unavailable-fragments"] == [1, 5, 9, 13]
        shown = answer.body["messages"]
        assert isinstance(shown, list)
        assert len(shown) == 12
        with pytest.raises(InternalFault, match="store 1"):
            await orders.client.peek_batch(10, 5 << 48)


@in_virtual_time
async def test_q28_a_store_that_hangs_is_named_in_time() -> None:
    async with partitioned_namespace() as orders:
        await send_all(orders.client, one_per_fragment())
        orders.namespace.outage.hang_store(2)
        began_s = asyncio.get_running_loop().time()
        found = await orders.client.peek_batch(100)
        assert {fragment_of_message(message) % 4 for message in found} == {0, 1, 3}
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
    """Runs of one fragment, and gaps of all lengths; some come at the same moment."""
    chance = random.Random(seed)  # the same in every run
    fragment = 0
    for message in numbered_messages(count):
        fragment = chance.choice([fragment, chance.randrange(FRAGMENTS)])
        message.partition_key = key_for_fragment(fragment)
        await orders.client.send(message)
        await asyncio.sleep(chance.choice([0.001, 0.5, 60]))


async def _pages(client: QueueClient, size: int) -> list[BrokeredMessage]:
    found: list[BrokeredMessage] = []
    while page := await client.peek_batch(size):
        found += page
    return found


async def _remove(client: QueueClient, message: BrokeredMessage) -> None:
    body = {"sequence-numbers": Array(int, [message.sequence_number])}
    answer = await client._request("twinbus:delete-by-sequence-number", body)  # noqa: SLF001  # nobody needs it otherwise
    assert answer.status == 200
