"""The broker harness with a topic beside its queue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.broker.consumers import Results
from tests.broker.harness import PARTITIONED, BrokerHarness
from tests.support.parts import local_part
from twinbus.broker.store_keys import BODY_CHECK, KIND_BYTES, PREFIX_BYTES, SHARED_BODY
from twinbus.broker.work_budget import UNITS_PER_TURN
from twinbus.model.rule import RuleDescription, SqlAction, SqlFilter, TrueFilter
from twinbus.model.topic import SubscriptionDescription, TopicDescription
from twinbus.store.protocol import Table

if TYPE_CHECKING:
    from twinbus.broker.entities.subscription import Subscription
    from twinbus.broker.entities.topic import Topic

LARGE = b"x" * 1_000
"""A body large enough to be shared between subscriptions."""
TOPIC_ID = 20


class TopicHarness(BrokerHarness):
    """A topic without subscriptions in the stores of the queue; both are partitioned, or both are plain."""

    topic: Topic

    def __init__(self, description: TopicDescription | None = None, *, work_units: int = UNITS_PER_TURN) -> None:
        self.topic_description = description or TopicDescription()
        is_partitioned = self.topic_description.enable_partitioning
        super().__init__(PARTITIONED if is_partitioned else None, work_units=work_units)
        self.subscriptions: dict[str, tuple[int, SubscriptionDescription, tuple[RuleDescription, ...]]] = {}
        """Subscriptions that are added again after a crash."""
        self._next_id = TOPIC_ID + 10
        self._add_topic()

    def _add_topic(self) -> None:
        stores = self.store_numbers(is_partitioned=self.topic_description.enable_partitioning)
        self.topic = self.namespace.add_topic(
            TOPIC_ID, "news", self.topic_description, stores, created_ms=0, updated_ms=0
        )

    def subscribe(
        self,
        name: str,
        *rules: RuleDescription,
        **description: Any,  # noqa: ANN401  # fields of the description
    ) -> Subscription:
        self._next_id += 1
        self.subscriptions[name] = (self._next_id, SubscriptionDescription(**description), rules)
        return self._add_subscription(name)

    def _add_subscription(self, name: str) -> Subscription:
        entity_id, description, rules = self.subscriptions[name]
        path = f"news/Subscriptions/{name}"
        subscription = self.namespace.add_subscription(entity_id, path, description, created_ms=0, updated_ms=0)
        for rule in rules or (RuleDescription(name="$Default"),):
            subscription.put_rule(rule)
        return subscription

    def crash(self) -> None:
        super().crash()
        self._add_topic()
        self.load(self.topic, *[self._add_subscription(name) for name in self.subscriptions])

    def publish(self, *bodies: bytes, **details: Any) -> Results:  # noqa: ANN401  # as `message` takes them
        return self.send(*bodies, to=self.topic, **details)

    def publish_stored(self, *bodies: bytes, **details: Any) -> None:  # noqa: ANN401
        self.send_stored(*bodies, to=self.topic, **details)

    def shared_body_counts(self) -> tuple[int, int]:
        """Return the number of shared bodies on disk, and of pending checks whether a body is still needed."""
        tables = [disk.synced for disk in self.disks]
        bodies, checks = [
            [key[PREFIX_BYTES : PREFIX_BYTES + KIND_BYTES] for synced in tables for key in synced[table].values]
            for table in (Table.LOG, Table.INDEX)
        ]
        return bodies.count(SHARED_BODY), checks.count(BODY_CHECK)

    def complete(self, subscription: Subscription, count: int = 1) -> list[bytes]:
        """Receive messages of a subscription, and complete them."""
        consumer = self.consumer(count, of=local_part(subscription).main)
        consumer.complete(Results())
        self.run_until_idle()
        consumer.leave()
        return consumer.bodies


def sql_rule(expression: str, action: str | None = None, name: str = "rule") -> RuleDescription:
    return RuleDescription(
        name=name,
        filter=SqlFilter(expression=expression) if expression else TrueFilter(),
        action=SqlAction(expression=action) if action is not None else None,
    )
