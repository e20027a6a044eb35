"""The keeper allows what can be, publishes it in order, and forgets a deleted entity when it is out of every store."""

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


async def test_every_change_is_published_as_it_was_made(tmp_path: Path) -> None:
    async with open_catalogue_service(tmp_path) as keeper:
        queue = await keeper.create("orders", PARTITIONED)
        topic = await keeper.create("news", TopicDescription())
        subscription = await keeper.create_subscription("news", "all", SubscriptionDescription())
        updated = await keeper.update("ORDERS", QueueDescription(enable_partitioning=True, max_delivery_count=3))
        rule = await keeper.create_rule("news/Subscriptions/all", RULE)
        await keeper.delete_rule("news/subscriptions/ALL", "RED")
        await keeper.delete("news")
        kinds = [type(change) for change in keeper.changes]
        created, put, dropped, deleted = EntityCreated, RulePut, RuleDeleted, EntityDeleted
        assert kinds == [created, created, created, EntityUpdated, put, dropped, deleted]
        assert keeper.changes[0] == EntityCreated(queue)
        assert keeper.changes[1] == EntityCreated(topic)
        assert keeper.changes[3] == EntityUpdated(updated)
        assert keeper.changes[4] == RulePut(subscription.path, rule)
        last = keeper.changes[6]
        assert isinstance(last, EntityDeleted)
        assert [one.id for one in last.deleted_rows] == [topic.id, subscription.id]


async def test_a_change_is_read_as_it_was_written(tmp_path: Path) -> None:
    async with open_catalogue_service(tmp_path) as keeper:
        await keeper.create("orders", PARTITIONED)
        await keeper.create("news", TopicDescription(user_metadata="\u00e9"))
        await keeper.create_subscription("news", "all", SubscriptionDescription(), RULE)
        await keeper.update("news", TopicDescription())
        await keeper.update_rule("news/Subscriptions/all", RULE)
        await keeper.delete_rule("news/Subscriptions/all", "red")
        await keeper.delete("news")
        for change in keeper.changes:
            assert control_protocol.decode_change(_sent(control_protocol.encode_change(change))) == change  # type: ignore[arg-type]  # no outage


def _sent(change: msgspec.Struct) -> control_protocol.AnyChange:
    number, word = SUPERVISOR_DECODER.decode(msgspec.msgpack.encode((7, Apply(3, change))))  # type: ignore[arg-type]  # one
    assert number == 7
    assert isinstance(word, Apply)
    assert word.version == 3
    return word.change


async def test_a_deleted_entity_is_forgotten_when_it_is_out_of_every_store(tmp_path: Path) -> None:
    async with open_catalogue_service(tmp_path) as keeper:
        row = await keeper.create("orders", PARTITIONED)
        await keeper.delete("orders")
        await keeper.cleanup_finished(row.id, [0, 2])
        assert list(keeper.deleted_entities) == [row.id]
    async with open_catalogue_service(tmp_path) as keeper:
        assert list(keeper.deleted_entities) == [row.id], "the next start does it"
        await keeper.cleanup_finished(row.id, [0, 2])
        await keeper.cleanup_finished(row.id, [0, 2])
        assert list(keeper.deleted_entities) == [row.id]
        await keeper.cleanup_finished(row.id, [1, 3])
        await keeper.cleanup_finished(row.id, [1, 3])
        assert not keeper.deleted_entities
    async with open_catalogue_service(tmp_path) as keeper:
        assert not keeper.deleted_entities


async def test_new_entities_go_to_the_stores_that_work_and_have_the_fewest(tmp_path: Path) -> None:
    async with open_catalogue_service(tmp_path) as keeper:
        keeper.unavailable_reasons[1] = "its process is not there"
        rows = [await keeper.create(f"queue-{number}", QueueDescription()) for number in range(4)]
        assert [row.fragments for row in rows] == [(0,), (2,), (3,), (0,)]
        keeper.unavailable_reasons.clear()
        rows = [await keeper.create(f"other-{number}", QueueDescription()) for number in range(3)]
        assert [row.fragments for row in rows] == [(1,), (1,), (2,)]


async def test_nothing_is_done_to_a_part_of_a_partitioned_entity(tmp_path: Path) -> None:
    async with open_catalogue_service(tmp_path) as keeper:
        await keeper.create("orders", PARTITIONED)
        await keeper.create("news", TopicDescription(enable_partitioning=True))
        published = len(keeper.changes)
        keeper.unavailable_reasons[3] = "its process is not there"
        for refused in (
            keeper.create("other", PARTITIONED),
            keeper.update("orders", PARTITIONED),
            keeper.delete("orders"),
            keeper.create_subscription("news", "all", SubscriptionDescription()),
        ):
            with pytest.raises(StoreUnavailable, match="store 3 does not work now"):
                await refused
        assert len(keeper.changes) == published
        keeper.unavailable_reasons.clear()
        await keeper.delete("orders")


async def test_limits_count_over_all_stores(tmp_path: Path) -> None:
    async with open_catalogue_service(tmp_path, max_entities=3, max_partitioned=1) as keeper:
        await keeper.create("spread", PARTITIONED)
        with pytest.raises(QuotaExceeded, match="1 partitioned"):
            await keeper.create("second", PARTITIONED)
        await keeper.create("news", TopicDescription())
        await keeper.create_subscription("news", "all", SubscriptionDescription())
        with pytest.raises(QuotaExceeded, match="3 entities"):
            await keeper.create("fourth", QueueDescription())
        await keeper.delete("spread")
        await keeper.create("second", PARTITIONED)


async def test_one_change_comes_after_the_other(tmp_path: Path) -> None:
    async with open_catalogue_service(tmp_path) as keeper:
        made = [keeper.create(f"queue-{number}", QueueDescription()) for number in range(10)]
        rows = await asyncio.gather(*made)
        assert [row.id for row in rows] == list(range(1, 11))
        assert [change.row for change in keeper.changes if isinstance(change, EntityCreated)] == rows


async def test_a_keeper_that_is_closed_changes_nothing(tmp_path: Path) -> None:
    async with open_catalogue_service(tmp_path) as keeper:
        pass
    with pytest.raises(StoreUnavailable, match="the server stops"):
        await keeper.create("late", QueueDescription())
    async with open_catalogue_service(tmp_path) as keeper:
        with pytest.raises(EntityNotFound):
            keeper.find("late")


async def test_secrets_that_are_shorter_than_new_ones_can_be_are_kept_and_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    short = AuthorizationRule(name="old", rights=("Send",), primary_key="x", secondary_key="y" * 16)
    async with open_catalogue_service(tmp_path) as keeper:
        await keeper.create("orders", QueueDescription(authorization_rules=(short,)))
        await keeper.create("events", QueueDescription(authorization_rules=(AuthorizationRule.new("new", ("Send",)),)))
    async with open_catalogue_service(tmp_path) as keeper:
        assert keeper.find("orders").description == QueueDescription(authorization_rules=(short,))
    [record] = caplog.records
    assert "fewer than 16 characters" in record.getMessage()
    assert (record.__dict__["entity"], record.__dict__["keys"]) == ("orders", "old")
