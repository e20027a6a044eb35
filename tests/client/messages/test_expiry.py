"""A message lives as long as it says, or as its queue says; then it is dropped or dead-lettered."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

import pytest

from tests.client.bus import receive_one, wait_until
from twinbus.client import BrokeredMessage
from twinbus.model.errors import InvalidArgument

if TYPE_CHECKING:
    from tests.client.bus import Bus


async def test_an_expired_message_is_dropped_or_dead_lettered_as_its_queue_says(bus: Bus) -> None:
    dropping = bus.create_queue()
    keeping = bus.create_queue(DeadLetteringOnMessageExpiration="true")
    for queue in (dropping, keeping):
        await queue.send(BrokeredMessage("x", time_to_live=dt.timedelta(milliseconds=300)))
    await wait_until(lambda: bus.message_counts(dropping) == (0, 0) and bus.message_counts(keeping) == (0, 1))
    assert await dropping.receive(0) is None
    dead = await receive_one(keeping.dead_letter_receiver())
    assert dead.dead_letter_reason == "TTLExpiredException"


async def test_the_queue_says_how_long_a_message_lives_at_most(bus: Bus) -> None:
    queue = bus.create_queue(DefaultMessageTimeToLive="PT1M")
    await queue.send(BrokeredMessage("x", time_to_live=dt.timedelta(hours=1)))
    message = await receive_one(queue)
    assert message.expires_at_utc == message.enqueued_time_utc + dt.timedelta(minutes=1)


async def test_a_life_can_be_longer_than_a_header_can_say_and_cannot_be_nothing(bus: Bus) -> None:
    queue = bus.create_queue()
    long = dt.timedelta(days=400)
    await queue.send(BrokeredMessage("x", time_to_live=long))
    assert (await receive_one(queue)).time_to_live == long
    with pytest.raises(InvalidArgument):
        await queue.send(BrokeredMessage("x", time_to_live=dt.timedelta(0)))
