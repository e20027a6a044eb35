"""The overview: its sums, and the alerts that depend on them."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from twinbus.broker.ports.inspection import PartFigures
from twinbus.server.api import overview
from twinbus.server.api.entity_index import EntityIndex
from twinbus.server.api.overview import MIN_KEPT_S, OverviewReader
from twinbus.server.api.process_calls import EntityFigures
from twinbus.server.api.usage_rates import NO_RATES
from twinbus.server.runtime.system_clock import SystemClock

if TYPE_CHECKING:
    import pytest

SLOW_S = 2 * MIN_KEPT_S


class SlowCollector:
    """A collector that uses the processor, or only waits for another process."""

    def __init__(self, *results: list[EntityFigures], uses_processor: bool = True) -> None:
        self.count = 0
        self.uses_processor = uses_processor
        self.results = list(results)
        self.peers = SimpleNamespace(numbers=(), owner_of=lambda _: 0)

    async def figures(self, _entities: object) -> list[EntityFigures]:
        self.count += 1
        await asyncio.sleep(0 if self.uses_processor else SLOW_S)
        end_s = time.thread_time() + (SLOW_S if self.uses_processor else 0)
        while time.thread_time() < end_s:
            pass
        return self.results.pop(0) if self.results else []

    async def call_all(self, _call: object) -> dict[int, object]:
        return {}


def make_reader(collector: Any) -> OverviewReader:  # noqa: ANN401  # see SlowCollector
    namespace: Any = SimpleNamespace(clock=SystemClock(), entities={}, stores=[])
    gateway: Any = SimpleNamespace(
        namespace=namespace,
        administration=SimpleNamespace(namespace="contoso"),
        outage_switch=SimpleNamespace(list_outages=list),
    )
    return OverviewReader(gateway, EntityIndex(namespace), collector)


def dead_letters(count: int, *, is_complete: bool = True) -> list[EntityFigures]:
    figures = PartFigures(dead_lettered_total=count)
    return [EntityFigures(1, figures, None, 0, 0, 0, NO_RATES, is_complete=is_complete)]


async def test_concurrent_requests_collect_the_sums_once() -> None:
    collector = SlowCollector()
    reader = make_reader(collector)
    overviews = await asyncio.gather(*[reader.read() for _ in range(10)])
    assert len(overviews) == 10
    assert collector.count == 1


async def test_sums_are_current_although_a_process_does_not_answer() -> None:
    collector = SlowCollector(uses_processor=False)
    reader = make_reader(collector)
    await reader.read()
    await reader.read()
    assert collector.count == 2


async def test_dead_letters_of_a_process_that_answers_again_are_not_new(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overview, "MIN_KEPT_S", 1.0)  # no sums are kept
    reader = make_reader(SlowCollector(dead_letters(0, is_complete=False), dead_letters(5), dead_letters(7)))
    growths = [[alert.text for alert in (await reader.read()).alerts] for _ in range(3)]
    assert growths == [[], [], ["2 messages were dead-lettered in the last 5 minutes"]]
