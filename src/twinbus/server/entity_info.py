"""What is told of an entity to those who manage it.

Owns: how an entity of the broker is shown: a partitioned one with the size of all its fragments, a topic with the
number of its filters.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from twinbus.broker.kinds import AnyEntity, AnyQueue, AnySubscription, AnyTopic
from twinbus.broker.partitioned.entity import Partitioned
from twinbus.model import path as paths
from twinbus.model.description import shown_size_mb
from twinbus.model.info import EntityInfo, QueueInfo, SubscriptionInfo, TopicInfo
from twinbus.model.queue import QueueDescription
from twinbus.model.rule import CorrelationFilter, FalseFilter, SqlFilter, TrueFilter
from twinbus.model.topic import TopicDescription

SizedT = TypeVar("SizedT", bound=QueueDescription | TopicDescription)


def info_of(entity: AnyEntity) -> EntityInfo:
    """Any entity."""
    if isinstance(entity, AnyQueue):
        return queue_info(entity)
    return topic_info(entity) if isinstance(entity, AnyTopic) else subscription_info(entity)


def queue_info(queue: AnyQueue) -> QueueInfo:
    """A queue."""
    description = queue.description
    if isinstance(queue, Partitioned):
        description = shown(description)
    return QueueInfo(path=queue.path, description=description, runtime=queue.runtime())


def topic_info(topic: AnyTopic) -> TopicInfo:
    """A topic."""
    filters = [rule.description.filter for one in topic.subscriptions.values() for rule in one.rules.values()]
    runtime = replace(
        topic.runtime(),
        sql_filter_count=sum(isinstance(one, SqlFilter | TrueFilter | FalseFilter) for one in filters),
        correlation_filter_count=sum(isinstance(one, CorrelationFilter) for one in filters),
    )
    description = topic.description
    if isinstance(topic, Partitioned):
        description = shown(description)
    return TopicInfo(path=topic.path, description=description, runtime=runtime)


def subscription_info(subscription: AnySubscription) -> SubscriptionInfo:
    """A subscription."""
    topic, name = paths.split_subscription(subscription.path)
    return SubscriptionInfo(
        path=subscription.path,
        topic=topic,
        name=name,
        description=subscription.description,
        runtime=subscription.runtime(),
    )


def shown(description: SizedT) -> SizedT:
    """What a partitioned entity is told to be, with the size of all its fragments."""
    return replace(description, max_size_mb=shown_size_mb(description.max_size_mb))
