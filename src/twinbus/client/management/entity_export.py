"""Reading the entities of a live namespace as a plan, for a file or for another namespace.

Owns: which entities and properties a plan has. The formats of files are in `model.entity_file`.
"""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

from twinbus.model.entity_file.plan import DesiredEntity, DesiredProperties, Plan
from twinbus.model.entity_file.section import Location
from twinbus.model.rule import DEFAULT_RULE, FalseFilter, RuleDescription

if TYPE_CHECKING:
    from twinbus.client.management.manager import NamespaceManager
    from twinbus.model.info import Description

NO_MESSAGES = RuleDescription(name=DEFAULT_RULE, filter=FalseFilter())
"""Rule in the plan for a subscription without rules. If the plan had no rule, an import would create the subscription
with the default rule, which matches every message."""


async def read_plan(manager: NamespaceManager, prefix: str = "", *, with_keys: bool = False) -> Plan:
    """Return the queues and topics whose path starts with `prefix`, with subscriptions and rules.

    `with_keys` includes the keys of queues and topics with their secrets.
    """
    entities = [
        desired_entity(manager, queue.path, queue.description, with_keys=with_keys)
        async for queue in manager.get_queues(prefix)
    ]
    topics = [topic async for topic in manager.get_topics(prefix)]
    for topic in topics:
        entities.append(desired_entity(manager, topic.path, topic.description, with_keys=with_keys))
        subscriptions = [item async for item in manager.get_subscriptions(topic.path)]
        for item in subscriptions:
            rules = tuple([rule async for rule in manager.get_rules(item.topic, item.name)])
            entities.append(desired_entity(manager, item.path, item.description, rules or (NO_MESSAGES,)))
    return Plan(tuple(entities))


def desired_entity(
    manager: NamespaceManager,
    path: str,
    description: Description,
    rules: tuple[RuleDescription, ...] = (),
    *,
    with_keys: bool = False,
) -> DesiredEntity:
    """Return an entity of a namespace with all its properties."""
    names = [field.name for field in fields(description) if with_keys or field.name != "authorization_rules"]
    return DesiredEntity(
        path=path,
        description_type=type(description),
        location=Location(Path(manager.where.host), path),
        properties=DesiredProperties(values={name: getattr(description, name) for name in names}),
        rules=rules,
    )
