"""Peeking returns messages in every state, in the order of sequence numbers, and removes none."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

import pytest

from tests.client.bus import SESSIONS, numbered_messages, receive_one, texts
from twinbus.client import BrokeredMessage
from twinbus.client.errors import MessageNotHeld

if TYPE_CHECKING:
    from tests.client.bus import Bus


async def test_peeking_continues_after_the_last_message_or_starts_at_a_sequence_number(every_bus: Bus) -> None:
    queue = every_bus.create_queue()
    assert await queue.peek() is None
    await queue.send_batch(numbered_messages(5))
    assert texts(await queue.peek_batch(2)) == ["0", "1"]
    assert texts(await queue.peek_batch(9)) == ["2", "3", "4"]
    assert texts(await queue.peek_batch(9, 4)) == ["3", "4"]
    assert every_bus.message_counts(queue) == (5, 0)


async def test_messages_in_every_state_are_peeked(bus: Bus) -> None:
    queue = bus.create_queue()
    await queue.send_batch(numbered_messages(3))
    await queue.defer(await receive_one(queue))
    await receive_one(queue)
    await queue.schedule(BrokeredMessage("later"), dt.datetime.now(dt.UTC) + dt.timedelta(hours=1))
    peeked = await queue.peek_batch(9)
    assert [(message.text, message.state) for message in peeked] == [
        ("0", "deferred"),
        ("1", "active"),
        ("2", "active"),
        ("later", "scheduled"),
    ]


async def test_a_peeked_message_has_no_lock_and_cannot_be_settled(bus: Bus) -> None:
    queue = bus.create_queue()
    await queue.send(BrokeredMessage("x"))
    message = await queue.peek()
    assert message is not None
    assert (message.lock_token, message.delivery_count) == (None, 0)
    with pytest.raises(MessageNotHeld):
        await queue.complete(message)


async def test_peeking_in_a_session_returns_its_messages_only(bus: Bus) -> None:
    queue = bus.create_queue(**SESSIONS)
    for name in ("one", "two", "one"):
        await queue.send(BrokeredMessage(name, session_id=name))
    async with await queue.accept_session("one") as session:
        assert texts(await session.peek_batch(9)) == ["one", "one"]


async def test_delete_batch_deletes_the_oldest_messages(bus: Bus) -> None:
    queue = bus.create_queue()
    await queue.send_batch(numbered_messages(5))
    assert await queue.receiver.delete_batch(3) == 3
    assert texts(await queue.peek_batch(9)) == ["3", "4"]
