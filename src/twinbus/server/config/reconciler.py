"""Bringing a namespace to a plan: what is missing is made, what differs is changed, what is not named is left alone.

Owns: the order of the steps. All of the plan is checked against the namespace before anything is changed; a start that
was cut off on the way is completed by the next. It happens before the server listens, so no client sees it half done.
"""

from __future__ import annotations

import logging
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from twinbus.model.description import partitioned_size_mb
from twinbus.model.errors import CallerError, EntityNotFound, ServiceBusError
from twinbus.model.path import canonical_key, split_subscription
from twinbus.model.queue import QueueDescription
from twinbus.model.topic import SubscriptionDescription, TopicDescription
from twinbus.server.catalogue.service import FIXED_AT_CREATION
from twinbus.server.config.plan import ENTITY_KINDS
from twinbus.server.config.settings import StartError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from twinbus.model.authorization import AuthorizationRule
    from twinbus.model.info import Description
    from twinbus.model.rule import RuleDescription
    from twinbus.server.config.plan import DescriptionType, DesiredEntity, Plan

log: Final = logging.getLogger(__name__)

_FORWARD_FIELDS: Final = ("forward_to", "forward_dead_lettered_to")
_SET_AFTER_CREATION: Final = (*_FORWARD_FIELDS, "authorization_rules")
"""What it forwards to may not be there yet; rules get their dates when they are changed."""


class ExistingEntity(Protocol):
    """An entity that is there."""

    @property
    def path(self) -> str:
        """As it is spelled."""

    @property
    def description(self) -> Description:
        """What it is told to be."""


class EntityManager(Protocol):
    """What is needed here of an `Administration`."""

    async def get(self, path: str) -> ExistingEntity:
        """The entity of that path, or EntityNotFound."""

    async def create_queue(self, path: str, description: QueueDescription) -> object:
        """Make a queue."""

    async def create_topic(self, path: str, description: TopicDescription) -> object:
        """Make a topic."""

    async def create_subscription(
        self, topic: str, name: str, description: SubscriptionDescription, rule: RuleDescription | None = None
    ) -> object:
        """Make a subscription."""

    async def update(self, path: str, description: Description) -> object:
        """Describe an entity anew."""

    async def list_rules(self, subscription: str, *, skip: int, top: int) -> list[RuleDescription]:
        """Some rules of a subscription."""

    async def create_rule(self, subscription: str, rule: RuleDescription) -> object:
        """Add a rule."""

    async def update_rule(self, subscription: str, rule: RuleDescription) -> object:
        """Put a rule in the place of another."""

    async def delete_rule(self, subscription: str, name: str) -> None:
        """Delete a rule."""


async def reconcile(administration: EntityManager, plan: Plan, *, now_ms: int) -> None:
    """Make it so. InvalidConfig names the place in the file that cannot be; StartError if a store does not work."""
    made = changed = 0
    try:
        planned = {canonical_key(wanted.path): wanted.description_type for wanted in plan.entities}
        present = [await _find(administration, wanted.path) for wanted in plan.entities]
        for wanted, info in zip(plan.entities, present, strict=True):
            _check_change(wanted, info)
            await _check_forward_targets(administration, planned, wanted)
        for wanted, info in zip(plan.entities, present, strict=True):
            if info is None:
                await _create(administration, wanted)
                made += 1
        for wanted, info in zip(plan.entities, present, strict=True):
            is_changed = await _update(administration, wanted, now_ms)
            changed += is_changed and info is not None
    except ServiceBusError as error:
        raise StartError(f"the namespace cannot be brought to its configuration: {error}") from error
    log.info("configured", extra={"entities": len(plan.entities), "made": made, "changed": changed})


async def _find(administration: EntityManager, path: str) -> ExistingEntity | None:
    try:
        return await administration.get(path)
    except EntityNotFound:
        return None


# --- what cannot be ---------------------------------------------------------------------------------------------------


def _check_change(desired: DesiredEntity, existing: ExistingEntity | None) -> None:
    if existing is None:
        return
    kind, own = ENTITY_KINDS[type(existing.description)], ENTITY_KINDS[desired.description_type]
    if kind != own:
        raise desired.location.error(
            f"'{existing.path}' is a {kind} here, and no {own}: delete it, or choose another name"
        )
    for field in FIXED_AT_CREATION:
        if field not in desired.properties.values:
            continue
        value, present = desired.properties.values[field], getattr(existing.description, field)
        if value != present:
            raise desired.properties.locations[field].error(
                f"it is {str(present).lower()} in the {kind} '{existing.path}' since its creation, and cannot "
                "be changed: "
                f"leave it so, or delete the {kind}"
            )


