"""Properties of messages that were parked and restored, as the Azure SDK reads them."""

from __future__ import annotations

import asyncio
import datetime as dt
from typing import TYPE_CHECKING

from tests.sdk.bus import receive
from twinbus.client import BrokeredMessage, MessagingFactory
from twinbus.client.pairing.backlog import rewriting

if TYPE_CHECKING:
    from tests.sdk.bus import Bus
    from tests.support.server_process import ServerProcess


async def park_and_restore(server: ServerProcess, backlog: str, queue: str) -> None:
    """Park a message, restore it, and send it to its destination like the syphon."""
    async with MessagingFactory.from_connection_string(server.connection_string) as factory:
        parked = rewriting.park(BrokeredMessage("apples").encode(0), 0, queue, is_possible_duplicate=False)
        await factory.create_message_sender(backlog).deliver(parked)
        receiver = factory.create_message_receiver(backlog)
        message = await receiver.receive()
        assert message is not None
        restored = rewriting.restore(message.payload, 0, lock_ms=60_000)
        assert isinstance(restored, rewriting.RestoredMessage)
        await factory.create_message_sender(restored.path).deliver(restored.payload)
        await receiver.complete(message)


def test_q09_the_parked_time_is_a_number_of_milliseconds_to_other_sdks(
    bus: Bus, server: ServerProcess, queue: str
) -> None:
    asyncio.run(park_and_restore(server, server.create_queue(LockDuration="PT1M"), queue))
    (message,) = receive(bus.receiver(queue), 1)
    properties = message.application_properties
    assert type(properties[b"x-ms-parked-for-ms"]) is int
    assert 0 <= properties[b"x-ms-parked-for-ms"] < 60_000
    assert dt.datetime.fromtimestamp(properties[b"x-ms-parked-at"] / 1000, dt.UTC).year >= 2026
