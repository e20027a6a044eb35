"""The catalogue service validates changes, publishes them in order, and cleans up deleted entities in every store."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec
import pytest

from tests.server.catalogue.recording_catalogue_service import open_catalogue_service
from twinbus.model.authorization import AuthorizationRule
from twinbus.model.errors import EntityNotFound, QuotaExceeded, StoreUnavailable
from twinbus.model.queue import QueueDescription
from twinbus.model.rule import RuleDescription, SqlFilter
from twinbus.model.topic import SubscriptionDescription, TopicDescription
from twinbus.server.catalogue.changes import EntityCreated, EntityDeleted, EntityUpdated, RuleDeleted, RulePut
from twinbus.server.cluster import control_protocol
from twinbus.server.cluster.control_protocol import SUPERVISOR_DECODER, Apply

if TYPE_CHECKING:
    from pathlib import Path

PARTITIONED = QueueDescription(enable_partitioning=True)
RULE = RuleDescription(name="red", filter=SqlFilter(expression="colour = 'red'"))


async def test_every_change_is_published_in_order(tmp_path: Path) -> None:
    async with open_catalogue_service(tmp_path) as service:
        queue = await service.create("orders", PARTITIONED)
        topic = await service.create("news", TopicDescription())
        subscription = await service.create_subscription("news", "all", SubscriptionDescription())
        updated = await service.update("ORDERS", QueueDescription(enable_partitioning=True, max_delivery_count=3))
        rule = await service.create_rule("news/Subscriptions/all", RULE)
        await service.delete_rule("news/subscriptions/ALL", "RED")
        await service.delete("news")
        kinds = [type(change) for change in service.changes]
        created, put, dropped, deleted = EntityCreated, RulePut, RuleDeleted, EntityDeleted
        assert kinds == [created, created, created, EntityUpdated, put, dropped, deleted]
        assert service.changes[0] == EntityCreated(queue)
        assert service.changes[1] == EntityCreated(topic)
        assert service.changes[3] == EntityUpdated(updated)
        assert service.changes[4] == RulePut(subscription.path, rule)
        last = service.changes[6]
        assert isinstance(last, EntityDeleted)
        assert [row.id for row in last.deleted_rows] == [topic.id, subscription.id]


async def test_an_encoded_change_decodes_to_the_same_change(tmp_path: Path) -> None:
    async with open_catalogue_service(tmp_path) as service:
        await service.create("orders", PARTITIONED)
        await service.create("news", TopicDescription(user_metadata="\u00e9"))
        await service.create_subscription("news", "all", SubscriptionDescription(), RULE)
        await service.update("news", TopicDescription())
        await service.update_rule("news/Subscriptions/all", RULE)
        await service.delete_rule("news/Subscriptions/all", "red")
        await service.delete("news")
        for change in service.changes:
            assert control_protocol.decode_change(_round_trip(control_protocol.encode_change(change))) == change  # type: ignore[arg-type]  # not an outage


def _round_trip(change: msgspec.Struct) -> control_protocol.AnyChange:
    number, message = SUPERVISOR_DECODER.decode(msgspec.msgpack.encode((7, Apply(3, change))))  # type: ignore[arg-type]
    assert number == 7
    assert isinstance(message, Apply)
    assert message.version == 3
    return message.change


async def test_a_deleted_entity_is_forgotten_once_every_store_has_cleaned_it_up(tmp_path: Path) -> None:
    async with open_catalogue_service(tmp_path) as service:
        row = await service.create("orders", PARTITIONED)
        await service.delete("orders")
        await service.cleanup_finished(row.id, [0, 2])
        assert list(service.deleted_entities) == [row.id]
    async with open_catalogue_service(tmp_path) as service:
        assert list(service.deleted_entities) == [row.id], "the cleanup continues after a restart"
        await service.cleanup_finished(row.id, [0, 2])
        await service.cleanup_finished(row.id, [0, 2])
        assert list(service.deleted_entities) == [row.id]
        await service.cleanup_finished(row.id, [1, 3])
        await service.cleanup_finished(row.id, [1, 3])
        assert not service.deleted_entities
    async with open_catalogue_service(tmp_path) as service:
        assert not service.deleted_entities


async def test_new_entities_go_to_the_available_store_with_the_fewest_entities(tmp_path: Path) -> None:
    async with open_catalogue_service(tmp_path) as service:
        service.unavailable_reasons[1] = "its process is down"
        rows = [await service.create(f"queue-{number}", QueueDescription()) for number in range(4)]
        assert [row.fragments for row in rows] == [(0,), (2,), (3,), (0,)]
        service.unavailable_reasons.clear()
        rows = [await service.create(f"other-{number}", QueueDescription()) for number in range(3)]
        assert [row.fragments for row in rows] == [(1,), (1,), (2,)]


async def test_a_partitioned_entity_is_not_changed_if_one_store_is_unavailable(tmp_path: Path) -> None:
    async with open_catalogue_service(tmp_path) as service:
        await service.create("orders", PARTITIONED)
        await service.create("news", TopicDescription(enable_partitioning=True))
        published = len(service.changes)
        service.unavailable_reasons[3] = "its process is down"
        for change in (
            service.create("other", PARTITIONED),
            service.update("orders", PARTITIONED),
            service.delete("orders"),
            service.create_subscription("news", "all", SubscriptionDescription()),
        ):
            with pytest.raises(StoreUnavailable, match="store 3 is unavailable"):
                await change
        assert len(service.changes) == published
        service.unavailable_reasons.clear()
        await service.delete("orders")


async def test_entity_limits_count_over_all_stores(tmp_path: Path) -> None:
    async with open_catalogue_service(tmp_path, max_entities=3, max_partitioned=1) as service:
        await service.create("spread", PARTITIONED)
        with pytest.raises(QuotaExceeded, match="1 partitioned"):
            await service.create("second", PARTITIONED)
        await service.create("news", TopicDescription())
        await service.create_subscription("news", "all", SubscriptionDescription())
        with pytest.raises(QuotaExceeded, match="3 entities"):
            await service.create("fourth", QueueDescription())
        await service.delete("spread")
        await service.create("second", PARTITIONED)


async def test_concurrent_changes_are_applied_one_after_the_other(tmp_path: Path) -> None:
    async with open_catalogue_service(tmp_path) as service:
        creations = [service.create(f"queue-{number}", QueueDescription()) for number in range(10)]
        rows = await asyncio.gather(*creations)
        assert [row.id for row in rows] == list(range(1, 11))
        assert [change.row for change in service.changes if isinstance(change, EntityCreated)] == rows


async def test_a_closed_service_refuses_changes(tmp_path: Path) -> None:
    async with open_catalogue_service(tmp_path) as service:
        pass
    with pytest.raises(StoreUnavailable, match="the server is stopping"):
        await service.create("late", QueueDescription())
    async with open_catalogue_service(tmp_path) as service:
        with pytest.raises(EntityNotFound):
            service.find("late")


async def test_existing_secrets_that_are_too_short_are_kept_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    short = AuthorizationRule(name="old", rights=("Send",), primary_key="x", secondary_key="y" * 16)
    async with open_catalogue_service(tmp_path) as service:
        await service.create("orders", QueueDescription(authorization_rules=(short,)))
        await service.create("events", QueueDescription(authorization_rules=(AuthorizationRule.new("new", ("Send",)),)))
    async with open_catalogue_service(tmp_path) as service:
        assert service.find("orders").description == QueueDescription(authorization_rules=(short,))
    [record] = caplog.records
    assert "fewer than 16 characters" in record.getMessage()
    assert (record.__dict__["entity"], record.__dict__["keys"]) == ("orders", "old")
