"""Our own configuration file: settings by the names of their options, and what the namespace should hold.

    name = "contoso"
    data = "/var/lib/twinbus/contoso"

    [[queues]]
    name = "orders"
    lock_duration = "PT30S"

Owns: the names of its keys: those of the options of `twinbus serve`, and of the fields of descriptions. `sample.toml`
has all of them, with their defaults.
"""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from twinbus.model.authorization import RIGHTS, AuthorizationRule, check_new_secret, check_rules
from twinbus.model.errors import InvalidArgument
from twinbus.model.limits import NamespaceLimits
from twinbus.model.path import check_name, check_subscription_name, subscription_path
from twinbus.model.queue import QueueDescription
from twinbus.model.rule import CorrelationFilter, SqlAction, SqlFilter, TrueFilter
from twinbus.model.topic import SubscriptionDescription, TopicDescription
from twinbus.server.config.place import Place
from twinbus.server.config.plan import Plan, Properties, WantedEntity
from twinbus.server.config.properties import read_properties, readers_of
from twinbus.server.config.rules import check_names, make_rule, read_correlation, values
from twinbus.server.config.secret import PRIMARY, SECONDARY, SECRET_KEYS, read_secret
from twinbus.server.config.section import Section, choice, flag, list_of, number, path, text, whole
from twinbus.server.keys import ROOT_KEY_NAME, Key, Right
from twinbus.server.settings import InvalidSetting, ServeSettings, parse_size

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from twinbus.model.rule import Filter, RuleDescription
    from twinbus.server.config.place import InvalidConfig
    from twinbus.server.config.plan import Kind


def _size(place: Place, value: object) -> int:
    try:
        return parse_size("min_free", text(place, value))
    except InvalidSetting as error:
        raise place.refusal(f"{error.value}: {error.reason}") from None


def _port(place: Place, value: object) -> int | str:
    """A number, or `"none"`, which stays a text: None would be a key that is not there."""
    return whole(place, value) if value != "none" else "none"


def _paths(place: Place, value: object) -> tuple[Path, ...]:
    return tuple(list_of(path)(place, value))


def _texts(place: Place, value: object) -> tuple[str, ...]:
    return tuple(list_of(text)(place, value))


SETTINGS: Final[Mapping[str, tuple[str, Callable[[Place, object], object]]]] = {
    "name": ("name", text),
    "data": ("data", path),
    "host": ("host", text),
    "amqp_port": ("amqp_port", _port),
    "amqps_port": ("amqps_port", _port),
    "http_port": ("http_port", _port),
    "https_port": ("https_port", _port),
    "plaintext": ("plaintext", _texts),
    "workers": ("workers", whole),
    "worker_timeout": ("worker_timeout_s", number),
    "stores": ("stores", whole),
    "store_dirs": ("store_dirs", _paths),
    "ready_file": ("ready_file", path),
    "min_free": ("min_free_bytes", _size),
    "store_timeout": ("store_timeout_s", number),
    "max_connections": ("max_connections", whole),
    "max_unauthenticated": ("max_unauthenticated", whole),
    "link_idle": ("link_idle_s", number),
    "token_timeout": ("token_timeout_s", number),
    "allowed_hosts": ("allowed_hosts", _texts),
    "tls_cert": ("tls_cert", path),
    "tls_key": ("tls_key", path),
    "log_level": ("log_level", text),
    "log_format": ("log_format", text),
    "measure_pauses": ("measure_pauses", flag),
    "metering": ("metering", flag),
    "usage_days": ("usage_days", whole),
}
"""By its key: the field of ServeSettings, and how it is read."""
_OPTION: Final = re.compile(r"--[a-z-]+")
_TABLES: Final = ("limits", "keys", "queues", "topics")
_CORRELATION_KEYS: Final = {name: name for name in CorrelationFilter.__struct_fields__ if name != "properties"}
_RULE_KEYS: Final = ("name", "sql", "parameters", "correlation", "action", "action_parameters")


def keys_of(kind: Kind) -> dict[str, str]:
    """The keys that an entity can have, with the field that each is."""
    return {field.removesuffix("_ms"): field for field in readers_of(kind)}


def read(file: Path, content: object) -> dict[str, Any]:
    """Fields of ServeSettings, those that the file says something about."""
    top = Section(Place(file), content, (*SETTINGS, *_TABLES))
    found: dict[str, Any] = {}
    for key, (field, reader) in SETTINGS.items():
        value = top.get(key, reader)
        if value is not None:
            found[field] = None if value == "none" and reader is _port else value
    _check(found, top.place)
    limits = top.get("limits", _limits)
    if limits is not None:
        found["limits"] = limits
    found["keys"] = _keys(top)
    topics = [entity for topic in top.each("topics", _topic) for entity in topic]
    found["plan"] = Plan((*top.each("queues", _queue), *topics))
    return found


def _check(found: Mapping[str, Any], place: Place) -> None:
    """Refuse at its key what no server can be told; what an option may still say instead is left open."""
    try:
        ServeSettings(**{"name": "open", "data": Path(), **found})
    except InvalidSetting as error:
        raise at_its_key(error, place) from None


def at_its_key(error: InvalidSetting, place: Place) -> InvalidConfig:
    """The same error of a value that a file gives: named by its key in the file."""
    reason = _OPTION.sub(lambda option: _key(option[0]), error.reason)
    return place.below(_key(error.option)).refusal(f"{error.value}: {reason}")


