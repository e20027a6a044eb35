"""A queue withholds messages from its exclusive receiver, also if another process owns the queue."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from tests.server.amqp.management.test_withholding import NOT_ALLOWED, send_to, withhold
from tests.server.amqp.test_exclusive_receivers import has_ended
from tests.support.entity_operations import attach_exclusive_receiver, message_ids, order_ids
from tests.support.multi_process_server import connected_worker, run_multi_process_server
from tests.support.raw_client import connect_raw

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.multi_process_server import MultiProcessServer


async def test_messages_are_withheld_whichever_process_owns_the_queue(two_workers: MultiProcessServer) -> None:
    async with connect_raw(two_workers) as client, connect_raw(two_workers) as other:
        for _ in range(4):  # queues in both processes
            queue = two_workers.create_queue()
            await send_to(client, queue, "aba")
            link = await attach_exclusive_receiver(client, queue, 7)
            assert (await withhold(other, queue, "a")).condition == NOT_ALLOWED
            assert (await withhold(client, queue, "a")).status == 200
            assert message_ids(await client.receive_all(link, 1)) == order_ids(2)
            assert (await withhold(client, queue)).status == 200
            assert message_ids(await client.receive_all(link, 2)) == order_ids(1, 3)
            assert (await withhold(client, queue, "a")).status == 200
            await send_to(client, queue, "a", first=4)
            await client.detach(link)
            second = await attach_exclusive_receiver(other, queue, 7)
            assert message_ids(await other.receive(second, 4)) == order_ids(1, 2, 3, 4)


async def test_a_link_ends_when_the_process_that_withheld_its_messages_is_replaced(tmp_path: Path) -> None:
    """The new process withholds nothing, so a receiver that was not detached would release the messages forever."""
    with run_multi_process_server(tmp_path, workers=2) as server:
        queues = [server.create_queue() for _ in range(4)]
        async with connect_raw(server) as client:
            remote = 1 - connected_worker(server)
            links = {queue: await attach_exclusive_receiver(client, queue, 7) for queue in queues}
            for queue in queues:
                assert (await withhold(client, queue, "a")).status == 200
            server.wait_for_replacement(remote, server.signal_worker(remote, signal.SIGKILL))
            server.wait_until_healthy()
            for queue in queues:
                await send_to(client, queue, "ab")
            attached = [link for link in links.values() if not has_ended(client, link)]
            assert len(attached) == 2, "those of this process"
            for link in attached:
                assert message_ids(await client.receive_all(link, 1)) == order_ids(2)


async def test_fragments_of_both_processes_withhold_messages(two_workers: MultiProcessServer) -> None:
    queue = two_workers.create_queue(EnablePartitioning="true")
    async with connect_raw(two_workers) as client:
        link = await attach_exclusive_receiver(client, queue, 7)
        assert (await withhold(client, queue, "a")).status == 200
        await send_to(client, queue, "ab" * 16)
        assert len(await client.receive(link, 16)) == 16
        assert await client.drain(link) == []
        assert (await withhold(client, queue)).status == 200
        assert sorted(message_ids(await client.receive(link, 16))) == sorted(order_ids(*range(1, 33, 2)))
