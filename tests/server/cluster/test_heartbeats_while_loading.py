"""A worker that loads a large namespace still sends heartbeats."""

from __future__ import annotations

import asyncio
from random import Random

from twinbus.broker.namespace import Namespace
from twinbus.model.queue import QueueDescription
from twinbus.server.catalogue.replica import CatalogueReplica
from twinbus.store.catalogue import QUEUE, EntityRow
from twinbus.store.memory import MemoryDisk, MemoryStore
from twinbus.testing.clock import FakeClock

COUNT = 1_000


async def test_other_tasks_run_while_many_entities_are_loaded() -> None:
    loop, turns = asyncio.get_running_loop(), 0
    namespace = Namespace(
        clock=FakeClock(), random=Random(1), call_at_turn_end=loop.call_soon, on_failed=lambda _: None
    )
    store = MemoryStore(MemoryDisk(), name="0", post_call=loop.call_soon)
    namespace.add_store(store)
    rows = [
        EntityRow(
            id=number + 1,
            kind=QUEUE,
            path=f"queue-{number}",
            description=QueueDescription(),
            created_ms=0,
            updated_ms=0,
            fragments=(0,),
        )
        for number in range(COUNT)
    ]

    async def beat() -> None:
        nonlocal turns
        while len(namespace.entities) < COUNT:
            turns += 1
            await asyncio.sleep(0)

    async def step() -> None:
        while True:
            while store.has_work:
                store.step()
            await asyncio.sleep(0)

    heartbeats, stepping = loop.create_task(beat()), loop.create_task(step())
    await CatalogueReplica(namespace, "contoso").load([(row, ()) for row in rows])
    stepping.cancel()
    await heartbeats
    assert turns >= COUNT // 200
