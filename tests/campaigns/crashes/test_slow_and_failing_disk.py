"""A slow or failing disk affects only its own queues, and only during the fault. Longer: see __main__.py."""

from __future__ import annotations

import asyncio
import random
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from tests.campaigns import management
from tests.campaigns.clients import SenderClient, connect_client
from tests.campaigns.crashes.slow_disk import FAILING_AND_SLOW, SHORT, run_scenario
from tests.campaigns.restartable_server import RestartableServer
from tests.support.delivery_checker.checker import DeliveryChecker
from tests.support.fault_injection.shim import Action, DiskShim

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

HANGS_S = 6
"""Duration of each sync on the hanging disk. An operation that waits for one takes longer than `AT_ONCE_S`."""
AT_ONCE_S = 4


async def test_a_slow_and_then_failing_disk_affects_its_own_queues_only(tmp_path: Path) -> None:
    report = await run_scenario(SHORT, tmp_path)
    assert report.problems == [], str(report)


async def test_reopening_a_store_on_a_slow_disk_does_not_block_other_stores(tmp_path: Path) -> None:
    report = await run_scenario(FAILING_AND_SLOW, tmp_path)
    assert report.problems == [], str(report)


@asynccontextmanager
async def hanging_store(folder: Path) -> AsyncIterator[RestartableServer]:
    """Run a server with two stores and a queue in each; the store of queue "sick" hangs in a sync."""
    data = folder / "data"
    data.mkdir()
    with DiskShim(data, folder, has_trace=False) as shim:
        async with RestartableServer(folder, shim=shim, options=["--stores=2", "--store-timeout=30"]) as server:
            await management.create_queue(server.endpoint, "sick")
            await management.create_queue(server.endpoint, "well")
            async with connect_client(
                SenderClient(DeliveryChecker(random.Random(0)), "sick"), server.endpoint
            ) as client:
                assert await client.wait_until(lambda: client.can_send, timeout_s=20)
                with shim.rule(Action.DELAY_SYNC, data / "stores" / "0", delay_ms=HANGS_S * 1000) as rule:
                    client.send(100)
                    assert not await client.wait_until(lambda: rule.hit_count, timeout_s=0.5)
                    assert rule.hit_count, "the first queue is not in the first store"
                    yield server


async def test_queues_are_created_while_a_queue_of_a_hanging_store_is_deleted(tmp_path: Path) -> None:
    async with hanging_store(tmp_path) as server:
        deletion = asyncio.ensure_future(management.delete_queue(server.endpoint, "sick"))
        started = time.monotonic()
        while await management.queue_exists(server.endpoint, "sick"):
            pass
        await management.create_queue(server.endpoint, "another")
        took_s = time.monotonic() - started
        await deletion
    assert took_s < AT_ONCE_S


async def test_a_server_with_a_hanging_store_stops_in_time(tmp_path: Path) -> None:
    async with hanging_store(tmp_path) as server:
        await server.stop(timeout_s=AT_ONCE_S)
