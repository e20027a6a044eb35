"""Competing receivers of one queue: each message goes to one of them, and each gets some."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from tests.client.bus import numbered_messages
from twinbus.client import ReceiveMode

if TYPE_CHECKING:
    from tests.client.bus import Bus
    from twinbus.client import MessagingFactory


@pytest.mark.parametrize("mode", list(ReceiveMode))
async def test_each_message_is_received_by_one_receiver(bus: Bus, mode: ReceiveMode) -> None:
    queue = bus.create_queue()
    await queue.send_batch(numbered_messages(400))
    received: list[str] = []

    async def work(factory: MessagingFactory, prefetch: int) -> int:
        receiver = factory.create_message_receiver(queue.path, mode, prefetch=prefetch)
        count = 0
        while messages := await receiver.receive_batch(7, 0.5):
            count += len(messages)
            received.extend(message.text for message in messages)
            if mode is ReceiveMode.PEEK_LOCK:
                await receiver.complete_batch(messages)
        return count

    counts = await asyncio.gather(*[work(bus.factory(), prefetch) for prefetch in (0, 0, 5, 20)])
    assert sorted(received, key=int) == [f"{number}" for number in range(400)]
    assert all(counts)
    assert bus.message_counts(queue) == (0, 0)
