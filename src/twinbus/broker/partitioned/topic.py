"""A partitioned topic, and its subscriptions: part for part, each topic's part with its subscriptions' in one store.

Owns: their descriptions and rules, which all parts share.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twinbus.broker.intake import Terms
from twinbus.broker.partitioned import arriving, sending
from twinbus.broker.partitioned.entity import Partitioned
from twinbus.broker.partitioned.ordering import SendOrder
from twinbus.broker.partitioned.receivable import PartitionedReceivable
from twinbus.broker.partitioned.spread import Spread
from twinbus.broker.subscription import Subscription
from twinbus.broker.topic import Topic
from twinbus.model.topic import TopicRuntime

if TYPE_CHECKING:
    from twinbus.broker.fan_out import Rule
    from twinbus.broker.intake import Parcel
    from twinbus.broker.journal import Answered
    from twinbus.model.limits import NamespaceLimits
    from twinbus.model.rule import RuleDescription
    from twinbus.model.topic import SubscriptionDescription, TopicDescription


class PartitionedTopic(Partitioned[Topic]):
    """One partitioned topic of a namespace."""

    def __init__(
        self,
        entity_id: int,
        path: str,
        description: TopicDescription,
        parts: list[Topic],
        *,
        start: int,
        created_ms: int,
        updated_ms: int,
    ) -> None:
        """Made by the namespace; messages without a key are spread from part `start` on."""
        super().__init__(entity_id, path, description.status, parts, created_ms=created_ms, updated_ms=updated_ms)
        self.description = description
        self.spread = Spread(parts, start)
        self.order = SendOrder(path)
        self.terms = Terms()
        self.subscriptions: dict[str, PartitionedSubscription] = {}
        """By the keys of their names."""

    def describe(self, description: TopicDescription, limits: NamespaceLimits) -> None:
        """It is to be like this from now on."""
        self.description = description
        self.order.max_bytes = limits.max_pending_bytes
        self.terms = Terms(
            ttl_ms=description.default_time_to_live_ms,
            detects_duplicates=description.requires_duplicate_detection,
            is_partitioned=True,
        )
        for part in self.parts:
            part.describe(description, limits)
        self.set_status(description.status)

    def send(self, parcel: Parcel, answer: Answered, numbers: list[int] | None = None) -> None:
        """Publish messages; `answer` hears when that is on disk. As `sending.send`."""
        self.check_sends()
        sending.send(self, parcel, answer, [] if numbers is None else numbers)

    def take_arrivals(self, source: bytes, items: list[tuple[int, bytes]], answer: Answered) -> None:
        """Messages that another entity forwards here. As `Topic.take_arrivals`."""
        arriving.take(self, source, items, answer)

    def runtime(self) -> TopicRuntime:
        """What it holds now."""
        parts = [part.runtime() for part in self.parts]
        return TopicRuntime(
            scheduled_count=sum(part.scheduled_count for part in parts),
            size_bytes=sum(part.size_bytes for part in parts),
            subscription_count=len(self.subscriptions),
            created_ms=self.created_ms,
            updated_ms=self.updated_ms,
            accessed_ms=max([self.accessed_ms, *[part.accessed_ms for part in parts]]),
            is_available=all(part.is_available for part in parts),
        )


class PartitionedSubscription(PartitionedReceivable[Subscription]):
    """One subscription of a partitioned topic."""

    def __init__(
        self,
        entity_id: int,
        path: str,
        description: SubscriptionDescription,
        topic: PartitionedTopic,
        parts: list[Subscription],
        *,
        created_ms: int,
        updated_ms: int,
    ) -> None:
        """Made by the namespace; `parts` are those of the topic's parts."""
        super().__init__(entity_id, path, description.status, parts, created_ms=created_ms, updated_ms=updated_ms)
        self.description = description
        self.topic = topic

    @property
    def rules(self) -> dict[str, Rule]:
        """By the keys of their names, in the order of their making."""
        return self.parts[0].rules

    def describe(self, description: SubscriptionDescription, limits: NamespaceLimits) -> None:
        """It is to be like this from now on."""
        self.description = description
        for part in self.parts:
            part.describe(description, limits)
        self.set_status(description.status)

    def put_rule(self, description: RuleDescription) -> None:
        """A rule is there from now on, instead of one of the same name. InvalidArgument."""
        for part in self.parts:
            part.put_rule(description)

    def remove_rule(self, name: str) -> None:
        """A rule is no more."""
        for part in self.parts:
            part.remove_rule(name)

    def leave_topic(self) -> None:
        """It gets nothing any more."""
        for part in self.parts:
            part.leave_topic()
