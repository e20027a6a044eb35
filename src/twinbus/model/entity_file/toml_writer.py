"""Writing a plan as the TOML file of twinbus, which `toml` and `twinbus serve --config` read.

Owns the layout of the file. Every property is written, so that the file gives the same entities wherever it is applied.
Secrets are written only if the plan has them.
"""

from __future__ import annotations

import json
import tomllib
from typing import TYPE_CHECKING, Final

from twinbus.model.atom.durations import format_duration
from twinbus.model.description import fragment_size_mb
from twinbus.model.entity_file.keys import PRIMARY_SECRET, SECONDARY_SECRET
from twinbus.model.entity_file.properties import plain_value
from twinbus.model.entity_file.toml import CORRELATION_KEYS, entity_keys
from twinbus.model.path import canonical_key, split_subscription
from twinbus.model.rule import CorrelationFilter, FalseFilter, SqlFilter
from twinbus.model.topic import SubscriptionDescription, TopicDescription

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from twinbus.model.authorization import AuthorizationRule
    from twinbus.model.entity_file.plan import DesiredEntity, Plan
    from twinbus.model.rule import RuleDescription, Value

FALSE_EXPRESSION: Final = "1=0"
"""SQL for a filter that matches nothing: files have no other notation."""


def write_toml(plan: Plan, name: str) -> str:
    """Return the text of a file with the name of the namespace and all entities of a plan."""
    lines = [f"name = {quoted(name)}"]
    for entity in plan.entities:
        if entity.description_type is SubscriptionDescription:
            continue
        is_topic = entity.description_type is TopicDescription
        table = "topics" if is_topic else "queues"
        lines += ["", f"[[{table}]]", *_entity_lines(entity, entity.path, f"{table}.authorization_rules")]
        for subscription in _subscriptions(plan, entity.path) if is_topic else ():
            _, subscription_name = split_subscription(subscription.path)
            lines += ["", "[[topics.subscriptions]]", *_entity_lines(subscription, subscription_name, "")]
            for rule in subscription.rules:
                lines += ["", "[[topics.subscriptions.rules]]", *_rule_lines(rule)]
    return "\n".join(lines) + "\n"


def quoted(text: str) -> str:
    """Return a TOML string."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _subscriptions(plan: Plan, topic: str) -> Iterator[DesiredEntity]:
    for entity in plan.entities:
        if entity.description_type is SubscriptionDescription:
            parent, _ = split_subscription(entity.path)
            if canonical_key(parent) == canonical_key(topic):
                yield entity


def _entity_lines(entity: DesiredEntity, name: str, keys_table: str) -> Iterator[str]:
    yield f"name = {quoted(name)}"
    values = entity.properties.values
    for key, field in entity_keys(entity.description_type).items():
        if field in values:
            yield f"{key} = {_property(field, values[field])}"
    rules: tuple[AuthorizationRule, ...] = values.get("authorization_rules", ())  # type: ignore[assignment]
    for rule in rules:
        yield from ("", f"[[{keys_table}]]", f"name = {quoted(rule.name)}")
        yield f"rights = [{', '.join(map(quoted, rule.rights))}]"
        yield f"{PRIMARY_SECRET} = {quoted(rule.primary_key)}"
        yield f"{SECONDARY_SECRET} = {quoted(rule.secondary_key)}"


def _property(field: str, value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        if field == "max_size_mb":
            return str(fragment_size_mb(value))
        return quoted(format_duration(value)) if field.endswith("_ms") else str(value)
    return quoted("" if value is None else str(value))


def _rule_lines(rule: RuleDescription) -> Iterator[str]:
    yield f"name = {quoted(rule.name)}"
    if isinstance(rule.filter, SqlFilter):
        yield f"sql = {quoted(rule.filter.expression)}"
        yield from _parameters("parameters", rule.filter.parameters)
    elif isinstance(rule.filter, FalseFilter):
        yield f"sql = {quoted(FALSE_EXPRESSION)}"
    elif isinstance(rule.filter, CorrelationFilter):
        texts = {key: getattr(rule.filter, field) for key, field in CORRELATION_KEYS.items()}
        cells = [f"{key} = {quoted(text)}" for key, text in texts.items() if text is not None]
        if rule.filter.properties:
            cells.append(f"properties = {_table(rule.filter.properties)}")
        yield f"correlation = {{ {', '.join(cells)} }}"
    if rule.action is not None:
        yield f"action = {quoted(rule.action.expression)}"
        yield from _parameters("action_parameters", rule.action.parameters)


def _parameters(key: str, parameters: Mapping[str, Value]) -> Iterator[str]:
    if parameters:
        yield f"{key} = {_table(parameters)}"


def _table(values: Mapping[str, Value]) -> str:
    return f"{{ {', '.join(f'{quoted(name)} = {_literal(value)}' for name, value in values.items())} }}"


def _literal(value: Value) -> str:
    """Return a value in TOML's own notation if it reads back as the same value, or else with its type."""
    for text in (quoted(value.text), value.text):
        try:
            parsed = tomllib.loads(f"v = {text}")["v"]
        except (tomllib.TOMLDecodeError, RecursionError):
            continue
        if "\n" not in text and plain_value(parsed) == value:
            return text
    return f"{{ type = {quoted(value.kind)}, value = {quoted(value.text)} }}"
