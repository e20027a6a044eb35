"""Creating, reading, updating and deleting queues."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from twinbus.client import BrokeredMessage, MessagingFactory
from twinbus.client.errors import EntityNotFound
from twinbus.client.management import FOREVER_MS, QueueDescription

if TYPE_CHECKING:
    from tests.client.management.manager_factory import ManagerFactory

FULL_DESCRIPTION = QueueDescription(
    lock_duration_ms=5_500,
    max_size_mb=2048,
    requires_duplicate_detection=True,
    requires_session=True,
    default_time_to_live_ms=86_400_000,
    dead_lettering_on_expiration=True,
    duplicate_window_ms=3_600_000,
    max_delivery_count=3,
    enable_batched_operations=False,
    status="ReceiveDisabled",
    support_ordering=False,
    auto_delete_on_idle_ms=600_000,
    enable_express=True,
    user_metadata=" <mine> & \u00e9 ",
)
"""Every property differs from its default, except those that need another entity or a Premium namespace."""


async def test_a_queue_without_a_description_has_all_defaults(connect_manager: ManagerFactory, name: str) -> None:
    async with connect_manager() as manager:
        assert await manager.create_queue(name) == QueueDescription()
        description = await manager.get_queue(name)
    assert description == QueueDescription()
    assert description.default_time_to_live_ms == description.auto_delete_on_idle_ms == FOREVER_MS


async def test_a_queue_has_the_properties_it_was_created_with(connect_manager: ManagerFactory, name: str) -> None:
    async with connect_manager() as manager:
        assert await manager.create_queue(name, FULL_DESCRIPTION) == FULL_DESCRIPTION
        assert await manager.get_queue(name) == FULL_DESCRIPTION


async def test_forwarding_targets_are_set_and_removed(connect_manager: ManagerFactory, name: str) -> None:
    wanted = QueueDescription(forward_to=f"{name}-next", forward_dead_lettered_to=f"{name}-dead")
    async with connect_manager() as manager:
        await manager.create_queue(f"{name}-next")
        await manager.create_queue(f"{name}-dead")
        assert await manager.create_queue(name, wanted) == wanted
        assert await manager.update_queue(name, replace(wanted, forward_to=None)) == replace(wanted, forward_to=None)


async def test_a_queue_exists_until_it_is_deleted(connect_manager: ManagerFactory, name: str) -> None:
    async with connect_manager() as manager:
        assert not await manager.queue_exists(name)
        await manager.create_queue(name)
        assert await manager.queue_exists(name.upper())
        await manager.delete_queue(name)
        assert not await manager.queue_exists(name)
        with pytest.raises(EntityNotFound):
            await manager.get_queue(name)


async def test_a_path_may_have_slashes(connect_manager: ManagerFactory, name: str) -> None:
    async with connect_manager() as manager:
        await manager.create_queue(f"{name}/x-servicebus-transfer/0")
        assert [queue.path async for queue in manager.get_queues(f"{name}/")] == [f"{name}/x-servicebus-transfer/0"]
        assert await manager.queue_exists(f"/{name}/x-servicebus-transfer/0/")


async def test_the_runtime_of_a_queue_counts_its_messages(connect_manager: ManagerFactory, name: str) -> None:
    async with (
        connect_manager() as manager,
        MessagingFactory.from_connection_string(connect_manager.server.connection_string) as factory,
    ):
        await manager.create_queue(name)
        before = await manager.get_queue_runtime(name)
        queue = factory.create_queue_client(name)
        for number in range(3):
            await queue.send(BrokeredMessage(f"order {number}"))
        first = await queue.receive(timeout=20)
        assert first is not None
        await queue.defer(first)
        second = await queue.receive(timeout=20)
        assert second is not None
        await queue.dead_letter(second)
        after = await manager.get_queue_runtime(name)
    assert (before.active_count, before.size_bytes) == (0, 0)
    assert (after.active_count, after.dead_letter_count, after.deferred_count) == (1, 1, 1)
    assert (after.scheduled_count, after.transfer_count, after.transfer_dead_letter_count) == (0, 0, 0)
    assert after.size_bytes > 0
    assert after.is_available
    assert after.accessed_ms >= after.created_ms == before.created_ms > 1_600_000_000_000


async def test_a_topic_is_not_found_as_a_queue(connect_manager: ManagerFactory, name: str) -> None:
    async with connect_manager() as manager:
        await manager.create_topic(name)
        assert not await manager.queue_exists(name)
        with pytest.raises(EntityNotFound, match="is described by a 'TopicDescription', not by a QueueDescription"):
            await manager.get_queue(name)
