"""Authorization rules in descriptions of queues and topics, to and from XML.

Owns: their elements, and what a client may leave out: secrets, which are then made here or stay as they are, and the
times. What is a valid rule is the model's to say. No error shows a secret.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from twinbus.model.authorization import AuthorizationRule, check_rules
from twinbus.model.errors import InvalidArgument
from twinbus.server.http import atom
from twinbus.server.keys import new_secret

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

    from twinbus.server.http.description_xml import View

RULE: Final = "AuthorizationRule"
SHARED_ACCESS: Final = "SharedAccessAuthorizationRule"


@dataclass(frozen=True, slots=True)
class AuthorizationRules:
    """All rules of an entity, as a part of its description."""

    field: str = "authorization_rules"
    since: str = ""

    def read(self, element: Element, current: Any, now_ms: int) -> tuple[AuthorizationRule, ...]:  # noqa: ANN401  # a description
        """The rules that there are to be."""
        before = {rule.name.lower(): rule for rule in getattr(current, self.field, ())}
        rules = tuple(_read_rule(item, before, now_ms) for item in atom.items(element, RULE))
        check_rules(rules)
        return rules

    def write(self, root: Element, name: str, info: Any, _view: View) -> None:  # noqa: ANN401  # of a queue or topic
        """The rules that there are, with their secrets: who sees a description may manage the entity."""
        parent = atom.add(root, name)
        for rule in info.description.authorization_rules:
            _write_rule(parent, rule)


def _read_rule(element: Element, before: dict[str, AuthorizationRule], now_ms: int) -> AuthorizationRule:
    kind = atom.type_of(element)
    if kind not in ("", SHARED_ACCESS):
        raise InvalidArgument(f"{RULE} is a {kind!r:.60}; it can be a {SHARED_ACCESS}")
    found = atom.children(element)
    given = {
        name: atom.text(found[name]).strip() for name in ("KeyName", "PrimaryKey", "SecondaryKey") if name in found
    }
    name = given.get("KeyName", "")
    old = before.get(name.lower())
    rights = atom.items(found["Rights"], "AccessRights") if "Rights" in found else []
    rule = AuthorizationRule(
        name=name,
        rights=tuple(dict.fromkeys(atom.text(right).strip() for right in rights)),
        primary_key=given.get("PrimaryKey") or (old.primary_key if old else new_secret()),
        secondary_key=given.get("SecondaryKey") or (old.secondary_key if old else new_secret()),
    )
    if old is None:
        return replace(rule, created_ms=now_ms, modified_ms=now_ms)
    is_changed = replace(rule, created_ms=old.created_ms, modified_ms=old.modified_ms) != old
    return replace(rule, created_ms=old.created_ms, modified_ms=now_ms if is_changed else old.modified_ms)


def _write_rule(parent: Element, rule: AuthorizationRule) -> None:
    root = atom.add(parent, RULE, **{"i:type": SHARED_ACCESS})
    atom.add(root, "ClaimType", "SharedAccessKey")
    atom.add(root, "ClaimValue", "None")
    rights = atom.add(root, "Rights")
    for right in rule.rights:
        atom.add(rights, "AccessRights", right)
    atom.add(root, "CreatedTime", atom.timestamp(rule.created_ms))
    atom.add(root, "ModifiedTime", atom.timestamp(rule.modified_ms))
    atom.add(root, "KeyName", rule.name)
    atom.add(root, "PrimaryKey", rule.primary_key)
    atom.add(root, "SecondaryKey", rule.secondary_key)
