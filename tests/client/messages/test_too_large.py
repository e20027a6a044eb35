"""Messages above the size limit are refused without affecting other sends."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from tests.client.bus import receive_one
from twinbus.client import BrokeredMessage
from twinbus.model.errors import MessageTooLarge

if TYPE_CHECKING:
    from tests.client.bus import Bus


async def test_a_message_that_is_too_large_is_refused_and_concurrent_sends_are_not(every_bus: Bus) -> None:
    queue = every_bus.create_queue()
    largest = await queue.sender.max_message_bytes()
    assert largest is not None
    sends = [BrokeredMessage("before"), BrokeredMessage(bytes(largest)), BrokeredMessage("after")]
    outcomes = await asyncio.gather(*[queue.send(message) for message in sends], return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [type(None), MessageTooLarge, type(None)]
    assert every_bus.message_counts(queue) == (2, 0)


async def test_a_batch_above_the_size_limit_is_refused(bus: Bus) -> None:
    queue = bus.create_queue()
    largest = await queue.sender.max_message_bytes()
    assert largest is not None
    part = BrokeredMessage(bytes(largest // 3))
    with pytest.raises(MessageTooLarge, match="bytes"):
        await queue.send_batch([part.clone() for _ in range(4)])
    assert bus.message_counts(queue) == (0, 0)
    await queue.send_batch([part.clone() for _ in range(2)])
    assert bus.message_counts(queue) == (2, 0)


async def test_a_message_just_below_the_limit_is_received_complete(every_bus: Bus) -> None:
    queue = every_bus.create_queue()
    largest = await queue.sender.max_message_bytes()
    assert largest is not None
    body = bytes(range(256)) * ((largest - 1_000) // 256)
    await queue.send(BrokeredMessage(body))
    assert (await receive_one(queue)).body == body
