"""Creating, reading, updating and deleting topics and subscriptions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from twinbus.client import BrokeredMessage, MessagingFactory
from twinbus.client.errors import EntityNotFound
from twinbus.client.management import (
    CorrelationFilter,
    RuleDescription,
    SqlAction,
    SqlFilter,
    SubscriptionDescription,
    TopicDescription,
    TrueFilter,
)

if TYPE_CHECKING:
    from tests.client.management.manager_factory import ManagerFactory

TOPIC = TopicDescription(
    default_time_to_live_ms=86_400_000,
    max_size_mb=3072,
    requires_duplicate_detection=True,
    duplicate_window_ms=3_600_000,
    enable_batched_operations=False,
    filtering_messages_before_publishing=True,
    status="SendDisabled",
    support_ordering=False,
    auto_delete_on_idle_ms=600_000,
    enable_express=True,
    user_metadata="mine",
)
SUBSCRIPTION = SubscriptionDescription(
    lock_duration_ms=30_000,
    requires_session=True,
    default_time_to_live_ms=3_600_000,
    dead_lettering_on_expiration=True,
    dead_lettering_on_filter_errors=False,
    max_delivery_count=7,
    enable_batched_operations=False,
    status="ReceiveDisabled",
    auto_delete_on_idle_ms=600_000,
    user_metadata="yours",
)


async def test_a_topic_has_the_properties_it_was_created_or_updated_with(
    connect_manager: ManagerFactory, name: str
) -> None:
    async with connect_manager() as manager:
        assert await manager.create_topic(f"{name}-plain") == TopicDescription()
        assert await manager.create_topic(name, TOPIC) == TOPIC
        assert await manager.get_topic(name) == TOPIC
        changed = TopicDescription(requires_duplicate_detection=True, max_size_mb=1024)
        assert await manager.update_topic(name, changed) == changed
        assert await manager.get_topic(name) == changed


async def test_a_subscription_has_the_properties_it_was_created_or_updated_with(
    connect_manager: ManagerFactory, name: str
) -> None:
    async with connect_manager() as manager:
        await manager.create_topic(name)
        assert await manager.create_subscription(name, "plain") == SubscriptionDescription()
        assert await manager.create_subscription(name, "all", SUBSCRIPTION) == SUBSCRIPTION
        assert await manager.get_subscription(name, "all") == SUBSCRIPTION
        changed = SubscriptionDescription(requires_session=True, max_delivery_count=8)
        assert await manager.update_subscription(name, "all", changed) == changed
        assert await manager.get_subscription(name, "all") == changed


async def test_topics_and_subscriptions_exist_until_they_are_deleted(
    connect_manager: ManagerFactory, name: str
) -> None:
    async with connect_manager() as manager:
        assert not await manager.topic_exists(name)
        await manager.create_topic(name)
        assert await manager.topic_exists(name)
        assert not await manager.subscription_exists(name, "all")
        await manager.create_subscription(name, "all")
        assert await manager.subscription_exists(name, "all")
        await manager.delete_subscription(name, "all")
        assert not await manager.subscription_exists(name, "all")
        await manager.delete_topic(name)
        assert not await manager.topic_exists(name)
        with pytest.raises(EntityNotFound):
            await manager.get_topic(name)
        with pytest.raises(EntityNotFound):
            await manager.get_subscription(name, "all")


async def test_a_new_subscription_has_a_default_rule_that_matches_all_messages(
    connect_manager: ManagerFactory, name: str
) -> None:
    async with connect_manager() as manager:
        await manager.create_topic(name)
        await manager.create_subscription(name, "all")
        (rule,) = [rule async for rule in manager.get_rules(name, "all")]
    assert (rule.name, rule.filter, rule.action) == ("$Default", TrueFilter(), None)
    assert rule.created_ms > 1_600_000_000_000


async def test_a_subscription_can_be_created_with_its_rule(connect_manager: ManagerFactory, name: str) -> None:
    wanted = RuleDescription(
        name="urgent", filter=SqlFilter(expression="priority > 5"), action=SqlAction(expression="SET seen = 1")
    )
    async with connect_manager() as manager:
        await manager.create_topic(name)
        await manager.create_subscription(name, "urgent", SubscriptionDescription(max_delivery_count=3), wanted)
        (rule,) = [rule async for rule in manager.get_rules(name, "urgent")]
        assert (await manager.get_subscription(name, "urgent")).max_delivery_count == 3
    assert (rule.name, rule.filter, rule.action) == ("urgent", wanted.filter, wanted.action)


async def test_the_runtimes_count_subscriptions_rules_and_messages(connect_manager: ManagerFactory, name: str) -> None:
    async with (
        connect_manager() as manager,
        MessagingFactory.from_connection_string(connect_manager.server.connection_string) as factory,
    ):
        await manager.create_topic(name)
        await manager.create_subscription(name, "all")
        await manager.create_subscription(
            name, "some", rule=RuleDescription(name="one", filter=CorrelationFilter(label="one"))
        )
        await manager.create_rule(name, "all", RuleDescription(name="sql", filter=SqlFilter(expression="1 = 0")))
        await factory.create_topic_client(name).send(BrokeredMessage("a word"))
        topic = await manager.get_topic_runtime(name)
        every, some = [await manager.get_subscription_runtime(name, subscription) for subscription in ("all", "some")]
    assert (topic.subscription_count, topic.sql_filter_count, topic.correlation_filter_count) == (2, 2, 1)
    assert topic.scheduled_count == 0
    assert topic.size_bytes > 0
    assert topic.created_ms > 1_600_000_000_000
    assert (every.active_count, some.active_count) == (1, 0)
