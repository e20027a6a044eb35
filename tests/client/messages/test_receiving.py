"""Receiving available and new messages; a timed-out receive leaves no message locked."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import pytest

from tests.client.bus import numbered_messages, receive, receive_one, texts
from twinbus.client import BrokeredMessage, ReceiveMode
from twinbus.client.errors import MessageNotHeld
from twinbus.model.errors import InvalidArgument

if TYPE_CHECKING:
    from tests.client.bus import Bus


async def test_a_receive_ends_at_its_timeout_and_the_next_receive_works(every_bus: Bus) -> None:
    queue = every_bus.create_queue()
    started = time.monotonic()
    assert await queue.receive(0.3) is None
    assert 0.25 < time.monotonic() - started < 5
    await queue.send(BrokeredMessage("x"))
    assert (await receive_one(queue)).text == "x"


async def test_no_message_is_left_locked_after_a_receive_timed_out(bus: Bus) -> None:
    queue, other = bus.create_queue(), bus.factory()
    assert await queue.receive(0.2) is None
    assert await queue.receive_batch(10, 0.2) == []
    await queue.send(BrokeredMessage("x"))
    message = await receive_one(other.create_queue_client(queue.path))
    assert (message.text, message.delivery_count) == ("x", 1)


async def test_a_receive_with_timeout_zero_returns_the_available_messages(bus: Bus) -> None:
    queue = bus.create_queue()
    await queue.send_batch(numbered_messages(3))
    await queue.receiver.open()
    assert texts(await queue.receive_batch(2, 0)) == ["0", "1"]
    assert texts(await queue.receive_batch(2, 0)) == ["2"]
    assert await queue.receive_batch(2, 0) == []


async def test_a_receive_with_timeout_zero_attaches_the_link_for_the_next_receive(bus: Bus) -> None:
    queue = bus.create_queue()
    await queue.send(BrokeredMessage("x"))
    async with asyncio.timeout(10):
        while (message := await queue.receive(0)) is None:
            await bus.shared_factory.create_message_receiver(queue.path).peek()
    assert message.text == "x"


async def test_a_waiting_receive_returns_when_a_message_arrives(bus: Bus) -> None:
    queue = bus.create_queue()
    waiting = asyncio.ensure_future(queue.receive(60))
    await asyncio.sleep(0.1)
    await queue.send(BrokeredMessage("x"))
    message = await asyncio.wait_for(waiting, 10)
    assert message is not None
    assert message.text == "x"


async def test_a_receive_locks_no_more_messages_than_it_returns(bus: Bus) -> None:
    queue, other = bus.create_queue(), bus.factory()
    await queue.send_batch(numbered_messages(10))
    assert texts(await receive(queue, 4)) == ["0", "1", "2", "3"]
    assert texts(await receive(other.create_queue_client(queue.path), 6)) == ["4", "5", "6", "7", "8", "9"]


async def test_a_message_in_receive_and_delete_mode_is_removed_and_has_no_lock(every_bus: Bus) -> None:
    queue = every_bus.shared_factory.create_queue_client(
        every_bus.server.create_queue(), ReceiveMode.RECEIVE_AND_DELETE
    )
    await queue.send_batch(numbered_messages(5))
    received = await receive(queue, 5)
    assert texts(received) == ["0", "1", "2", "3", "4"]
    assert every_bus.message_counts(queue) == (0, 0)
    with pytest.raises(MessageNotHeld):
        await queue.complete(received[0])


async def test_concurrent_receives_on_one_receiver_return_each_message_once(bus: Bus) -> None:
    queue = bus.create_queue()
    waiting = [asyncio.ensure_future(queue.receive(20)) for _ in range(10)]
    await queue.send_batch(numbered_messages(10))
    received_texts = [message.text for message in await asyncio.gather(*waiting) if message is not None]
    assert sorted(received_texts) == [f"{number}" for number in range(10)]


async def test_the_timeouts_of_concurrent_receives_do_not_add_up(bus: Bus) -> None:
    queue = bus.create_queue()
    started = time.monotonic()
    assert await asyncio.gather(*[queue.receive(0.5) for _ in range(4)]) == [None] * 4
    assert time.monotonic() - started < 2


@pytest.mark.parametrize("prefetch", [0, 5])
async def test_a_loop_over_messages_leaves_none_locked_when_it_ends(bus: Bus, prefetch: int) -> None:
    queue = bus.create_queue()
    await queue.send_batch(numbered_messages(8))
    async with bus.shared_factory.create_message_receiver(queue.path, prefetch=prefetch) as receiver:
        received_texts = []
        async for message in receiver:
            received_texts.append(message.text)
            await receiver.complete(message)
            if len(received_texts) == 3:
                break
    assert received_texts == ["0", "1", "2"]
    rest = await receive(queue, 5)
    assert [(message.text, message.delivery_count) for message in rest] == [(f"{n}", 1) for n in range(3, 8)]


async def test_a_loop_over_messages_ends_when_its_receiver_is_closed(bus: Bus) -> None:
    queue = bus.create_queue()

    async def collect() -> list[str]:
        return [message.text async for message in queue]

    collecting = asyncio.ensure_future(collect())
    await queue.send_batch(numbered_messages(3))
    await asyncio.sleep(0.3)
    await queue.close()
    assert await asyncio.wait_for(collecting, 10) == ["0", "1", "2"]


async def test_a_receive_of_zero_messages_is_refused(bus: Bus) -> None:
    with pytest.raises(InvalidArgument):
        await bus.create_queue().receive_batch(0)
