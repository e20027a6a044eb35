"""The blocking manager of a namespace, a wrapper around `twinbus.client.management`. Lists are returned as a whole."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self, TypeVar, Unpack

from twinbus.client import management
from twinbus.client.sync.background_loop import BlockingObject, call_blocking, close_at_exit, run_blocking

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from twinbus.client.management.entity_import import EntityChange
    from twinbus.client.settings import ClientOptions
    from twinbus.model.entity_file.plan import Plan
    from twinbus.model.info import NamespaceInfo, QueueInfo, SubscriptionInfo, TopicInfo
    from twinbus.model.queue import QueueDescription, QueueRuntime
    from twinbus.model.rule import RuleDescription
    from twinbus.model.topic import SubscriptionDescription, TopicDescription, TopicRuntime

T = TypeVar("T")


class NamespaceManager(BlockingObject[management.NamespaceManager]):
    """Blocking management client for one namespace."""

    def __init__(self, inner: management.NamespaceManager) -> None:
        """Wrap `inner`, which runs on the background loop. Applications usually call `from_connection_string`."""
        super().__init__(inner)
        close_at_exit(inner)

    @classmethod
    def from_connection_string(cls, text: str, **options: Unpack[ClientOptions]) -> Self:
        """Create a manager for the namespace of a connection string. Raise ValueError if the string is invalid."""
        return cls(call_blocking(lambda: management.NamespaceManager.from_connection_string(text, **options)))

    def get_namespace_info(self) -> NamespaceInfo:
        """Return the name and properties of the namespace."""
        return run_blocking(self.inner.get_namespace_info)

    def create_queue(self, path: str, description: QueueDescription | None = None) -> QueueDescription:
        """Create a queue and return its description.

        Raise EntityAlreadyExists, QuotaExceeded or InvalidArgument if the namespace refuses.
        """
        return run_blocking(lambda: self.inner.create_queue(path, description))

    def update_queue(self, path: str, description: QueueDescription) -> QueueDescription:
        """Replace the whole description of a queue; start from `get_queue`. Raise EntityNotFound if there is none."""
        return run_blocking(lambda: self.inner.update_queue(path, description))

    def get_queue(self, path: str) -> QueueDescription:
        """Return the description of a queue. Raise EntityNotFound if there is none."""
        return run_blocking(lambda: self.inner.get_queue(path))

    def get_queue_runtime(self, path: str) -> QueueRuntime:
        """Return the message counts and size of a queue. Raise EntityNotFound if there is none."""
        return run_blocking(lambda: self.inner.get_queue_runtime(path))

    def queue_exists(self, path: str) -> bool:
        """Return whether the queue exists."""
        return run_blocking(lambda: self.inner.queue_exists(path))

    def delete_queue(self, path: str) -> None:
        """Delete a queue, or a topic with that path, and its messages. Raise EntityNotFound if there is none."""
        run_blocking(lambda: self.inner.delete_queue(path))

    def get_queues(self, prefix: str = "") -> list[QueueInfo]:
        """Return the queues whose path starts with `prefix`."""
        return run_blocking(lambda: _collect(self.inner.get_queues(prefix)))

    def create_topic(self, path: str, description: TopicDescription | None = None) -> TopicDescription:
        """Create a topic and return its description.

        Raise EntityAlreadyExists, QuotaExceeded or InvalidArgument if the namespace refuses.
        """
        return run_blocking(lambda: self.inner.create_topic(path, description))

    def update_topic(self, path: str, description: TopicDescription) -> TopicDescription:
        """Replace the whole description of a topic; start from `get_topic`. Raise EntityNotFound if there is none."""
        return run_blocking(lambda: self.inner.update_topic(path, description))

    def get_topic(self, path: str) -> TopicDescription:
        """Return the description of a topic. Raise EntityNotFound if there is none."""
        return run_blocking(lambda: self.inner.get_topic(path))

    def get_topic_runtime(self, path: str) -> TopicRuntime:
        """Return the counts and size of a topic. Raise EntityNotFound if there is none."""
        return run_blocking(lambda: self.inner.get_topic_runtime(path))

    def topic_exists(self, path: str) -> bool:
        """Return whether the topic exists."""
        return run_blocking(lambda: self.inner.topic_exists(path))

    def delete_topic(self, path: str) -> None:
        """Delete a topic with its subscriptions, or a queue with that path. Raise EntityNotFound if there is none."""
        run_blocking(lambda: self.inner.delete_topic(path))

    def get_topics(self, prefix: str = "") -> list[TopicInfo]:
        """Return the topics whose path starts with `prefix`."""
        return run_blocking(lambda: _collect(self.inner.get_topics(prefix)))

    def create_subscription(
        self,
        topic: str,
        name: str,
        description: SubscriptionDescription | None = None,
        rule: RuleDescription | None = None,
    ) -> SubscriptionDescription:
        """Create a subscription with one rule (default: a rule that matches every message)."""
        return run_blocking(lambda: self.inner.create_subscription(topic, name, description, rule))

    def update_subscription(
        self, topic: str, name: str, description: SubscriptionDescription
    ) -> SubscriptionDescription:
        """Replace the whole description of a subscription; start from `get_subscription`."""
        return run_blocking(lambda: self.inner.update_subscription(topic, name, description))

    def get_subscription(self, topic: str, name: str) -> SubscriptionDescription:
        """Return the description of a subscription. Raise EntityNotFound if there is none."""
        return run_blocking(lambda: self.inner.get_subscription(topic, name))

    def get_subscription_runtime(self, topic: str, name: str) -> QueueRuntime:
        """Return the message counts of a subscription, without its size, which is part of the topic's size.

        Raise EntityNotFound if there is no such subscription.
        """
        return run_blocking(lambda: self.inner.get_subscription_runtime(topic, name))

    def subscription_exists(self, topic: str, name: str) -> bool:
        """Return whether the subscription exists."""
        return run_blocking(lambda: self.inner.subscription_exists(topic, name))

    def delete_subscription(self, topic: str, name: str) -> None:
        """Delete a subscription with its messages. Raise EntityNotFound if there is none."""
        run_blocking(lambda: self.inner.delete_subscription(topic, name))

    def get_subscriptions(self, topic: str, prefix: str = "") -> list[SubscriptionInfo]:
        """Return the subscriptions of a topic whose name starts with `prefix`.

        Raise EntityNotFound if there is no such topic.
        """
        return run_blocking(lambda: _collect(self.inner.get_subscriptions(topic, prefix)))

    def create_rule(self, topic: str, subscription: str, rule: RuleDescription) -> RuleDescription:
        """Add a rule to a subscription. Raise EntityAlreadyExists, EntityNotFound or InvalidArgument."""
        return run_blocking(lambda: self.inner.create_rule(topic, subscription, rule))

    def update_rule(self, topic: str, subscription: str, rule: RuleDescription) -> RuleDescription:
        """Replace the rule of the same name. Raise EntityNotFound if there is none."""
        return run_blocking(lambda: self.inner.update_rule(topic, subscription, rule))

    def get_rule(self, topic: str, subscription: str, name: str) -> RuleDescription:
        """Return a rule. Raise EntityNotFound if there is none."""
        return run_blocking(lambda: self.inner.get_rule(topic, subscription, name))

    def rule_exists(self, topic: str, subscription: str, name: str) -> bool:
        """Return whether the rule exists."""
        return run_blocking(lambda: self.inner.rule_exists(topic, subscription, name))

    def delete_rule(self, topic: str, subscription: str, name: str) -> None:
        """Delete a rule. Raise EntityNotFound if there is none."""
        run_blocking(lambda: self.inner.delete_rule(topic, subscription, name))

    def get_rules(self, topic: str, subscription: str) -> list[RuleDescription]:
        """Return the rules of a subscription. Raise EntityNotFound if there is no such subscription."""
        return run_blocking(lambda: _collect(self.inner.get_rules(topic, subscription)))

    def export_entities(self, prefix: str = "", *, with_keys: bool = False) -> Plan:
        """Return the queues and topics whose path starts with `prefix`, with subscriptions and rules.

        `with_keys` includes the keys of queues and topics with their secrets.
        """
        return run_blocking(lambda: self.inner.export_entities(prefix, with_keys=with_keys))

    def plan_import(self, plan: Plan, *, prune: bool = False) -> list[EntityChange]:
        """Return what `import_entities` would do with each entity."""
        return run_blocking(lambda: self.inner.plan_import(plan, prune=prune))

    def import_entities(
        self, plan: Plan, *, prune: bool = False, on_change: Callable[[EntityChange], None] | None = None
    ) -> list[EntityChange]:
        """Create and update entities as planned, and return the result for each entity.

        `prune` deletes all other entities with their messages. `on_change` is called on the background thread.
        """
        return run_blocking(lambda: self.inner.import_entities(plan, prune=prune, on_change=on_change))


async def _collect(iterator: AsyncIterator[T]) -> list[T]:
    return [item async for item in iterator]
