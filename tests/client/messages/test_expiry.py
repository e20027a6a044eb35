"""Time to live of messages and queues: expired messages are dropped or dead-lettered."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

import pytest

from tests.client.bus import receive_one, wait_until
from twinbus.client import BrokeredMessage
from twinbus.model.errors import InvalidArgument

if TYPE_CHECKING:
    from tests.client.bus import Bus


async def test_an_expired_message_is_dropped_or_dead_lettered_as_configured(bus: Bus) -> None:
    dropping = bus.create_queue()
    dead_lettering = bus.create_queue(DeadLetteringOnMessageExpiration="true")
    for queue in (dropping, dead_lettering):
        await queue.send(BrokeredMessage("x", time_to_live=dt.timedelta(milliseconds=300)))
    await wait_until(lambda: bus.message_counts(dropping) == (0, 0) and bus.message_counts(dead_lettering) == (0, 1))
    assert await dropping.receive(0) is None
    dead = await receive_one(dead_lettering.dead_letter_receiver())
    assert dead.dead_letter_reason == "TTLExpiredException"


async def test_the_default_time_to_live_of_the_queue_is_an_upper_bound(bus: Bus) -> None:
    queue = bus.create_queue(DefaultMessageTimeToLive="PT1M")
    await queue.send(BrokeredMessage("x", time_to_live=dt.timedelta(hours=1)))
    message = await receive_one(queue)
    assert message.expires_at_utc == message.enqueued_time_utc + dt.timedelta(minutes=1)


async def test_a_time_to_live_can_exceed_the_ttl_header_and_cannot_be_zero(bus: Bus) -> None:
    queue = bus.create_queue()
    long = dt.timedelta(days=400)
    await queue.send(BrokeredMessage("x", time_to_live=long))
    assert (await receive_one(queue)).time_to_live == long
    with pytest.raises(InvalidArgument):
        await queue.send(BrokeredMessage("x", time_to_live=dt.timedelta(0)))
