"""The server's delivery ids start where no client's do, because pyamqp confuses the two directions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.support.raw_client import connect_raw
from twinbus.amqp.message import data

if TYPE_CHECKING:
    from tests.support.server_process import ServerProcess


async def test_delivery_ids_of_the_server_are_far_above_those_of_a_client(server: ServerProcess, queue: str) -> None:
    async with connect_raw(server) as client:
        link = await client.attach_sender(queue)
        for _ in range(3):
            assert await client.send(link, data(b"x")) is None
        received = await client.receive(await client.attach_receiver(queue), 3)
    ids = [delivery.delivery_id for delivery in received]
    assert ids == list(range(ids[0], ids[0] + 3))
    assert ids[0] >= 2**28
