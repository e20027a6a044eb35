"""A partitioned topic: its subscriptions have the fragments that it has, and their rules hold in all of them."""

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
async def test_r086_a_topic_is_made_of_fragments_and_its_subscriptions_too() -> None:
    async with partitioned_namespace() as orders:
        await _make(orders)
        topic, subscription = (orders.namespace.broker.find(path) for path in ("news", ALL))
        assert isinstance(topic, Topic)
        assert isinstance(subscription, Subscription)
        assert len(topic.parts) == len(subscription.parts) == FRAGMENTS
        journals = [part.main.local.commit_log for part in topic.parts]
        assert [part.main.local.commit_log for part in subscription.parts] == journals


@in_virtual_time
async def test_a_deleted_subscription_is_neither_listed_nor_counted() -> None:
    async with partitioned_namespace() as orders:
        await _make(orders)
        entities = orders.namespace.entities
        await entities.delete(ALL)
        assert await entities.list_subscriptions("news", skip=0, top=10) == []
        topic = await entities.get("news")
        assert topic.runtime.subscription_count == 0  # type: ignore[union-attr]  # it is a topic


@in_virtual_time
async def test_r098_r099_messages_lie_in_the_fragments_that_their_keys_or_their_turn_say() -> None:
    async with partitioned_namespace() as orders:
        await _make(orders)
        topic = orders.factory.create_topic_client("news")
        for message in [*one_per_fragment(), *numbered_messages(FRAGMENTS)]:
            await topic.send(message)
        found = await orders.namespace.messages(ALL)
        assert all(one.text == f"{fragment_of_message(one)}" for one in found if one.partition_key is not None)
        assert {fragment_of_message(one) for one in found if one.partition_key is None} == set(range(FRAGMENTS))


@in_virtual_time
async def test_rules_hold_in_all_fragments_also_those_that_come_later() -> None:
    async with partitioned_namespace() as orders:
        await _make(orders)
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
        await _make(orders, requires_duplicate_detection=True)
        topic = orders.factory.create_topic_client("news")
        for _ in range(2):
            for number in range(40):
                await topic.send(BrokeredMessage("x", message_id=f"{number}"))
        assert len(await orders.fragments(ALL)) == 40


@in_virtual_time
async def test_sessions_and_transactions_work_on_its_subscriptions() -> None:
    async with partitioned_namespace() as orders:
        await _make(orders, requires_session=True)
        topic = orders.factory.create_topic_client("news")
        async with orders.factory.transaction() as transaction:
            await topic.send_batch(numbered_messages(5, session_id=key_for_fragment(9)), transaction=transaction)
        session = await orders.factory.create_subscription_client("news", "all").accept_session(timeout=5)
        found = await session.receive_batch(5, timeout=1)
        assert (session.session_id, texts(found)) == (key_for_fragment(9), ["0", "1", "2", "3", "4"])
        async with orders.factory.transaction() as transaction:
            for message in found:
                await session.complete(message, transaction=transaction)
        assert await orders.fragments(ALL) == []


@in_virtual_time
async def test_r095_one_store_that_is_down_stops_neither_publishers_nor_subscribers() -> None:
    async with partitioned_namespace() as orders:
        await _make(orders)
        await orders.probe_store(3)
        topic = orders.factory.create_topic_client("news")
        for message in numbered_messages(40):
            await topic.send(message)
        subscriber = orders.factory.create_subscription_client("news", "all")
        found = await receive(subscriber, 40)
        assert sorted(texts(found), key=int) == [f"{number}" for number in range(40)]
        assert {fragment_of_message(message) % 4 for message in found} == {0, 1, 2}


@in_virtual_time
async def test_a_deleted_subscription_leaves_nothing_and_a_restart_changes_nothing() -> None:
    async with partitioned_namespace() as orders:
        await _make(orders)
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


async def _make(orders: PartitionedNamespace, *, requires_session: bool = False, **topic: bool) -> None:
    await orders.namespace.create_topic("news", enable_partitioning=True, **topic)
    await orders.namespace.create_subscription("news", "all", requires_session=requires_session)
