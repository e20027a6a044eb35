"""The destinations of a message, derived from entities: forwarding, subscriptions, filters, duplicate detection."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

import pytest

from twinbus.model.info import QueueInfo, SubscriptionInfo, TopicInfo
from twinbus.model.queue import QueueDescription, QueueRuntime
from twinbus.model.rule import FalseFilter, RuleDescription, SqlFilter, TrueFilter
from twinbus.model.topic import SubscriptionDescription, TopicDescription, TopicRuntime
from twinbus.pipeline.audit.topology import (
    LocationRole,
    MessageLocation,
    NamespaceEntities,
    read_namespace,
    topology_from_journals,
    topology_of_namespace,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from twinbus.client import NamespaceManager
    from twinbus.model.rule import Filter

RUNTIME = QueueRuntime(active_count=0, dead_letter_count=0, size_bytes=0, created_ms=17, updated_ms=17, accessed_ms=17)


def queue(path: str, **settings: Any) -> QueueInfo:  # noqa: ANN401
    return QueueInfo(path=path, description=QueueDescription(**settings), runtime=RUNTIME)


def subscription(name: str, **settings: Any) -> SubscriptionInfo:  # noqa: ANN401
    description = SubscriptionDescription(**settings)
    path = f"News/Subscriptions/{name}"
    return SubscriptionInfo(path=path, topic="News", name=name, description=description, runtime=RUNTIME)


def namespace(*queues: QueueInfo, topic: TopicDescription | None = None, **subscriptions: Any) -> NamespaceEntities:  # noqa: ANN401
    runtime = TopicRuntime(
        size_bytes=0,
        created_ms=17,
        updated_ms=17,
        accessed_ms=17,
        scheduled_count=0,
        subscription_count=len(subscriptions),
    )
    topics = {"news": TopicInfo(path="News", description=topic or TopicDescription(), runtime=runtime)}
    infos = [(subscription(name, **settings), takes_all) for name, (takes_all, settings) in subscriptions.items()]
    return NamespaceEntities({info.path.lower(): info for info in queues}, topics, {"news": infos})


def test_a_queue_is_its_own_destination() -> None:
    topology = topology_of_namespace(namespace(queue("Orders", default_time_to_live_ms=5_000)), ["ORDERS"])
    assert topology.routes == [("orders", "orders")]
    assert topology.locations == [
        MessageLocation("orders", "orders", LocationRole.MAIN),
        MessageLocation("orders/$deadletterqueue", "orders", LocationRole.DEAD_LETTER),
    ]
    orders = topology.destinations["orders"]
    assert (orders.detects_duplicates, orders.dead_letters_expired, orders.time_to_live_ms) == (False, False, 5_000)
    assert (orders.created_ms, orders.is_filtered, orders.is_subscription) == (17, False, False)


def test_each_subscription_of_a_topic_is_a_destination() -> None:
    entities = namespace(
        topic=TopicDescription(requires_duplicate_detection=True, default_time_to_live_ms=9_000),
        all=(True, {"default_time_to_live_ms": 20_000}),
        some=(False, {"default_time_to_live_ms": 1_000}),
    )
    topology = topology_of_namespace(entities, ["news"])
    unfiltered, filtered = (topology.destinations[f"news/subscriptions/{name}"] for name in ("all", "some"))
    assert topology.routes == [("news", unfiltered.path), ("news", filtered.path)]
    assert (
        unfiltered.is_filtered,
        unfiltered.is_subscription,
        unfiltered.detects_duplicates,
        unfiltered.time_to_live_ms,
    ) == (
        False,
        True,
        True,
        9_000,
    )
    assert (filtered.is_filtered, filtered.time_to_live_ms) == (True, 1_000)


@pytest.mark.parametrize(
    ("rule", "is_filtered"),
    [
        (TrueFilter(), False),
        (SqlFilter(expression="1=1"), False),
        (SqlFilter(expression=" 1 = 1 "), False),
        (SqlFilter(expression="1=1 AND color='red'"), True),
        (FalseFilter(), True),
    ],
)
def test_a_filter_that_is_always_true_is_ignored(rule: Filter, is_filtered: bool) -> None:  # noqa: FBT001
    entities = namespace(some=(True, {}))

    class Manager:
        """A manager of one topic with one subscription."""

        async def get_queues(self) -> AsyncIterator[QueueInfo]:
            for info in entities.queues.values():
                yield info

        async def get_topics(self) -> AsyncIterator[TopicInfo]:
            yield entities.topics["news"]

        async def get_subscriptions(self, _topic: str) -> AsyncIterator[SubscriptionInfo]:
            yield subscription("some")

        async def get_rules(self, _topic: str, _name: str) -> AsyncIterator[RuleDescription]:
            yield RuleDescription(name="one", filter=rule)

    read_entities = asyncio.run(read_namespace(cast("NamespaceManager", Manager()), ["news"]))
    assert (
        topology_of_namespace(read_entities, ["news"]).destinations["news/subscriptions/some"].is_filtered
        is is_filtered
    )


def test_forwarding_is_followed_and_entities_on_the_way_are_inspected() -> None:
    entities = namespace(
        queue("orders", forward_to="Archive", requires_duplicate_detection=True, duplicate_window_ms=60_000),
        queue("archive", forward_dead_lettered_to="graves"),
        queue("graves"),
    )
    topology = topology_of_namespace(entities, ["orders"])
    assert topology.routes == [("orders", "archive")]
    assert topology.destinations.keys() == {"archive"}
    archive = topology.destinations["archive"]
    assert (archive.detects_duplicates, archive.duplicate_window_ms, archive.time_to_live_ms) == (True, 60_000, None)
    assert {(location.path, location.role) for location in topology.locations} == {
        ("archive", LocationRole.MAIN),
        ("archive/$deadletterqueue", LocationRole.DEAD_LETTER),
        ("graves", LocationRole.DEAD_LETTER),
        ("orders", LocationRole.TRANSIT),
        ("orders/$deadletterqueue", LocationRole.DEAD_LETTER),
        ("orders/$transfer/$deadletterqueue", LocationRole.DEAD_LETTER),
    }
    order = topology.inspection_order()
    assert order.index("orders") < order.index("archive") < order.index("graves")


def test_two_subscriptions_that_forward_to_one_queue_make_two_copies() -> None:
    target = {"forward_to": "archive"}
    topology = topology_of_namespace(namespace(queue("archive"), a=(True, target), b=(True, target)), ["news"])
    assert topology.routes == [("news", "archive"), ("news", "archive")]


def test_a_forwarding_cycle_ends() -> None:
    topology = topology_of_namespace(namespace(queue("a", forward_to="b"), queue("b", forward_to="a")), ["a"])
    assert len(topology.destinations) == 1


def test_a_missing_entity_is_a_destination_that_does_not_exist() -> None:
    topology = topology_of_namespace(namespace(), ["gone", "news"])
    assert [(destination.path, destination.exists) for destination in topology.destinations.values()] == [
        ("gone", False),
        ("news", False),
    ]
    assert topology.inspection_order() == []


def test_without_a_namespace_the_destinations_come_from_the_journals() -> None:
    topology = topology_from_journals(
        ["Orders", "news"], ["orders", "News/Subscriptions/One", "news/subscriptions/one/$deadletterqueue"]
    )
    assert topology.routes == [("news", "news/subscriptions/one"), ("orders", "orders")]
    orders, subscribed = (topology.destinations[path] for path in ("orders", "news/subscriptions/one"))
    assert (orders.detects_duplicates, orders.dead_letters_expired, orders.created_ms) == (None, None, None)
    assert not orders.is_filtered
    assert subscribed.is_filtered
