"""The rules of a subscription are added, listed and removed by `$management` requests."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.entity_operations import request_management
from tests.support.raw_client import RawClient, connect_raw
from twinbus.amqp.message import Properties, build, data
from twinbus.amqp.types import Described, Int, Symbol, Timestamp, ULong

if TYPE_CHECKING:
    from tests.support.server_process import ServerProcess

HTTP_RULE = (
    '<entry xmlns="http://www.w3.org/2005/Atom"><content type="application/xml"><RuleDescription'
    ' xmlns="http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"'
    ' xmlns:i="http://www.w3.org/2001/XMLSchema-instance"><Filter i:type="CorrelationFilter"><Properties>'
    '<KeyValueOfstringanyType><Key>at</Key><Value i:type="d:{1}" xmlns:d="http://www.w3.org/2001/XMLSchema">{2}</Value>'
    "</KeyValueOfstringanyType></Properties></Filter><Name>{0}</Name></RuleDescription></content></entry>"
)


@pytest.fixture
def subscription(server: ServerProcess) -> str:
    topic = f"topic-{uuid.uuid4().hex}"
    server.create_entity(topic, "TopicDescription")
    server.create_entity(f"{topic}/Subscriptions/one", "SubscriptionDescription")
    return f"{topic}/Subscriptions/one"


async def list_rules(client: RawClient, subscription: str, **arguments: object) -> list[Any]:
    body = {"top": Int(100), "skip": Int(0), **arguments}
    answer = await request_management(client, subscription, "com.microsoft:enumerate-rules", body)
    assert answer.status in (200, 204), answer.text
    return [item["rule-description"] for item in answer.body.get("rules", [])]


async def add_rule(client: RawClient, subscription: str, name: str, **description: object) -> Any:  # noqa: ANN401
    body = {"rule-name": name, "rule-description": description}
    return await request_management(client, subscription, "com.microsoft:add-rule", body)


async def test_a_new_subscription_has_one_rule_that_matches_every_message(
    server: ServerProcess, subscription: str
) -> None:
    async with connect_raw(server) as client:
        (rule,) = await list_rules(client, subscription)
        rule_filter, action, name, created = rule.value
        assert (rule.descriptor, name) == (ULong(0x13700000004), "$Default")
        assert rule_filter == Described(ULong(0x1370000007), [])
        assert action == Described(ULong(0x13700000005), [])
        assert isinstance(created, Timestamp)


async def test_rules_are_added_listed_and_removed(server: ServerProcess, subscription: str) -> None:
    async with connect_raw(server) as client:
        sql = {"sql-filter": {"expression": "color = 'red'"}, "sql-rule-action": {"expression": "SET seen = 1"}}
        correlation = {"correlation-filter": {"label": "order", "to": None, "properties": {"n": 7, "hot": True}}}
        assert (await add_rule(client, subscription, "sql", **sql)).status == 200
        assert (await add_rule(client, subscription, "correlation", **correlation)).status == 200
        listed = [rule.value for rule in await list_rules(client, subscription)]
        assert [name for _, _, name, _ in listed] == ["$Default", "sql", "correlation"]
        assert listed[1][0] == Described(ULong(0x1370000006), ["color = 'red'"])
        assert listed[1][1] == Described(ULong(0x13700000006), ["SET seen = 1"])
        assert listed[2][0].value == [None, None, None, None, "order", None, None, None, {"n": 7, "hot": True}]
        assert [rule.value[2] for rule in await list_rules(client, subscription, skip=Int(1), top=Int(1))] == ["sql"]
        assert await list_rules(client, subscription, skip=Int(3)) == []
        answer = await request_management(client, subscription, "com.microsoft:remove-rule", {"rule-name": "SQL"})
        assert answer.status == 200
        assert [rule.value[2] for rule in await list_rules(client, subscription)] == ["$Default", "correlation"]


async def test_a_new_rule_filters_the_messages_sent_after_it(server: ServerProcess, subscription: str) -> None:
    topic = subscription.partition("/")[0]
    async with connect_raw(server) as client:
        assert (
            await add_rule(client, subscription, "red", **{"sql-filter": {"expression": "color = 'red'"}})
        ).status == 200
        await request_management(client, subscription, "com.microsoft:remove-rule", {"rule-name": "$Default"})
        sender = await client.attach_sender(topic)
        for color in ("blue", "red"):
            payload = build(
                properties=Properties(message_id=color), application_properties={"color": color}, body=data(b"x")
            )
            assert await client.send(sender, payload) is None
        receiver = await client.attach_receiver(subscription)
        assert len(await client.receive_all(receiver, 1)) == 1


@pytest.mark.parametrize(
    ("name", "description", "status"),
    [
        ("$Default", {"sql-filter": {"expression": "1 = 1"}}, 409),
        ("bad", {"sql-filter": {"expression": "color ="}}, 400),
        ("bad", {"sql-filter": {"expression": 7}}, 400),
        ("bad", {"sql-filter": {}}, 400),
        ("bad", {"sql-filter": {"expression": "1=1"}, "correlation-filter": {}}, 400),
        ("bad", {"correlation-filter": {"label": 7}}, 400),
        ("bad", {"correlation-filter": {"properties": {"a": [1]}}}, 400),
        ("bad", {"sql-rule-action": {"expression": "DROP x"}}, 400),
        ("x" * 51, {}, 400),
        ("no/name", {}, 400),
        ("", {}, 400),
    ],
)
async def test_an_invalid_rule_is_refused(
    server: ServerProcess, subscription: str, name: str, description: dict[str, object], status: int
) -> None:
    async with connect_raw(server) as client:
        assert (await add_rule(client, subscription, name, **description)).status == status
        assert len(await list_rules(client, subscription)) == 1


async def test_removing_an_unknown_rule_is_refused(server: ServerProcess, subscription: str) -> None:
    async with connect_raw(server) as client:
        answer = await request_management(client, subscription, "com.microsoft:remove-rule", {"rule-name": "other"})
        assert (answer.status, answer.condition) == (404, "amqp:not-found")


async def test_only_subscriptions_have_rules(server: ServerProcess, queue: str, subscription: str) -> None:
    async with connect_raw(server) as client:
        for entity in (queue, subscription.partition("/")[0], f"{subscription}/$DeadLetterQueue"):
            answer = await request_management(
                client, entity, "com.microsoft:enumerate-rules", {"top": Int(1), "skip": Int(0)}
            )
            assert (answer.status, answer.condition) == (400, "amqp:not-allowed")


@pytest.mark.parametrize("milliseconds", [2**62, -(2**62), 253_402_300_800_000, -62_135_596_800_001])
async def test_a_time_out_of_range_in_a_rule_is_refused_and_other_links_still_work(
    server: ServerProcess, subscription: str, milliseconds: int
) -> None:
    async with connect_raw(server) as client:
        link = await client.attach_sender(subscription.partition("/")[0])
        far = {"properties": {"at": Timestamp(milliseconds)}}
        answer = await add_rule(client, subscription, "far", **{"correlation-filter": far})
        assert (answer.status, "is not a time from the year 1 to 9999" in answer.text) == (400, True)
        assert await client.send(link, data(b"x")) is None


async def test_rule_values_set_over_http_are_listed_with_their_parsed_types(
    server: ServerProcess, subscription: str
) -> None:
    values = {
        ("dateTime", " 2026-01-01T00:00:00 "): Timestamp(1_767_225_600_000),
        ("dateTime", "0001-01-01T00:00:00"): Timestamp(-62_135_596_800_000),
        ("boolean", "1"): True,
        ("duration", "PT1S"): Described(Symbol("com.microsoft:timespan"), 10_000_000),
        ("int", " 7 "): 7,
    }
    for number, (kind, text) in enumerate(values):
        entry = HTTP_RULE.format(f"rule{number}", kind, text)
        server.request("PUT", f"{subscription}/rules/rule{number}", entry, expected=201)
    async with connect_raw(server) as client:
        listed = [rule.value[0].value[-1] for rule in (await list_rules(client, subscription))[1:]]
    assert listed == [{"at": value} for value in values.values()]
