"""Deferred messages are received by their sequence numbers only."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.client.bus import SESSIONS, numbered_messages, receive, receive_one, texts
from twinbus.client import BrokeredMessage, ReceiveMode
from twinbus.model.errors import MessageNotFound

if TYPE_CHECKING:
    from tests.client.bus import Bus


async def test_a_deferred_message_is_received_by_its_sequence_number_with_changed_properties(every_bus: Bus) -> None:
    queue = every_bus.create_queue()
    await queue.send(BrokeredMessage("later", properties={"kept": 1}))
    message = await receive_one(queue)
    await queue.defer(message, {"why": "too early"})
    assert await queue.receive(0) is None
    [received] = await queue.receive_deferred(message.sequence_number)
    assert (received.text, received.properties) == ("later", {"kept": 1, "why": "too early"})
    assert received.state == "deferred"
    await queue.renew_lock(received)
    await queue.complete(received)
    assert await queue.receiver.peek(1) is None


async def test_an_unknown_sequence_number_fails_the_whole_receive_deferred(bus: Bus) -> None:
    queue = bus.create_queue()
    await queue.send_batch(numbered_messages(2))
    numbers = []
    for message in await receive(queue, 2):
        await queue.defer(message)
        numbers.append(message.sequence_number)
    with pytest.raises(MessageNotFound):
        await queue.receive_deferred(*numbers, 4711)
    deferred = await queue.receive_deferred(*numbers)
    assert texts(deferred) == ["0", "1"]
    with pytest.raises(MessageNotFound):
        await queue.receive_deferred(numbers[0])
    for message in deferred:
        await queue.dead_letter(message, "late")
    assert bus.message_counts(queue)[1] == 2


async def test_deferred_messages_can_be_received_and_deleted(bus: Bus) -> None:
    queue = bus.create_queue()
    await queue.send(BrokeredMessage("x"))
    message = await receive_one(queue)
    await queue.defer(message)
    receiver = bus.shared_factory.create_message_receiver(queue.path, ReceiveMode.RECEIVE_AND_DELETE)
    [deferred] = await receiver.receive_deferred(message.sequence_number)
    assert (deferred.text, deferred.lock_token) == ("x", None)
    assert await queue.receiver.peek(1) is None


async def test_a_message_deferred_in_a_session_is_received_through_the_session(bus: Bus) -> None:
    queue = bus.create_queue(**SESSIONS)
    await queue.send(BrokeredMessage("x", session_id="one"))
    async with await queue.accept_session("one") as session:
        message = await receive_one(session)
        await session.defer(message)
        [received] = await session.receive_deferred(message.sequence_number)
        await session.complete(received)
    assert bus.message_counts(queue) == (0, 0)
