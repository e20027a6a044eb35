"""Differences between a plan and the entities of a namespace.

Owns: which properties and rules change, and which changes are impossible. This module makes no changes itself:
`server.config.reconciler` applies a plan at startup, `client.management.entity_import` applies a plan to a live
namespace.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Final

import msgspec

from twinbus.model.description import FIXED_AT_CREATION, partitioned_size_mb
from twinbus.model.entity_file.plan import ENTITY_KINDS
from twinbus.model.path import canonical_key
from twinbus.model.topic import SubscriptionDescription

if TYPE_CHECKING:
    from collections.abc import Iterable

    from twinbus.model.authorization import AuthorizationRule
    from twinbus.model.entity_file.plan import DesiredEntity
    from twinbus.model.info import Description
    from twinbus.model.rule import RuleDescription

FORWARD_FIELDS: Final = ("forward_to", "forward_dead_lettered_to")
SET_AFTER_CREATION: Final = (*FORWARD_FIELDS, "authorization_rules")
"""Fields set by an update after creation: a forwarding target may not exist yet, and rules get dates when updated."""


@dataclass(frozen=True, slots=True)
class RuleChanges:
    """Changes that give a subscription exactly the rules of a plan."""

    deleted: tuple[str, ...] = ()
    """Names of the rules to delete."""
    created: tuple[RuleDescription, ...] = ()
    updated: tuple[RuleDescription, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.deleted or self.created or self.updated)


def check_change(desired: DesiredEntity, path: str, description: Description) -> None:
    """Raise InvalidConfig if the entity at `path` cannot be changed as desired."""
    kind, desired_kind = ENTITY_KINDS[type(description)], ENTITY_KINDS[desired.description_type]
    if kind != desired_kind:
        raise desired.location.error(
            f"'{path}' already exists as a {kind}, not a {desired_kind}: delete it, or choose another name"
        )
    for field in FIXED_AT_CREATION:
        if field not in desired.properties.values:
            continue
        value, present = desired.properties.values[field], getattr(description, field)
        if value != present:
            location = desired.properties.locations.get(field, desired.location)
            raise location.error(
                f"is {str(present).lower()} in the {kind} '{path}' and cannot be changed after creation: keep it, or "
                f"delete the {kind}"
            )


def new_description(desired: DesiredEntity) -> Description:
    """Return the description with which to create an entity; the fields in `SET_AFTER_CREATION` are set later."""
    values = {name: value for name, value in desired.properties.values.items() if name not in SET_AFTER_CREATION}
    return desired.description_type(**values)  # type: ignore[arg-type]  # the file's readers know the types


def merge_description(before: Description, desired: DesiredEntity, now_ms: int) -> Description:
    """Return the description of an entity after the change."""
    values = dict(desired.properties.values)
    if not isinstance(before, SubscriptionDescription) and "authorization_rules" in values:
        present = {rule.name: rule for rule in before.authorization_rules}
        rules: tuple[AuthorizationRule, ...] = values["authorization_rules"]  # type: ignore[assignment]
        values["authorization_rules"] = tuple(_with_dates(rule, present.get(rule.name), now_ms) for rule in rules)
    if getattr(before, "enable_partitioning", False) and isinstance(size_mb := values.get("max_size_mb"), int):
        # `before` has the total size of all fragments: without the conversion, the entity would always differ.
        values["max_size_mb"] = partitioned_size_mb(size_mb)
    return replace(before, **values)  # type: ignore[arg-type]  # the file's readers know the types


def changed_fields(before: Description, after: Description) -> list[str]:
    """Return the names of the fields that differ."""
    return [field.name for field in fields(before) if getattr(before, field.name) != getattr(after, field.name)]


def rule_changes(desired: DesiredEntity, rules: Iterable[RuleDescription]) -> RuleChanges:
    """Return how a plan changes the rules of a subscription; a plan without rules changes no rules."""
    if not desired.rules:
        return RuleChanges()
    present = {canonical_key(rule.name): rule for rule in rules}
    names = {canonical_key(rule.name) for rule in desired.rules}
    created, updated = [], []
    for rule in desired.rules:
        before = present.get(canonical_key(rule.name))
        if before is None:
            created.append(rule)
        elif msgspec.structs.replace(rule, name=before.name, created_ms=before.created_ms) != before:
            updated.append(rule)
    deleted = (rule.name for key, rule in present.items() if key not in names)
    return RuleChanges(tuple(deleted), tuple(created), tuple(updated))


def _with_dates(rule: AuthorizationRule, before: AuthorizationRule | None, now_ms: int) -> AuthorizationRule:
    """Return the rule with the dates that a file lacks: those of the current rule, or the time of the change."""
    if before is None:
        return replace(rule, created_ms=now_ms, modified_ms=now_ms)
    same = replace(rule, created_ms=before.created_ms, modified_ms=before.modified_ms)
    return before if same == before else replace(same, modified_ms=now_ms)
