"""Exact requests that a manager sends."""

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


def element_names(body: str) -> list[str]:
    """Return the names of the elements in the description."""
    description = re.search(r"Description [^>]*>(.*)</\w+Description></content>", body)
    return re.findall(r"<(\w+)[ >]", description[1]) if description else []


async def test_a_create_without_a_description_sends_an_empty_element() -> None:
    async with run_fake_service(http_response(201, atom_entry())) as service, service.manager() as manager:
        await manager.create_queue("orders/new")
    (request,) = service.requests
    assert (request.method, request.target) == ("PUT", "/orders/new?api-version=2024-05")
    assert request.headers["content-type"] == "application/atom+xml;type=entry;charset=utf-8"
    assert "if-match" not in request.headers
    assert request.body == (
        '<entry xmlns="http://www.w3.org/2005/Atom"><content type="application/xml"><QueueDescription '
        'xmlns="http://schemas.microsoft.com/netservices/2010/10/servicebus/connect" '
        'xmlns:i="http://www.w3.org/2001/XMLSchema-instance" /></content></entry>'
    )


async def test_an_update_sends_the_properties_that_the_service_would_otherwise_keep() -> None:
    async with run_fake_service(http_response(200, atom_entry())) as service, service.manager() as manager:
        await manager.update_queue("orders", QueueDescription(max_delivery_count=5))
    (request,) = service.requests
    assert request.headers["if-match"] == "*"
    assert "<RequiresSession>false</RequiresSession>" in request.body
    assert NO_KEYS in request.body
    expected = [
        "RequiresDuplicateDetection",
        "RequiresSession",
        "MaxDeliveryCount",
        "AuthorizationRules",
        "EnablePartitioning",
    ]
    assert element_names(request.body) == expected, "elements are in the order of the data contract"


async def test_forwarding_targets_are_sent_as_addresses_in_the_namespace() -> None:
    async with run_fake_service(http_response(201, atom_entry())) as service, service.manager() as manager:
        await manager.create_queue("orders", QueueDescription(forward_to="audit"))
    assert "<ForwardTo>sb://127.0.0.1/audit</ForwardTo>" in service.requests[0].body


async def test_the_rule_of_a_new_subscription_is_at_the_position_that_azure_expects() -> None:
    rule = RuleDescription(name="one", filter=SqlFilter(expression="a < 1"), created_ms=5)
    wanted = SubscriptionDescription(
        lock_duration_ms=5_000, dead_lettering_on_filter_errors=False, max_delivery_count=5
    )
    async with (
        run_fake_service(http_response(201, atom_entry(tag="SubscriptionDescription"))) as service,
        service.manager() as manager,
    ):
        await manager.create_subscription("news", "some", wanted, rule)
    (request,) = service.requests
    assert request.target.startswith("/news/Subscriptions/some?")
    names = element_names(request.body)
    assert names[:3] == ["LockDuration", "DeadLetteringOnFilterEvaluationExceptions", "DefaultRuleDescription"]
    assert names[-1] == "MaxDeliveryCount"
    assert "a &lt; 1" in request.body
    assert "CreatedAt" not in request.body


async def test_keys_are_sent_with_their_secrets() -> None:
    key = AuthorizationRule.new("sender", ("Send",))
    async with run_fake_service(http_response(201, atom_entry())) as service, service.manager() as manager:
        await manager.create_queue("orders", QueueDescription(authorization_rules=(key,)))
    assert f"<PrimaryKey>{key.primary_key}</PrimaryKey>" in service.requests[0].body
    assert '<AuthorizationRule i:type="SharedAccessAuthorizationRule">' in service.requests[0].body


async def test_names_are_percent_encoded_in_urls() -> None:
    async with run_fake_service(http_response(200)) as service, service.manager() as manager:
        await manager.delete_rule("news", "all?x", "$Default")
        await manager.delete_queue("a b#c")
    targets = [request.target for request in service.requests]
    assert targets[0].startswith("/news/Subscriptions/all%3Fx/Rules/$Default?api-version=")
    assert targets[1].startswith("/a%20b%23c?api-version=")
