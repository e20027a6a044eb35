"""Authorization rules in descriptions of queues and topics, to and from XML.

Owns: their elements, and what a client may leave out: secrets, which are then made here or stay as they are, and the
times. What is a valid rule is the model's to say. No error shows a secret.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from twinbus.model.atom import envelope
from twinbus.model.atom.elements import build_unchecked
from twinbus.model.authorization import AuthorizationRule, check_authorization_rules, check_new_secret, new_secret
from twinbus.model.errors import InvalidArgument

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

    from twinbus.model.atom.value_formats import WriteContext

RULE_TAG: Final = "AuthorizationRule"
SHARED_ACCESS_RULE: Final = "SharedAccessAuthorizationRule"
_REQUEST_ELEMENTS: Final = ("KeyName", "PrimaryKey", "SecondaryKey")
_RESPONSE_ELEMENTS: Final = (*_REQUEST_ELEMENTS, "CreatedTime", "ModifiedTime")


@dataclass(frozen=True, slots=True)
class AuthorizationRulesElement:
    """All rules of an entity, as a part of its description."""

    field: str = "authorization_rules"
    since_version: str = ""

    def read(self, element: Element, current: Any, now_ms: int) -> tuple[AuthorizationRule, ...]:  # noqa: ANN401  # a description
        """The rules that there are to be."""
        before = {rule.name.lower(): rule for rule in getattr(current, self.field, ())}
        rules = tuple(_read_rule(item, before, now_ms) for item in envelope.children_named(element, RULE_TAG))
        check_authorization_rules(rules)
        return rules

    def read_response(self, element: Element) -> tuple[AuthorizationRule, ...]:
        """The rules that there are."""
        return tuple(_read_response_rule(item) for item in envelope.children_named(element, RULE_TAG))

    def write(self, root: Element, name: str, info: Any, _context: WriteContext) -> None:  # noqa: ANN401  # of a queue or topic
        """The rules that there are, with their secrets: who sees a description may manage the entity."""
        parent = envelope.add_element(root, name)
        for rule in info.description.authorization_rules:
            _write_rule(parent, rule)


def _read_rule(element: Element, current_rules: dict[str, AuthorizationRule], now_ms: int) -> AuthorizationRule:
    kind = envelope.xsi_type(element)
    if kind not in ("", SHARED_ACCESS_RULE):
        raise InvalidArgument(f"{RULE_TAG} is a {kind!r:.60}; it can be a {SHARED_ACCESS_RULE}")
    given, rights = _read_elements(element, _REQUEST_ELEMENTS)
    name = given.get("KeyName", "")
    old = current_rules.get(name.lower())
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


def _read_response_rule(element: Element) -> AuthorizationRule:
    given, rights = _read_elements(element, _RESPONSE_ELEMENTS)
    values = {
        "name": given.get("KeyName", ""),
        "rights": rights,
        "primary_key": given.get("PrimaryKey", ""),
        "secondary_key": given.get("SecondaryKey", ""),
        "created_ms": envelope.parse_timestamp(given.get("CreatedTime", envelope.NEVER)),
        "modified_ms": envelope.parse_timestamp(given.get("ModifiedTime", envelope.NEVER)),
    }
    return build_unchecked(AuthorizationRule, values)


def _read_elements(element: Element, names: tuple[str, ...]) -> tuple[dict[str, str], tuple[str, ...]]:
    """The texts of these elements of a rule, as far as they are there, and its rights."""
    found = envelope.children_by_name(element)
    given = {name: envelope.element_text(found[name]).strip() for name in names if name in found}
    rights = envelope.children_named(found["Rights"], "AccessRights") if "Rights" in found else []
    return given, tuple(dict.fromkeys(envelope.element_text(right).strip() for right in rights))


def _write_rule(parent: Element, rule: AuthorizationRule) -> None:
    root = envelope.add_element(parent, RULE_TAG, **{"i:type": SHARED_ACCESS_RULE})
    envelope.add_element(root, "ClaimType", "SharedAccessKey")
    envelope.add_element(root, "ClaimValue", "None")
    rights = envelope.add_element(root, "Rights")
    for right in rule.rights:
        envelope.add_element(rights, "AccessRights", right)
    envelope.add_element(root, "CreatedTime", envelope.format_timestamp(rule.created_ms))
    envelope.add_element(root, "ModifiedTime", envelope.format_timestamp(rule.modified_ms))
    envelope.add_element(root, "KeyName", rule.name)
    envelope.add_element(root, "PrimaryKey", rule.primary_key)
    envelope.add_element(root, "SecondaryKey", rule.secondary_key)
