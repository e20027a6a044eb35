"""The configuration file of Microsoft's Service Bus emulator, `Config.json`.

Owns: the names of the file's keys. The emulator's limits (50 entities, one hour to live, ten deliveries...) are not
enforced, except for its duplicate detection windows, which may be shorter than in Service Bus. Properties that the file
does not set have the defaults of Service Bus, not of the emulator.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from twinbus.model import limits
from twinbus.model.description import SETTABLE_RANGES
from twinbus.model.entity_file.plan import DesiredEntity, DesiredProperties, Plan
from twinbus.model.entity_file.properties import (
    check_unique_names,
    make_rule,
    read_correlation_filter,
    read_properties,
    unchecked,
)
from twinbus.model.entity_file.section import Location, Section, choice, text
from twinbus.model.errors import InvalidArgument
from twinbus.model.path import (
    INVALID_NAMESPACE_NAME,
    NAMESPACE_NAME,
    check_entity_path,
    check_subscription_name,
    subscription_path,
)
from twinbus.model.queue import QueueDescription
from twinbus.model.rule import SqlAction, SqlFilter
from twinbus.model.topic import SubscriptionDescription, TopicDescription

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from twinbus.model.entity_file.plan import DescriptionType
    from twinbus.model.entity_file.properties import RuleCheck
    from twinbus.model.rule import Filter, RuleDescription

TOPIC_KEYS: Final = {
    "DefaultMessageTimeToLive": "default_time_to_live_ms",
    "DuplicateDetectionHistoryTimeWindow": "duplicate_window_ms",
    "RequiresDuplicateDetection": "requires_duplicate_detection",
}
SUBSCRIPTION_KEYS: Final = {
    "DeadLetteringOnMessageExpiration": "dead_lettering_on_expiration",
    "DefaultMessageTimeToLive": "default_time_to_live_ms",
    "ForwardDeadLetteredMessagesTo": "forward_dead_lettered_to",
    "ForwardTo": "forward_to",
    "LockDuration": "lock_duration_ms",
    "MaxDeliveryCount": "max_delivery_count",
    "RequiresSession": "requires_session",
}
QUEUE_KEYS: Final = {**SUBSCRIPTION_KEYS, **TOPIC_KEYS}
CORRELATION_KEYS: Final = {
    "ContentType": "content_type",
    "CorrelationId": "correlation_id",
    "Label": "label",
    "MessageId": "message_id",
    "ReplyTo": "reply_to",
    "ReplyToSessionId": "reply_to_session_id",
    "SessionId": "session_id",
    "To": "to",
}
FILTER_KEYS: Final = {"Sql": "SqlFilter", "Correlation": "CorrelationFilter"}
_DURATION_RANGES: Final = {
    **SETTABLE_RANGES,
    "duplicate_window_ms": (limits.EMULATOR_WINDOW_MIN_MS, limits.DUPLICATE_WINDOW_MAX_MS),
}
"""Valid durations by field. The emulator allows duplicate detection windows from PT5S, Service Bus from PT20S."""
_LOGGING_TYPES: Final = ("File", "Console", "File,Console", "Console,File")


def read(file: Path, content: object, name: str | None, check_rule: RuleCheck = unchecked) -> tuple[str, Plan]:
    """Return the name and the plan of the namespace called `name`, or of the only namespace if None."""
    top = Section(Location(file), content, ("$schema", "UserConfig"))
    config = top.require("UserConfig", lambda location, value: Section(location, value, ("Namespaces", "Logging")))
    # `Logging` is checked but has no effect, because a server logs to its standard error.
    config.get(
        "Logging", lambda location, value: Section(location, value, ("Type",)).get("Type", choice(*_LOGGING_TYPES))
    )
    return _select_namespace(
        config.each("Namespaces", partial(_read_namespace, check_rule)), name, config.location.child("Namespaces")
    )


def _select_namespace(namespaces: Sequence[tuple[str, Plan]], name: str | None, location: Location) -> tuple[str, Plan]:
    if not namespaces:
        raise location.error("at least one namespace is required")
    names = ", ".join(found for found, _ in namespaces)
    selected = [namespace for namespace in namespaces if name is None or namespace[0].lower() == name.lower()]
    if not selected:
        raise location.error(f"there is no namespace {name!r:.60}; there is {names}")
    if len(selected) > 1:
        raise location.error(f"there are {len(selected)} ({names}), but a server serves one: give its name as NAME")
    return selected[0]


def _read_namespace(check_rule: RuleCheck, location: Location, value: object) -> tuple[str, Plan]:
    section = Section(location, value, ("Name", "Queues", "Topics"))
    name = section.require("Name", text)
    if NAMESPACE_NAME.fullmatch(name) is None:
        raise location.child("Name").error(f"{name!r:.60}: {INVALID_NAMESPACE_NAME}")
    topics = [entity for topic in section.each("Topics", partial(_read_topic, check_rule)) for entity in topic]
    return name, Plan((*section.each("Queues", _read_queue), *topics))


def _read_queue(location: Location, value: object) -> DesiredEntity:
    section = Section(location, value, ("Name", "Properties"))
    return _read_entity(section, QueueDescription, QUEUE_KEYS, _checked_name(section, check_entity_path))


def _read_topic(check_rule: RuleCheck, location: Location, value: object) -> list[DesiredEntity]:
    section = Section(location, value, ("Name", "Properties", "Subscriptions"))
    topic = _read_entity(section, TopicDescription, TOPIC_KEYS, _checked_name(section, check_entity_path))

    def subscription(location: Location, value: object) -> DesiredEntity:
        section = Section(location, value, ("Name", "Properties", "Rules"))
        path = subscription_path(topic.path, _checked_name(section, check_subscription_name))
        rules = check_unique_names(section.each("Rules", partial(_read_rule, check_rule)))
        return _read_entity(section, SubscriptionDescription, SUBSCRIPTION_KEYS, path, rules)

    return [topic, *section.each("Subscriptions", subscription)]


def _checked_name(section: Section, check: Callable[[str], str]) -> str:
    try:
        return check(section.require("Name", text))
    except InvalidArgument as error:
        raise section.location.child("Name").error(str(error)) from None


def _read_entity(
    section: Section,
    description_type: DescriptionType,
    keys: Mapping[str, str],
    path: str,
    rules: tuple[RuleDescription, ...] = (),
) -> DesiredEntity:
    properties = section.get(
        "Properties",
        lambda location, value: read_properties(
            Section(location, value, keys), description_type, keys, _DURATION_RANGES
        ),
    )
    return DesiredEntity(
        path=path,
        description_type=description_type,
        location=section.location.child("Name"),
        properties=properties or DesiredProperties(),
        rules=rules,
    )


def _read_rule(check_rule: RuleCheck, location: Location, value: object) -> tuple[Location, RuleDescription]:
    section = Section(location, value, ("Name", "Properties"))
    name = section.require("Name", text)
    properties = section.require(
        "Properties", lambda location, value: Section(location, value, ("FilterType", "Action", *FILTER_KEYS.values()))
    )
    filter_type = properties.require("FilterType", choice(*FILTER_KEYS))
    for other_type, key in FILTER_KEYS.items():
        if other_type != filter_type and properties.has(key):
            raise properties.location.child(key).error(f"does not fit FilterType {filter_type}: remove one of them")
    rule_filter: Filter
    filter_location = properties.location.child(FILTER_KEYS[filter_type])
    if filter_type == "Sql":
        rule_filter = SqlFilter(expression=properties.require("SqlFilter", _read_expression))
        filter_location = filter_location.child("SqlExpression")
    else:
        rule_filter = properties.require("CorrelationFilter", _read_correlation)
    action = properties.get("Action", _read_expression)
    rule = make_rule(
        name,
        rule_filter,
        None if action is None else SqlAction(expression=action),
        name_location=location.child("Name"),
        filter_location=filter_location,
        action_location=properties.location.child("Action").child("SqlExpression"),
        check_rule=check_rule,
    )
    return location.child("Name"), rule


def _read_correlation(location: Location, value: object) -> Filter:
    return read_correlation_filter(location, value, CORRELATION_KEYS, "Properties")


def _read_expression(location: Location, value: object) -> str:
    return Section(location, value, ("SqlExpression",)).require("SqlExpression", text)
