"""Applying a plan to a live namespace: creates missing entities, updates different ones, and reports each of them.

Owns: the order of the steps, and the result for each entity. An import can be repeated: entities that match the plan
stay unchanged, so the next import completes an interrupted one. Entities are deleted only with `prune`. Rules are
deleted even without `prune`: if the plan has rules for a subscription, the subscription gets exactly these rules. The
backlog queues of paired clients are never deleted, because they hold messages that exist nowhere else.
"""

from __future__ import annotations

import contextlib
import re
import time
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Final

from twinbus.model.annotations import BACKLOG_QUEUE_INFIX
from twinbus.model.atom.durations import format_duration
from twinbus.model.entity_file import differences
from twinbus.model.entity_file.plan import ENTITY_KINDS
from twinbus.model.entity_file.section import InvalidConfig
from twinbus.model.errors import CallerError, EntityAlreadyExists, EntityNotFound, Unauthorized
from twinbus.model.path import canonical_key, split_subscription
from twinbus.model.queue import QueueDescription
from twinbus.model.topic import TopicDescription

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinbus.client.management.manager import NamespaceManager
    from twinbus.model.entity_file.plan import DesiredEntity, Plan
    from twinbus.model.info import Description

_SECRET_FIELDS: Final = ("authorization_rules",)
_BACKLOG_QUEUE: Final = re.compile(rf"/{BACKLOG_QUEUE_INFIX}/[0-9]+\Z", re.IGNORECASE)


class ImportAction(Enum):
    """What an import does with an entity."""

    CREATE = "created"
    UPDATE = "updated"
    KEEP = "unchanged"
    DELETE = "deleted"
    REFUSE = "refused"


@dataclass(frozen=True, slots=True)
class EntityChange:
    """A planned or completed change of one entity."""

    path: str
    kind: str
    action: ImportAction
    differences: tuple[str, ...] = ()
    """What changes, such as "lock_duration: PT1M -> PT30S"; never a secret."""
    reason: str | None = None
    """Why the entity was refused."""


async def plan_import(manager: NamespaceManager, plan: Plan, *, prune: bool = False) -> list[EntityChange]:
    """Return what an import would change, in the order of the import. `prune` includes entities to delete."""
    changes = [await _compare(manager, desired) for desired in plan.entities]
    return changes + (await _superfluous(manager, plan) if prune else [])


async def import_plan(
    manager: NamespaceManager,
    plan: Plan,
    *,
    prune: bool = False,
    on_change: Callable[[EntityChange], None] | None = None,
) -> list[EntityChange]:
    """Apply a plan, and return the result for each entity. `on_change` is called with each result as it is known.

    An entity that the namespace refuses does not stop the import. Raise Unauthorized, or an error of the connection.
    """
    changes = await plan_import(manager, plan, prune=prune)
    planned = list(zip(plan.entities, changes, strict=False))
    created = [await _create(manager, desired, change) for desired, change in planned]
    results = []
    for desired, change in zip(plan.entities, created, strict=True):  # forwarding can be set once all its targets exist
        results.append(await _update(manager, desired, change))
        if on_change is not None:
            on_change(results[-1])
    for change in changes[len(plan.entities) :]:
        results.append(await _delete(manager, change))
        if on_change is not None:
            on_change(results[-1])
    return results


# --- comparing --------------------------------------------------------------------------------------------------------


async def _compare(manager: NamespaceManager, desired: DesiredEntity) -> EntityChange:
    kind = ENTITY_KINDS[desired.description_type]
    before = await _find(manager, desired.path)
    if before is None:
        return EntityChange(desired.path, kind, ImportAction.CREATE)
    try:
        differences.check_change(desired, desired.path, before)
        after = differences.merge_description(before, desired, _now_ms())
    except (InvalidConfig, CallerError) as error:
        return EntityChange(desired.path, kind, ImportAction.REFUSE, reason=str(error))
    texts = [_difference(name, before, after) for name in differences.changed_fields(before, after)]
    rules = await _rule_changes(manager, desired)
    for verb, names in (
        ("delete", rules.deleted),
        ("create", [rule.name for rule in rules.created]),
        ("update", [rule.name for rule in rules.updated]),
    ):
        texts += [f"{verb} rule {name}" for name in names]
    action = ImportAction.UPDATE if texts else ImportAction.KEEP
    return EntityChange(desired.path, kind, action, tuple(texts))


def _difference(name: str, before: Description, after: Description) -> str:
    if name in _SECRET_FIELDS:
        return f"{name} changed"
    texts = (_value(name, getattr(description, name)) for description in (before, after))
    return f"{name.removesuffix('_ms')}: {' -> '.join(texts)}"


