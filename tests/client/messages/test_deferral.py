"""Deferred messages come to who asks for their numbers, and to nobody else."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.client.bus import SESSIONS, numbered_messages, receive, receive_one, texts
from twinbus.client import BrokeredMessage, ReceiveMode
from twinbus.model.errors import MessageNotFound

if TYPE_CHECKING:
    from tests.client.bus import Bus


async def test_a_deferred_message_comes_by_its_number_with_changed_properties(every_bus: Bus) -> None:
    queue = every_bus.create_queue()
    await queue.send(BrokeredMessage("later", properties={"kept": 1}))
    message = await receive_one(queue)
    await queue.defer(message, {"why": "too early"})
    assert await queue.receive(0) is None
    [again] = await queue.receive_deferred(message.sequence_number)
    assert (again.text, again.properties) == ("later", {"kept": 1, "why": "too early"})
    assert again.state == "deferred"
    await queue.renew_lock(again)
    await queue.complete(again)
    assert await queue.receiver.peek(1) is None


async def test_a_number_that_no_deferred_message_has_is_not_found_and_then_none_is_taken(bus: Bus) -> None:
    queue = bus.create_queue()
    await queue.send_batch(numbered_messages(2))
    numbers = []
    for message in await receive(queue, 2):
        await queue.defer(message)
        numbers.append(message.sequence_number)
    with pytest.raises(MessageNotFound):
        await queue.receive_deferred(*numbers, 4711)
    found = await queue.receive_deferred(*numbers)
    assert texts(found) == ["0", "1"]
    with pytest.raises(MessageNotFound):
        await queue.receive_deferred(numbers[0])
    for message in found:
        await queue.dead_letter(message, "late")
    assert bus.message_counts(queue)[1] == 2


async def test_deferred_messages_can_be_received_and_deleted(bus: Bus) -> None:
    queue = bus.create_queue()
    await queue.send(BrokeredMessage("x"))
    message = await receive_one(queue)
    await queue.defer(message)
    receiver = bus.shared_factory.create_message_receiver(queue.path, ReceiveMode.RECEIVE_AND_DELETE)
    [found] = await receiver.receive_deferred(message.sequence_number)
    assert (found.text, found.lock_token) == ("x", None)
    assert await queue.receiver.peek(1) is None


async def test_a_message_deferred_in_a_session_comes_to_who_has_the_session(bus: Bus) -> None:
    queue = bus.create_queue(**SESSIONS)
    await queue.send(BrokeredMessage("x", session_id="one"))
    async with await queue.accept_session("one") as session:
        message = await receive_one(session)
        await session.defer(message)
        [again] = await session.receive_deferred(message.sequence_number)
        await session.complete(again)
    assert bus.message_counts(queue) == (0, 0)
