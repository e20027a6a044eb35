"""What the HTTP side asks of a namespace.

Owns: the protocol between those who speak to administrators and whoever keeps the catalogue. Knows nothing of XML,
of HTTP or of where entities lie. Answers and errors are of the model, so that another way in can use the same protocol.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from twinbus.model.info import Description, EntityInfo, QueueInfo, SubscriptionInfo, TopicInfo
    from twinbus.model.queue import QueueDescription
    from twinbus.model.rule import RuleDescription
    from twinbus.model.topic import SubscriptionDescription, TopicDescription


class Administration(Protocol):
    """A namespace, to those who manage it. Paths and names compare without regard to case."""

    namespace: str
    """Its name."""
    created_ms: int
    """When it was made: milliseconds of the wall clock."""

    async def create_queue(self, path: str, description: QueueDescription) -> QueueInfo:
        """Make a queue: EntityAlreadyExists, QuotaExceeded, InvalidArgument or StoreUnavailable if it cannot be."""

    async def create_topic(self, path: str, description: TopicDescription) -> TopicInfo:
        """Make a topic: as for a queue."""

    async def create_subscription(
        self, topic: str, name: str, description: SubscriptionDescription, rule: RuleDescription | None = None
    ) -> SubscriptionInfo:
        """Make a subscription, with one rule: `rule`, or one that is true for every message. EntityNotFound."""

    async def get(self, path: str) -> EntityInfo:
        """The entity of that path, or EntityNotFound."""

    async def list_queues(self, *, skip: int, top: int, prefix: str = "") -> list[QueueInfo]:
        """At most `top` queues, in order of their paths, after the first `skip`; of those whose path starts so."""

    async def list_topics(self, *, skip: int, top: int, prefix: str = "") -> list[TopicInfo]:
        """The same for topics."""

    async def list_subscriptions(self, topic: str, *, skip: int, top: int, prefix: str = "") -> list[SubscriptionInfo]:
        """The same for the subscriptions of a topic, or EntityNotFound."""

    async def update(self, path: str, description: Description) -> EntityInfo:
        """Give an entity another description of its kind; InvalidArgument if what is fixed at creation would change."""

    async def delete(self, path: str) -> None:
        """Delete an entity and all it holds, a topic with its subscriptions; or EntityNotFound."""

    async def create_rule(self, subscription: str, rule: RuleDescription) -> RuleDescription:
        """Add a rule to the subscription of that path: EntityNotFound, EntityAlreadyExists, InvalidArgument."""

    async def get_rule(self, subscription: str, name: str) -> RuleDescription:
        """A rule, or EntityNotFound."""

    async def list_rules(self, subscription: str, *, skip: int, top: int) -> list[RuleDescription]:
        """Some rules, in the order of their making."""

    async def update_rule(self, subscription: str, rule: RuleDescription) -> RuleDescription:
        """Another rule takes the place of the one of the same name, or EntityNotFound."""

    async def delete_rule(self, subscription: str, name: str) -> None:
        """Delete a rule, or EntityNotFound."""

    def health(self) -> dict[str, object]:
        """The status, "ok" or "degraded", and for each store `is_available`, `takes_messages` and a reason if not."""
