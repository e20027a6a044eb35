"""The collection of figures from several processes, one of which may be silent."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import msgspec

from twinbus.broker.ports.inspection import PartFigures
from twinbus.server.api import collector
from twinbus.server.api.collector import MIN_KEPT_FIGURES, Collector
from twinbus.server.api.entity_index import EntityIndex
from twinbus.server.api.process_calls import CALL_DECODER, EntityFigures, GetFigures
from twinbus.server.api.usage_rates import NO_RATES

if TYPE_CHECKING:
    import pytest

OWN, OTHER = 0, 1


class TwoProcesses:
    """This process, and another one that owns all entities until it is silent."""

    number = OWN
    numbers = (OWN, OTHER)
    is_silent = False

    def owner_of(self, _store: int) -> int:
        return OTHER

    async def handle(self, call: GetFigures) -> list[EntityFigures]:
        return [make_figures(entity_id, None) for entity_id in call.entity_ids]

    async def call(self, _number: int, request: bytes) -> bytes | None:
        call = CALL_DECODER.decode(request)
        assert isinstance(call, GetFigures)
        figures = PartFigures(enqueued=7)
        reply = [make_figures(entity_id, figures) for entity_id in call.entity_ids]
        return None if self.is_silent else msgspec.msgpack.encode(reply)


def make_figures(entity_id: int, figures: PartFigures | None) -> EntityFigures:
    return EntityFigures(entity_id, figures, None, 0, 0, 0, NO_RATES)


def make_entity(entity_id: int) -> Any:  # noqa: ANN401  # stands for an entity
    return SimpleNamespace(entity_id=entity_id, parts=[SimpleNamespace(store=0)])


def make_collector(processes: TwoProcesses, entities: dict[str, Any]) -> Collector:
    process: Any = processes
    namespace: Any = SimpleNamespace(entities=entities)
    made = Collector(process, EntityIndex(namespace))
    made.peers = processes
    return made


async def test_last_figures_of_a_silent_process_count_as_incomplete_when_they_are_old(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    processes, entity = TwoProcesses(), make_entity(1)
    collecting = make_collector(processes, {"orders": entity})
    await collecting.figures([entity])
    processes.is_silent = True
    (recent,) = await collecting.figures([entity])
    assert (recent.figures is not None and recent.figures.enqueued, recent.is_complete) == (7, True)
    monkeypatch.setattr(collector, "MAX_FIGURES_AGE_S", 0.0)
    (old,) = await collecting.figures([entity])
    assert (old.figures is not None and old.figures.enqueued, old.is_complete) == (7, False)


async def test_figures_of_deleted_entities_are_dropped() -> None:
    collecting = make_collector(TwoProcesses(), {})
    for entity_id in range(3 * MIN_KEPT_FIGURES):  # entities that are deleted after one look at them
        await collecting.figures([make_entity(entity_id)])
    assert collecting.kept_count <= 2 * (MIN_KEPT_FIGURES + 1)
