"""Scheduled messages come when they are due, unless they are cancelled before."""

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


def soon(seconds: float = 1) -> dt.datetime:
    return dt.datetime.now(dt.UTC) + dt.timedelta(seconds=seconds)


async def test_a_scheduled_message_comes_when_it_is_due_with_what_it_was_sent_with(every_bus: Bus) -> None:
    queue = every_bus.create_queue()
    when = soon()
    message = BrokeredMessage("later", label="label", properties={"n": 1})
    number = await queue.schedule(message, when)
    assert message.scheduled_enqueue_time_utc is None, "the caller's message is as it was"
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


async def test_a_message_can_carry_its_own_time(bus: Bus) -> None:
    queue = bus.create_queue()
    await queue.send(BrokeredMessage("later", scheduled_enqueue_time_utc=soon()))
    assert await queue.receive(0) is None
    assert (await receive_one(queue)).text == "later"


async def test_cancelled_messages_never_come_and_none_is_if_one_is_not_there(bus: Bus) -> None:
    queue = bus.create_queue()
    numbers = await asyncio.gather(*[queue.schedule(BrokeredMessage(f"{n}"), soon(3600)) for n in range(3)])
    with pytest.raises(MessageNotFound):
        await queue.cancel_scheduled(numbers[0], 4711)
    assert len(await queue.peek_batch(10)) == 3
    await queue.cancel_scheduled(*numbers)
    assert await queue.receiver.peek(1) is None
    with pytest.raises(MessageNotFound):
        await queue.cancel_scheduled(numbers[0])


async def test_a_schedule_in_the_past_is_now(bus: Bus) -> None:
    queue = bus.create_queue()
    await queue.schedule(BrokeredMessage("now"), soon(-60))
    assert [message.text for message in await receive(queue, 1)] == ["now"]


async def test_a_message_of_a_session_is_scheduled_into_it(bus: Bus) -> None:
    queue = bus.create_queue(**SESSIONS)
    await queue.schedule(BrokeredMessage("x", session_id="one"), soon(0.5))
    async with await queue.accept_session(timeout=20) as session:
        assert (session.session_id, (await receive_one(session)).text) == ("one", "x")
