"""What a namespace should hold: entities, with the properties that were asked for, and the rules of subscriptions.

Owns: one form of that, whichever file it is from, and that no two entities have the same name. How a namespace is
brought to it is in `apply`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias

from twinbus.model.path import canonical_key
from twinbus.model.queue import QueueDescription
from twinbus.model.topic import SubscriptionDescription, TopicDescription

if TYPE_CHECKING:
    from collections.abc import Mapping

    from twinbus.model.rule import RuleDescription
    from twinbus.server.config.section import Location

DescriptionType: TypeAlias = "type[QueueDescription | TopicDescription | SubscriptionDescription]"
ENTITY_KINDS: Final[dict[DescriptionType, str]] = {
    QueueDescription: "queue",
    TopicDescription: "topic",
    SubscriptionDescription: "subscription",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DesiredProperties:
    """Some properties of an entity; what is not said here stays as it is, or has its default in a new entity."""

    values: Mapping[str, object] = field(default_factory=dict)
    """By the names of the description's fields."""
    locations: Mapping[str, Location] = field(default_factory=dict)
    """Where each is said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DesiredEntity:
    """An entity that has to be there."""

    path: str
    description_type: DescriptionType
    location: Location
    """Where it is named."""
    properties: DesiredProperties
    rules: tuple[RuleDescription, ...] = ()
    """Of a subscription: exactly these; if there are none, those that it has."""


@dataclass(frozen=True, slots=True)
class Plan:
    """All that a file asks for. What it does not name is left alone."""

    entities: tuple[DesiredEntity, ...]
    """A topic comes before its subscriptions."""

    def __post_init__(self) -> None:
        """Refuse a name that is there twice; case does not matter."""
        taken: dict[str, Location] = {}
        for entity in self.entities:
            other = taken.setdefault(canonical_key(entity.path), entity.location)
            if other is not entity.location:
                raise entity.location.error(f"{entity.path!r:.300} is the name at {other.key} already")
