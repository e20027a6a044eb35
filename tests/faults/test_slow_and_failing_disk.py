"""One slow or failing disk costs the queues on it, for as long as it lasts, and no others. Longer: see __main__.py."""

from __future__ import annotations

import asyncio
import random
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from tests.faults import management
from tests.faults.line import SendingLine, connected
from tests.faults.server_process import ServerProcess
from tests.faults.shim import Action, Shim
from tests.faults.slow_disk import FAILING_AND_SLOW, SHORT, suffer
from tests.ledger.ledger import Ledger

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

HANGS_S = 6
"""So long each sync hangs below. Whoever waits for one of them waits longer than `AT_ONCE_S`."""
AT_ONCE_S = 4


async def test_a_disk_that_gets_slow_then_sick_then_well_costs_its_own_queues_only(tmp_path: Path) -> None:
    report = await suffer(SHORT, tmp_path)
    assert report.problems == [], str(report)


async def test_a_store_that_is_opened_again_on_a_slow_disk_stops_no_other(tmp_path: Path) -> None:
    report = await suffer(FAILING_AND_SLOW, tmp_path)
    assert report.problems == [], str(report)


@asynccontextmanager
async def a_hanging_store(folder: Path) -> AsyncIterator[ServerProcess]:
    """A server of two stores, a queue in each: that of "sick" hangs in a sync that has begun."""
    data = folder / "data"
    data.mkdir()
    with Shim(data, folder, traces=False) as shim:
        async with ServerProcess(folder, shim=shim, options=["--stores=2", "--store-timeout=30"]) as server:
            await management.make_queue(server.endpoint, "sick")
            await management.make_queue(server.endpoint, "well")
            async with connected(SendingLine(Ledger(random.Random(0)), "sick"), server.endpoint) as line:
                assert await line.until(lambda: line.has_room, patience_s=20)
                with shim.rule(Action.DELAY_SYNC, data / "stores" / "0", delay_ms=HANGS_S * 1000) as rule:
                    line.send(100)
                    assert not await line.until(lambda: rule.hits, patience_s=0.5)
                    assert rule.hits, "the first queue does not lie in the first store"
                    yield server


async def test_queues_are_made_while_one_of_a_hanging_store_is_deleted(tmp_path: Path) -> None:
    async with a_hanging_store(tmp_path) as server:
        deletion = asyncio.ensure_future(management.delete_queue(server.endpoint, "sick"))
        started = time.monotonic()
        while await management.is_there(server.endpoint, "sick"):
            pass
        await management.make_queue(server.endpoint, "another")
        took_s = time.monotonic() - started
        await deletion
    assert took_s < AT_ONCE_S


async def test_a_server_with_a_hanging_store_stops_when_told_to(tmp_path: Path) -> None:
    async with a_hanging_store(tmp_path) as server:
        await server.stop(patience_s=AT_ONCE_S)
