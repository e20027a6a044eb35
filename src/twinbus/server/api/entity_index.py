"""The paths of all entities in order, for lists in pages.

Owns the order. It is computed again only after an entity was created or deleted, so that a page of a list does not
look at entities outside the page.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING

from twinbus.model.path import canonical_key

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from twinbus.broker.namespace import Namespace, Queue, Subscription, Topic

_AFTER_ALL = "\U0010ffff"
"""A character that sorts after all others in paths."""


class EntityIndex:
    """The entities of a namespace, in order of path."""

    def __init__(self, namespace: Namespace) -> None:
        """Create an index, which is filled at the first use."""
        self._entities = namespace.entities
        self._keys: list[str] = []
        self._is_current = False
        self._by_id: dict[int, Queue | Topic | Subscription] = {}

    def invalidate(self) -> None:
        """Compute the order again at the next use, because an entity was added or removed."""
        self._is_current = False

    def keys(self) -> Sequence[str]:
        """Return the canonical paths of all entities, in order."""
        self._refresh()
        return self._keys

    def all(self) -> list[Queue | Topic | Subscription]:
        """Return all entities, in order."""
        return [self._entities[key] for key in self.keys()]

    def find_ids(self, entity_ids: Sequence[int]) -> list[Queue | Topic | Subscription]:
        """Return the entities with these ids, without those that do not exist in this process."""
        self._refresh()
        return [self._by_id[entity_id] for entity_id in entity_ids if entity_id in self._by_id]

    @property
    def count(self) -> int:
        """The number of entities."""
        return len(self._entities)

    @property
    def ids(self) -> set[int]:
        """The ids of all entities."""
        self._refresh()
        return set(self._by_id)

    def iterate(self, prefix: str, after: str, scopes: Sequence[str] = ("",)) -> Iterator[Queue | Topic | Subscription]:
        """Yield the entities whose path starts with `prefix` and one of `scopes`, after the path `after`, in order.

        Entities may be created and deleted while the caller iterates.
        """
        keys, start, end = self.keys(), canonical_key(prefix), ""
        for scope in sorted(scopes):
            if start.startswith(scope) or scope.startswith(start):
                longer = max(start, scope, key=len)
                first = bisect_right(keys, max(canonical_key(after), end)) if after or end else 0
                stop = bisect_left(keys, longer + _AFTER_ALL)
                yield from self._find_keys(keys[max(bisect_left(keys, longer), first) : stop])
                end = keys[stop - 1] if stop else ""

    def _find_keys(self, keys: Sequence[str]) -> Iterator[Queue | Topic | Subscription]:
        for key in keys:
            entity = self._entities.get(key)  # None if the entity was deleted since the page was begun
            if entity is not None:
                yield entity

    def _refresh(self) -> None:
        if not self._is_current:
            self._keys = sorted(self._entities)
            self._by_id = {entity.entity_id: entity for entity in self._entities.values()}
            self._is_current = True
