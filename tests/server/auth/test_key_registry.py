"""A key of an entity is valid for that entity only, and only as long as the entity has it."""

from __future__ import annotations

import hmac
from dataclasses import dataclass

import pytest

from twinbus.model.authorization import AuthorizationRule
from twinbus.model.errors import Unauthorized
from twinbus.model.path import parent_entity
from twinbus.model.queue import QueueDescription
from twinbus.model.signature import make_token
from twinbus.model.topic import SubscriptionDescription, TopicDescription
from twinbus.server.auth.key_registry import KeyRegistry
from twinbus.server.auth.keys import Key, KeyRing, Right
from twinbus.server.auth.sas import verify

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
def registry(entities: dict[str, Entity]) -> KeyRegistry:
    return KeyRegistry(KeyRing([ROOT]), entities)


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
def test_every_path_has_a_parent_entity(path: str, owner: str) -> None:
    assert parent_entity(path) == owner


@pytest.mark.parametrize(
    ("key", "secret", "scope", "path"),
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
def test_a_token_for_its_entity_is_valid(registry: KeyRegistry, key: str, secret: str, scope: str, path: str) -> None:
    verify(make_token(f"sb://h/{scope}", key, secret, NOW_S + 1), path, registry, NOW_S)


@pytest.mark.parametrize(
    ("key", "secret", "scope", "path"),
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
def test_a_token_for_another_entity_is_refused(
    registry: KeyRegistry, key: str, secret: str, scope: str, path: str
) -> None:
    token = make_token(f"sb://h/{scope}", key, secret, NOW_S + 1)
    with pytest.raises(Unauthorized) as caught:
        verify(token, path, registry, NOW_S)
    assert secret not in str(caught.value)


def test_the_rights_are_those_of_the_rule(registry: KeyRegistry) -> None:
    sender = verify(make_token("sb://h/a", "sender", "first", NOW_S + 1), "a", registry, NOW_S)
    assert [right for right in Right if sender.allows(right, "a")] == [Right.SEND]
    assert not sender.allows(Right.SEND, "a/b")
    [listener] = registry.check_password("Root", "first")
    assert [right for right in Right if listener.allows(right, "a")] == [Right.LISTEN]
    [root] = registry.check_password("Root", "root-secret")
    assert all(root.allows(right, "anything") for right in Right)


def test_a_grant_follows_changes_of_its_rule(registry: KeyRegistry, entities: dict[str, Entity]) -> None:
    [grant] = registry.check_password("sender", "first")
    entities["a"].description = QueueDescription(authorization_rules=(rule("sender", "Listen", primary="changed"),))
    registry.refresh("a")
    assert registry.renew(grant) is None
    [grant] = registry.check_password("sender", "second")
    entities["a"].description = QueueDescription(authorization_rules=(rule("sender", "Send", primary="again"),))
    registry.refresh("a")
    renewed = registry.renew(grant)
    assert renewed is not None
    assert renewed.allows(Right.SEND, "a")
    assert not renewed.allows(Right.LISTEN, "a")
    del entities["a"]
    registry.refresh("a")
    assert registry.renew(grant) is None


def test_a_key_name_is_known_if_any_key_has_it(registry: KeyRegistry) -> None:
    assert [name for name in ("Root", "sender", "boss", "nobody", "SENDER") if registry.has_key_named(name)] == [
        "Root",
        "sender",
        "boss",
    ]


def test_a_failed_login_costs_the_same_for_every_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """It costs one comparison per secret of a namespace key (or of the decoy), and one digest for all entity keys."""
    shared = QueueDescription(authorization_rules=(rule("app", "Send"), rule("Root", "Listen")))
    registry = KeyRegistry(KeyRing([ROOT]), {f"q{number}": Entity(shared) for number in range(50)})
    work: list[str] = []
    compare, digest = hmac.compare_digest, hmac.digest

    def counted_compare(left: bytes, right: bytes) -> bool:
        work.append(f"compare {len(left)} {len(right)}")
        return compare(left, right)

    def counted_digest(key: bytes, message: bytes, name: str) -> bytes:
        work.append("digest")
        return digest(key, message, name)

    monkeypatch.setattr(hmac, "compare_digest", counted_compare)
    monkeypatch.setattr(hmac, "digest", counted_digest)
    for name in ("app", "nobody", "Root"):
        work.clear()
        assert registry.check_password(name, "guess") == []
        assert work == ["compare 32 32", "compare 32 32", "digest"]


def test_the_index_stays_consistent_after_every_change(entities: dict[str, Entity], registry: KeyRegistry) -> None:
    def logins() -> list[dict[str, set[str]]]:
        """Return the scopes per key name, of the updated index and of one built from scratch."""
        return [
            {
                name: {
                    grant.scope
                    for secret in ("first", "second", "x", "other")
                    for grant in candidate.check_password(name, secret)
                }
                for name in ("sender", "boss", "Root", "new")
                if candidate.has_key_named(name)
            }
            for candidate in (registry, KeyRegistry(KeyRing([ROOT]), entities))
        ]

    changes: list[tuple[str, Entity | None]] = [
        ("a", Entity(QueueDescription(authorization_rules=(rule("new", "Send", primary="x", secondary="x"),)))),
        ("a/b", None),
        ("news", Entity(TopicDescription(authorization_rules=(rule("boss", "Listen"), rule("sender", "Send"))))),
        ("c", Entity(QueueDescription(authorization_rules=(rule("sender", "Send"),)))),
        ("news/subscriptions/all", None),
        ("a", Entity(QueueDescription())),
        ("c", None),
        ("news", None),
    ]
    for path, entity in changes:
        if entity is None:
            del entities[path]
        else:
            entities[path] = entity
        registry.refresh(path)
        updated, rebuilt = logins()
        assert updated == rebuilt
    assert updated == {"Root": set()}


@pytest.mark.parametrize(
    ("after", "is_reduced"),
    [
        (rule("sender", "Send"), False),
        (rule("sender", "Send", "Listen"), False),
        (rule("sender", "Send", primary="second", secondary="first"), False),
        (rule("sender", "Listen"), True),
        (rule("sender", "Send", primary="changed"), True),
        (rule("sender", "Send", secondary="changed"), True),
        (rule("Sender", "Send"), True),
    ],
)
def test_a_key_that_loses_a_secret_or_a_right_is_reported(after: AuthorizationRule, *, is_reduced: bool) -> None:
    entities = {"a": Entity(QueueDescription(authorization_rules=(rule("sender", "Send"),)))}
    registry, reduced = KeyRegistry(KeyRing([ROOT]), entities), list[str]()
    registry.on_key_reduced = lambda key: reduced.append(f"{key.owner} {key.name}")
    entities["a"].description = QueueDescription(authorization_rules=(after,))
    registry.refresh("a")
    assert reduced == (["a sender"] if is_reduced else [])


def test_no_repr_shows_a_secret(registry: KeyRegistry) -> None:
    [grant] = registry.check_password("sender", "first")
    assert "first" not in repr(grant)
    assert "second" not in repr(grant)
