"""A key of an entity is good for that entity alone, and only as long as the entity has it."""

from __future__ import annotations

import hmac
from dataclasses import dataclass

import pytest

from twinbus.model.authorization import AuthorizationRule
from twinbus.model.errors import Unauthorized
from twinbus.model.path import owner_of
from twinbus.model.queue import QueueDescription
from twinbus.model.signature import make_token
from twinbus.model.topic import SubscriptionDescription, TopicDescription
from twinbus.server.authority import Authority
from twinbus.server.keys import Key, KeyRing, Right
from twinbus.server.sas import verify

NOW_S = 1_800_000_000
ROOT = Key("Root", "root-secret")


@dataclass
class Entity:
    description: object


def rule(name: str, *rights: str, primary: str = "first", secondary: str = "second") -> AuthorizationRule:
    return AuthorizationRule(name=name, rights=rights, primary_key=primary, secondary_key=secondary)


@pytest.fixture
def entities() -> dict[str, Entity]:
    return {
        "a": Entity(QueueDescription(authorization_rules=(rule("sender", "Send"), rule("Root", "Listen")))),
        "a/b": Entity(QueueDescription(authorization_rules=(rule("sender", "Send", primary="x", secondary="other"),))),
        "news": Entity(TopicDescription(authorization_rules=(rule("boss", "Manage", "Send", "Listen"),))),
        "news/subscriptions/all": Entity(SubscriptionDescription()),
    }


@pytest.fixture
def authority(entities: dict[str, Entity]) -> Authority:
    return Authority(KeyRing([ROOT]), entities)


@pytest.mark.parametrize(
    ("path", "owner"),
    [
        ("a", "a"),
        ("a/b", "a/b"),
        ("a/$DeadLetterQueue/$management", "a"),
        ("a/$management", "a"),
        ("news/Subscriptions/all", "news"),
        ("news/subscriptions", "news"),
        ("news/subscriptions/all/$Transfer/$DeadLetterQueue", "news"),
        ("news/subscriptions/all/rules/$Default", "news"),
        ("team/news/subscriptions/all/rules/one", "team/news"),
        ("subscriptions/all", "subscriptions/all"),
        ("$Resources/queues", "$Resources/queues"),
        ("", ""),
    ],
)
def test_what_a_path_is_of(path: str, owner: str) -> None:
    assert owner_of(path) == owner


@pytest.mark.parametrize(
    ("key", "secret", "scope", "wanted"),
    [
        ("sender", "first", "a", "a"),
        ("sender", "second", "A", "a/$management"),
        ("sender", "other", "a/b", "a/b"),
        ("boss", "first", "news", "news/subscriptions/all/rules/one"),
        ("boss", "first", "news/subscriptions/all", "news/Subscriptions/all/$DeadLetterQueue"),
        ("Root", "root-secret", "", "a/b"),
        ("Root", "first", "a", "a"),
    ],
)
def test_a_token_for_its_entity_is_good(authority: Authority, key: str, secret: str, scope: str, wanted: str) -> None:
    verify(make_token(f"sb://h/{scope}", key, secret, NOW_S + 1), wanted, authority, NOW_S)


@pytest.mark.parametrize(
    ("key", "secret", "scope", "wanted"),
    [
        ("sender", "first", "", "a"),
        ("sender", "first", "a", "a/b"),
        ("sender", "first", "a/b", "a/b"),
        ("sender", "other", "a", "a"),
        ("sender", "first", "news", "news"),
        ("boss", "first", "news/subscriptions/all", "news"),
        ("boss", "first", "news/subscriptions/all", "news/subscriptions/allies"),
        ("boss", "first", "new", "news"),
        ("boss", "first", "$resources/topics", "$resources/topics"),
        ("Root", "first", "a/b", "a/b"),
        ("Root", "first", "", ""),
    ],
)
def test_a_token_for_anything_else_is_not(authority: Authority, key: str, secret: str, scope: str, wanted: str) -> None:
    token = make_token(f"sb://h/{scope}", key, secret, NOW_S + 1)
    with pytest.raises(Unauthorized) as caught:
        verify(token, wanted, authority, NOW_S)
    assert secret not in str(caught.value)


def test_the_rights_are_those_of_the_rule(authority: Authority) -> None:
    sender = verify(make_token("sb://h/a", "sender", "first", NOW_S + 1), "a", authority, NOW_S)
    assert [right for right in Right if sender.allows(right, "a")] == [Right.SEND]
    assert not sender.allows(Right.SEND, "a/b")
    [listener] = authority.check_password("Root", "first")
    assert [right for right in Right if listener.allows(right, "a")] == [Right.LISTEN]
    [root] = authority.check_password("Root", "root-secret")
    assert all(root.allows(right, "anything") for right in Right)


def test_a_grant_is_worth_what_the_rule_is_now(authority: Authority, entities: dict[str, Entity]) -> None:
    [grant] = authority.check_password("sender", "first")
    entities["a"].description = QueueDescription(authorization_rules=(rule("sender", "Listen", primary="changed"),))
    assert authority.renewed(grant) is None
    [grant] = authority.check_password("sender", "second")
    entities["a"].description = QueueDescription(authorization_rules=(rule("sender", "Send", primary="again"),))
    renewed = authority.renewed(grant)
    assert renewed is not None
    assert renewed.allows(Right.SEND, "a")
    assert not renewed.allows(Right.LISTEN, "a")
    del entities["a"]
    assert authority.renewed(grant) is None


def test_a_name_is_known_if_some_key_has_it(authority: Authority) -> None:
    assert [name for name in ("Root", "sender", "boss", "nobody", "SENDER") if authority.knows(name)] == [
        "Root",
        "sender",
        "boss",
    ]


def test_an_unknown_name_costs_as_many_comparisons_as_a_known_one(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[tuple[int, int]] = []

    def compare(one: bytes, other: bytes) -> bool:
        compared.append((len(one), len(other)))
        return False

    monkeypatch.setattr(hmac, "compare_digest", compare)
    for name in ("boss", "nobody", "Root"):
        compared.clear()
        assert authority.check_password(name, "guess") == []
        assert compared == [(32, 32)] * 4


def test_no_repr_shows_a_secret(authority: Authority) -> None:
    [grant] = authority.check_password("sender", "first")
    assert "first" not in repr(grant)
    assert "second" not in repr(grant)
