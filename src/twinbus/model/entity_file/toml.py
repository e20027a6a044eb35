"""The entities in the TOML file of twinbus, and their keys.

    [[queues]]
    name = "orders"
    lock_duration = "PT30S"

Owns the keys of entities, which are named after the fields of descriptions. `sample.toml` of the server has all keys
with their defaults. The server reads the settings in the same file.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from twinbus.model.authorization import check_authorization_rules
from twinbus.model.entity_file.keys import read_authorization_rule
from twinbus.model.entity_file.plan import DesiredEntity, DesiredProperties, Plan
from twinbus.model.entity_file.properties import (
    check_unique_names,
    field_readers,
    make_rule,
    read_correlation_filter,
    read_properties,
    read_values,
    unchecked,
)
from twinbus.model.entity_file.section import Location, Section, text
from twinbus.model.errors import InvalidArgument
from twinbus.model.path import check_entity_path, check_subscription_name, subscription_path
from twinbus.model.queue import QueueDescription
from twinbus.model.rule import CorrelationFilter, SqlAction, SqlFilter, TrueFilter
from twinbus.model.topic import SubscriptionDescription, TopicDescription

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from twinbus.model.entity_file.plan import DescriptionType
    from twinbus.model.entity_file.properties import RuleCheck
    from twinbus.model.rule import Filter, RuleDescription

ENTITY_TABLES: Final = ("queues", "topics")
_SETTING_TABLES: Final = ("limits", "keys")
"""Tables with settings of the server, not with entities."""
CORRELATION_KEYS: Final = {name: name for name in CorrelationFilter.__struct_fields__ if name != "properties"}
RULE_KEYS: Final = ("name", "sql", "parameters", "correlation", "action", "action_parameters")


def entity_keys(description_type: DescriptionType) -> dict[str, str]:
    """Return the keys for an entity, each with the description field that it sets."""
    return {field.removesuffix("_ms"): field for field in field_readers(description_type)}


def read(file: Path, content: object, check_rule: RuleCheck = unchecked) -> Plan:
    """Return the plan of a file, without its settings. Raise InvalidConfig if an entity is invalid."""
    if isinstance(content, dict):
        content = {key: value for key, value in content.items() if not _is_setting(key, value)}
    return read_entities(Section(Location(file), content, ENTITY_TABLES), check_rule)


def _is_setting(key: str, value: object) -> bool:
    """Return whether a key is a setting of the server.

    Entities are tables. A table with an unknown name counts as a misspelled table of entities, not as a setting.
    """
    if key in _SETTING_TABLES or key in ENTITY_TABLES:
        return key in _SETTING_TABLES
    return not isinstance(value, dict) and not (
        isinstance(value, list) and any(isinstance(item, dict) for item in value)
    )


def read_entities(top: Section, check_rule: RuleCheck = unchecked) -> Plan:
    """Return the plan of a whole file."""
    topics = [entity for topic in top.each("topics", partial(_read_topic, check_rule)) for entity in topic]
    return Plan((*top.each("queues", _read_queue), *topics))


def _read_queue(location: Location, value: object) -> DesiredEntity:
    keys = entity_keys(QueueDescription)
    section = Section(location, value, ("name", *keys, "authorization_rules"))
    return _read_entity(section, QueueDescription, keys, _checked_name(section, check_entity_path))


def _read_topic(check_rule: RuleCheck, location: Location, value: object) -> list[DesiredEntity]:
    keys = entity_keys(TopicDescription)
    section = Section(location, value, ("name", *keys, "authorization_rules", "subscriptions"))
    topic = _read_entity(section, TopicDescription, keys, _checked_name(section, check_entity_path))

    def subscription(location: Location, value: object) -> DesiredEntity:
        keys = entity_keys(SubscriptionDescription)
        section = Section(location, value, ("name", *keys, "rules"))
        path = subscription_path(topic.path, _checked_name(section, check_subscription_name))
        return _read_entity(
            section,
            SubscriptionDescription,
            keys,
            path,
            check_unique_names(section.each("rules", partial(_read_rule, check_rule))),
        )

    return [topic, *section.each("subscriptions", subscription)]


def _checked_name(section: Section, check: Callable[[str], str]) -> str:
    try:
        return check(section.require("name", text))
    except InvalidArgument as error:
        raise section.location.child("name").error(str(error)) from None


def _read_entity(
    section: Section,
    description_type: DescriptionType,
    keys: Mapping[str, str],
    path: str,
    rules: tuple[RuleDescription, ...] = (),
) -> DesiredEntity:
    return DesiredEntity(
        path=path,
        description_type=description_type,
        location=section.location.child("name"),
        properties=_with_authorization_rules(section, read_properties(section, description_type, keys)),
        rules=rules,
    )


def _with_authorization_rules(section: Section, properties: DesiredProperties) -> DesiredProperties:
    if not section.has("authorization_rules"):
        return properties
    location = section.location.child("authorization_rules")
    rules = tuple(section.each("authorization_rules", read_authorization_rule))
    try:
        check_authorization_rules(rules)
    except InvalidArgument as error:
        raise location.error(str(error)) from None
    return DesiredProperties(
        values={**properties.values, "authorization_rules": rules},
        locations={**properties.locations, "authorization_rules": location},
    )


def _read_rule(check_rule: RuleCheck, location: Location, value: object) -> tuple[Location, RuleDescription]:
    section = Section(location, value, RULE_KEYS)
    rule = make_rule(
        section.require("name", text),
        _read_filter(section),
        _read_action(section),
        name_location=location.child("name"),
        filter_location=location.child("correlation" if section.has("correlation") else "sql"),
        action_location=location.child("action"),
        check_rule=check_rule,
    )
    return location.child("name"), rule


def _read_filter(section: Section) -> Filter:
    expression = section.get("sql", text)
    correlation = section.get(
        "correlation", lambda location, value: read_correlation_filter(location, value, CORRELATION_KEYS, "properties")
    )
    parameters = section.get("parameters", read_values)
    if expression is None and parameters is not None:
        raise section.location.child("parameters").error("needs sql, which is missing")
    if expression is None:
        return correlation or TrueFilter()
    if correlation is not None:
        raise section.location.child("correlation").error("sql is set too: set only one of them")
    return SqlFilter(expression=expression, parameters=parameters or {})


def _read_action(section: Section) -> SqlAction | None:
    expression = section.get("action", text)
    parameters = section.get("action_parameters", read_values)
    if expression is None and parameters is not None:
        raise section.location.child("action_parameters").error("needs action, which is missing")
    return None if expression is None else SqlAction(expression=expression, parameters=parameters or {})
