"""The configuration file of Microsoft's Service Bus emulator, `Config.json`, as it is.

Owns: the names of its keys. Its limits (50 entities, an hour to live, ten deliveries...) are not ours, and so are not
here, except for the windows of duplicate detection that are shorter than those of Service Bus. Its defaults are not
here either: what the file does not say is as Service Bus has it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from twinbus.model import limits
from twinbus.model.description import RANGES
from twinbus.model.errors import InvalidArgument
from twinbus.model.path import check_name, check_subscription_name, subscription_path
from twinbus.model.queue import QueueDescription
from twinbus.model.rule import SqlAction, SqlFilter
from twinbus.model.topic import SubscriptionDescription, TopicDescription
from twinbus.server.config.place import Place
from twinbus.server.config.plan import Plan, Properties, WantedEntity
from twinbus.server.config.properties import read_properties
from twinbus.server.config.rules import check_names, make_rule, read_correlation
from twinbus.server.config.section import Section, choice, text
from twinbus.server.settings import InvalidSetting, ServeSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from twinbus.model.rule import Filter, RuleDescription
    from twinbus.server.config.plan import Kind

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
_FILTERS: Final = {"Sql": "SqlFilter", "Correlation": "CorrelationFilter"}
_RANGES: Final = {**RANGES, "duplicate_window_ms": (limits.EMULATOR_WINDOW_MIN_MS, limits.DUPLICATE_WINDOW_MAX_MS)}
"""Durations. The emulator's schema allows windows from PT5S, and Service Bus from PT20S."""
_LOGGING: Final = ("File", "Console", "File,Console", "Console,File")


def read(file: Path, content: object, name: str | None) -> tuple[str, Plan]:
    """The namespace of that name, or the only one: its name, and what it should hold."""
    top = Section(Place(file), content, ("$schema", "UserConfig"))
    config = top.need("UserConfig", lambda place, value: Section(place, value, ("Namespaces", "Logging")))
    # Accepted and checked, without effect: a server logs to its standard error.
    config.get("Logging", lambda place, value: Section(place, value, ("Type",)).get("Type", choice(*_LOGGING)))
    return _choose(config.each("Namespaces", _namespace), name, config.place.below("Namespaces"))


def _choose(namespaces: Sequence[tuple[str, Plan]], name: str | None, place: Place) -> tuple[str, Plan]:
    if not namespaces:
        raise place.refusal("there has to be a namespace")
    known = ", ".join(found for found, _ in namespaces)
    chosen = [one for one in namespaces if name is None or one[0].lower() == name.lower()]
    if not chosen:
        raise place.refusal(f"there is no namespace {name!r:.60}; there is {known}")
    if len(chosen) > 1:
        raise place.refusal(f"there are {len(chosen)} ({known}), and a server serves one: say which one as NAME")
    return chosen[0]


def _namespace(place: Place, value: object) -> tuple[str, Plan]:
    section = Section(place, value, ("Name", "Queues", "Topics"))
    name = section.need("Name", text)
    try:
        ServeSettings(name=name, data=Path())
    except InvalidSetting as error:
        raise place.below("Name").refusal(f"{error.value}: {error.reason}") from None
    topics = [entity for topic in section.each("Topics", _topic) for entity in topic]
    return name, Plan((*section.each("Queues", _queue), *topics))


def _queue(place: Place, value: object) -> WantedEntity:
    section = Section(place, value, ("Name", "Properties"))
    return _entity(section, QueueDescription, _QUEUE_KEYS, _checked(section, check_name))


def _topic(place: Place, value: object) -> list[WantedEntity]:
    section = Section(place, value, ("Name", "Properties", "Subscriptions"))
    topic = _entity(section, TopicDescription, _TOPIC_KEYS, _checked(section, check_name))

    def subscription(place: Place, value: object) -> WantedEntity:
        section = Section(place, value, ("Name", "Properties", "Rules"))
        path = subscription_path(topic.path, _checked(section, check_subscription_name))
        rules = check_names(section.each("Rules", _rule))
        return _entity(section, SubscriptionDescription, _SUBSCRIPTION_KEYS, path, rules)

    return [topic, *section.each("Subscriptions", subscription)]


def _checked(section: Section, check: Callable[[str], str]) -> str:
    try:
        return check(section.need("Name", text))
    except InvalidArgument as error:
        raise section.place.below("Name").refusal(str(error)) from None


def _entity(
    section: Section, kind: Kind, keys: Mapping[str, str], path: str, rules: tuple[RuleDescription, ...] = ()
) -> WantedEntity:
    properties = section.get(
        "Properties", lambda place, value: read_properties(Section(place, value, keys), kind, keys, _RANGES)
    )
    return WantedEntity(
        path=path,
        kind=kind,
        place=section.place.below("Name"),
        properties=properties or Properties(),
        rules=rules,
    )


def _rule(place: Place, value: object) -> tuple[Place, RuleDescription]:
    section = Section(place, value, ("Name", "Properties"))
    name = section.need("Name", text)
    properties = section.need(
        "Properties", lambda place, value: Section(place, value, ("FilterType", "Action", *_FILTERS.values()))
    )
    filter_type = properties.need("FilterType", choice(*_FILTERS))
    for other_type, key in _FILTERS.items():
        if other_type != filter_type and properties.has(key):
            raise properties.place.below(key).refusal(f"is there, but FilterType is {filter_type}: leave out one")
    wanted: Filter
    filter_place = properties.place.below(_FILTERS[filter_type])
    if filter_type == "Sql":
        wanted = SqlFilter(expression=properties.need("SqlFilter", _expression))
        filter_place = filter_place.below("SqlExpression")
    else:
        wanted = properties.need("CorrelationFilter", _correlation)
    action = properties.get("Action", _expression)
    rule = make_rule(
        name,
        wanted,
        None if action is None else SqlAction(expression=action),
        place=place.below("Name"),
        filter_place=filter_place,
        action_place=properties.place.below("Action").below("SqlExpression"),
    )
    return place.below("Name"), rule


def _correlation(place: Place, value: object) -> Filter:
    return read_correlation(place, value, _CORRELATION_KEYS, "Properties")


def _expression(place: Place, value: object) -> str:
    return Section(place, value, ("SqlExpression",)).need("SqlExpression", text)
