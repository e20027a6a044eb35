"""One slow or failing disk costs the queues on it, for as long as it lasts, and no others. Longer: see __main__.py."""

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
"""So long each sync hangs below. Whoever waits for one of them waits longer than `AT_ONCE_S`."""
AT_ONCE_S = 4


async def test_a_disk_that_gets_slow_then_sick_then_well_costs_its_own_queues_only(tmp_path: Path) -> None:
    report = await run_scenario(SHORT, tmp_path)
    assert report.problems == [], str(report)


async def test_a_store_that_is_opened_again_on_a_slow_disk_stops_no_other(tmp_path: Path) -> None:
    report = await run_scenario(FAILING_AND_SLOW, tmp_path)
    assert report.problems == [], str(report)


@asynccontextmanager
async def a_hanging_store(folder: Path) -> AsyncIterator[RestartableServer]:
    """A server of two stores, a queue in each: that of "sick" hangs in a sync that has begun."""
    data = folder / "data"
    data.mkdir()
    with DiskShim(data, folder, has_trace=False) as shim:
        async with RestartableServer(folder, shim=shim, options=["--stores=2", "--store-timeout=30"]) as server:
            await management.create_queue(server.endpoint, "sick")
            await management.create_queue(server.endpoint, "well")
            async with connect_client(SenderClient(DeliveryChecker(random.Random(0)), "sick"), server.endpoint) as line:
                assert await line.wait_until(lambda: line.can_send, timeout_s=20)
                with shim.rule(Action.DELAY_SYNC, data / "stores" / "0", delay_ms=HANGS_S * 1000) as rule:
                    line.send(100)
                    assert not await line.wait_until(lambda: rule.hit_count, timeout_s=0.5)
                    assert rule.hit_count, "the first queue does not lie in the first store"
                    yield server


async def test_queues_are_made_while_one_of_a_hanging_store_is_deleted(tmp_path: Path) -> None:
    async with a_hanging_store(tmp_path) as server:
        deletion = asyncio.ensure_future(management.delete_queue(server.endpoint, "sick"))
        started = time.monotonic()
        while await management.queue_exists(server.endpoint, "sick"):
            pass
        await management.create_queue(server.endpoint, "another")
        took_s = time.monotonic() - started
        await deletion
    assert took_s < AT_ONCE_S


async def test_a_server_with_a_hanging_store_stops_when_told_to(tmp_path: Path) -> None:
    async with a_hanging_store(tmp_path) as server:
        await server.stop(timeout_s=AT_ONCE_S)
