"""Browsing a partitioned entity as one log per fragment; exclusive receivers, purges and resubmissions."""

from __future__ import annotations

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
from twinbus.client import BrokeredMessage, MessageBrowser
from twinbus.model.errors import EntityClaimed, InvalidArgument
from twinbus.testing import in_virtual_time


@in_virtual_time
async def test_a_browser_sees_one_fragment_or_all() -> None:
    async with partitioned_namespace() as orders:
        for _ in range(3):
            await send_all(orders.client, one_per_fragment())
        browser = orders.factory.create_message_browser("orders", fragment=11)
        browsed = [await browser.receive(timeout=1) for _ in range(3)]
        assert [message.sequence_number for message in browsed if message is not None] == [
            (11 << 48) + n for n in (1, 2, 3)
        ]
        assert await browser.receive(timeout=1) is None
        assert await browser.positions() == {
            "entity-id": orders.namespace.broker.find("orders").entity_id,
            "low-sequence-number": (11 << 48) + 1,
            "next-sequence-number": (11 << 48) + 4,
        }
        everything = orders.factory.create_message_browser("orders")
        seen = [await everything.receive(timeout=1) for _ in range(3 * FRAGMENTS)]
        assert len({message.sequence_number for message in seen if message is not None}) == 3 * FRAGMENTS
        assert await everything.receive(timeout=1) is None
        await orders.client.send(BrokeredMessage("new", partition_key=key_for_fragment(4)))
        new = await everything.receive(timeout=1)
        assert new is not None
        assert new.text == "new"
        assert len(await orders.fragments()) == 3 * FRAGMENTS + 1, "browsing removes nothing"


@in_virtual_time
async def test_a_browser_of_all_fragments_continues_after_a_lost_connection() -> None:
    async with partitioned_namespace() as orders:
        for _ in range(3):
            await send_all(orders.client, one_per_fragment())
        factory = orders.namespace.factory()
        browser = MessageBrowser(factory, "orders", prefetch=2)
        seen = [await browser.receive(timeout=5) for _ in range(20)]
        orders.namespace.outage.cut()
        seen += [await browser.receive(timeout=5) for _ in range(28)]
        assert len({message.sequence_number for message in seen if message is not None}) == 3 * FRAGMENTS
        assert await browser.receive(timeout=1) is None


@in_virtual_time
async def test_a_fragment_number_above_the_last_is_refused() -> None:
    async with partitioned_namespace() as orders:
        with pytest.raises(InvalidArgument, match="no fragment 16"):
            await orders.factory.create_message_browser("orders", fragment=16).receive(timeout=1)


@in_virtual_time
async def test_complete_up_to_applies_to_one_fragment() -> None:
    async with partitioned_namespace() as orders:
        for _ in range(3):
            await send_all(orders.client, one_per_fragment())
        browser = orders.factory.create_message_browser("orders")
        assert await browser.complete_up_to((5 << 48) + 2) == (2, 0)
        named = orders.factory.create_message_browser("orders", fragment=6)
        assert await named.complete_up_to((6 << 48) + 3) == (3, 0)
        with pytest.raises(InvalidArgument):
            await named.complete_up_to((7 << 48) + 3)
        left = await orders.fragments()
        assert [left.count(fragment) for fragment in (4, 5, 6, 7)] == [3, 1, 0, 3]


@in_virtual_time
async def test_an_exclusive_receiver_owns_all_fragments() -> None:
    async with partitioned_namespace() as orders:
        await send_all(orders.client, numbered_messages(2 * FRAGMENTS))
        first = orders.factory.create_message_receiver("orders", epoch=1)
        held = await first.receive_batch(2 * FRAGMENTS, timeout=5)
        assert held
        other = orders.namespace.factory(operation_timeout=5).create_queue_client("orders")
        with pytest.raises(EntityClaimed):
            await other.receive(timeout=1)
        second = orders.namespace.factory().create_message_receiver("orders", epoch=2)
        received: list[BrokeredMessage] = []
        while page := await second.receive_batch(2 * FRAGMENTS, timeout=1):
            received += page
        assert {fragment_of_message(message) for message in received} == set(range(FRAGMENTS))
        assert len({message.message_id for message in received}) == 2 * FRAGMENTS, (
            "including the messages the first receiver had locked"
        )
        with pytest.raises(EntityClaimed):
            await first.receive(timeout=1)


@in_virtual_time
async def test_messages_of_several_fragments_are_purged_deleted_and_resubmitted() -> None:
    async with partitioned_namespace() as orders:
        await send_all(orders.client, one_per_fragment())
        for message in await receive(orders.client, FRAGMENTS):
            await orders.client.dead_letter(message, "why")
        dead = orders.client.dead_letter_receiver()
        numbers = [message.sequence_number for message in await orders.namespace.messages("orders/$DeadLetterQueue")]
        await dead._request("twinbus:resubmit", {"sequence-numbers": numbers[:8]})  # noqa: SLF001  # an operation for operators
        await dead._request("twinbus:delete-by-sequence-number", {"sequence-numbers": numbers[8:12]})  # noqa: SLF001
        assert len(await orders.fragments()) == 8
        assert await orders.fragments("orders/$DeadLetterQueue") == [12, 13, 14, 15]
        response = await dead._request("twinbus:purge", {})  # noqa: SLF001
        assert response.body["removed"] == 4
        assert await orders.fragments("orders/$DeadLetterQueue") == []


@in_virtual_time
async def test_fragments_are_listed() -> None:
    async with partitioned_namespace() as orders:
        await send_all(orders.client, one_per_fragment())
        response = await orders.client._request("twinbus:fragments", {})  # noqa: SLF001  # an operation of the data source
        listed = response.body["fragments"]
        assert isinstance(listed, list)
        assert [entry["fragment"] for entry in listed] == list(range(FRAGMENTS))
        assert [entry["next-sequence-number"] for entry in listed] == [
            (number << 48) + 2 for number in range(FRAGMENTS)
        ]
        assert texts(await orders.namespace.messages("orders")) == [f"{number}" for number in range(FRAGMENTS)]
