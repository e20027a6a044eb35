"""The interface for administering the entities of a namespace.

Owns: the protocol between the management endpoints and the catalogue. Knows nothing of XML, HTTP or the placement of
entities. Results and errors are types from the model, so that another endpoint can use the same protocol.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from twinbus.model.info import Description, EntityInfo, QueueInfo, SubscriptionInfo, TopicInfo
    from twinbus.model.queue import QueueDescription
    from twinbus.model.rule import RuleDescription
    from twinbus.model.topic import SubscriptionDescription, TopicDescription


class Administration(Protocol):
    """Administration of a namespace. Paths and names are case-insensitive."""

    namespace: str
    """The name of the namespace."""
    created_ms: int
    """The time at which the namespace was created, in wall-clock milliseconds."""

    async def create_queue(self, path: str, description: QueueDescription) -> QueueInfo:
        """Create a queue.

        Raise EntityAlreadyExists, QuotaExceeded, InvalidArgument or StoreUnavailable if the queue cannot be created.
        """

    async def create_topic(self, path: str, description: TopicDescription) -> TopicInfo:
        """Create a topic. Raise the same errors as `create_queue`."""

    async def create_subscription(
        self, topic: str, name: str, description: SubscriptionDescription, rule: RuleDescription | None = None
    ) -> SubscriptionInfo:
        """Create a subscription with `rule` (default: a rule that matches every message).

        Raise EntityNotFound if there is no such topic, and otherwise the same errors as `create_queue`.
        """

    async def get(self, path: str) -> EntityInfo:
        """Return the entity at `path`. Raise EntityNotFound if there is none."""

    async def list_queues(self, *, skip: int, top: int, prefix: str = "") -> list[QueueInfo]:
        """Return up to `top` queues whose path starts with `prefix`, in order of path, after skipping `skip`."""

    async def list_topics(self, *, skip: int, top: int, prefix: str = "") -> list[TopicInfo]:
        """Return up to `top` topics whose path starts with `prefix`, in order of path, after skipping `skip`."""

    async def list_subscriptions(self, topic: str, *, skip: int, top: int, prefix: str = "") -> list[SubscriptionInfo]:
        """Return up to `top` subscriptions of a topic, in order of name, after skipping `skip`.

        `prefix` selects subscriptions by name. Raise EntityNotFound if there is no such topic.
        """

    async def update(self, path: str, description: Description) -> EntityInfo:
        """Replace the description of an entity.

        Raise InvalidArgument if the kind or a field that is fixed at creation would change.
        """

    async def delete(self, path: str) -> None:
        """Delete an entity and its messages; for a topic, also its subscriptions.

        Raise EntityNotFound if there is no such entity.
        """

    async def create_rule(self, subscription: str, rule: RuleDescription) -> RuleDescription:
        """Add a rule to the subscription at the path `subscription`.

        Raise EntityNotFound, EntityAlreadyExists, InvalidArgument or QuotaExceeded if the rule cannot be added.
        """

    async def get_rule(self, subscription: str, name: str) -> RuleDescription:
        """Return a rule of a subscription by name. Raise EntityNotFound if there is none."""

    async def list_rules(self, subscription: str, *, skip: int, top: int) -> list[RuleDescription]:
        """Return up to `top` rules of a subscription, in order of creation, after skipping `skip`."""

    async def update_rule(self, subscription: str, rule: RuleDescription) -> RuleDescription:
        """Replace the rule with the same name. Raise EntityNotFound if there is none."""

    async def delete_rule(self, subscription: str, name: str) -> None:
        """Delete a rule of a subscription. Raise EntityNotFound if there is none."""

    def health(self) -> dict[str, object]:
        """Return the status, "ok" or "degraded", with the health of each store and the reason for any degradation."""
