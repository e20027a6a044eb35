"""Authorization rules in the XML of descriptions. Tests with a real server show what their keys allow."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.server.http.atom_entries import atom_entry
from twinbus.model.authorization import AuthorizationRule

if TYPE_CHECKING:
    from tests.server.http.http_service import HttpService

RULES = (
    '<AuthorizationRules><AuthorizationRule i:type="SharedAccessAuthorizationRule">'
    "<ClaimType>SharedAccessKey</ClaimType><ClaimValue>None</ClaimValue>"
    "<Rights><AccessRights>Send</AccessRights><AccessRights>Listen</AccessRights><AccessRights>Send</AccessRights></Rights>"
    "<CreatedTime>1999-01-01T00:00:00Z</CreatedTime><KeyName>both</KeyName><PrimaryKey>{}</PrimaryKey>"
    '<SecondaryKey i:nil="true"/></AuthorizationRule></AuthorizationRules>'
)


@pytest.fixture(params=["queue", "topic"])
def description(request: pytest.FixtureRequest) -> str:
    return f"{request.param.capitalize()}Description"


def rules_of(service: HttpService) -> tuple[AuthorizationRule, ...]:
    entity = service.administration.queues.get("orders") or service.administration.topics["orders"]
    return entity.description.authorization_rules


def test_a_rule_is_written_as_service_bus_writes_it(service: HttpService, description: str) -> None:
    reply = service.request("PUT", "/orders", atom_entry(description, RULES.format("cHJpbWFyeS1zZWNyZXQ=")))
    assert reply.status == 201
    [rule] = re.findall("<AuthorizationRules>(.*)</AuthorizationRules>", reply.text)
    time = r"20\d\d-[^<]*Z"
    assert re.fullmatch(
        '<AuthorizationRule i:type="SharedAccessAuthorizationRule"><ClaimType>SharedAccessKey</ClaimType>'
        "<ClaimValue>None</ClaimValue><Rights><AccessRights>Send</AccessRights><AccessRights>Listen</AccessRights>"
        f"</Rights><CreatedTime>{time}</CreatedTime><ModifiedTime>{time}</ModifiedTime><KeyName>both</KeyName>"
        "<PrimaryKey>cHJpbWFyeS1zZWNyZXQ=</PrimaryKey><SecondaryKey>[A-Za-z0-9+/]{43}=</SecondaryKey></AuthorizationRule>",
        rule,
    )


def test_omitted_rules_and_keys_stay_unchanged(service: HttpService, description: str) -> None:
    service.request("PUT", "/orders", atom_entry(description, RULES.format("a" * 16)))
    before = rules_of(service)
    service.request("PUT", "/orders", atom_entry(description), If_Match="*")
    assert rules_of(service) == before
    service.request("PUT", "/orders", atom_entry(description, RULES.format("")), If_Match="*")
    assert rules_of(service) == before
    service.request("PUT", "/orders", atom_entry(description, RULES.format("b" * 16)), If_Match="*")
    assert [(rule.primary_key, rule.secondary_key) for rule in rules_of(service)] == [
        ("b" * 16, before[0].secondary_key)
    ]
    service.request("PUT", "/orders", atom_entry(description, "<AuthorizationRules/>"), If_Match="*")
    assert rules_of(service) == ()


def test_an_existing_key_below_the_minimum_length_is_kept_until_it_changes(service: HttpService) -> None:
    service.request("PUT", "/orders", atom_entry("QueueDescription"))
    queue = service.administration.queues["orders"]
    old = AuthorizationRule(name="both", rights=("Send", "Listen"), primary_key="x", secondary_key="y")
    description = replace(queue.description, authorization_rules=(old,))
    service.administration.queues["orders"] = replace(queue, description=description)
    for kept in ("x", "y", ""):
        reply = service.request("PUT", "/orders", atom_entry("QueueDescription", RULES.format(kept)), If_Match="*")
        assert reply.status == 200
    reply = service.request("PUT", "/orders", atom_entry("QueueDescription", RULES.format("z")), If_Match="*")
    assert reply.status == 400
    assert "has 1 characters; it has to have 16 to 256" in reply.detail


def test_no_secret_is_in_an_error_or_the_log(service: HttpService, caplog: pytest.LogCaptureFixture) -> None:
    reply = service.request("PUT", "/orders", atom_entry("QueueDescription", RULES.format("my secret")))
    assert reply.status == 400
    assert reply.detail.startswith("AuthorizationRules: a secret of key 'both' is not 1 to 256 characters of base64")
    service.administration.fails_with = RuntimeError("no")
    reply = service.request("PUT", "/orders", atom_entry("QueueDescription", RULES.format("top-secret-of-all")))
    assert reply.status == 500
    assert "top-secret-of-all" not in reply.text + caplog.text
