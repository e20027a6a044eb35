"""Information about entities for management clients.

Owns: the conversion of the broker's entities to info objects. A partitioned entity has the total size of its fragments,
and a topic has the number of its filters.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from twinbus.broker.namespace import Queue, Topic
from twinbus.model import path as paths
from twinbus.model.description import partitioned_size_mb
from twinbus.model.info import EntityInfo, QueueInfo, SubscriptionInfo, TopicInfo
from twinbus.model.queue import QueueDescription
from twinbus.model.rule import CorrelationFilter, FalseFilter, SqlFilter, TrueFilter
from twinbus.model.topic import TopicDescription

if TYPE_CHECKING:
    from twinbus.broker.namespace import Subscription

SizedT = TypeVar("SizedT", bound=QueueDescription | TopicDescription)


def make_info(entity: Queue | Topic | Subscription) -> EntityInfo:
    """Return the info of an entity of any kind."""
    if isinstance(entity, Queue):
        return make_queue_info(entity)
    return make_topic_info(entity) if isinstance(entity, Topic) else make_subscription_info(entity)


def make_queue_info(queue: Queue) -> QueueInfo:
    """Return the info of a queue."""
    description = queue.description
    if queue.is_partitioned:
        description = with_total_size(description)
    return QueueInfo(path=queue.path, description=description, runtime=queue.runtime())


def make_topic_info(topic: Topic) -> TopicInfo:
    """Return the info of a topic, with the number of its filters."""
    filters = [rule.description.filter for one in topic.subscriptions.values() for rule in one.rules.values()]
    runtime = replace(
        topic.runtime(),
        sql_filter_count=sum(isinstance(one, SqlFilter | TrueFilter | FalseFilter) for one in filters),
        correlation_filter_count=sum(isinstance(one, CorrelationFilter) for one in filters),
    )
    description = topic.description
    if topic.is_partitioned:
        description = with_total_size(description)
    return TopicInfo(path=topic.path, description=description, runtime=runtime)


def make_subscription_info(subscription: Subscription) -> SubscriptionInfo:
    """Return the info of a subscription."""
    topic, name = paths.split_subscription(subscription.path)
    return SubscriptionInfo(
        path=subscription.path,
        topic=topic,
        name=name,
        description=subscription.description,
        runtime=subscription.runtime(),
    )


def with_total_size(description: SizedT) -> SizedT:
    """Return the description of a partitioned entity with the total size of its fragments."""
    return replace(description, max_size_mb=partitioned_size_mb(description.max_size_mb))
