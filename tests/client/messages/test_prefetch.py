"""Prefetch: so many messages come ahead and are locked, and never more; without it none."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from tests.client.bus import Bus, numbered_messages, receive, receive_one, texts, wait_until
from twinbus.client import ReceiveMode
from twinbus.model.errors import InvalidArgument

if TYPE_CHECKING:
    from twinbus.client import MessageReceiver, QueueClient


async def free_ones(bus: Bus, queue: QueueClient) -> list[str]:
    """What another receiver can have now; it gives all of it back."""
    async with bus.shared_factory.create_message_receiver(queue.path) as other:
        await other.open()
        found: list[str] = []
        messages = []
        while batch := await other.receive_batch(100, 0.2):
            messages += batch
            found += texts(batch)
        for message in messages:
            await other.release(message)
    return found


def waiting_in(receiver: MessageReceiver) -> int:
    link = receiver._buffer.link  # noqa: SLF001  # what is locked ahead is nowhere else to be seen
    return 0 if link is None else len(link.arrived)


async def test_as_many_as_are_asked_for_are_locked_ahead_and_no_more(bus: Bus) -> None:
    queue = bus.create_queue()
    await queue.send_batch(numbered_messages(20))
    receiver = bus.shared_factory.create_message_receiver(queue.path, prefetch=5)
    await receiver.open()
    await wait_until(lambda: waiting_in(receiver) == 5)
    await asyncio.sleep(0.1)
    assert waiting_in(receiver) == 5
    assert await free_ones(bus, queue) == [f"{number}" for number in range(5, 20)]


async def test_without_prefetch_none_is_locked_ahead(bus: Bus) -> None:
    queue = bus.create_queue()
    await queue.send_batch(numbered_messages(4))
    receiver = bus.shared_factory.create_message_receiver(queue.path)
    await receiver.open()
    assert (await receive_one(receiver)).text == "0"
    assert waiting_in(receiver) == 0
    assert await free_ones(bus, queue) == ["1", "2", "3"]


async def test_whoever_asks_for_more_than_is_prefetched_leaves_no_more_than_that_locked(bus: Bus) -> None:
    queue = bus.create_queue()
    receiver = bus.shared_factory.create_message_receiver(queue.path, prefetch=2)
    assert await receiver.receive_batch(10, 0.2) == []
    await queue.send_batch(numbered_messages(10))
    await wait_until(lambda: waiting_in(receiver) == 2)
    assert await free_ones(bus, queue) == [f"{number}" for number in range(2, 10)]


@pytest.mark.parametrize("mode", list(ReceiveMode))
async def test_all_come_in_order(bus: Bus, mode: ReceiveMode) -> None:
    queue = bus.create_queue()
    await queue.send_batch(numbered_messages(500))
    receiver = bus.shared_factory.create_message_receiver(queue.path, mode, prefetch=20)
    found = [await receive_one(receiver) for _ in range(500)]
    assert texts(found) == [f"{number}" for number in range(500)]
    if mode is ReceiveMode.PEEK_LOCK:
        await receiver.complete_batch(found)
    assert bus.message_counts(queue) == (0, 0)


async def test_what_a_closed_receiver_fetched_ahead_is_free_for_another_uncounted(bus: Bus) -> None:
    queue = bus.create_queue()
    await queue.send_batch(numbered_messages(10))
    receiver = bus.shared_factory.create_message_receiver(queue.path, prefetch=10)
    assert (await receive_one(receiver)).text == "0"
    await receiver.close()
    found = await receive(queue, 9)
    assert [(message.text, message.delivery_count) for message in found] == [(f"{n}", 1) for n in range(1, 10)]


@pytest.mark.parametrize("prefetch", [-1, 5001])
async def test_a_prefetch_has_limits(bus: Bus, prefetch: int) -> None:
    with pytest.raises(InvalidArgument):
        bus.shared_factory.create_message_receiver("queue", prefetch=prefetch)
