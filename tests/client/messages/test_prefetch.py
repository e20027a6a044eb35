"""Prefetch: exactly that many messages are locked ahead; without prefetch none."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from tests.client.bus import Bus, numbered_messages, receive, receive_one, texts, wait_until
from twinbus.client import ReceiveMode
from twinbus.model.errors import InvalidArgument

if TYPE_CHECKING:
    from twinbus.client import MessageReceiver, QueueClient


async def available_texts(bus: Bus, queue: QueueClient) -> list[str]:
    """Return the messages that another receiver can get; it releases them again."""
    async with bus.shared_factory.create_message_receiver(queue.path) as other:
        await other.open()
        bodies: list[str] = []
        messages = []
        while batch := await other.receive_batch(100, 0.2):
            messages += batch
            bodies += texts(batch)
        for message in messages:
            await other.release(message)
    return bodies


def prefetched_count(receiver: MessageReceiver) -> int:
    link = receiver._buffer.link  # noqa: SLF001  # there is no public count of prefetched messages
    return 0 if link is None else len(link.arrived)


async def test_exactly_prefetch_messages_are_locked_ahead(bus: Bus) -> None:
    queue = bus.create_queue()
    await queue.send_batch(numbered_messages(20))
    receiver = bus.shared_factory.create_message_receiver(queue.path, prefetch=5)
    await receiver.open()
    await wait_until(lambda: prefetched_count(receiver) == 5)
    await asyncio.sleep(0.1)
    assert prefetched_count(receiver) == 5
    assert await available_texts(bus, queue) == [f"{number}" for number in range(5, 20)]


async def test_without_prefetch_no_message_is_locked_ahead(bus: Bus) -> None:
    queue = bus.create_queue()
    await queue.send_batch(numbered_messages(4))
    receiver = bus.shared_factory.create_message_receiver(queue.path)
    await receiver.open()
    assert (await receive_one(receiver)).text == "0"
    assert prefetched_count(receiver) == 0
    assert await available_texts(bus, queue) == ["1", "2", "3"]


async def test_a_timed_out_receive_of_more_than_prefetch_leaves_only_prefetch_messages_locked(bus: Bus) -> None:
    queue = bus.create_queue()
    receiver = bus.shared_factory.create_message_receiver(queue.path, prefetch=2)
    assert await receiver.receive_batch(10, 0.2) == []
    await queue.send_batch(numbered_messages(10))
    await wait_until(lambda: prefetched_count(receiver) == 2)
    assert await available_texts(bus, queue) == [f"{number}" for number in range(2, 10)]


@pytest.mark.parametrize("mode", list(ReceiveMode))
async def test_prefetched_messages_are_received_in_order(bus: Bus, mode: ReceiveMode) -> None:
    queue = bus.create_queue()
    await queue.send_batch(numbered_messages(500))
    receiver = bus.shared_factory.create_message_receiver(queue.path, mode, prefetch=20)
    received = [await receive_one(receiver) for _ in range(500)]
    assert texts(received) == [f"{number}" for number in range(500)]
    if mode is ReceiveMode.PEEK_LOCK:
        await receiver.complete_batch(received)
    assert bus.message_counts(queue) == (0, 0)


async def test_prefetched_messages_of_a_closed_receiver_keep_their_delivery_count(bus: Bus) -> None:
    queue = bus.create_queue()
    await queue.send_batch(numbered_messages(10))
    receiver = bus.shared_factory.create_message_receiver(queue.path, prefetch=10)
    assert (await receive_one(receiver)).text == "0"
    await receiver.close()
    received = await receive(queue, 9)
    assert [(message.text, message.delivery_count) for message in received] == [(f"{n}", 1) for n in range(1, 10)]


@pytest.mark.parametrize("prefetch", [-1, 5001])
async def test_a_prefetch_has_limits(bus: Bus, prefetch: int) -> None:
    with pytest.raises(InvalidArgument):
        bus.shared_factory.create_message_receiver("queue", prefetch=prefetch)
