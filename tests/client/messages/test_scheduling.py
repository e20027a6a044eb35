"""Scheduled messages are delivered when they are due, unless they are cancelled."""

from __future__ import annotations

import asyncio
import datetime as dt
from typing import TYPE_CHECKING

import pytest

from tests.client.bus import SESSIONS, receive, receive_one
from twinbus.client import BrokeredMessage
from twinbus.model.errors import MessageNotFound

if TYPE_CHECKING:
    from tests.client.bus import Bus


def in_seconds(seconds: float = 1) -> dt.datetime:
    return dt.datetime.now(dt.UTC) + dt.timedelta(seconds=seconds)


async def test_a_scheduled_message_is_delivered_unchanged_when_it_is_due(every_bus: Bus) -> None:
    queue = every_bus.create_queue()
    when = in_seconds()
    message = BrokeredMessage("later", label="label", properties={"n": 1})
    number = await queue.schedule(message, when)
    assert message.scheduled_enqueue_time_utc is None, "the caller's message is unchanged"
    waiting = await queue.peek()
    assert waiting is not None
    assert (waiting.sequence_number, waiting.state) == (number, "scheduled")
    received = await receive_one(queue)
    assert received.enqueued_time_utc >= when.replace(microsecond=when.microsecond // 1000 * 1000)
    assert (received.text, received.label, received.properties, received.state) == (
        "later",
        "label",
        {"n": 1},
        "active",
    )
    assert received.sequence_number != number


async def test_a_sent_message_can_have_a_scheduled_enqueue_time(bus: Bus) -> None:
    queue = bus.create_queue()
    await queue.send(BrokeredMessage("later", scheduled_enqueue_time_utc=in_seconds()))
    assert await queue.receive(0) is None
    assert (await receive_one(queue)).text == "later"


async def test_cancel_scheduled_removes_all_messages_or_none_if_one_is_missing(bus: Bus) -> None:
    queue = bus.create_queue()
    numbers = await asyncio.gather(*[queue.schedule(BrokeredMessage(f"{n}"), in_seconds(3600)) for n in range(3)])
    with pytest.raises(MessageNotFound):
        await queue.cancel_scheduled(numbers[0], 4711)
    assert len(await queue.peek_batch(10)) == 3
    await queue.cancel_scheduled(*numbers)
    assert await queue.receiver.peek(1) is None
    with pytest.raises(MessageNotFound):
        await queue.cancel_scheduled(numbers[0])


async def test_a_message_scheduled_in_the_past_is_delivered_at_once(bus: Bus) -> None:
    queue = bus.create_queue()
    await queue.schedule(BrokeredMessage("now"), in_seconds(-60))
    assert [message.text for message in await receive(queue, 1)] == ["now"]


async def test_a_message_of_a_session_is_scheduled_into_it(bus: Bus) -> None:
    queue = bus.create_queue(**SESSIONS)
    await queue.schedule(BrokeredMessage("x", session_id="one"), in_seconds(0.5))
    async with await queue.accept_session(timeout=20) as session:
        assert (session.session_id, (await receive_one(session)).text) == ("one", "x")
