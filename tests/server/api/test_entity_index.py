"""The index of entities stays in order while entities are created, replaced and deleted."""

from __future__ import annotations

from random import Random
from types import SimpleNamespace
from typing import Any, cast

from twinbus.server.api.entity_index import EntityIndex


def make_entity(entity_id: int) -> Any:  # noqa: ANN401  # the index needs the id only
    return SimpleNamespace(entity_id=entity_id)


def test_the_index_equals_one_that_is_filled_anew() -> None:
    random, entities = Random(1), {f"queue-{number}": make_entity(number) for number in range(20)}
    namespace = cast("Any", SimpleNamespace(entities=entities))
    index = EntityIndex(namespace)
    index.fill()
    for entity_id in range(100, 400):
        key = f"queue-{random.randrange(40)}"
        if key in entities and random.random() < 0.5:
            del entities[key]
        elif random.random() < 0.9:
            entities[key] = make_entity(entity_id)
        index.update(key)
        anew = EntityIndex(namespace)
        assert index.all() == anew.all() == [entities[one] for one in sorted(entities)]
        assert set(index.ids) == set(anew.ids)
        assert list(index.iterate("queue-1", "queue-11")) == list(anew.iterate("queue-1", "queue-11"))


def test_every_change_has_its_own_version() -> None:
    entities = {"a": make_entity(1)}
    index = EntityIndex(cast("Any", SimpleNamespace(entities=entities)))
    versions = [index.version]
    for _ in range(2):
        index.update("a")
        versions.append(index.version)
    assert len(set(versions)) == 3


def test_a_list_of_all_entities_does_not_change_later() -> None:
    entities = {"a": make_entity(1)}
    index = EntityIndex(cast("Any", SimpleNamespace(entities=entities)))
    before = index.all()
    entities["b"] = make_entity(2)
    index.update("b")
    assert len(before) == 1
