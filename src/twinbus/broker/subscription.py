"""Subscriptions: what a topic copies into its subscription is received from that.

Owns: a subscription's description and its rules.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twinbus.broker.fan_out import Rule
from twinbus.broker.ports.incoming import Terms
from twinbus.broker.queue import forwarding_target
from twinbus.broker.receivable import Receivable
from twinbus.model.path import key_of

if TYPE_CHECKING:
    from twinbus.broker.topic import Topic
    from twinbus.model.limits import NamespaceLimits
    from twinbus.model.path import SubQueue
    from twinbus.model.rule import RuleDescription
    from twinbus.model.topic import SubscriptionDescription


class Subscription(Receivable):
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
        """Made by the namespace. It is partitioned if its topic is."""
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
        """By the keys of their names, in the order of their making."""

    def forwards_to(self, sub_queue: SubQueue) -> str | None:
        """Return the path that messages are forwarded to, or None."""
        return forwarding_target(self.description.forward_to, self.description.forward_dead_lettered_to, sub_queue)

    def describe(self, description: SubscriptionDescription, limits: NamespaceLimits) -> None:
        """Change the description."""
        self.description = description
        self.terms = Terms(
            ttl_ms=description.default_time_to_live_ms,
            requires_session=description.requires_session,
        )
        for part in self.parts:
            part.describe(limits)
        self.set_status(description.status)

    def put_rule(self, description: RuleDescription) -> None:
        """Add a rule, or replace the one of the same name. InvalidArgument."""
        rule, name = Rule(description), key_of(description.name)
        self.rules[name] = rule
        for part in self.parts:
            part.put_rule(name, rule)

    def remove_rule(self, name: str) -> None:
        """Remove a rule."""
        del self.rules[key_of(name)]
        for part in self.parts:
            part.remove_rule(key_of(name))

    def leave_topic(self) -> None:
        """Get no more copies: the subscription is deleted."""
        for part in self.parts:
            part.leave_topic()
        subscriptions = self.topic.subscriptions
        for name in [name for name, subscription in subscriptions.items() if subscription is self]:
            del subscriptions[name]
