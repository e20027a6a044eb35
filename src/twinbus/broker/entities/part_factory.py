"""Parts of entities, made for the store that they lie in: one factory for each store of a namespace.

Owns: how a part is put together if its store belongs to this process (`LocalPartFactory`). `remote.part` has the
factory for stores of other processes; the namespace uses both by the same methods (`PartFactory`).
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
    """Makes the parts of entities that lie in one store."""

    def make_queue_part(self, queue: Queue, number: int) -> EntityPart:
        """Make a part of a queue; `number` is its fragment's."""
        raise NotImplementedError

    def make_topic_part(self, topic: Topic, number: int) -> EntityPart:
        """Make a part of a topic."""
        raise NotImplementedError

    def make_subscription_part(
        self, subscription: Subscription, topic_part: EntityPart, subscription_key: str
    ) -> EntityPart:
        """Make a part of a subscription beside a part of its topic, which knows it by `name`."""
        raise NotImplementedError


class LocalPartFactory(PartFactory):
    """Makes parts in a store of this process."""

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
        """`find` returns the entity that messages are forwarded to, `forwarded` counts forwarded messages."""
        self._commit_log = commit_log
        self._time_services = time_services
        self._token_source = token_source
        self._limits = limits
        self._work_budget = work_budget
        self._find_destination = find_destination
        self._on_forwarded = on_forwarded

    def make_queue_part(self, queue: Queue, number: int) -> EntityPart:
        """Make a part of a queue."""
        return QueuePart(queue, self._make_areas(queue.entity_id, number, queue.description))

    def make_topic_part(self, topic: Topic, number: int) -> EntityPart:
        """Make a part of a topic."""
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
        """Make a part of a subscription, which shares the bodies of messages with the topic's part."""
        assert isinstance(topic_part, TopicPart)
        bodies = topic_part.main.shared_bodies
        areas = self._make_areas(subscription.entity_id, topic_part.number, subscription.description, bodies)
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

        def prefix(area: Area) -> bytes:
            return area_prefix(entity_id, number, area)

        def make(area: Area) -> Fragment:
            return Fragment(
                prefix(area),
                self._commit_log,
                dead_letter_policy,
                time_services=self._time_services,
                token_source=self._token_source,
            )

        dead_letters = make(Area.DEAD_LETTER)
        main = Fragment(
            prefix(Area.MAIN),
            self._commit_log,
            main_policy,
            time_services=self._time_services,
            token_source=self._token_source,
            dead_letters=dead_letters,
            has_sessions=description.requires_session,
            shared_bodies=shared_bodies,
        )
        return Areas(main, dead_letters, make, self._find_destination, prefix, self._on_forwarded)
