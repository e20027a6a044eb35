"""A queue read as a log: by numbers, without taking anything; and completed up to a number afterwards."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.client.bus import cut_connection, numbered_messages, receive_one, texts
from twinbus.client import BrokeredMessage, RetryPolicy
from twinbus.client.errors import MessageNotHeld
from twinbus.model.errors import EntityClaimed

if TYPE_CHECKING:
    from tests.client.bus import Bus


async def test_a_range_is_read_in_order_again_and_again_and_nothing_is_taken(every_bus: Bus) -> None:
    queue = every_bus.create_queue()
    await queue.send_batch(numbered_messages(10))
    for _ in range(2):
        async with every_bus.shared_factory.create_message_browser(
            queue.path, from_sequence_number=3, to_sequence_number=7
        ) as browser:
            found = [message async for message in browser]
        assert texts(found) == ["2", "3", "4", "5", "6"]
        assert [message.sequence_number for message in found] == [3, 4, 5, 6, 7]
    with pytest.raises(MessageNotHeld):
        await queue.complete(found[0])
    assert every_bus.message_counts(queue) == (10, 0)


async def test_without_an_end_it_goes_on_with_what_arrives(bus: Bus) -> None:
    queue = bus.create_queue()
    await queue.send(BrokeredMessage("first"))
    browser = bus.shared_factory.create_message_browser(queue.path)
    assert (await receive_one(browser)).text == "first"
    await queue.send(BrokeredMessage("second"))
    assert (await receive_one(browser)).text == "second"
    positions = await browser.positions()
    assert positions["next-sequence-number"] >= 2
    assert positions["low-sequence-number"] <= 1


async def test_a_range_is_over_when_all_of_it_was_seen_also_where_its_last_messages_are_gone(every_bus: Bus) -> None:
    queue = every_bus.create_queue()
    await queue.send_batch(numbered_messages(10))
    taken = await queue.receive_batch(10)
    for message in taken[6:]:
        await queue.complete(message)
    browser = every_bus.shared_factory.create_message_browser(queue.path, from_sequence_number=3, to_sequence_number=9)
    assert texts([message async for message in browser]) == ["2", "3", "4", "5"]
    assert await browser.receive() is None


async def test_after_a_lost_connection_it_goes_on_behind_what_was_seen(bus: Bus) -> None:
    factory = bus.factory(retry_policy=RetryPolicy(first_pause_s=0.01))
    queue = bus.create_queue()
    await queue.send_batch(numbered_messages(10))
    browser = factory.create_message_browser(queue.path, to_sequence_number=10)
    found = [await receive_one(browser) for _ in range(4)]
    await cut_connection(factory)
    found += [message async for message in browser]
    assert texts(found) == [f"{number}" for number in range(10)]


async def test_what_was_read_is_completed_up_to_a_number_but_for_what_somebody_has(bus: Bus) -> None:
    queue = bus.create_queue()
    await queue.send_batch(numbered_messages(6))
    locked = await receive_one(queue)
    browser = bus.shared_factory.create_message_browser(queue.path)
    assert await browser.complete_up_to(4) == (3, 1)
    assert bus.message_counts(queue) == (3, 0)
    await queue.complete(locked)
    assert texts(await queue.peek_batch(9)) == ["4", "5"]


async def test_while_there_is_a_claim_its_number_is_needed_to_complete(bus: Bus) -> None:
    queue = bus.create_queue()
    await queue.send_batch(numbered_messages(2))
    claimant = bus.shared_factory.create_message_receiver(queue.path, epoch=7)
    await claimant.open()
    browser = bus.shared_factory.create_message_browser(queue.path)
    with pytest.raises(EntityClaimed):
        await browser.complete_up_to(2)
    assert await browser.complete_up_to(2, epoch=7) == (2, 0)
