"""The enqueued times of oldest messages: a request reads a limited number, and all entities get their turn."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from twinbus.broker.ports.inspection import PartInspection
from twinbus.server.api.collector import ENTITIES_PER_CALL, MAX_READS, Collector
from twinbus.server.api.entity_index import EntityIndex
from twinbus.server.api.oldest_messages import OldestMessages

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinbus.broker.namespace import Namespace
    from twinbus.server.api.process_calls import EntityFigures
    from twinbus.server.api.process_status import ProcessStatus


class BusyPart(PartInspection):
    """A part that loses a message between any two requests."""

    departure_count = 0

    def departures(self) -> int:
        self.departure_count += 1
        return self.departure_count

    def find_oldest_active(self, on_result: Callable[[int | None], None]) -> None:
        on_result(1_000)


async def test_each_busy_entity_gets_its_turn() -> None:
    oldest, parts = OldestMessages(), [BusyPart(entity_id, 0) for entity_id in range(10)]
    for _ in range(4):
        await oldest.read(parts, 3)
    assert [oldest.known(part) for part in parts] == [1_000] * 10


async def test_the_reads_of_a_request_are_shared_by_all_entities() -> None:
    limits: list[int] = []

    class Process:
        async def figures(self, _entities: list[object], max_reads: int) -> list[EntityFigures]:
            limits.append(max_reads)
            return []

    index = EntityIndex(cast("Namespace", SimpleNamespace(entities={})))
    collector = Collector(cast("ProcessStatus", Process()), index)
    entities: list[Any] = [SimpleNamespace(entity_id=number) for number in range(4 * ENTITIES_PER_CALL)]
    await collector.figures(entities)
    assert limits == [MAX_READS // 4] * 4
