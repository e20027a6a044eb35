"""Q17: after the server is killed, delivery counts show which messages the last exclusive receiver may have got."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.server.amqp.test_exclusive_receiver_takeover import counts, deferred_ids, receive_deferred
from tests.support.entity_operations import attach_exclusive_receiver, defer, message_ids, order_ids, send_orders
from tests.support.raw_client import connect_raw
from tests.support.server_process import run_server
from twinbus.amqp.message import Message

if TYPE_CHECKING:
    from pathlib import Path


async def test_q17_messages_delivered_before_a_kill_have_a_delivery_count_after_it(tmp_path: Path) -> None:
    with run_server(tmp_path) as server:
        queue, unclaimed_queue = server.create_queue(), server.create_queue()
        async with connect_raw(server) as first:
            await send_orders(first, queue, [1, 2, 3, 4])
            await send_orders(first, unclaimed_queue, [1])
            link = await attach_exclusive_receiver(first, queue, 1)
            received = await first.receive(link, 3)
            assert counts(received) == [0, 0, 0]
            number = await defer(first, link, received[0])
            assert deferred_ids(await receive_deferred(first, queue, [number])) == order_ids(1)
            await first.receive(await first.attach_receiver(unclaimed_queue))
            server.kill()
        server.start()
        async with connect_raw(server) as second:
            link = await attach_exclusive_receiver(second, queue, 2)
            redelivered = await second.receive(link, 3)
            assert message_ids(redelivered) == order_ids(2, 3, 4)
            assert counts(redelivered)[:2] == [1, 1]
            deferred = await receive_deferred(second, queue, [number])
            header = Message(deferred.body["messages"][0]["message"]).header
            assert header is not None
            assert header.delivery_count == 1
            ordinary_receiver = await second.attach_receiver(unclaimed_queue)
            assert counts(await second.receive(ordinary_receiver)) == [0], "only claims raise the delivery count"
