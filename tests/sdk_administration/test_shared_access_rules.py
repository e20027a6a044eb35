"""Queues and topics have keys of their own: made, kept, changed and taken away with their descriptions."""

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
    """A queue or a topic: what is said here holds for both."""

    def __init__(self, admin: AdministrationClient, kind: str, name: str) -> None:
        self.create = partial(getattr(admin, f"create_{kind}"), name)
        self.get = partial(getattr(admin, f"get_{kind}"), name)
        self.update = getattr(admin, f"update_{kind}")


@pytest.fixture(params=["queue", "topic"])
def entity(request: pytest.FixtureRequest, admin: AdministrationClient, name: str) -> Kind:
    return Kind(admin, request.param, name)


def shown(rules: list[AuthorizationRule]) -> list[tuple[object, ...]]:
    return [(one.key_name, one.rights, one.primary_key, one.secondary_key) for one in rules]


def test_rules_come_back_as_they_were_made(entity: Kind) -> None:
    rules = [rule("sender", "Send", primary=FIRST, secondary=SECOND), rule("boss", *MANAGE, primary=THIRD)]
    made = entity.create(authorization_rules=rules)
    for found in (made, entity.get()):
        first, second = found.authorization_rules
        assert shown([first]) == [("sender", ["Send"], FIRST, SECOND)]
        assert (second.key_name, second.rights, second.primary_key) == ("boss", MANAGE, THIRD)
        assert (first.type, first.claim_type, first.claim_value) == (
            "SharedAccessAuthorizationRule",
            "SharedAccessKey",
            "None",
        )
        assert first.created_at_utc == first.modified_at_utc
        assert abs(first.created_at_utc - dt.datetime.now(dt.UTC)) < dt.timedelta(minutes=1)


def test_keys_that_are_left_out_are_made_and_stay(entity: Kind) -> None:
    made = entity.create(authorization_rules=[rule("sender", "Send"), rule("listener", "Listen")])
    keys = [key for one in made.authorization_rules for key in (one.primary_key, one.secondary_key)]
    assert len(set(keys)) == 4
    assert [len(base64.b64decode(key, validate=True)) for key in keys] == [32] * 4
    entity.update(made, authorization_rules=[rule("SENDER", "Send"), rule("listener", "Listen")])
    assert [key for one in entity.get().authorization_rules for key in (one.primary_key, one.secondary_key)] == keys


def test_an_update_that_says_nothing_of_rules_leaves_them_and_an_empty_list_takes_them_away(entity: Kind) -> None:
    made = entity.create(authorization_rules=[rule("sender", "Send")])
    entity.update(made, authorization_rules=None, user_metadata="x")
    assert shown(entity.get().authorization_rules) == shown(made.authorization_rules)
    entity.update(entity.get(), authorization_rules=[])
    assert not entity.get().authorization_rules


def test_a_change_has_its_time_and_the_making_keeps_its_own(entity: Kind) -> None:
    made = entity.create(authorization_rules=[rule("one", "Send"), rule("two", "Send")])
    first, second = made.authorization_rules
    first.primary_key = "bmV3LXNlY3JldC1uZXc"
    entity.update(made)
    changed, same = entity.get().authorization_rules
    assert changed.primary_key == "bmV3LXNlY3JldC1uZXc"
    assert changed.secondary_key == first.secondary_key
    assert changed.created_at_utc == first.created_at_utc
    assert changed.modified_at_utc > first.modified_at_utc
    assert (same.created_at_utc, same.modified_at_utc) == (second.created_at_utc, second.modified_at_utc)


@pytest.mark.parametrize(
    ("rules", "told"),
    [
        ([rule(f"r{number}", "Send") for number in range(13)], "13 authorization rules; an entity can have 12"),
        ([rule("one", "Send"), rule("ONE", "Listen")], "two authorization rules are named 'one'"),
        ([rule("one")], "the rights of key 'one'"),
        ([rule("one", "Sing")], "the rights of key 'one'"),
        ([rule("one", "Manage")], "goes with Send and Listen"),
        ([rule("", "Send")], "is no name of a key"),
        ([rule("a b", "Send")], "is no name of a key"),
        ([rule("one", "Send", primary="my secret")], "a secret of key 'one'"),
        ([rule("one", "Send", primary="x")], "a secret of key 'one' has 1 characters; it has to have 16 to 256"),
        ([rule("one", "Send", secondary="fifteen-of-them")], "a secret of key 'one' has 15 characters"),
        ([AuthorizationRule(type="AllowRule", key_name="one", rights=["Send"])], "AuthorizationRule is a 'AllowRule'"),
    ],
)
def test_rules_that_cannot_be_are_refused_and_no_secret_is_told(
    entity: Kind, rules: list[AuthorizationRule], told: str
) -> None:
    with pytest.raises(HttpResponseError, match=told) as caught:
        entity.create(authorization_rules=rules)
    assert caught.value.status_code == 400
    assert "secret'" not in str(caught.value)
    assert "my" not in str(caught.value)


def test_twelve_rules_are_not_too_many(entity: Kind) -> None:
    entity.create(authorization_rules=[rule(f"rule-{number}", *MANAGE) for number in range(12)])
    assert [one.key_name for one in entity.get().authorization_rules] == [f"rule-{number}" for number in range(12)]
