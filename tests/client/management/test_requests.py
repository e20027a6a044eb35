"""What a manager sends, to the letter."""

from __future__ import annotations

import re

from tests.client.management.fake_service import atom_entry, http_response, run_fake_service
from twinbus.client.management import (
    AuthorizationRule,
    QueueDescription,
    RuleDescription,
    SqlFilter,
    SubscriptionDescription,
)

NO_KEYS = "<AuthorizationRules />"


def elements(body: str) -> list[str]:
    """What stands in the description, by the names of its elements."""
    inside = re.search(r"Description [^>]*>(.*)</\w+Description></content>", body)
    return re.findall(r"<(\w+)[ >]", inside[1]) if inside else []


async def test_a_plain_create_says_nothing_but_what_it_is() -> None:
    async with run_fake_service(http_response(201, atom_entry())) as service, service.manager() as manager:
        await manager.create_queue("orders/new")
    (asked,) = service.requests
    assert (asked.method, asked.target) == ("PUT", "/orders/new?api-version=2024-05")
    assert asked.headers["content-type"] == "application/atom+xml;type=entry;charset=utf-8"
    assert "if-match" not in asked.headers
    assert asked.body == (
        '<entry xmlns="http://www.w3.org/2005/Atom"><content type="application/xml"><QueueDescription '
        'xmlns="http://schemas.microsoft.com/netservices/2010/10/servicebus/connect" '
        'xmlns:i="http://www.w3.org/2001/XMLSchema-instance" /></content></entry>'
    )


async def test_an_update_always_says_what_the_service_would_else_keep() -> None:
    async with run_fake_service(http_response(200, atom_entry())) as service, service.manager() as manager:
        await manager.update_queue("orders", QueueDescription(max_delivery_count=5))
    (asked,) = service.requests
    assert asked.headers["if-match"] == "*"
    assert "<RequiresSession>false</RequiresSession>" in asked.body
    assert NO_KEYS in asked.body
    said = [
        "RequiresDuplicateDetection",
        "RequiresSession",
        "MaxDeliveryCount",
        "AuthorizationRules",
        "EnablePartitioning",
    ]
    assert elements(asked.body) == said, "in the order of the contract"


async def test_targets_are_addresses_in_the_namespace() -> None:
    async with run_fake_service(http_response(201, atom_entry())) as service, service.manager() as manager:
        await manager.create_queue("orders", QueueDescription(forward_to="audit"))
    assert "<ForwardTo>sb://127.0.0.1/audit</ForwardTo>" in service.requests[0].body


async def test_the_rule_of_a_new_subscription_stands_where_azure_looks_for_it() -> None:
    rule = RuleDescription(name="one", filter=SqlFilter(expression="a < 1"), created_ms=5)
    wanted = SubscriptionDescription(
        lock_duration_ms=5_000, dead_lettering_on_filter_errors=False, max_delivery_count=5
    )
    async with (
        run_fake_service(http_response(201, atom_entry(tag="SubscriptionDescription"))) as service,
        service.manager() as manager,
    ):
        await manager.create_subscription("news", "some", wanted, rule)
    (asked,) = service.requests
    assert asked.target.startswith("/news/Subscriptions/some?")
    found = elements(asked.body)
    assert found[:3] == ["LockDuration", "DeadLetteringOnFilterEvaluationExceptions", "DefaultRuleDescription"]
    assert found[-1] == "MaxDeliveryCount"
    assert "a &lt; 1" in asked.body
    assert "CreatedAt" not in asked.body


async def test_keys_are_sent_with_their_secrets() -> None:
    key = AuthorizationRule.new("sender", ("Send",))
    async with run_fake_service(http_response(201, atom_entry())) as service, service.manager() as manager:
        await manager.create_queue("orders", QueueDescription(authorization_rules=(key,)))
    assert f"<PrimaryKey>{key.primary_key}</PrimaryKey>" in service.requests[0].body
    assert '<AuthorizationRule i:type="SharedAccessAuthorizationRule">' in service.requests[0].body


async def test_names_are_quoted_as_addresses_are() -> None:
    async with run_fake_service(http_response(200)) as service, service.manager() as manager:
        await manager.delete_rule("news", "all?x", "$Default")
        await manager.delete_queue("a b#c")
    targets = [asked.target for asked in service.requests]
    assert targets[0].startswith("/news/Subscriptions/all%3Fx/Rules/$Default?api-version=")
    assert targets[1].startswith("/a%20b%23c?api-version=")
