"""Applying a plan to a namespace: missing entities are created, different entities updated, other entities left alone.

Owns: the order of the steps. The whole plan is checked against the namespace before anything is changed. If the server
is stopped in the meantime, the next startup completes the plan. A plan is applied before the server listens, so that
no client sees a half-applied plan.
"""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Final, Protocol

from twinbus.model.entity_file.differences import (
    FORWARD_FIELDS,
    check_change,
    merge_description,
    new_description,
    rule_changes,
)
from twinbus.model.entity_file.section import InvalidConfig
from twinbus.model.errors import CallerError, EntityNotFound, ServiceBusError
from twinbus.model.path import canonical_key, split_subscription
from twinbus.model.queue import QueueDescription
from twinbus.model.topic import SubscriptionDescription, TopicDescription
from twinbus.server.config.settings import ConfigurationError, StartError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from twinbus.model.entity_file.plan import DescriptionType, DesiredEntity, Plan
    from twinbus.model.info import Description
    from twinbus.model.rule import RuleDescription

log: Final = logging.getLogger(__name__)


class ExistingEntity(Protocol):
    """An entity that exists in the namespace."""

    @property
    def path(self) -> str:
        """The entity's path, as spelled at creation."""

    @property
    def description(self) -> Description:
        """The entity's description."""


class EntityManager(Protocol):
    """The operations of an `Administration` that a plan needs."""

    async def get(self, path: str) -> ExistingEntity:
        """Return the entity at `path`. Raise EntityNotFound if there is none."""

    async def create_queue(self, path: str, description: QueueDescription) -> object:
        """Create a queue."""

    async def create_topic(self, path: str, description: TopicDescription) -> object:
        """Create a topic."""

    async def create_subscription(
        self, topic: str, name: str, description: SubscriptionDescription, rule: RuleDescription | None = None
    ) -> object:
        """Create a subscription with `rule` (default: a rule that matches every message)."""

    async def update(self, path: str, description: Description) -> object:
        """Replace the description of an entity."""

    async def list_rules(self, subscription: str, *, skip: int, top: int) -> list[RuleDescription]:
        """Return up to `top` rules of a subscription, after skipping `skip`."""

    async def create_rule(self, subscription: str, rule: RuleDescription) -> object:
        """Add a rule to a subscription."""

    async def update_rule(self, subscription: str, rule: RuleDescription) -> object:
        """Replace the rule with the same name."""

    async def delete_rule(self, subscription: str, name: str) -> None:
        """Delete a rule of a subscription."""


async def reconcile(administration: EntityManager, plan: Plan, *, now_ms: int) -> None:
    """Apply a plan to a namespace.

    Raise ConfigurationError if an entity of the plan is refused, StartError if a store is unavailable.
    """
    created = updated = 0
    try:
        planned = {canonical_key(desired.path): desired.description_type for desired in plan.entities}
        present = [await _find(administration, desired.path) for desired in plan.entities]
        for desired, existing in zip(plan.entities, present, strict=True):
            if existing is not None:
                check_change(desired, existing.path, existing.description)
            await _check_forward_targets(administration, planned, desired)
        for desired, existing in zip(plan.entities, present, strict=True):
            if existing is None:
                await _create(administration, desired)
                created += 1
        for desired, existing in zip(plan.entities, present, strict=True):
            is_changed = await _update(administration, desired, now_ms)
            updated += is_changed and existing is not None
    except InvalidConfig as error:
        raise ConfigurationError(str(error)) from error
    except ServiceBusError as error:
        raise StartError(f"cannot apply the configuration to the namespace: {error}") from error
    log.info("configured", extra={"entities": len(plan.entities), "made": created, "changed": updated})


async def _find(administration: EntityManager, path: str) -> ExistingEntity | None:
    try:
        return await administration.get(path)
    except EntityNotFound:
        return None


# --- checks -----------------------------------------------------------------------------------------------------------


async def _check_forward_targets(
    administration: EntityManager, planned: Mapping[str, DescriptionType], desired: DesiredEntity
) -> None:
    """Raise InvalidConfig if a forwarding target is neither in the plan nor in the namespace, or is not valid."""
    for field in FORWARD_FIELDS:
        target = desired.properties.values.get(field)
        if not isinstance(target, str):
            continue
        location = desired.properties.locations[field]
        kind = planned.get(canonical_key(target))
        if kind is None and (existing := await _find(administration, target)) is not None:
            kind = type(existing.description)
        if kind is None:
            raise location.error(f"there is no queue or topic '{target}', neither in the file nor in the namespace")
        if kind is SubscriptionDescription:
            raise location.error(f"'{target}' is a subscription: forward to its topic")
        if field == "forward_to" and canonical_key(target) == canonical_key(desired.path):
            raise location.error(f"'{target}' would forward to itself")


# --- changes ----------------------------------------------------------------------------------------------------------


async def _create(administration: EntityManager, desired: DesiredEntity) -> None:
    description = new_description(desired)
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
    """Update an entity to match the plan, and return whether anything changed."""
    before = (await administration.get(desired.path)).description
    try:
        after = merge_description(before, desired, now_ms)
        if after != before:
            await administration.update(desired.path, after)
        has_other_rules = await _update_rules(administration, desired)
    except CallerError as error:
        raise desired.location.error(str(error)) from error
    return after != before or has_other_rules


async def _update_rules(administration: EntityManager, desired: DesiredEntity) -> bool:
    if not desired.rules:
        return False
    present = await administration.list_rules(desired.path, skip=0, top=sys.maxsize)
    changes = rule_changes(desired, present)
    for name in changes.deleted:
        await administration.delete_rule(desired.path, name)
    for rule in changes.created:
        await administration.create_rule(desired.path, rule)
    for rule in changes.updated:
        await administration.update_rule(desired.path, rule)
    return bool(changes)
