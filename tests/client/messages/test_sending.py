"""Sending: messages are stored when `send` returns, and are received in the order of sending."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from tests.client.bus import numbered_messages, receive, receive_one, texts
from twinbus.client import BrokeredMessage
from twinbus.model.errors import InvalidArgument

if TYPE_CHECKING:
    from tests.client.bus import Bus


async def test_a_message_is_sent_received_and_completed(every_bus: Bus) -> None:
    queue = every_bus.create_queue()
    await queue.send(BrokeredMessage("an order"))
    assert every_bus.message_counts(queue) == (1, 0)
    message = await receive_one(queue)
    assert (message.text, message.sequence_number, message.delivery_count) == ("an order", 1, 1)
    await queue.complete(message)
    assert every_bus.message_counts(queue) == (0, 0)


async def test_a_batch_is_received_in_its_order(bus: Bus) -> None:
    queue = bus.create_queue()
    await queue.send_batch(numbered_messages(50))
    assert texts(await receive(queue, 50)) == [f"{number}" for number in range(50)]


async def test_a_batch_with_an_invalid_message_is_refused_as_a_whole(bus: Bus) -> None:
    queue = bus.create_queue()
    invalid = BrokeredMessage("x", properties={"large": "x" * 70_000})
    with pytest.raises(InvalidArgument):
        await queue.send_batch([BrokeredMessage("x"), BrokeredMessage("x", message_id="x" * 129)])
    with pytest.raises(Exception, match="propert"):
        await queue.send_batch([BrokeredMessage("x"), invalid])
    await queue.send_batch([])
    assert bus.message_counts(queue) == (0, 0)


async def test_a_thousand_concurrent_sends_are_stored_in_order(bus: Bus) -> None:
    queue = bus.create_queue()
    await asyncio.gather(*[queue.send(message) for message in numbered_messages(1000)])
    received = await receive(queue, 1000)
    assert texts(received) == [f"{number}" for number in range(1000)]
    await queue.receiver.complete_batch(received)
    assert bus.message_counts(queue) == (0, 0)


async def test_the_path_of_a_queue_is_case_insensitive(bus: Bus) -> None:
    queue = bus.create_queue()
    await bus.shared_factory.create_message_sender(f"/{queue.path.upper()}/").send(BrokeredMessage("x"))
    assert bus.message_counts(queue) == (1, 0)


async def test_a_clone_of_a_received_message_can_be_sent(bus: Bus) -> None:
    queue, other = bus.create_queue(), bus.create_queue()
    await queue.send(BrokeredMessage({"apples": 2}, label="order", properties={"n": 1}))
    await other.send((await receive_one(queue)).clone())
    message = await receive_one(other)
    assert (message.body, message.label, message.properties) == ({"apples": 2}, "order", {"n": 1})


async def test_an_empty_path_is_refused_at_once(bus: Bus) -> None:
    with pytest.raises(ValueError, match="empty"):
        bus.shared_factory.create_message_sender("/")
