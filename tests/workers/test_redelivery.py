"""Q17: a worker that was killed knows what an exclusive receiver of its queues had, wherever that is connected."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from tests.plain.entity import claim, names, orders, send_orders
from tests.plain.raw import raw
from tests.plain.test_claims_across_hosts import counts
from tests.workers.crew import crew

if TYPE_CHECKING:
    from pathlib import Path


async def test_q17_messages_that_a_killed_worker_had_delivered_say_so_when_they_come_again(tmp_path: Path) -> None:
    with crew(tmp_path, workers=2) as server:
        queues = [server.make_queue() for _ in range(4)]  # in stores of both
        async with raw(server) as first:
            for queue in queues:
                await send_orders(first, queue, [1, 2])
                assert len(await first.receive(await claim(first, queue, 1))) == 1
            server.wait_for_another(1, server.strike(1, signal.SIGKILL))
            server.wait_until_well()
        async with raw(server) as second:
            for queue in queues:
                found = await second.receive(await claim(second, queue, 2), 2)
                assert names(found) == orders(1, 2)
                assert (counts(found)[0] or 0) > 0, queue
