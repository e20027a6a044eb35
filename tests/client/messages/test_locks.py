"""Message locks: renewed explicitly or automatically, lost on expiry; a message is settled once."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from tests.client.bus import SHORT_LOCK, SHORTEST_LOCK_S, numbered_messages, receive, receive_one
from twinbus.client import BrokeredMessage
from twinbus.client.errors import MessageNotHeld
from twinbus.model.errors import MessageLockLost

if TYPE_CHECKING:
    from tests.client.bus import Bus


async def test_a_renewed_lock_lasts_longer(every_bus: Bus) -> None:
    queue = every_bus.create_queue()
    await queue.send_batch(numbered_messages(2))
    messages = await receive(queue, 2)
    before = [message.locked_until_utc for message in messages]
    await asyncio.sleep(0.01)
    after = await queue.receiver.renew_locks(messages)
    assert after == [message.locked_until_utc for message in messages]
    assert all(later > earlier for earlier, later in zip(before, after, strict=True))


async def test_a_lock_expires_or_is_renewed_automatically(bus: Bus) -> None:
    """Both cases in one test: the shortest lock lasts five seconds of real time."""
    queue, renewed_queue = bus.create_queue(**SHORT_LOCK), bus.create_queue(**SHORT_LOCK)
    await queue.send(BrokeredMessage("slow"))
    await renewed_queue.send_batch(numbered_messages(3))
    slow = await receive_one(queue)
    receiver = bus.shared_factory.create_message_receiver(renewed_queue.path, auto_renew=60)
    renewed = await receive(receiver, 3)
    await receiver.complete(renewed.pop())
    await asyncio.sleep(SHORTEST_LOCK_S + 1.5)
    for _ in range(2):
        with pytest.raises(MessageLockLost):
            await asyncio.wait_for(queue.complete(slow), 5)
    with pytest.raises(MessageLockLost):
        await queue.renew_lock(slow)
    again = await receive_one(queue)
    assert (again.text, again.delivery_count) == ("slow", 2)
    await receiver.complete_batch(renewed)
    assert bus.message_counts(renewed_queue) == (0, 0)


async def test_a_message_is_settled_once(bus: Bus) -> None:
    queue = bus.create_queue()
    await queue.send_batch(numbered_messages(2))
    first, second = await receive(queue, 2)
    await queue.complete(first)
    for settle in (queue.complete, queue.abandon, queue.defer, queue.dead_letter, queue.renew_lock):
        with pytest.raises(MessageNotHeld):
            await settle(first)
    outcomes = await asyncio.gather(queue.complete(second), queue.abandon(second), return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [type(None), MessageNotHeld]
    assert bus.message_counts(queue) == (0, 0)


async def test_complete_batch_completes_the_messages_that_are_still_locked(bus: Bus) -> None:
    queue = bus.create_queue()
    await queue.send_batch(numbered_messages(3))
    messages = await receive(queue, 3)
    await queue.abandon(messages[1])
    with pytest.raises(MessageNotHeld):
        await queue.receiver.complete_batch(messages)
    assert bus.message_counts(queue) == (1, 0)
