"""Responses of Azure that differ from those of twinbus, with values that twinbus would refuse."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.client.management.fake_service import atom_entry, atom_feed, http_response, run_fake_service
from twinbus.client.errors import EntityNotFound, UnknownAnswer
from twinbus.client.management import FOREVER_MS, QueueDescription, RuleDescription, SqlFilter, TrueFilter
from twinbus.model.errors import ArgumentOutOfRange

COUNTS = (
    '<CountDetails xmlns:d2p1="http://schemas.microsoft.com/netservices/2011/06/servicebus">'
    "<d2p1:ActiveMessageCount>5</d2p1:ActiveMessageCount><d2p1:DeadLetterMessageCount>2</d2p1:DeadLetterMessageCount>"
    "<d2p1:SomethingNew>9</d2p1:SomethingNew></CountDetails>"
)


@pytest.mark.parametrize(
    "body", [atom_feed(), atom_entry().replace("QueueDescription", "TopicDescription"), atom_feed(atom_entry())]
)
async def test_a_missing_entity_in_a_200_response_is_entity_not_found(body: str) -> None:
    async with run_fake_service(http_response(200, body)) as service, service.manager() as manager:
        assert not await manager.queue_exists("orders")
        with pytest.raises(EntityNotFound, match="'orders'"):
            await manager.get_queue("orders")
        with pytest.raises(EntityNotFound, match="'orders'"):
            await manager.get_queue_runtime("orders")
        assert not await manager.subscription_exists("news", "all")
        assert not await manager.rule_exists("news", "all", "one")


async def test_values_that_twinbus_would_refuse_are_shown_as_received() -> None:
    elements = (
        "<MaxSizeInMegabytes>81920</MaxSizeInMegabytes><Status>Renaming</Status><LockDuration>PT0S</LockDuration>"
        "<ForwardTo>sb://contoso.servicebus.windows.net/a~b</ForwardTo><UserMetadata></UserMetadata>"
        "<AutoDeleteOnIdle>P10675199DT2H48M5.4775807S</AutoDeleteOnIdle><SkippedUpdate>false</SkippedUpdate>"
        '<AuthorizationRules><AuthorizationRule i:type="SharedAccessAuthorizationRule"><Rights><AccessRights>Fly'
        "</AccessRights></Rights><KeyName>a key</KeyName></AuthorizationRule></AuthorizationRules>"
    )
    async with run_fake_service(http_response(200, atom_entry(elements))) as service, service.manager() as manager:
        queue = await manager.get_queue("orders")
    assert (queue.max_size_mb, queue.status, queue.lock_duration_ms) == (81_920, "Renaming", 0)
    assert (queue.forward_to, queue.user_metadata, queue.auto_delete_on_idle_ms) == ("a~b", None, FOREVER_MS)
    (rule,) = queue.authorization_rules
    assert (rule.name, rule.rights, rule.primary_key) == ("a key", ("Fly",), "")
    assert queue.max_delivery_count == QueueDescription().max_delivery_count, "missing elements have their defaults"
    with pytest.raises(ArgumentOutOfRange, match="lock_duration_ms is 0"):
        replace(queue, max_delivery_count=3)


async def test_counts_and_times_are_parsed_and_unknown_elements_are_ignored() -> None:
    elements = (
        f"<SizeInBytes>300</SizeInBytes><MessageCount>7</MessageCount>{COUNTS}"
        "<CreatedAt>2024-05-06T07:08:09.1234567Z</CreatedAt><UpdatedAt>2024-05-06T07:08:10Z</UpdatedAt>"
        "<AccessedAt>0001-01-01T00:00:00</AccessedAt><EntityAvailabilityStatus>Limited</EntityAvailabilityStatus>"
    )
    async with run_fake_service(http_response(200, atom_entry(elements))) as service, service.manager() as manager:
        runtime = await manager.get_queue_runtime("orders")
    assert (runtime.active_count, runtime.dead_letter_count, runtime.deferred_count, runtime.size_bytes) == (
        5,
        2,
        0,
        300,
    )
    assert (runtime.created_ms, runtime.updated_ms, runtime.accessed_ms) == (1_714_979_289_123, 1_714_979_290_000, 0)
    assert not runtime.is_available


async def test_missing_counts_are_zero() -> None:
    body = atom_feed(atom_entry("<MessageCount>7</MessageCount>", tag="SubscriptionDescription", title="all"))
    async with run_fake_service(http_response(200, body)) as service, service.manager() as manager:
        (subscription,) = [info async for info in manager.get_subscriptions("news")]
    assert (subscription.name, subscription.runtime.active_count, subscription.runtime.created_ms) == ("all", 0, 0)


async def test_rules_are_parsed_and_their_unknown_elements_are_ignored() -> None:
    true = (
        '<Filter i:type="TrueFilter"><SqlExpression>1=1</SqlExpression><CompatibilityLevel>20</CompatibilityLevel>'
        '</Filter><Action i:type="EmptyRuleAction"/><CreatedAt>2024-05-06T07:08:10Z</CreatedAt><Name>$Default</Name>'
    )
    sql = (
        '<Filter i:type="SqlFilter"><SqlExpression>a = 1</SqlExpression><Parameters/></Filter>'
        '<Action i:type="EmptyRuleAction"/><Name>one</Name><RuleId>7</RuleId>'
    )
    body = atom_feed(atom_entry(true, tag="RuleDescription"), atom_entry(sql, tag="RuleDescription"))
    async with run_fake_service(http_response(200, body)) as service, service.manager() as manager:
        rules = [rule async for rule in manager.get_rules("news", "all")]
    assert rules == [
        RuleDescription(name="$Default", filter=TrueFilter(), created_ms=1_714_979_290_000),
        RuleDescription(name="one", filter=SqlFilter(expression="a = 1")),
    ]


@pytest.mark.parametrize(
    "elements", ["<MaxDeliveryCount>many</MaxDeliveryCount>", "<RequiresSession>no</RequiresSession>"]
)
async def test_an_unparsable_value_raises_unknown_answer(elements: str) -> None:
    async with run_fake_service(http_response(200, atom_entry(elements))) as service, service.manager() as manager:
        with pytest.raises(UnknownAnswer, match="malformed response to orders: it has to be"):
            await manager.get_queue("orders")
