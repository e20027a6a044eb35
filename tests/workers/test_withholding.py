"""A queue withholds messages from its exclusive receiver, also if another process has the queue."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from tests.plain.entity import claim, names, orders
from tests.plain.raw import raw
from tests.plain.test_claims import has_ended
from tests.plain.test_withholding import NOT_ALLOWED, send_to, withhold
from tests.workers.crew import crew, holder_of

if TYPE_CHECKING:
    from pathlib import Path

    from tests.workers.crew import Crew


async def test_messages_are_withheld_whichever_process_has_the_queue(two_workers: Crew) -> None:
    async with raw(two_workers) as client, raw(two_workers) as other:
        for _ in range(4):  # queues of both processes
            queue = two_workers.make_queue()
            await send_to(client, queue, "aba")
            link = await claim(client, queue, 7)
            assert (await withhold(other, queue, "a")).condition == NOT_ALLOWED
            assert (await withhold(client, queue, "a")).status == 200
            assert names(await client.receive_all(link, 1)) == orders(2)
            assert (await withhold(client, queue)).status == 200
            assert names(await client.receive_all(link, 2)) == orders(1, 3)
            assert (await withhold(client, queue, "a")).status == 200
            await send_to(client, queue, "a", first=4)
            await client.detach(link)
            second = await claim(other, queue, 7)
            assert names(await other.receive(second, 4)) == orders(1, 2, 3, 4)


async def test_a_link_ends_when_the_process_that_withheld_its_messages_is_replaced(tmp_path: Path) -> None:
    """The next process does not withhold them: a receiver that does not know that would give them back for ever."""
    with crew(tmp_path, workers=2) as server:
        queues = [server.make_queue() for _ in range(4)]
        async with raw(server) as client:
            there = 1 - holder_of(server)
            links = {queue: await claim(client, queue, 7) for queue in queues}
            for queue in queues:
                assert (await withhold(client, queue, "a")).status == 200
            server.wait_for_another(there, server.strike(there, signal.SIGKILL))
            server.wait_until_well()
            for queue in queues:
                await send_to(client, queue, "ab")
            left = [link for link in links.values() if not has_ended(client, link)]
            assert len(left) == 2, "those of this process"
            for link in left:
                assert names(await client.receive_all(link, 1)) == orders(2)


async def test_fragments_of_both_processes_withhold_messages(two_workers: Crew) -> None:
    queue = two_workers.make_queue(EnablePartitioning="true")
    async with raw(two_workers) as client:
        link = await claim(client, queue, 7)
        assert (await withhold(client, queue, "a")).status == 200
        await send_to(client, queue, "ab" * 16)
        assert len(await client.receive(link, 16)) == 16
        assert await client.drain(link) == []
        assert (await withhold(client, queue)).status == 200
        assert sorted(names(await client.receive(link, 16))) == sorted(orders(*range(1, 33, 2)))
