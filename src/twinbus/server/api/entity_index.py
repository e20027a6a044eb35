"""The paths of all entities in order, for lists in pages.

Owns the order. It is kept when entities are created and deleted, so that a page of a list does not look at entities
outside the page.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING

from twinbus.model.path import canonical_key

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from twinbus.broker.namespace import Namespace, Queue, Subscription, Topic

_AFTER_ALL = "\U0010ffff"
"""A character that sorts after all others in paths."""


class EntityIndex:
    """The entities of a namespace, in order of path."""

    def __init__(self, namespace: Namespace) -> None:
        """Create an index, which is filled at the first use."""
        self._entities = namespace.entities
        self.version = 0
        """A number that grows whenever an entity is added, changed or removed."""
        self._is_filled = False
        self._keys: list[str] = []
        self._ordered: list[Queue | Topic | Subscription] = []
        """The entities, in the order of `_keys`."""
        self._by_id: dict[int, Queue | Topic | Subscription] = {}

    def fill(self) -> None:
        """Fill the index, which takes a few milliseconds with 10,000 entities; do nothing if it is filled."""
        if not self._is_filled:
            self._keys = sorted(self._entities)
            self._ordered = [self._entities[key] for key in self._keys]
            self._by_id = {entity.entity_id: entity for entity in self._ordered}
            self._is_filled = True

    def update(self, key: str) -> None:
        """Update the index, because the entity with this canonical path was added, changed or removed."""
        self.version += 1
        if not self._is_filled:
            return
        position, entity = bisect_left(self._keys, key), self._entities.get(key)
        if position < len(self._keys) and self._keys[position] == key:
            known = self._ordered[position]
            if known is entity:
                return
            del self._keys[position], self._ordered[position], self._by_id[known.entity_id]
        if entity is not None:
            self._keys.insert(position, key)
            self._ordered.insert(position, entity)
            self._by_id[entity.entity_id] = entity

    def all(self) -> list[Queue | Topic | Subscription]:
        """Return all entities, in order."""
        self.fill()
        return self._ordered.copy()

    def find_ids(self, entity_ids: Sequence[int]) -> list[Queue | Topic | Subscription]:
        """Return the entities with these ids, without those that do not exist in this process."""
        self.fill()
        return [self._by_id[entity_id] for entity_id in entity_ids if entity_id in self._by_id]

    @property
    def count(self) -> int:
        """The number of entities."""
        return len(self._entities)

    @property
    def ids(self) -> Collection[int]:
        """The ids of all entities."""
        self.fill()
        return self._by_id.keys()

    def iterate(self, prefix: str, after: str, scopes: Sequence[str] = ("",)) -> Iterator[Queue | Topic | Subscription]:
        """Yield the entities whose path starts with `prefix` and one of `scopes`, after the path `after`, in order.

        Entities may be created and deleted while the caller iterates.
        """
        self.fill()
        keys, start, end = self._keys, canonical_key(prefix), ""
        for scope in sorted(scopes):
            if start.startswith(scope) or scope.startswith(start):
                longer = max(start, scope, key=len)
                first = bisect_right(keys, max(canonical_key(after), end)) if after or end else 0
                stop = bisect_left(keys, longer + _AFTER_ALL)
                found, end = self._ordered[max(bisect_left(keys, longer), first) : stop], keys[stop - 1] if stop else ""
                yield from (entity for entity in found if entity.entity_id in self._by_id)
