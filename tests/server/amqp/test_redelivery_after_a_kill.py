"""Q17: after a server was killed, the next exclusive receiver can tell which messages the last one may have had."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.server.amqp.test_exclusive_receiver_takeover import counts, deferred_names, take_deferred
from tests.support.entity_operations import attach_exclusive_receiver, defer, message_ids, order_ids, send_orders
from tests.support.raw_client import connect_raw
from tests.support.server_process import run_server
from twinbus.amqp.message import Message

if TYPE_CHECKING:
    from pathlib import Path


async def test_q17_messages_that_were_delivered_before_a_kill_say_so_after_it(tmp_path: Path) -> None:
    with run_server(tmp_path) as server:
        queue, idle = server.create_queue(), server.create_queue()
        async with connect_raw(server) as first:
            await send_orders(first, queue, [1, 2, 3, 4])
            await send_orders(first, idle, [1])
            link = await attach_exclusive_receiver(first, queue, 1)
            received = await first.receive(link, 3)
            assert counts(received) == [0, 0, 0]
            number = await defer(first, link, received[0])
            assert deferred_names(await take_deferred(first, queue, [number])) == order_ids(1)
            await first.receive(await first.attach_receiver(idle))
            server.kill()
        server.start()
        async with connect_raw(server) as second:
            link = await attach_exclusive_receiver(second, queue, 2)
            found = await second.receive(link, 3)
            assert message_ids(found) == order_ids(2, 3, 4)
            assert counts(found)[:2] == [1, 1]
            taken = await take_deferred(second, queue, [number])
            header = Message(taken.body["messages"][0]["message"]).header
            assert header is not None
            assert header.delivery_count == 1
            idler = await second.attach_receiver(idle)
            assert counts(await second.receive(idler)) == [0], "a receiver without a claim is told nothing"
