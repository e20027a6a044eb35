"""Forwarding from, to and between partitioned entities; the destination chooses the fragment by the key."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from tests.support.partitioned_namespace import (
    FRAGMENTS,
    fragment_of_message,
    key_for_fragment,
    numbered_messages,
    one_per_fragment,
    partitioned_namespace,
    send_all,
    texts,
)
from twinbus.amqp.message import Properties, build, data
from twinbus.client import BrokeredMessage
from twinbus.testing import in_virtual_time

if TYPE_CHECKING:
    from twinbus.client import QueueClient

TRANSFER_DEAD_LETTERS = "$Transfer/$DeadLetterQueue"
KINDS = [(True, True), (True, False), (False, True)]


@in_virtual_time
@pytest.mark.parametrize(("source", "destination"), KINDS)
async def test_r119_messages_are_forwarded_from_to_and_between_partitioned_queues(
    *, source: bool, destination: bool
) -> None:
    async with partitioned_namespace(enable_partitioning=destination) as orders:
        entry = await orders.queue("entry", enable_partitioning=source, forward_to="orders")
        await send_all(entry, [*one_per_fragment(), *numbered_messages(40)])
        await asyncio.sleep(1)
        assert await orders.texts("entry") == []
        assert await orders.texts() == sorted([*map(str, range(FRAGMENTS)), *map(str, range(40))])


@in_virtual_time
@pytest.mark.parametrize(("source", "destination"), KINDS)
async def test_r119_messages_are_forwarded_from_subscriptions(*, source: bool, destination: bool) -> None:
    async with partitioned_namespace(enable_partitioning=destination) as orders:
        await orders.namespace.create_topic("news", enable_partitioning=source)
        await orders.namespace.create_subscription("news", "all", forward_to="orders")
        topic = orders.factory.create_topic_client("news")
        for message in one_per_fragment():
            await topic.send(message)
        await asyncio.sleep(1)
        assert await orders.texts() == sorted(map(str, range(FRAGMENTS)))


@in_virtual_time
async def test_r120_the_key_of_a_forwarded_message_chooses_the_fragment() -> None:
    async with partitioned_namespace() as orders:
        entry = await orders.queue("entry", enable_partitioning=False, forward_to="orders")
        for fragment in range(FRAGMENTS):
            await entry.send(BrokeredMessage(f"{fragment}", partition_key=key_for_fragment(fragment)))
            await entry.send(BrokeredMessage(f"{fragment}", session_id=key_for_fragment(fragment, 1)))
        await asyncio.sleep(1)
        arrived = await orders.namespace.messages("orders")
        assert len(arrived) == 2 * FRAGMENTS
        assert all(message.text == f"{fragment_of_message(message)}" for message in arrived)


@in_virtual_time
async def test_r120_forwarded_messages_without_a_key_are_spread_over_all_fragments() -> None:
    async with partitioned_namespace() as orders:
        entry = await orders.queue("entry", enable_partitioning=False, forward_to="orders")
        await send_all(entry, numbered_messages(2 * FRAGMENTS))
        await asyncio.sleep(1)
        assert sorted(await orders.fragments()) == sorted([*range(FRAGMENTS), *range(FRAGMENTS)])


@in_virtual_time
async def test_r120_the_message_id_is_the_key_if_the_destination_detects_duplicates() -> None:
    async with partitioned_namespace(requires_duplicate_detection=True) as orders:
        entry = await orders.queue("entry", forward_to="orders")
        for _ in range(2):
            for fragment in range(FRAGMENTS):
                await entry.send(BrokeredMessage(f"{fragment}", message_id=key_for_fragment(fragment)))
        await orders.client.send(BrokeredMessage("0", message_id=key_for_fragment(0)))
        await asyncio.sleep(1)
        arrived = await orders.namespace.messages("orders")
        assert [message.text for message in arrived] == [f"{fragment}" for fragment in range(FRAGMENTS)]


@in_virtual_time
async def test_each_message_arrives_once_if_the_server_is_killed_meanwhile() -> None:
    async with partitioned_namespace() as orders:
        entry = await orders.queue("entry", forward_to="orders")
        for part in range(5):
            await asyncio.gather(*[entry.send(BrokeredMessage(f"{part} {number}")) for number in range(40)])
            orders.namespace.kill()
            await orders.namespace.start()
            entry = orders.namespace.factory().create_queue_client("entry")
        await asyncio.sleep(60)
        assert await orders.texts() == sorted(f"{part} {number}" for part in range(5) for number in range(40))


@in_virtual_time
async def test_messages_for_an_unavailable_fragment_wait_and_others_are_forwarded() -> None:
    async with partitioned_namespace(stores=4) as orders:
        entry = await orders.queue("entry", forward_to="orders")
        await orders.probe_store(1)
        for fragment in (0, 2, 3):
            await entry.send(BrokeredMessage(f"{fragment}", partition_key=key_for_fragment(fragment)))
        await asyncio.sleep(5)
        assert {fragment_of_message(message) for message in await _peek(orders.client)} == {0, 2, 3}
        orders.namespace.outage.restore()
        await asyncio.sleep(60)
        await entry.send(BrokeredMessage("1", partition_key=key_for_fragment(1)))
        await asyncio.sleep(60)
        assert [text for text in await orders.texts() if text != "the last"] == ["0", "1", "2", "3"]


@in_virtual_time
async def test_q33_a_message_is_dead_lettered_after_four_hops() -> None:
    async with partitioned_namespace() as orders:
        await orders.queue("hop-4", forward_to="orders")
        for number in (3, 2, 1):
            await orders.queue(f"hop-{number}", forward_to=f"hop-{number + 1}")
        await orders.queue("hop-0", forward_to="hop-1")
        await orders.factory.create_queue_client("hop-1").send(BrokeredMessage("four"))
        await orders.factory.create_queue_client("hop-0").send(BrokeredMessage("five"))
        await asyncio.sleep(5)
        assert await orders.texts() == ["four"]
        assert await orders.texts(f"hop-4/{TRANSFER_DEAD_LETTERS}") == ["five"]


@in_virtual_time
async def test_q33_a_queue_with_sessions_can_forward() -> None:
    async with partitioned_namespace() as orders:
        entry = await orders.queue("entry", requires_session=True, forward_to="orders")
        for number in range(6):
            await entry.send(BrokeredMessage(f"{number}", session_id=f"{number % 3}"))
        await asyncio.sleep(5)
        assert sorted(await orders.texts()) == [f"{number}" for number in range(6)]


@in_virtual_time
async def test_q33_messages_for_a_missing_destination_go_to_the_transfer_dead_letters() -> None:
    async with partitioned_namespace() as orders:
        entry = await orders.queue("entry", forward_to="orders")
        await orders.namespace.entities.delete("orders")
        await send_all(entry, one_per_fragment())
        await asyncio.sleep(5)
        dead = await orders.namespace.messages(f"entry/{TRANSFER_DEAD_LETTERS}")
        assert [message.text for message in dead] == [f"{number}" for number in range(FRAGMENTS)]
        assert {str(message.dead_letter_reason) for message in dead} != {"None"}


@in_virtual_time
async def test_q33_messages_for_a_full_fragment_go_to_the_transfer_dead_letters() -> None:
    async with partitioned_namespace() as orders:
        entry = await orders.queue("entry", forward_to="orders")
        orders.namespace.broker.find_sendable("orders").parts[6].main.local.message_table.active_bytes += 2**30
        await send_all(entry, one_per_fragment())
        await asyncio.sleep(60)
        assert await orders.texts() == sorted(f"{number}" for number in range(FRAGMENTS) if number != 6)
        assert await orders.texts(f"entry/{TRANSFER_DEAD_LETTERS}") == ["6"]


@in_virtual_time
async def test_q33_a_message_with_two_different_keys_goes_to_the_transfer_dead_letters() -> None:
    """A plain queue accepts such a message; a partitioned queue cannot choose a fragment for it."""
    async with partitioned_namespace() as orders:
        entry = await orders.queue("entry", enable_partitioning=False, forward_to="orders")
        bad = build(
            message_annotations={"x-opt-partition-key": "pears"},
            properties=Properties(message_id="bad", group_id="apples"),
            body=data(b"bad"),
        )
        await entry.send(BrokeredMessage("before"))
        await entry.sender.deliver(bad)
        await entry.send(BrokeredMessage("after"))
        await asyncio.sleep(5)
        assert await orders.texts() == ["after", "before"]
        assert await orders.texts(f"entry/{TRANSFER_DEAD_LETTERS}") == ["bad"]


@in_virtual_time
async def test_dead_letters_are_forwarded() -> None:
    async with partitioned_namespace() as orders:
        entry = await orders.queue("entry", forward_dead_lettered_to="orders")
        await send_all(entry, one_per_fragment())
        for _ in range(FRAGMENTS):
            message = await entry.receive(timeout=1)
            assert message is not None
            await entry.dead_letter(message, "why")
        await asyncio.sleep(5)
        arrived = await orders.namespace.messages("orders")
        assert texts(arrived) == [f"{number}" for number in range(FRAGMENTS)]


async def _peek(client: QueueClient) -> list[BrokeredMessage]:
    return [message for message in await client.peek_batch(100) if message.text != "the last"]
