"""Factories of parts: one for each store of a namespace.

Owns: the construction of parts in a store of this process (`LocalPartFactory`). `remote.part` has the factory for
stores of other processes; the namespace uses both through the same interface (`PartFactory`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twinbus.broker.entities.fan_out import TopicFragment
from twinbus.broker.entities.local_parts import (
    Areas,
    QueuePart,
    SubscriptionPart,
    TopicPart,
    fragment_policies,
    topic_policy,
)
from twinbus.broker.fragment.fragment import Fragment
from twinbus.broker.store_keys import Area, area_prefix

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinbus.broker.clock import TimeServices
    from twinbus.broker.commit_log import CommitLog
    from twinbus.broker.entities.part import EntityPart
    from twinbus.broker.entities.queue import Queue
    from twinbus.broker.entities.subscription import Subscription
    from twinbus.broker.entities.topic import Topic
    from twinbus.broker.fragment.locks import TokenSource
    from twinbus.broker.fragment.shared_bodies import SharedBodies
    from twinbus.broker.work_budget import WorkBudget
    from twinbus.model.limits import NamespaceLimits
    from twinbus.model.queue import QueueDescription
    from twinbus.model.topic import SubscriptionDescription


class PartFactory:
    """The interface to create parts of entities in one store."""

    def make_queue_part(self, queue: Queue, number: int) -> EntityPart:
        """Create the part of a queue with the given fragment number."""
        raise NotImplementedError

    def make_topic_part(self, topic: Topic, number: int) -> EntityPart:
        """Create the part of a topic with the given fragment number."""
        raise NotImplementedError

    def make_subscription_part(
        self, subscription: Subscription, topic_part: EntityPart, subscription_key: str
    ) -> EntityPart:
        """Create a part of a subscription, and register it in the topic's part under `subscription_key`."""
        raise NotImplementedError


class LocalPartFactory(PartFactory):
    """A factory of parts in a store of this process."""

    def __init__(
        self,
        commit_log: CommitLog,
        *,
        time_services: TimeServices,
        token_source: TokenSource,
        limits: NamespaceLimits,
        work_budget: WorkBudget,
        find_destination: Callable[[str], Queue | Topic],
        on_forwarded: Callable[[str, int], None],
    ) -> None:
        """Create a factory; `find_destination` finds an entity by path, `on_forwarded` counts forwarded messages."""
        self._commit_log = commit_log
        self._time_services = time_services
        self._token_source = token_source
        self._limits = limits
        self._work_budget = work_budget
        self._find_destination = find_destination
        self._on_forwarded = on_forwarded

    def make_queue_part(self, queue: Queue, number: int) -> EntityPart:
        """Create the part of a queue with the given fragment number."""
        return QueuePart(queue, self._make_areas(queue.entity_id, number, queue.description))

    def make_topic_part(self, topic: Topic, number: int) -> EntityPart:
        """Create the part of a topic with the given fragment number."""
        main = TopicFragment(
            area_prefix(topic.entity_id, number, Area.MAIN),
            self._commit_log,
            topic_policy(topic.description, self._limits),
            time_services=self._time_services,
            token_source=self._token_source,
            limits=self._limits,
            work_budget=self._work_budget,
        )
        return TopicPart(topic, main)

    def make_subscription_part(
        self, subscription: Subscription, topic_part: EntityPart, subscription_key: str
    ) -> EntityPart:
        """Create a part of a subscription that shares message bodies with the topic's part, and register it there."""
        assert isinstance(topic_part, TopicPart)
        shared_bodies = topic_part.main.shared_bodies
        areas = self._make_areas(subscription.entity_id, topic_part.number, subscription.description, shared_bodies)
        part = SubscriptionPart(subscription, topic_part, areas)
        topic_part.main.subscriptions[subscription_key] = part
        return part

    def _make_areas(
        self,
        entity_id: int,
        number: int,
        description: QueueDescription | SubscriptionDescription,
        shared_bodies: SharedBodies | None = None,
    ) -> Areas:
        main_policy, dead_letter_policy = fragment_policies(description, self._limits)

        def key_prefix_of(area: Area) -> bytes:
            return area_prefix(entity_id, number, area)

        def make_area(area: Area) -> Fragment:
            return Fragment(
                key_prefix_of(area),
                self._commit_log,
                dead_letter_policy,
                time_services=self._time_services,
                token_source=self._token_source,
            )

        dead_letters = make_area(Area.DEAD_LETTER)
        main = Fragment(
            key_prefix_of(Area.MAIN),
            self._commit_log,
            main_policy,
            time_services=self._time_services,
            token_source=self._token_source,
            dead_letters=dead_letters,
            has_sessions=description.requires_session,
            shared_bodies=shared_bodies,
        )
        return Areas(main, dead_letters, make_area, self._find_destination, key_prefix_of, self._on_forwarded)
