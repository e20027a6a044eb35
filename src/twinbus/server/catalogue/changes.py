"""Changes to the entities of a namespace.

Owns: the kinds of change. The catalogue service publishes each change, and every replica applies the changes in the
same order. Must not know when a change is allowed, because the catalogue service decides that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from twinbus.model.rule import RuleDescription
    from twinbus.store.catalogue import CleanupRow, EntityRow


@dataclass(frozen=True, slots=True)
class EntityCreated:
    """An entity was created. `rules` are the initial rules of a subscription (empty for other entities)."""

    row: EntityRow
    rules: tuple[RuleDescription, ...] = ()


@dataclass(frozen=True, slots=True)
class EntityUpdated:
    """The description of an entity was replaced."""

    row: EntityRow


@dataclass(frozen=True, slots=True)
class EntityDeleted:
    """An entity was deleted (a topic with its subscriptions). The records of these entities are still in the stores."""

    path: str
    deleted_rows: tuple[CleanupRow, ...]


@dataclass(frozen=True, slots=True)
class RulePut:
    """A rule was added to a subscription, or replaced the rule with the same name."""

    subscription: str
    rule: RuleDescription


@dataclass(frozen=True, slots=True)
class RuleDeleted:
    """A rule of a subscription was deleted."""

    subscription: str
    name: str


Change: TypeAlias = EntityCreated | EntityUpdated | EntityDeleted | RulePut | RuleDeleted
