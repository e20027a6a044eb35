"""Q17: a restarted worker knows which messages an exclusive receiver had, whichever process the receiver used."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from tests.server.amqp.test_exclusive_receiver_takeover import counts
from tests.support.entity_operations import attach_exclusive_receiver, message_ids, order_ids, send_orders
from tests.support.multi_process_server import run_multi_process_server
from tests.support.raw_client import connect_raw

if TYPE_CHECKING:
    from pathlib import Path


async def test_q17_redelivered_messages_of_a_killed_worker_have_a_delivery_count(tmp_path: Path) -> None:
    with run_multi_process_server(tmp_path, workers=2) as server:
        queues = [server.create_queue() for _ in range(4)]  # in stores of both
        async with connect_raw(server) as first:
            for queue in queues:
                await send_orders(first, queue, [1, 2])
                assert len(await first.receive(await attach_exclusive_receiver(first, queue, 1))) == 1
            server.wait_for_replacement(1, server.signal_worker(1, signal.SIGKILL))
            server.wait_until_healthy()
        async with connect_raw(server) as second:
            for queue in queues:
                received = await second.receive(await attach_exclusive_receiver(second, queue, 2), 2)
                assert message_ids(received) == order_ids(1, 2)
                assert (counts(received)[0] or 0) > 0, queue
