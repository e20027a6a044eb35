"""The blocking manager of a namespace. What it does is in `twinbus.client.management`; lists come whole."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self, TypeVar, Unpack

from twinbus.client import management
from twinbus.client.sync.background_loop import BlockingObject, call_blocking, close_at_exit, run_blocking

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from twinbus.client.settings import ClientOptions
    from twinbus.model.info import NamespaceInfo, QueueInfo, SubscriptionInfo, TopicInfo
    from twinbus.model.queue import QueueDescription, QueueRuntime
    from twinbus.model.rule import RuleDescription
    from twinbus.model.topic import SubscriptionDescription, TopicDescription, TopicRuntime

T = TypeVar("T")


class NamespaceManager(BlockingObject[management.NamespaceManager]):
    """The entities of one namespace."""

    def __init__(self, inner: management.NamespaceManager) -> None:
        """`from_connection_string` is the usual way. `inner` does the work, on the loop in the background."""
        super().__init__(inner)
        close_at_exit(inner)

    @classmethod
    def from_connection_string(cls, text: str, **options: Unpack[ClientOptions]) -> Self:
        """A manager of the namespace that a connection string names. ValueError says what is wrong with the string."""
        return cls(call_blocking(lambda: management.NamespaceManager.from_connection_string(text, **options)))

    def get_namespace_info(self) -> NamespaceInfo:
        """What the namespace is."""
        return run_blocking(self.inner.get_namespace_info)

    def create_queue(self, path: str, description: QueueDescription | None = None) -> QueueDescription:
        """Make a queue, and say what it became; EntityAlreadyExists, QuotaExceeded, InvalidArgument."""
        return run_blocking(lambda: self.inner.create_queue(path, description))

    def update_queue(self, path: str, description: QueueDescription) -> QueueDescription:
        """Make a queue be as described in every respect; start from what `get_queue` says. EntityNotFound."""
        return run_blocking(lambda: self.inner.update_queue(path, description))

    def get_queue(self, path: str) -> QueueDescription:
        """What a queue is told to be, or EntityNotFound."""
        return run_blocking(lambda: self.inner.get_queue(path))

    def get_queue_runtime(self, path: str) -> QueueRuntime:
        """What a queue holds now, or EntityNotFound."""
        return run_blocking(lambda: self.inner.get_queue_runtime(path))

    def queue_exists(self, path: str) -> bool:
        """There is a queue of that path."""
        return run_blocking(lambda: self.inner.queue_exists(path))

    def delete_queue(self, path: str) -> None:
        """Delete a queue and all it holds, or EntityNotFound. A topic of that path would be deleted as well."""
        run_blocking(lambda: self.inner.delete_queue(path))

    def get_queues(self, prefix: str = "") -> list[QueueInfo]:
        """All queues whose path starts so, page by page."""
        return run_blocking(lambda: _collect(self.inner.get_queues(prefix)))

    def create_topic(self, path: str, description: TopicDescription | None = None) -> TopicDescription:
        """Make a topic, and say what it became; EntityAlreadyExists, QuotaExceeded, InvalidArgument."""
        return run_blocking(lambda: self.inner.create_topic(path, description))

    def update_topic(self, path: str, description: TopicDescription) -> TopicDescription:
        """Make a topic be as described in every respect; start from what `get_topic` says. EntityNotFound."""
        return run_blocking(lambda: self.inner.update_topic(path, description))

    def get_topic(self, path: str) -> TopicDescription:
        """What a topic is told to be, or EntityNotFound."""
        return run_blocking(lambda: self.inner.get_topic(path))

    def get_topic_runtime(self, path: str) -> TopicRuntime:
        """What a topic holds now, or EntityNotFound."""
        return run_blocking(lambda: self.inner.get_topic_runtime(path))

    def topic_exists(self, path: str) -> bool:
        """There is a topic of that path."""
        return run_blocking(lambda: self.inner.topic_exists(path))

    def delete_topic(self, path: str) -> None:
        """Delete a topic with its subscriptions, or EntityNotFound. A queue of that path would be deleted as well."""
        run_blocking(lambda: self.inner.delete_topic(path))

    def get_topics(self, prefix: str = "") -> list[TopicInfo]:
        """All topics whose path starts so, page by page."""
        return run_blocking(lambda: _collect(self.inner.get_topics(prefix)))

    def create_subscription(
        self,
        topic: str,
        name: str,
        description: SubscriptionDescription | None = None,
        rule: RuleDescription | None = None,
    ) -> SubscriptionDescription:
        """Make a subscription with one rule: `rule`, or one that is true for every message."""
        return run_blocking(lambda: self.inner.create_subscription(topic, name, description, rule))

    def update_subscription(
        self, topic: str, name: str, description: SubscriptionDescription
    ) -> SubscriptionDescription:
        """Make a subscription be as described in every respect; start from what `get_subscription` says."""
        return run_blocking(lambda: self.inner.update_subscription(topic, name, description))

    def get_subscription(self, topic: str, name: str) -> SubscriptionDescription:
        """What a subscription is told to be, or EntityNotFound."""
        return run_blocking(lambda: self.inner.get_subscription(topic, name))

    def get_subscription_runtime(self, topic: str, name: str) -> QueueRuntime:
        """What a subscription holds now, or EntityNotFound. Its size is counted with its topic."""
        return run_blocking(lambda: self.inner.get_subscription_runtime(topic, name))

    def subscription_exists(self, topic: str, name: str) -> bool:
        """The topic has a subscription of that name."""
        return run_blocking(lambda: self.inner.subscription_exists(topic, name))

    def delete_subscription(self, topic: str, name: str) -> None:
        """Delete a subscription and all it holds, or EntityNotFound."""
        run_blocking(lambda: self.inner.delete_subscription(topic, name))

    def get_subscriptions(self, topic: str, prefix: str = "") -> list[SubscriptionInfo]:
        """All subscriptions of a topic whose name starts so, page by page; or EntityNotFound."""
        return run_blocking(lambda: _collect(self.inner.get_subscriptions(topic, prefix)))

    def create_rule(self, topic: str, subscription: str, rule: RuleDescription) -> RuleDescription:
        """Add a rule to a subscription; EntityAlreadyExists, EntityNotFound, InvalidArgument."""
        return run_blocking(lambda: self.inner.create_rule(topic, subscription, rule))

    def update_rule(self, topic: str, subscription: str, rule: RuleDescription) -> RuleDescription:
        """Another rule takes the place of the one of the same name, or EntityNotFound."""
        return run_blocking(lambda: self.inner.update_rule(topic, subscription, rule))

    def get_rule(self, topic: str, subscription: str, name: str) -> RuleDescription:
        """A rule, or EntityNotFound."""
        return run_blocking(lambda: self.inner.get_rule(topic, subscription, name))

    def rule_exists(self, topic: str, subscription: str, name: str) -> bool:
        """The subscription has a rule of that name."""
        return run_blocking(lambda: self.inner.rule_exists(topic, subscription, name))

    def delete_rule(self, topic: str, subscription: str, name: str) -> None:
        """Delete a rule, or EntityNotFound."""
        run_blocking(lambda: self.inner.delete_rule(topic, subscription, name))

    def get_rules(self, topic: str, subscription: str) -> list[RuleDescription]:
        """All rules of a subscription, page by page; or EntityNotFound."""
        return run_blocking(lambda: _collect(self.inner.get_rules(topic, subscription)))


async def _collect(iterator: AsyncIterator[T]) -> list[T]:
    return [one async for one in iterator]
