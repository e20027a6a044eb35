"""An entity that deletes itself when nobody uses it is deleted when no worker is used for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.server.catalogue.recording_catalogue_service import open_catalogue_service
from twinbus.model.queue import QueueDescription
from twinbus.model.topic import SubscriptionDescription, TopicDescription
from twinbus.server.cluster.supervisor import delete_idle_once

if TYPE_CHECKING:
    from pathlib import Path

FIVE_MINUTES_MS = 300_000


@pytest.mark.parametrize(
    ("answers", "is_deleted"),
    [
        ([300.0, 301.0], True),
        ([300.0, 299.0], False),
        ([300.0, 0.0], False),
        ([300.0, None], False),  # that worker does not know it yet
        (None, False),  # a worker is down
    ],
    ids=str,
)
async def test_all_workers_have_to_say_so(
    tmp_path: Path,
    answers: list[float | None] | None,
    is_deleted: bool,  # noqa: FBT001  # what is expected
) -> None:
    async with open_catalogue_service(tmp_path) as keeper:
        row = await keeper.create("passing", QueueDescription(auto_delete_on_idle_ms=FIVE_MINUTES_MS))
        await keeper.create("staying", QueueDescription())

        async def ask() -> list[dict[int, float]] | None:
            return None if answers is None else [{row.id: one} if one is not None else {} for one in answers]

        await delete_idle_once(keeper, ask)
        assert ("passing" in keeper.entities) is not is_deleted
        assert "staying" in keeper.entities


async def test_nobody_is_asked_where_nothing_can_be_idle(tmp_path: Path) -> None:
    async with open_catalogue_service(tmp_path) as keeper:
        await keeper.create("staying", QueueDescription())

        async def ask() -> None:
            raise AssertionError

        await delete_idle_once(keeper, ask)


async def test_a_topic_goes_with_its_subscriptions(tmp_path: Path) -> None:
    async with open_catalogue_service(tmp_path) as keeper:
        topic = await keeper.create("news", TopicDescription(auto_delete_on_idle_ms=FIVE_MINUTES_MS))
        description = SubscriptionDescription(auto_delete_on_idle_ms=FIVE_MINUTES_MS)
        one = await keeper.create_subscription("news", "one", description)

        async def ask() -> list[dict[int, float]]:
            return [{topic.id: 300.0, one.id: 300.0}]

        await delete_idle_once(keeper, ask)
        assert not keeper.entities


async def test_one_whose_store_does_not_work_stays(tmp_path: Path) -> None:
    async with open_catalogue_service(tmp_path) as keeper:
        description = QueueDescription(auto_delete_on_idle_ms=FIVE_MINUTES_MS, enable_partitioning=True)
        row = await keeper.create("spread", description)
        keeper.unavailable_reasons[1] = "its process is not there"

        async def ask() -> list[dict[int, float]]:
            return [{row.id: 300.0}]

        await delete_idle_once(keeper, ask)
        assert "spread" in keeper.entities
