"""Browsers: read a queue by sequence numbers without removing messages, then complete up to a number."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.client.bus import cut_connection, numbered_messages, receive_one, texts
from twinbus.client import BrokeredMessage, RetryPolicy
from twinbus.client.errors import MessageNotHeld
from twinbus.model.errors import EntityClaimed

if TYPE_CHECKING:
    from tests.client.bus import Bus


async def test_a_range_can_be_read_repeatedly_without_removing_messages(every_bus: Bus) -> None:
    queue = every_bus.create_queue()
    await queue.send_batch(numbered_messages(10))
    for _ in range(2):
        async with every_bus.shared_factory.create_message_browser(
            queue.path, from_sequence_number=3, to_sequence_number=7
        ) as browser:
            browsed = [message async for message in browser]
        assert texts(browsed) == ["2", "3", "4", "5", "6"]
        assert [message.sequence_number for message in browsed] == [3, 4, 5, 6, 7]
    with pytest.raises(MessageNotHeld):
        await queue.complete(browsed[0])
    assert every_bus.message_counts(queue) == (10, 0)


async def test_a_browser_without_an_end_returns_new_messages(bus: Bus) -> None:
    queue = bus.create_queue()
    await queue.send(BrokeredMessage("first"))
    browser = bus.shared_factory.create_message_browser(queue.path)
    assert (await receive_one(browser)).text == "first"
    await queue.send(BrokeredMessage("second"))
    assert (await receive_one(browser)).text == "second"
    positions = await browser.positions()
    assert positions["next-sequence-number"] >= 2
    assert positions["low-sequence-number"] <= 1


async def test_a_range_ends_also_if_its_last_messages_were_removed(every_bus: Bus) -> None:
    queue = every_bus.create_queue()
    await queue.send_batch(numbered_messages(10))
    received = await queue.receive_batch(10)
    for message in received[6:]:
        await queue.complete(message)
    browser = every_bus.shared_factory.create_message_browser(queue.path, from_sequence_number=3, to_sequence_number=9)
    assert texts([message async for message in browser]) == ["2", "3", "4", "5"]
    assert await browser.receive() is None


async def test_a_browser_continues_after_a_lost_connection_without_repeating_messages(bus: Bus) -> None:
    factory = bus.factory(retry_policy=RetryPolicy(first_pause_s=0.01))
    queue = bus.create_queue()
    await queue.send_batch(numbered_messages(10))
    browser = factory.create_message_browser(queue.path, to_sequence_number=10)
    browsed = [await receive_one(browser) for _ in range(4)]
    await cut_connection(factory)
    browsed += [message async for message in browser]
    assert texts(browsed) == [f"{number}" for number in range(10)]


async def test_complete_up_to_completes_all_messages_except_locked_ones(bus: Bus) -> None:
    queue = bus.create_queue()
    await queue.send_batch(numbered_messages(6))
    locked = await receive_one(queue)
    browser = bus.shared_factory.create_message_browser(queue.path)
    assert await browser.complete_up_to(4) == (3, 1)
    assert bus.message_counts(queue) == (3, 0)
    await queue.complete(locked)
    assert texts(await queue.peek_batch(9)) == ["4", "5"]


async def test_complete_up_to_needs_the_epoch_of_an_exclusive_receiver(bus: Bus) -> None:
    queue = bus.create_queue()
    await queue.send_batch(numbered_messages(2))
    exclusive_receiver = bus.shared_factory.create_message_receiver(queue.path, epoch=7)
    await exclusive_receiver.open()
    browser = bus.shared_factory.create_message_browser(queue.path)
    with pytest.raises(EntityClaimed):
        await browser.complete_up_to(2)
    assert await browser.complete_up_to(2, epoch=7) == (2, 0)
