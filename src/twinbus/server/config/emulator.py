"""The configuration file of Microsoft's Service Bus emulator, `Config.json`.

Owns: the names of the file's keys. The emulator's limits (50 entities, one hour to live, ten deliveries...) are not
enforced, except for its duplicate detection windows, which may be shorter than in Service Bus. Properties that the file
does not set have the defaults of Service Bus, not of the emulator.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from twinbus.model import limits
from twinbus.model.description import SETTABLE_RANGES
from twinbus.model.errors import InvalidArgument
from twinbus.model.path import check_entity_path, check_subscription_name, subscription_path
from twinbus.model.queue import QueueDescription
from twinbus.model.rule import SqlAction, SqlFilter
from twinbus.model.topic import SubscriptionDescription, TopicDescription
from twinbus.server.config.entity_readers import check_unique_names, make_rule, read_correlation_filter, read_properties
from twinbus.server.config.plan import DesiredEntity, DesiredProperties, Plan
from twinbus.server.config.section import Location, Section, choice, text
from twinbus.server.config.settings import InvalidSetting, ServeSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from twinbus.model.rule import Filter, RuleDescription
    from twinbus.server.config.plan import DescriptionType

_TOPIC_KEYS: Final = {
    "DefaultMessageTimeToLive": "default_time_to_live_ms",
    "DuplicateDetectionHistoryTimeWindow": "duplicate_window_ms",
    "RequiresDuplicateDetection": "requires_duplicate_detection",
}
_SUBSCRIPTION_KEYS: Final = {
    "DeadLetteringOnMessageExpiration": "dead_lettering_on_expiration",
    "DefaultMessageTimeToLive": "default_time_to_live_ms",
    "ForwardDeadLetteredMessagesTo": "forward_dead_lettered_to",
    "ForwardTo": "forward_to",
    "LockDuration": "lock_duration_ms",
    "MaxDeliveryCount": "max_delivery_count",
    "RequiresSession": "requires_session",
}
_QUEUE_KEYS: Final = {**_SUBSCRIPTION_KEYS, **_TOPIC_KEYS}
_CORRELATION_KEYS: Final = {
    "ContentType": "content_type",
    "CorrelationId": "correlation_id",
    "Label": "label",
    "MessageId": "message_id",
    "ReplyTo": "reply_to",
    "ReplyToSessionId": "reply_to_session_id",
    "SessionId": "session_id",
    "To": "to",
}
_FILTER_KEYS: Final = {"Sql": "SqlFilter", "Correlation": "CorrelationFilter"}
_DURATION_RANGES: Final = {
    **SETTABLE_RANGES,
    "duplicate_window_ms": (limits.EMULATOR_WINDOW_MIN_MS, limits.DUPLICATE_WINDOW_MAX_MS),
}
"""Valid durations by field. The emulator allows duplicate detection windows from PT5S, Service Bus from PT20S."""
_LOGGING_TYPES: Final = ("File", "Console", "File,Console", "Console,File")


def read(file: Path, content: object, name: str | None) -> tuple[str, Plan]:
    """Return the name and the plan of the namespace called `name`, or of the only namespace if None."""
    top = Section(Location(file), content, ("$schema", "UserConfig"))
    config = top.require("UserConfig", lambda location, value: Section(location, value, ("Namespaces", "Logging")))
    # `Logging` is checked but has no effect, because a server logs to its standard error.
    config.get(
        "Logging", lambda location, value: Section(location, value, ("Type",)).get("Type", choice(*_LOGGING_TYPES))
    )
    return _select_namespace(config.each("Namespaces", _read_namespace), name, config.location.child("Namespaces"))


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


def _read_namespace(location: Location, value: object) -> tuple[str, Plan]:
    section = Section(location, value, ("Name", "Queues", "Topics"))
    name = section.require("Name", text)
    try:
        ServeSettings(name=name, data=Path())
    except InvalidSetting as error:
        raise location.child("Name").error(f"{error.value}: {error.reason}") from None
    topics = [entity for topic in section.each("Topics", _read_topic) for entity in topic]
    return name, Plan((*section.each("Queues", _read_queue), *topics))


def _read_queue(location: Location, value: object) -> DesiredEntity:
    section = Section(location, value, ("Name", "Properties"))
    return _read_entity(section, QueueDescription, _QUEUE_KEYS, _checked_name(section, check_entity_path))


def _read_topic(location: Location, value: object) -> list[DesiredEntity]:
    section = Section(location, value, ("Name", "Properties", "Subscriptions"))
    topic = _read_entity(section, TopicDescription, _TOPIC_KEYS, _checked_name(section, check_entity_path))

    def subscription(location: Location, value: object) -> DesiredEntity:
        section = Section(location, value, ("Name", "Properties", "Rules"))
        path = subscription_path(topic.path, _checked_name(section, check_subscription_name))
        rules = check_unique_names(section.each("Rules", _read_rule))
        return _read_entity(section, SubscriptionDescription, _SUBSCRIPTION_KEYS, path, rules)

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


def _read_rule(location: Location, value: object) -> tuple[Location, RuleDescription]:
    section = Section(location, value, ("Name", "Properties"))
    name = section.require("Name", text)
    properties = section.require(
        "Properties", lambda location, value: Section(location, value, ("FilterType", "Action", *_FILTER_KEYS.values()))
    )
    filter_type = properties.require("FilterType", choice(*_FILTER_KEYS))
    for other_type, key in _FILTER_KEYS.items():
        if other_type != filter_type and properties.has(key):
            raise properties.location.child(key).error(f"does not fit FilterType {filter_type}: remove one of them")
    rule_filter: Filter
    filter_location = properties.location.child(_FILTER_KEYS[filter_type])
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
    )
    return location.child("Name"), rule


def _read_correlation(location: Location, value: object) -> Filter:
    return read_correlation_filter(location, value, _CORRELATION_KEYS, "Properties")


def _read_expression(location: Location, value: object) -> str:
    return Section(location, value, ("SqlExpression",)).require("SqlExpression", text)