def _value(name: str, value: object) -> str:
    """Return a value as in a TOML file."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int) and name.endswith("_ms"):
        return format_duration(value)
    return "none" if value is None else str(value)


async def _rule_changes(manager: NamespaceManager, desired: DesiredEntity) -> differences.RuleChanges:
    if not desired.rules:
        return differences.RuleChanges()
    topic, name = split_subscription(desired.path)
    return differences.rule_changes(desired, [rule async for rule in manager.get_rules(topic, name)])


async def _find(manager: NamespaceManager, path: str) -> Description | None:
    topic, name = split_subscription(path)
    readers = (manager.get_queue, manager.get_topic)
    try:
        if name:
            return await manager.get_subscription(topic, name)
        return await readers[0](path)
    except EntityNotFound:
        if name:
            return None
    try:
        return await readers[1](path)
    except EntityNotFound:
        return None


async def _superfluous(manager: NamespaceManager, plan: Plan) -> list[EntityChange]:
    """Return the entities that the plan lacks; the subscriptions of a topic are deleted with it."""
    planned = {canonical_key(desired.path) for desired in plan.entities}
    topics = [topic async for topic in manager.get_topics()]
    kept = [topic.path for topic in topics if canonical_key(topic.path) in planned]
    found = [("queue", queue.path) async for queue in manager.get_queues() if not _BACKLOG_QUEUE.search(queue.path)]
    found += [("topic", topic.path) for topic in topics]
    for topic in kept:
        found += [("subscription", item.path) async for item in manager.get_subscriptions(topic)]
    return [EntityChange(path, kind, ImportAction.DELETE) for kind, path in found if canonical_key(path) not in planned]


# --- changing ---------------------------------------------------------------------------------------------------------


async def _create(manager: NamespaceManager, desired: DesiredEntity, change: EntityChange) -> EntityChange:
    """Create a missing entity, without its forwarding."""
    if change.action is not ImportAction.CREATE:
        return change
    try:
        description = differences.new_description(desired)
        if isinstance(description, QueueDescription):
            await manager.create_queue(desired.path, description)
        elif isinstance(description, TopicDescription):
            await manager.create_topic(desired.path, description)
        else:
            topic, name = split_subscription(desired.path)
            rule = desired.rules[0] if desired.rules else None
            await manager.create_subscription(topic, name, description, rule)
    except Unauthorized:
        raise
    except EntityAlreadyExists:  # created since the comparison: by another program, or by an attempt without response
        return change
    except CallerError as error:
        return replace(change, action=ImportAction.REFUSE, reason=str(error))
    return change


async def _update(manager: NamespaceManager, desired: DesiredEntity, change: EntityChange) -> EntityChange:
    """Change an existing entity to match the plan, and set the forwarding and rules of a new entity."""
    if change.action not in (ImportAction.CREATE, ImportAction.UPDATE):
        return change
    try:
        await _apply_properties(manager, desired)
        await _apply_rules(manager, desired)
    except Unauthorized:
        raise
    except CallerError as error:
        return replace(change, action=ImportAction.REFUSE, reason=str(error))
    return change


async def _apply_properties(manager: NamespaceManager, desired: DesiredEntity) -> None:
    before = await _find(manager, desired.path)
    if before is None:
        raise EntityNotFound(desired.path)
    after = differences.merge_description(before, desired, _now_ms())
    if after == before:
        return
    if isinstance(after, QueueDescription):
        await manager.update_queue(desired.path, after)
    elif isinstance(after, TopicDescription):
        await manager.update_topic(desired.path, after)
    else:
        topic, name = split_subscription(desired.path)
        await manager.update_subscription(topic, name, after)


async def _apply_rules(manager: NamespaceManager, desired: DesiredEntity) -> None:
    topic, name = split_subscription(desired.path)
    changes = await _rule_changes(manager, desired)
    for rule in changes.created:
        await manager.create_rule(topic, name, rule)
    for rule in changes.updated:
        await manager.update_rule(topic, name, rule)
    for rule_name in changes.deleted:
        await manager.delete_rule(topic, name, rule_name)


async def _delete(manager: NamespaceManager, change: EntityChange) -> EntityChange:
    topic, name = split_subscription(change.path)
    with contextlib.suppress(EntityNotFound):  # deleted meanwhile
        await (manager.delete_subscription(topic, name) if name else manager.delete_queue(change.path))
    return change


def _now_ms() -> int:
    return int(time.time() * 1000)
