"""Authorization rules of queues and topics: created, updated and deleted with the entity's description."""

from __future__ import annotations

import base64
import datetime as dt
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from azure.core.exceptions import HttpResponseError
from azure.servicebus.management import AuthorizationRule

if TYPE_CHECKING:
    from tests.sdk_administration.admin import AdministrationClient

MANAGE: list[Any] = ["Manage", "Send", "Listen"]
FIRST, SECOND, THIRD = "Zmlyc3Qtc2VjcmV0LQ==", "sixteen-or-more.", "dGhpcmQvc2VjcmV0+_-"


def rule(name: str, *rights: str, primary: str | None = None, secondary: str | None = None) -> AuthorizationRule:
    return AuthorizationRule(
        type="SharedAccessAuthorizationRule",
        claim_type="SharedAccessKey",
        claim_value="None",
        rights=list(rights),
        key_name=name,
        primary_key=primary,
        secondary_key=secondary,
    )


class Kind:
    """Operations of a queue or a topic, so that each test covers both."""

    def __init__(self, admin: AdministrationClient, kind: str, name: str) -> None:
        self.create = partial(getattr(admin, f"create_{kind}"), name)
        self.get = partial(getattr(admin, f"get_{kind}"), name)
        self.update = getattr(admin, f"update_{kind}")


@pytest.fixture(params=["queue", "topic"])
def entity(request: pytest.FixtureRequest, admin: AdministrationClient, name: str) -> Kind:
    return Kind(admin, request.param, name)


def summaries(rules: list[AuthorizationRule]) -> list[tuple[object, ...]]:
    return [
        (
            authorization_rule.key_name,
            authorization_rule.rights,
            authorization_rule.primary_key,
            authorization_rule.secondary_key,
        )
        for authorization_rule in rules
    ]


def test_authorization_rules_are_returned_as_created(entity: Kind) -> None:
    rules = [rule("sender", "Send", primary=FIRST, secondary=SECOND), rule("boss", *MANAGE, primary=THIRD)]
    created = entity.create(authorization_rules=rules)
    for properties in (created, entity.get()):
        first, second = properties.authorization_rules
        assert summaries([first]) == [("sender", ["Send"], FIRST, SECOND)]
        assert (second.key_name, second.rights, second.primary_key) == ("boss", MANAGE, THIRD)
        assert (first.type, first.claim_type, first.claim_value) == (
            "SharedAccessAuthorizationRule",
            "SharedAccessKey",
            "None",
        )
        assert first.created_at_utc == first.modified_at_utc
        assert abs(first.created_at_utc - dt.datetime.now(dt.UTC)) < dt.timedelta(minutes=1)


def test_omitted_secrets_are_generated_and_kept_on_update(entity: Kind) -> None:
    created = entity.create(authorization_rules=[rule("sender", "Send"), rule("listener", "Listen")])
    keys = [
        key
        for authorization_rule in created.authorization_rules
        for key in (authorization_rule.primary_key, authorization_rule.secondary_key)
    ]
    assert len(set(keys)) == 4
    assert [len(base64.b64decode(key, validate=True)) for key in keys] == [32] * 4
    entity.update(created, authorization_rules=[rule("SENDER", "Send"), rule("listener", "Listen")])
    assert [
        key
        for authorization_rule in entity.get().authorization_rules
        for key in (authorization_rule.primary_key, authorization_rule.secondary_key)
    ] == keys


def test_an_update_without_rules_keeps_them_and_an_empty_list_deletes_them(entity: Kind) -> None:
    created = entity.create(authorization_rules=[rule("sender", "Send")])
    entity.update(created, authorization_rules=None, user_metadata="x")
    assert summaries(entity.get().authorization_rules) == summaries(created.authorization_rules)
    entity.update(entity.get(), authorization_rules=[])
    assert not entity.get().authorization_rules


def test_a_change_updates_the_modified_time_and_keeps_the_created_time(entity: Kind) -> None:
    created = entity.create(authorization_rules=[rule("one", "Send"), rule("two", "Send")])
    first, second = created.authorization_rules
    first.primary_key = "bmV3LXNlY3JldC1uZXc"
    entity.update(created)
    changed, same = entity.get().authorization_rules
    assert changed.primary_key == "bmV3LXNlY3JldC1uZXc"
    assert changed.secondary_key == first.secondary_key
    assert changed.created_at_utc == first.created_at_utc
    assert changed.modified_at_utc > first.modified_at_utc
    assert (same.created_at_utc, same.modified_at_utc) == (second.created_at_utc, second.modified_at_utc)


@pytest.mark.parametrize(
    ("rules", "reason"),
    [
        ([rule(f"r{number}", "Send") for number in range(13)], "13 authorization rules; an entity can have 12"),
        ([rule("one", "Send"), rule("ONE", "Listen")], "two authorization rules are named 'one'"),
        ([rule("one")], "the rights of key 'one'"),
        ([rule("one", "Sing")], "the rights of key 'one'"),
        ([rule("one", "Manage")], "requires Send and Listen"),
        ([rule("", "Send")], "is not a valid key name"),
        ([rule("a b", "Send")], "is not a valid key name"),
        ([rule("one", "Send", primary="my secret")], "a secret of key 'one'"),
        ([rule("one", "Send", primary="x")], "a secret of key 'one' has 1 characters; it has to have 16 to 256"),
        ([rule("one", "Send", secondary="fifteen-of-them")], "a secret of key 'one' has 15 characters"),
        ([AuthorizationRule(type="AllowRule", key_name="one", rights=["Send"])], "AuthorizationRule is a 'AllowRule'"),
    ],
)
def test_invalid_rules_are_refused_and_the_error_contains_no_secret(
    entity: Kind, rules: list[AuthorizationRule], reason: str
) -> None:
    with pytest.raises(HttpResponseError, match=reason) as caught:
        entity.create(authorization_rules=rules)
    assert caught.value.status_code == 400
    assert "secret'" not in str(caught.value)
    assert "my" not in str(caught.value)


def test_an_entity_may_have_twelve_rules(entity: Kind) -> None:
    entity.create(authorization_rules=[rule(f"rule-{number}", *MANAGE) for number in range(12)])
    assert [authorization_rule.key_name for authorization_rule in entity.get().authorization_rules] == [
        f"rule-{number}" for number in range(12)
    ]
