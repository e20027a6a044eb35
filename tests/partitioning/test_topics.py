"""Partitioned topics: their subscriptions have the same fragments, and rules apply in all of them."""

from __future__ import annotations

import asyncio

from tests.support.partitioned_namespace import (
    FRAGMENTS,
    PartitionedNamespace,
    fragment_of_message,
    key_for_fragment,
    numbered_messages,
    one_per_fragment,
    partitioned_namespace,
    receive,
    texts,
)
from twinbus.broker.entities.subscription import Subscription
from twinbus.broker.entities.topic import Topic
from twinbus.client import BrokeredMessage
from twinbus.model.rule import RuleDescription, SqlFilter
from twinbus.testing import in_virtual_time

LARGE = RuleDescription(name="large", filter=SqlFilter(expression="amount > 10"))
ALL = "news/Subscriptions/all"


@in_virtual_time
async def test_r086_a_partitioned_topic_and_its_subscriptions_have_the_same_fragments() -> None:
    async with partitioned_namespace() as orders:
        await _create_topic(orders)
        topic, subscription = (orders.namespace.broker.find(path) for path in ("news", ALL))
        assert isinstance(topic, Topic)
        assert isinstance(subscription, Subscription)
        assert len(topic.parts) == len(subscription.parts) == FRAGMENTS
        commit_logs = [part.main.local.commit_log for part in topic.parts]
        assert [part.main.local.commit_log for part in subscription.parts] == commit_logs


@in_virtual_time
async def test_a_deleted_subscription_is_neither_listed_nor_counted() -> None:
    async with partitioned_namespace() as orders:
        await _create_topic(orders)
        entities = orders.namespace.entities
        await entities.delete(ALL)
        assert await entities.list_subscriptions("news", skip=0, top=10) == []
        topic = await entities.get("news")
        assert topic.runtime.subscription_count == 0  # type: ignore[union-attr]  # the entity is a topic


@in_virtual_time
async def test_r098_r099_messages_go_to_the_fragment_of_their_key_or_in_turn() -> None:
    async with partitioned_namespace() as orders:
        await _create_topic(orders)
        topic = orders.factory.create_topic_client("news")
        for message in [*one_per_fragment(), *numbered_messages(FRAGMENTS)]:
            await topic.send(message)
        published = await orders.namespace.messages(ALL)
        assert all(copy.text == f"{fragment_of_message(copy)}" for copy in published if copy.partition_key is not None)
        assert {fragment_of_message(copy) for copy in published if copy.partition_key is None} == set(range(FRAGMENTS))


@in_virtual_time
async def test_rules_and_later_changes_apply_in_all_fragments() -> None:
    async with partitioned_namespace() as orders:
        await _create_topic(orders)
        await orders.namespace.create_subscription("news", "large", LARGE)
        topic = orders.factory.create_topic_client("news")
        for message in one_per_fragment():
            message.properties["amount"] = int(message.text) * 2
            await topic.send(message)
        large = orders.factory.create_subscription_client("news", "large")
        assert sorted(int(text) for text in texts(await receive(large, 10))) == list(range(6, 16))
        await orders.namespace.entities.delete_rule("news/Subscriptions/large", "large")
        for message in one_per_fragment():
            await topic.send(message)
        assert await large.receive(timeout=1) is None
        assert len(await orders.fragments(ALL)) == 2 * FRAGMENTS


@in_virtual_time
async def test_duplicates_are_dropped_before_they_are_published() -> None:
    async with partitioned_namespace() as orders:
        await _create_topic(orders, requires_duplicate_detection=True)
        topic = orders.factory.create_topic_client("news")
        for _ in range(2):
            for number in range(40):
                await topic.send(BrokeredMessage("x", message_id=f"{number}"))
        assert len(await orders.fragments(ALL)) == 40


@in_virtual_time
async def test_sessions_and_transactions_work_on_partitioned_subscriptions() -> None:
    async with partitioned_namespace() as orders:
        await _create_topic(orders, requires_session=True)
        topic = orders.factory.create_topic_client("news")
        async with orders.factory.transaction() as transaction:
            await topic.send_batch(numbered_messages(5, session_id=key_for_fragment(9)), transaction=transaction)
        session = await orders.factory.create_subscription_client("news", "all").accept_session(timeout=5)
        received = await session.receive_batch(5, timeout=1)
        assert (session.session_id, texts(received)) == (key_for_fragment(9), ["0", "1", "2", "3", "4"])
        async with orders.factory.transaction() as transaction:
            for message in received:
                await session.complete(message, transaction=transaction)
        assert await orders.fragments(ALL) == []


@in_virtual_time
async def test_r095_an_unavailable_store_stops_neither_publishers_nor_subscribers() -> None:
    async with partitioned_namespace() as orders:
        await _create_topic(orders)
        await orders.probe_store(3)
        topic = orders.factory.create_topic_client("news")
        for message in numbered_messages(40):
            await topic.send(message)
        subscriber = orders.factory.create_subscription_client("news", "all")
        received = await receive(subscriber, 40)
        assert sorted(texts(received), key=int) == [f"{number}" for number in range(40)]
        assert {fragment_of_message(message) % 4 for message in received} == {0, 1, 2}


@in_virtual_time
async def test_a_deleted_subscription_leaves_no_messages_after_a_restart() -> None:
    async with partitioned_namespace() as orders:
        await _create_topic(orders)
        await orders.namespace.create_subscription("news", "other")
        topic = orders.factory.create_topic_client("news")
        for message in one_per_fragment():
            await topic.send(message)
        await orders.namespace.entities.delete("news/Subscriptions/other")
        await asyncio.sleep(1)
        orders.namespace.kill()
        await orders.namespace.start()
        assert await orders.fragments(ALL) == list(range(FRAGMENTS))
        subscriber = orders.namespace.factory().create_subscription_client("news", "all")
        for message in await receive(subscriber, FRAGMENTS):
            await subscriber.complete(message)
        assert orders.namespace.counts("news").size_bytes == 0


async def _create_topic(orders: PartitionedNamespace, *, requires_session: bool = False, **topic: bool) -> None:
    await orders.namespace.create_topic("news", enable_partitioning=True, **topic)
    await orders.namespace.create_subscription("news", "all", requires_session=requires_session)
