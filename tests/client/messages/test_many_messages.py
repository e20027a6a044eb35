"""Ten thousand messages, many under way at once, each received once and in order."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tests.client.bus import numbered_messages, receive, texts

if TYPE_CHECKING:
    from tests.client.bus import Bus

COUNT = 10_000


async def test_ten_thousand_messages_are_received_in_their_order(every_bus: Bus) -> None:
    queue = every_bus.create_queue()
    messages = numbered_messages(COUNT)
    for start in range(0, COUNT, 2_000):
        await asyncio.gather(*[queue.send(message) for message in messages[start : start + 2_000]])
    receiver = every_bus.shared_factory.create_message_receiver(queue.path, prefetch=500)
    received: list[str] = []
    while len(received) < COUNT:
        batch = await receive(receiver, 500)
        received += texts(batch)
        await receiver.complete_batch(batch)
    assert received == [f"{number}" for number in range(COUNT)]
    assert every_bus.message_counts(queue) == (0, 0)