def field_of(option: str) -> str | None:
    """The field of ServeSettings that an option of the command line sets, if a file can set it too."""
    field, _ = SETTINGS.get(_key(option), (None, None))
    return field


def _key(option: str) -> str:
    key = option.removeprefix("--").replace("-", "_").lower()
    return f"{key}s" if f"{key}s" in SETTINGS else key  # what an option says once, and a file as a list


def _limits(place: Place, value: object) -> NamespaceLimits:
    names = [field.name for field in fields(NamespaceLimits)]
    section = Section(place, value, names)
    found = {name: limit for name in names if (limit := section.get(name, whole)) is not None}
    for name, limit in found.items():
        if limit < 1:
            raise place.below(name).refusal(f"{limit}: it can be 1 or more")
    return NamespaceLimits(**found)


# --- keys -------------------------------------------------------------------------------------------------------------


def _keys(top: Section) -> tuple[Key, ...]:
    rules = top.each("keys", _authorization_rule)
    for number_, rule in enumerate(rules):
        place = top.place.below("keys").item(number_).below("name")
        if rule.name == ROOT_KEY_NAME:
            raise place.refusal(f"{rule.name!r} is the root key, which is in the data directory: give another name")
        if rule.name in [other.name for other in rules[:number_]]:
            raise place.refusal(f"{rule.name!r} is the name of another key already")
    return tuple(
        Key(rule.name, rule.primary_key, rule.secondary_key, frozenset(Right(right) for right in rule.rights))
        for rule in rules
    )


def _authorization_rule(place: Place, value: object) -> AuthorizationRule:
    section = Section(place, value, ("name", "rights", *SECRET_KEYS))
    name = section.need("name", text)
    rights = section.need("rights", list_of(choice(*RIGHTS)))
    primary = read_secret(section, PRIMARY)
    if primary is None:
        raise place.below(PRIMARY).refusal("is missing; secret_file and secret_env can stand for it")
    secondary = read_secret(section, SECONDARY) or primary
    try:
        rule = AuthorizationRule(name=name, rights=tuple(rights), primary_key=primary, secondary_key=secondary)
        for secret in (primary, secondary):
            check_new_secret(name, secret)
        return rule  # noqa: TRY300  # after all checks
    except InvalidArgument as error:
        raise place.refusal(str(error)) from None


# --- entities ---------------------------------------------------------------------------------------------------------


def _queue(place: Place, value: object) -> WantedEntity:
    keys = keys_of(QueueDescription)
    section = Section(place, value, ("name", *keys, "authorization_rules"))
    return _entity(section, QueueDescription, keys, _checked(section, check_name))


def _topic(place: Place, value: object) -> list[WantedEntity]:
    keys = keys_of(TopicDescription)
    section = Section(place, value, ("name", *keys, "authorization_rules", "subscriptions"))
    topic = _entity(section, TopicDescription, keys, _checked(section, check_name))

    def subscription(place: Place, value: object) -> WantedEntity:
        keys = keys_of(SubscriptionDescription)
        section = Section(place, value, ("name", *keys, "rules"))
        path = subscription_path(topic.path, _checked(section, check_subscription_name))
        return _entity(section, SubscriptionDescription, keys, path, check_names(section.each("rules", _rule)))

    return [topic, *section.each("subscriptions", subscription)]


def _checked(section: Section, check: Callable[[str], str]) -> str:
    try:
        return check(section.need("name", text))
    except InvalidArgument as error:
        raise section.place.below("name").refusal(str(error)) from None


def _entity(
    section: Section, kind: Kind, keys: Mapping[str, str], path: str, rules: tuple[RuleDescription, ...] = ()
) -> WantedEntity:
    return WantedEntity(
        path=path,
        kind=kind,
        place=section.place.below("name"),
        properties=_with_authorization(section, read_properties(section, kind, keys)),
        rules=rules,
    )


def _with_authorization(section: Section, properties: Properties) -> Properties:
    if not section.has("authorization_rules"):
        return properties
    place = section.place.below("authorization_rules")
    found = tuple(section.each("authorization_rules", _authorization_rule))
    try:
        check_rules(found)
    except InvalidArgument as error:
        raise place.refusal(str(error)) from None
    return Properties(
        values={**properties.values, "authorization_rules": found},
        places={**properties.places, "authorization_rules": place},
    )


def _rule(place: Place, value: object) -> tuple[Place, RuleDescription]:
    section = Section(place, value, _RULE_KEYS)
    rule = make_rule(
        section.need("name", text),
        _filter(section),
        _action(section),
        place=place.below("name"),
        filter_place=place.below("correlation" if section.has("correlation") else "sql"),
        action_place=place.below("action"),
    )
    return place.below("name"), rule


def _filter(section: Section) -> Filter:
    expression = section.get("sql", text)
    correlation = section.get(
        "correlation", lambda place, value: read_correlation(place, value, _CORRELATION_KEYS, "properties")
    )
    parameters = section.get("parameters", values)
    if expression is None and parameters is not None:
        raise section.place.below("parameters").refusal("they are for sql, which is not there")
    if expression is None:
        return correlation or TrueFilter()
    if correlation is not None:
        raise section.place.below("correlation").refusal("sql is there too: give one of them")
    return SqlFilter(expression=expression, parameters=parameters or {})


def _action(section: Section) -> SqlAction | None:
    expression = section.get("action", text)
    parameters = section.get("action_parameters", values)
    if expression is None and parameters is not None:
        raise section.place.below("action_parameters").refusal("they are for action, which is not there")
    return None if expression is None else SqlAction(expression=expression, parameters=parameters or {})
