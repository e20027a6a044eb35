"""An entity with AutoDeleteOnIdle is deleted only if all workers report it as idle."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.server.catalogue.recording_catalogue_service import open_catalogue_service
from twinbus.model.queue import QueueDescription
from twinbus.model.topic import SubscriptionDescription, TopicDescription
from twinbus.server.catalogue.auto_delete import delete_idle_once

if TYPE_CHECKING:
    from pathlib import Path

FIVE_MINUTES_MS = 300_000


@pytest.mark.parametrize(
    ("answers", "is_deleted"),
    [
        ([300.0, 301.0], True),
        ([300.0, 299.0], False),
        ([300.0, 0.0], False),
        ([300.0, None], False),  # that worker does not know the entity yet
        (None, False),  # a worker is down
    ],
    ids=str,
)
async def test_an_entity_is_deleted_only_if_all_workers_report_it_as_idle(
    tmp_path: Path,
    answers: list[float | None] | None,
    is_deleted: bool,  # noqa: FBT001
) -> None:
    async with open_catalogue_service(tmp_path) as service:
        row = await service.create("passing", QueueDescription(auto_delete_on_idle_ms=FIVE_MINUTES_MS))
        await service.create("staying", QueueDescription())

        async def idle_times() -> list[dict[int, float]] | None:
            return None if answers is None else [{row.id: idle_s} if idle_s is not None else {} for idle_s in answers]

        await delete_idle_once(service, idle_times)
        assert ("passing" in service.entities) is not is_deleted
        assert "staying" in service.entities


async def test_workers_are_not_asked_if_no_entity_has_auto_delete_on_idle(tmp_path: Path) -> None:
    async with open_catalogue_service(tmp_path) as service:
        await service.create("staying", QueueDescription())

        async def idle_times() -> None:
            raise AssertionError

        await delete_idle_once(service, idle_times)


async def test_an_idle_topic_is_deleted_with_its_subscriptions(tmp_path: Path) -> None:
    async with open_catalogue_service(tmp_path) as service:
        topic = await service.create("news", TopicDescription(auto_delete_on_idle_ms=FIVE_MINUTES_MS))
        description = SubscriptionDescription(auto_delete_on_idle_ms=FIVE_MINUTES_MS)
        subscription = await service.create_subscription("news", "one", description)

        async def idle_times() -> list[dict[int, float]]:
            return [{topic.id: 300.0, subscription.id: 300.0}]

        await delete_idle_once(service, idle_times)
        assert not service.entities


async def test_an_idle_entity_with_an_unavailable_store_is_not_deleted(tmp_path: Path) -> None:
    async with open_catalogue_service(tmp_path) as service:
        description = QueueDescription(auto_delete_on_idle_ms=FIVE_MINUTES_MS, enable_partitioning=True)
        row = await service.create("spread", description)
        service.unavailable_reasons[1] = "its process is down"

        async def idle_times() -> list[dict[int, float]]:
            return [{row.id: 300.0}]

        await delete_idle_once(service, idle_times)
        assert "spread" in service.entities
