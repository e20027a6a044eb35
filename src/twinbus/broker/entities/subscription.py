"""Subscriptions: entities that hold copies of a topic's messages for receivers.

Owns: a subscription's description and its rules.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twinbus.broker.entities.entity import ReceivableEntity
from twinbus.broker.entities.fan_out import Rule
from twinbus.broker.entities.queue import forwarding_target
from twinbus.broker.ports.incoming_batch import ValidationPolicy
from twinbus.model.path import canonical_key

if TYPE_CHECKING:
    from twinbus.broker.entities.topic import Topic
    from twinbus.model.limits import NamespaceLimits
    from twinbus.model.path import SubQueue
    from twinbus.model.rule import RuleDescription
    from twinbus.model.topic import SubscriptionDescription


class Subscription(ReceivableEntity):
    """One subscription of a topic."""

    def __init__(
        self,
        entity_id: int,
        path: str,
        description: SubscriptionDescription,
        topic: Topic,
        *,
        created_ms: int,
        updated_ms: int,
    ) -> None:
        """Create a subscription without parts and rules. A subscription of a partitioned topic is partitioned."""
        super().__init__(
            entity_id,
            path,
            description.status,
            is_partitioned=topic.is_partitioned,
            created_ms=created_ms,
            updated_ms=updated_ms,
        )
        self.description = description
        self.topic = topic
        self.rules: dict[str, Rule] = {}
        """The rules by the canonical keys of their names, in the order of creation."""

    def forward_target(self, sub_queue: SubQueue) -> str | None:
        """Return the path that messages in a sub-queue are forwarded to, or None."""
        return forwarding_target(self.description.forward_to, self.description.forward_dead_lettered_to, sub_queue)

    def apply_description(self, description: SubscriptionDescription, limits: NamespaceLimits) -> None:
        """Apply a new description to the subscription and its parts."""
        self.description = description
        self.validation_policy = ValidationPolicy(
            max_ttl_ms=description.default_time_to_live_ms,
            requires_session=description.requires_session,
        )
        for part in self.parts:
            part.apply_description(limits)
        self.set_status(description.status)

    def put_rule(self, description: RuleDescription) -> None:
        """Add a rule, replacing a rule of the same name. Raises InvalidArgument if the rule is not valid."""
        rule, name = Rule(description), canonical_key(description.name)
        self.rules[name] = rule
        for part in self.parts:
            part.put_rule(name, rule)

    def remove_rule(self, name: str) -> None:
        """Remove a rule by name."""
        del self.rules[canonical_key(name)]
        for part in self.parts:
            part.remove_rule(canonical_key(name))

    def detach_from_topic(self) -> None:
        """Remove the subscription from its topic, because the subscription was deleted."""
        for part in self.parts:
            part.detach_from_topic()
        subscriptions = self.topic.subscriptions
        for name in [name for name, subscription in subscriptions.items() if subscription is self]:
            del subscriptions[name]
