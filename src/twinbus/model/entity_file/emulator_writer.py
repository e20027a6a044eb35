"""Writing a plan as the `Config.json` of Microsoft's emulator.

Owns the handling of properties and rules that this format cannot express. A property for which the format has no key is
listed as omitted. A rule that cannot be written is refused, because its subscription would receive different messages.
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from twinbus.model.atom.durations import format_duration
from twinbus.model.entity_file.emulator import CORRELATION_KEYS, QUEUE_KEYS, SUBSCRIPTION_KEYS, TOPIC_KEYS
from twinbus.model.entity_file.plan import ENTITY_KINDS
from twinbus.model.entity_file.properties import plain_value
from twinbus.model.entity_file.toml_writer import FALSE_EXPRESSION
from twinbus.model.errors import InvalidArgument
from twinbus.model.path import canonical_key, split_subscription
from twinbus.model.queue import QueueDescription
from twinbus.model.rule import CorrelationFilter, FalseFilter, SqlFilter
from twinbus.model.topic import SubscriptionDescription, TopicDescription

if TYPE_CHECKING:
    from twinbus.model.entity_file.plan import DescriptionType, DesiredEntity, Plan
    from twinbus.model.rule import RuleDescription, Value

_KEYS: dict[DescriptionType, dict[str, str]] = {
    QueueDescription: QUEUE_KEYS,
    TopicDescription: TOPIC_KEYS,
    SubscriptionDescription: SUBSCRIPTION_KEYS,
}
_TRUE_EXPRESSION = "1=1"


def write_emulator(plan: Plan, name: str) -> tuple[str, list[str]]:
    """Return the text of a file, and the properties that it omits, such as "queue orders: max_size_mb".

    Raise InvalidArgument if a rule cannot be expressed.
    """
    queues: list[dict[str, Any]] = []
    topics: dict[str, dict[str, Any]] = {}
    for entity in plan.entities:
        if entity.description_type is SubscriptionDescription:
            topic, subscription = split_subscription(entity.path)
            content = {**_content(entity, subscription), "Rules": [_rule(entity, rule) for rule in entity.rules]}
            topics[canonical_key(topic)]["Subscriptions"].append(content)
        elif entity.description_type is TopicDescription:
            topics[canonical_key(entity.path)] = {**_content(entity, entity.path), "Subscriptions": []}
        else:
            queues.append(_content(entity, entity.path))
    namespace = {"Name": name, "Queues": queues, "Topics": list(topics.values())}
    document = {"UserConfig": {"Namespaces": [namespace], "Logging": {"Type": "File"}}}
    omitted = [text for entity in plan.entities for text in _omitted(entity)]
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n", omitted


def _content(entity: DesiredEntity, name: str) -> dict[str, Any]:
    values = entity.properties.values
    keys = _KEYS[entity.description_type]
    properties = {key: _property(field, values[field]) for key, field in keys.items() if field in values}
    return {"Name": name, "Properties": properties}


def _property(field: str, value: object) -> object:
    if isinstance(value, int) and field.endswith("_ms"):
        return format_duration(value)
    return "" if value is None else value


def _omitted(entity: DesiredEntity) -> list[str]:
    written = _KEYS[entity.description_type].values()
    defaults = {field.name: field.default for field in fields(entity.description_type)}
    lost = [name for name, value in entity.properties.values.items() if name not in written and value != defaults[name]]
    return [f"{ENTITY_KINDS[entity.description_type]} {entity.path}: {name}" for name in lost]


def _rule(entity: DesiredEntity, rule: RuleDescription) -> dict[str, Any]:
    where = f"rule {rule.name!r} of {entity.path!r}"
    properties: dict[str, Any]
    if isinstance(rule.filter, CorrelationFilter):
        texts = {key: getattr(rule.filter, field) for key, field in CORRELATION_KEYS.items()}
        correlation: dict[str, Any] = {key: text for key, text in texts.items() if text is not None}
        if rule.filter.properties:
            correlation["Properties"] = {key: _literal(where, value) for key, value in rule.filter.properties.items()}
        properties = {"FilterType": "Correlation", "CorrelationFilter": correlation}
    else:
        expression = FALSE_EXPRESSION if isinstance(rule.filter, FalseFilter) else _TRUE_EXPRESSION
        if isinstance(rule.filter, SqlFilter):
            _refuse_parameters(where, rule.filter.parameters)
            expression = rule.filter.expression
        properties = {"FilterType": "Sql", "SqlFilter": {"SqlExpression": expression}}
    if rule.action is not None:
        _refuse_parameters(where, rule.action.parameters)
        properties["Action"] = {"SqlExpression": rule.action.expression}
    return {"Name": rule.name, "Properties": properties}


def _refuse_parameters(where: str, parameters: object) -> None:
    if parameters:
        raise InvalidArgument(f"{where} has parameters, which Config.json cannot express: use TOML")


def _literal(where: str, value: Value) -> object:
    candidates: list[object] = [value.text]
    with contextlib.suppress(ValueError):
        candidates.append(json.loads(value.text))
    for candidate in candidates:
        if isinstance(candidate, bool | int | float | str) and plain_value(candidate) == value:
            return candidate
    raise InvalidArgument(f"{where} has a value of type {value.kind}, which Config.json cannot express: use TOML")
