"""Conversion of the authorization rules of queues and topics to and from XML.

Owns the elements of a rule. A client may omit times and secrets. An omitted secret keeps its current value or, in a new
rule, is generated. The model validates rules. Errors never contain a secret.
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
    """Element with all authorization rules of an entity."""

    field: str = "authorization_rules"
    since_version: str = ""

    def read(self, element: Element, current: Any, now_ms: int) -> tuple[AuthorizationRule, ...]:  # noqa: ANN401  # any description
        """Read the rules from a client's request."""
        current_rules = {rule.name.lower(): rule for rule in getattr(current, self.field, ())}
        rules = tuple(_read_rule(item, current_rules, now_ms) for item in envelope.children_named(element, RULE_TAG))
        check_authorization_rules(rules)
        return rules

    def read_response(self, element: Element) -> tuple[AuthorizationRule, ...]:
        """Read the rules from a service's response."""
        return tuple(_read_response_rule(item) for item in envelope.children_named(element, RULE_TAG))

    def write(self, root: Element, name: str, info: Any, _context: WriteContext) -> None:  # noqa: ANN401  # info of a queue or topic
        """Write the rules with their secrets: only clients with the Manage right can read descriptions."""
        parent = envelope.add_element(root, name)
        for rule in info.description.authorization_rules:
            _write_rule(parent, rule)


def _read_rule(element: Element, current_rules: dict[str, AuthorizationRule], now_ms: int) -> AuthorizationRule:
    kind = envelope.xsi_type(element)
    if kind not in ("", SHARED_ACCESS_RULE):
        raise InvalidArgument(f"{RULE_TAG} is a {kind!r:.60}; it can be a {SHARED_ACCESS_RULE}")
    texts, rights = _read_elements(element, _REQUEST_ELEMENTS)
    name = texts.get("KeyName", "")
    old = current_rules.get(name.lower())
    rule = AuthorizationRule(
        name=name,
        rights=rights,
        primary_key=texts.get("PrimaryKey") or (old.primary_key if old else new_secret()),
        secondary_key=texts.get("SecondaryKey") or (old.secondary_key if old else new_secret()),
    )
    current_secrets = () if old is None else (old.primary_key, old.secondary_key)
    for secret in (rule.primary_key, rule.secondary_key):
        if secret not in current_secrets:  # existing secrets may predate the limit, and every update repeats them
            check_new_secret(name, secret)
    if old is None:
        return replace(rule, created_ms=now_ms, modified_ms=now_ms)
    is_changed = replace(rule, created_ms=old.created_ms, modified_ms=old.modified_ms) != old
    return replace(rule, created_ms=old.created_ms, modified_ms=now_ms if is_changed else old.modified_ms)


def _read_response_rule(element: Element) -> AuthorizationRule:
    texts, rights = _read_elements(element, _RESPONSE_ELEMENTS)
    values = {
        "name": texts.get("KeyName", ""),
        "rights": rights,
        "primary_key": texts.get("PrimaryKey", ""),
        "secondary_key": texts.get("SecondaryKey", ""),
        "created_ms": envelope.parse_timestamp(texts.get("CreatedTime", envelope.NEVER)),
        "modified_ms": envelope.parse_timestamp(texts.get("ModifiedTime", envelope.NEVER)),
    }
    return build_unchecked(AuthorizationRule, values)


def _read_elements(element: Element, names: tuple[str, ...]) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the texts of those elements in `names` that are present, and the rights of a rule."""
    children = envelope.children_by_name(element)
    texts = {name: envelope.element_text(children[name]).strip() for name in names if name in children}
    rights = envelope.children_named(children["Rights"], "AccessRights") if "Rights" in children else []
    return texts, tuple(dict.fromkeys(envelope.element_text(right).strip() for right in rights))


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
