"""The ids of what the server sends are none that its clients use themselves: pyamqp confuses the two."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.support.raw_client import connect_raw
from twinbus.amqp.message import data

if TYPE_CHECKING:
    from tests.support.server_process import ServerProcess


async def test_a_disposition_of_a_delivered_message_is_never_taken_for_that_of_a_request(
    server: ServerProcess, queue: str
) -> None:
    async with connect_raw(server) as client:
        link = await client.attach_sender(queue)
        for _ in range(3):
            assert await client.send(link, data(b"x")) is None
        received = await client.receive(await client.attach_receiver(queue), 3)
    ids = [delivery.delivery_id for delivery in received]
    assert ids == list(range(ids[0], ids[0] + 3))
    assert ids[0] >= 2**28
