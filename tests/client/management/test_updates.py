"""Updates: an entity gets all properties of the description."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from twinbus.client.errors import EntityNotFound
from twinbus.client.management import AuthorizationRule, QueueDescription, SubscriptionDescription, TopicDescription
from twinbus.model.errors import InvalidArgument

if TYPE_CHECKING:
    from tests.client.management.manager_factory import ManagerFactory


async def test_an_update_changes_the_changed_properties_only(connect_manager: ManagerFactory, name: str) -> None:
    key = AuthorizationRule.new("sender", ("Send",))
    async with connect_manager() as manager:
        wanted = QueueDescription(max_delivery_count=3, user_metadata="mine", authorization_rules=(key,))
        before = await manager.create_queue(name, wanted)
        after = await manager.update_queue(name, replace(before, max_delivery_count=4, status="SendDisabled"))
        assert after == replace(before, max_delivery_count=4, status="SendDisabled")
        assert await manager.get_queue(name) == after
        runtime = await manager.get_queue_runtime(name)
    assert runtime.updated_ms > runtime.created_ms


async def test_an_update_with_a_default_value_resets_the_property(connect_manager: ManagerFactory, name: str) -> None:
    key = AuthorizationRule.new("sender", ("Send",))
    async with connect_manager() as manager:
        await manager.create_queue(name, QueueDescription(user_metadata="mine", authorization_rules=(key,)))
        assert await manager.update_queue(name, QueueDescription(lock_duration_ms=5_000)) == QueueDescription(
            lock_duration_ms=5_000
        )


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (QueueDescription(), QueueDescription(requires_session=True)),
        (QueueDescription(requires_session=True), QueueDescription()),
        (QueueDescription(), QueueDescription(requires_duplicate_detection=True)),
        (QueueDescription(requires_duplicate_detection=True), QueueDescription()),
        (QueueDescription(), QueueDescription(enable_partitioning=True)),
    ],
)
async def test_properties_that_are_fixed_at_creation_cannot_be_changed(
    connect_manager: ManagerFactory, name: str, before: QueueDescription, after: QueueDescription
) -> None:
    async with connect_manager() as manager:
        await manager.create_queue(name, before)
        with pytest.raises(InvalidArgument, match="cannot be changed: it is set at creation") as caught:
            await manager.update_queue(name, after)
        assert await manager.get_queue(name) == before
    assert type(caught.value) is InvalidArgument


async def test_sessions_of_a_subscription_and_duplicate_detection_of_a_topic_are_fixed_too(
    connect_manager: ManagerFactory, name: str
) -> None:
    async with connect_manager() as manager:
        await manager.create_topic(name, TopicDescription(requires_duplicate_detection=True))
        await manager.create_subscription(name, "all", SubscriptionDescription(requires_session=True))
        with pytest.raises(InvalidArgument, match="cannot be changed"):
            await manager.update_topic(name, TopicDescription())
        with pytest.raises(InvalidArgument, match="cannot be changed"):
            await manager.update_subscription(name, "all", SubscriptionDescription())


async def test_updating_a_missing_entity_raises_entity_not_found(connect_manager: ManagerFactory, name: str) -> None:
    async with connect_manager() as manager:
        with pytest.raises(EntityNotFound):
            await manager.update_queue(name, QueueDescription())
        with pytest.raises(EntityNotFound):
            await manager.update_topic(name, TopicDescription())
        with pytest.raises(EntityNotFound):
            await manager.update_subscription(name, "all", SubscriptionDescription())


async def test_a_topic_cannot_be_updated_to_a_queue(connect_manager: ManagerFactory, name: str) -> None:
    async with connect_manager() as manager:
        await manager.create_topic(name)
        with pytest.raises(InvalidArgument, match="is described by a TopicDescription, not a QueueDescription"):
            await manager.update_queue(name, QueueDescription())
