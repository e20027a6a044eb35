"""Authorization rules in descriptions of queues and topics, to and from XML.

Owns: their elements, and what a client may leave out: secrets, which are then made here or stay as they are, and the
times. What is a valid rule is the model's to say. No error shows a secret.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from twinbus.model.atom import envelope
from twinbus.model.atom.parts import as_shown
from twinbus.model.authorization import AuthorizationRule, check_new_secret, check_rules, new_secret
from twinbus.model.errors import InvalidArgument

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

    from twinbus.model.atom.kinds import View

RULE: Final = "AuthorizationRule"
SHARED_ACCESS: Final = "SharedAccessAuthorizationRule"
_GIVEN: Final = ("KeyName", "PrimaryKey", "SecondaryKey")
_SHOWN: Final = (*_GIVEN, "CreatedTime", "ModifiedTime")


@dataclass(frozen=True, slots=True)
class AuthorizationRules:
    """All rules of an entity, as a part of its description."""

    field: str = "authorization_rules"
    since: str = ""

    def read(self, element: Element, current: Any, now_ms: int) -> tuple[AuthorizationRule, ...]:  # noqa: ANN401  # a description
        """The rules that there are to be."""
        before = {rule.name.lower(): rule for rule in getattr(current, self.field, ())}
        rules = tuple(_read_rule(item, before, now_ms) for item in envelope.items(element, RULE))
        check_rules(rules)
        return rules

    def read_shown(self, element: Element) -> tuple[AuthorizationRule, ...]:
        """The rules that there are."""
        return tuple(_read_shown_rule(item) for item in envelope.items(element, RULE))

    def write(self, root: Element, name: str, info: Any, _view: View) -> None:  # noqa: ANN401  # of a queue or topic
        """The rules that there are, with their secrets: who sees a description may manage the entity."""
        parent = envelope.add(root, name)
        for rule in info.description.authorization_rules:
            _write_rule(parent, rule)


def _read_rule(element: Element, before: dict[str, AuthorizationRule], now_ms: int) -> AuthorizationRule:
    kind = envelope.type_of(element)
    if kind not in ("", SHARED_ACCESS):
        raise InvalidArgument(f"{RULE} is a {kind!r:.60}; it can be a {SHARED_ACCESS}")
    given, rights = _parts_of(element, _GIVEN)
    name = given.get("KeyName", "")
    old = before.get(name.lower())
    rule = AuthorizationRule(
        name=name,
        rights=rights,
        primary_key=given.get("PrimaryKey") or (old.primary_key if old else new_secret()),
        secondary_key=given.get("SecondaryKey") or (old.secondary_key if old else new_secret()),
    )
    known = () if old is None else (old.primary_key, old.secondary_key)
    for secret in (rule.primary_key, rule.secondary_key):
        if secret not in known:  # those that are there may be older than the limit, and come back with every update
            check_new_secret(name, secret)
    if old is None:
        return replace(rule, created_ms=now_ms, modified_ms=now_ms)
    is_changed = replace(rule, created_ms=old.created_ms, modified_ms=old.modified_ms) != old
    return replace(rule, created_ms=old.created_ms, modified_ms=now_ms if is_changed else old.modified_ms)


def _read_shown_rule(element: Element) -> AuthorizationRule:
    given, rights = _parts_of(element, _SHOWN)
    values = {
        "name": given.get("KeyName", ""),
        "rights": rights,
        "primary_key": given.get("PrimaryKey", ""),
        "secondary_key": given.get("SecondaryKey", ""),
        "created_ms": envelope.moment_ms(given.get("CreatedTime", envelope.NEVER)),
        "modified_ms": envelope.moment_ms(given.get("ModifiedTime", envelope.NEVER)),
    }
    return as_shown(AuthorizationRule, values)


def _parts_of(element: Element, names: tuple[str, ...]) -> tuple[dict[str, str], tuple[str, ...]]:
    """The texts of these elements of a rule, as far as they are there, and its rights."""
    found = envelope.children(element)
    given = {name: envelope.text(found[name]).strip() for name in names if name in found}
    rights = envelope.items(found["Rights"], "AccessRights") if "Rights" in found else []
    return given, tuple(dict.fromkeys(envelope.text(right).strip() for right in rights))


def _write_rule(parent: Element, rule: AuthorizationRule) -> None:
    root = envelope.add(parent, RULE, **{"i:type": SHARED_ACCESS})
    envelope.add(root, "ClaimType", "SharedAccessKey")
    envelope.add(root, "ClaimValue", "None")
    rights = envelope.add(root, "Rights")
    for right in rule.rights:
        envelope.add(rights, "AccessRights", right)
    envelope.add(root, "CreatedTime", envelope.timestamp(rule.created_ms))
    envelope.add(root, "ModifiedTime", envelope.timestamp(rule.modified_ms))
    envelope.add(root, "KeyName", rule.name)
    envelope.add(root, "PrimaryKey", rule.primary_key)
    envelope.add(root, "SecondaryKey", rule.secondary_key)
