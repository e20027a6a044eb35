"""The overview: its sums are collected once for concurrent requests."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from twinbus.server.api.entity_index import EntityIndex
from twinbus.server.api.overview import MIN_KEPT_S, OverviewReader
from twinbus.server.runtime.system_clock import SystemClock


class SlowCollector:
    """A collector for which sums are expensive."""

    def __init__(self) -> None:
        self.count = 0
        self.peers = SimpleNamespace(numbers=(), owner_of=lambda _: 0)

    async def figures(self, _entities: object) -> list[object]:
        self.count += 1
        await asyncio.sleep(2 * MIN_KEPT_S)
        return []

    async def call_all(self, _call: object) -> dict[int, object]:
        return {}


async def test_concurrent_requests_collect_the_sums_once() -> None:
    namespace: Any = SimpleNamespace(clock=SystemClock(), entities={}, stores=[])
    gateway: Any = SimpleNamespace(
        namespace=namespace,
        administration=SimpleNamespace(namespace="contoso"),
        outage_switch=SimpleNamespace(list_outages=list),
    )
    collector: Any = SlowCollector()
    reader = OverviewReader(gateway, EntityIndex(namespace), collector)
    overviews = await asyncio.gather(*[reader.read() for _ in range(10)])
    assert len(overviews) == 10
    assert collector.count == 1
