"""What can happen to the entities of a namespace.

Owns: the kinds of change. Whoever keeps the catalogue says that one has happened; whoever has the entities does it to
them, in the same order. What a change needs to be allowed is known to the former alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from twinbus.model.rule import RuleDescription
    from twinbus.store.catalogue import CleanupRow, EntityRow


@dataclass(frozen=True, slots=True)
class EntityCreated:
    """There is a new entity; a subscription has rules at once."""

    row: EntityRow
    rules: tuple[RuleDescription, ...] = ()


@dataclass(frozen=True, slots=True)
class EntityUpdated:
    """An entity is described anew."""

    row: EntityRow


@dataclass(frozen=True, slots=True)
class EntityDeleted:
    """An entity is gone, a topic with its subscriptions; what they leave in the stores has to be removed."""

    path: str
    deleted_rows: tuple[CleanupRow, ...]


@dataclass(frozen=True, slots=True)
class RulePut:
    """A subscription has a rule, in place of another one of that name if there was one."""

    subscription: str
    rule: RuleDescription


@dataclass(frozen=True, slots=True)
class RuleDeleted:
    """A subscription has a rule no more."""

    subscription: str
    name: str


Change: TypeAlias = EntityCreated | EntityUpdated | EntityDeleted | RulePut | RuleDeleted
