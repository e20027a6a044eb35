"""Duplicate detection: a message id is stored once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.client.bus import receive_one
from twinbus.client import BrokeredMessage

if TYPE_CHECKING:
    from tests.client.bus import Bus

DUPLICATE_DETECTION = {"RequiresDuplicateDetection": "true"}


async def test_a_duplicate_is_accepted_and_dropped(bus: Bus) -> None:
    queue = bus.create_queue(**DUPLICATE_DETECTION)
    message = BrokeredMessage("x", message_id="order 17")
    await queue.send(message)
    await queue.send(message)
    await queue.send_batch([message.clone(), BrokeredMessage("y")])
    assert bus.message_counts(queue) == (2, 0)
    await queue.complete(await receive_one(queue))
    await queue.send(message)
    assert bus.message_counts(queue) == (1, 0)


async def test_messages_without_an_id_are_not_duplicates(bus: Bus) -> None:
    queue = bus.create_queue(**DUPLICATE_DETECTION)
    for _ in range(3):
        await queue.send(BrokeredMessage("x"))
    assert bus.message_counts(queue) == (3, 0)
