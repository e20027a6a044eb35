"""A page of entities does not block the event loop, whatever part of the entities belongs to it."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from twinbus.server.api import time_slices
from twinbus.server.api.entity_index import EntityIndex
from twinbus.server.api.entity_status import EntityReader

if TYPE_CHECKING:
    import pytest

ENTITY_COUNT = 1_000


class NoFigures:
    async def figures(self, entities: list[object]) -> list[object]:
        assert not entities
        return []


async def test_other_work_runs_while_the_entities_of_a_page_are_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_slices, "SLICE_S", 0.0)
    paths = [f"orders-{number:04}" for number in range(ENTITY_COUNT)]
    entities = {path: SimpleNamespace(path=path, entity_id=path) for path in paths}
    namespace: Any = SimpleNamespace(entities=entities)
    index, collector = EntityIndex(namespace), NoFigures()
    reader = EntityReader(namespace, index, collector)  # type: ignore[arg-type]
    is_finished = False

    async def change_entities() -> None:
        while not is_finished:
            path, _ = entities.popitem()
            index.update(path)
            await asyncio.sleep(0)

    changing = asyncio.create_task(change_entities())
    page = await reader.page(lambda _: False, ["", "orders-0500"], prefix="", kind=None, after="", top=10)
    is_finished = True
    await changing
    assert (page.entities, page.next) == ([], None)
    assert len(entities) < ENTITY_COUNT - 5