async def _check_forward_targets(
    administration: EntityManager, planned: Mapping[str, DescriptionType], desired: DesiredEntity
) -> None:
    """What is forwarded to has to be in the plan, or in the namespace already."""
    for field in _FORWARD_FIELDS:
        target = desired.properties.values.get(field)
        if not isinstance(target, str):
            continue
        place = desired.properties.locations[field]
        kind = planned.get(canonical_key(target))
        if kind is None and (info := await _find(administration, target)) is not None:
            kind = type(info.description)
        if kind is None:
            raise place.error(f"there is no queue or topic '{target}', neither in the file nor in the namespace")
        if kind is SubscriptionDescription:
            raise place.error(f"'{target}' is a subscription, which is filled by its topic alone")
        if field == "forward_to" and canonical_key(target) == canonical_key(desired.path):
            raise place.error(f"'{target}' would forward to itself")


# --- doing it ---------------------------------------------------------------------------------------------------------


async def _create(administration: EntityManager, desired: DesiredEntity) -> None:
    values = {name: value for name, value in desired.properties.values.items() if name not in _SET_AFTER_CREATION}
    description = desired.description_type(**values)  # type: ignore[arg-type]  # the file's readers know the types
    try:
        if isinstance(description, QueueDescription):
            await administration.create_queue(desired.path, description)
        elif isinstance(description, TopicDescription):
            await administration.create_topic(desired.path, description)
        else:
            topic, name = split_subscription(desired.path)
            rule = desired.rules[0] if desired.rules else None
            await administration.create_subscription(topic, name, description, rule)
    except CallerError as error:
        raise desired.location.error(str(error)) from error


async def _update(administration: EntityManager, desired: DesiredEntity, now_ms: int) -> bool:
    """Whether anything was different."""
    before = (await administration.get(desired.path)).description
    try:
        after = _merge_description(before, desired, now_ms)
        if after != before:
            await administration.update(desired.path, after)
        has_other_rules = await _update_rules(administration, desired)
    except CallerError as error:
        raise desired.location.error(str(error)) from error
    return after != before or has_other_rules


def _merge_description(before: Description, desired: DesiredEntity, now_ms: int) -> Description:
    values = dict(desired.properties.values)
    if not isinstance(before, SubscriptionDescription) and "authorization_rules" in values:
        present = {rule.name: rule for rule in before.authorization_rules}
        rules: tuple[AuthorizationRule, ...] = values["authorization_rules"]  # type: ignore[assignment]
        values["authorization_rules"] = tuple(_with_dates(rule, present.get(rule.name), now_ms) for rule in rules)
    if getattr(before, "enable_partitioning", False) and isinstance(size_mb := values.get("max_size_mb"), int):
        values["max_size_mb"] = partitioned_size_mb(
            size_mb
        )  # as `before` has it: else it would be changed at every start
    return replace(before, **values)  # type: ignore[arg-type]  # the file's readers know the types


def _with_dates(rule: AuthorizationRule, before: AuthorizationRule | None, now_ms: int) -> AuthorizationRule:
    """A file does not say when a rule was made."""
    if before is None:
        return replace(rule, created_ms=now_ms, modified_ms=now_ms)
    same = replace(rule, created_ms=before.created_ms, modified_ms=before.modified_ms)
    return before if same == before else replace(same, modified_ms=now_ms)


async def _update_rules(administration: EntityManager, desired: DesiredEntity) -> bool:
    if not desired.rules:
        return False
    rules = await administration.list_rules(desired.path, skip=0, top=sys.maxsize)
    present = {canonical_key(rule.name): rule for rule in rules}
    names = {canonical_key(rule.name) for rule in desired.rules}
    is_changed = False
    for key, rule in present.items():
        if key not in names:
            await administration.delete_rule(desired.path, rule.name)
            is_changed = True
    for rule in desired.rules:
        before = present.get(canonical_key(rule.name))
        if before is None:
            await administration.create_rule(desired.path, rule)
            is_changed = True
        elif msgspec.structs.replace(rule, name=before.name, created_ms=before.created_ms) != before:
            await administration.update_rule(desired.path, rule)
            is_changed = True
    return is_changed
