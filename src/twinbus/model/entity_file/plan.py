"""The desired state of a namespace: entities with some of their properties, and the rules of subscriptions.

Owns: one representation for both file formats, and the check that entity names are unique. The `reconciler` module
applies a plan to a namespace.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias

from twinbus.model.path import canonical_key
from twinbus.model.queue import QueueDescription
from twinbus.model.topic import SubscriptionDescription, TopicDescription

if TYPE_CHECKING:
    from collections.abc import Mapping

    from twinbus.model.entity_file.section import Location
    from twinbus.model.rule import RuleDescription

DescriptionType: TypeAlias = "type[QueueDescription | TopicDescription | SubscriptionDescription]"
ENTITY_KINDS: Final[dict[DescriptionType, str]] = {
    QueueDescription: "queue",
    TopicDescription: "topic",
    SubscriptionDescription: "subscription",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DesiredProperties:
    """Some properties of an entity; other properties keep their values, or have their defaults in a new entity."""

    values: Mapping[str, object] = field(default_factory=dict)
    """Values by field name of the description."""
    locations: Mapping[str, Location] = field(default_factory=dict)
    """The location of each value in the file, by field name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DesiredEntity:
    """An entity that the configuration file defines."""

    path: str
    description_type: DescriptionType
    location: Location
    """The location of the entity's name in the file."""
    properties: DesiredProperties
    rules: tuple[RuleDescription, ...] = ()
    """All rules of a subscription; if empty, the subscription keeps its current rules."""


@dataclass(frozen=True, slots=True)
class Plan:
    """All entities that a configuration file defines. Other entities in the namespace are left alone."""

    entities: tuple[DesiredEntity, ...]
    """The desired entities; a topic comes before its subscriptions."""

    def __post_init__(self) -> None:
        """Raise InvalidConfig if two entities have the same path, ignoring case."""
        taken: dict[str, Location] = {}
        for entity in self.entities:
            other = taken.setdefault(canonical_key(entity.path), entity.location)
            if other is not entity.location:
                raise entity.location.error(f"{entity.path!r:.300} is already the name at {other.key}")
