"""The TOML configuration file of twinbus: settings, and the entities of the namespace.

    name = "contoso"
    data = "/var/lib/twinbus/contoso"

    [[queues]]
    name = "orders"
    lock_duration = "PT30S"

Owns: the file's keys, which are named after the options of `twinbus serve` and the fields of descriptions.
`sample.toml` has all keys with their defaults.
"""

from __future__ import annotations

import os
import re
import stat
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from twinbus.model.authorization import RIGHTS, AuthorizationRule, check_authorization_rules, check_new_secret
from twinbus.model.errors import InvalidArgument
from twinbus.model.limits import NamespaceLimits
from twinbus.model.path import check_entity_path, check_subscription_name, subscription_path
from twinbus.model.queue import QueueDescription
from twinbus.model.rule import CorrelationFilter, SqlAction, SqlFilter, TrueFilter
from twinbus.model.topic import SubscriptionDescription, TopicDescription
from twinbus.server.auth.keys import ROOT_KEY_NAME, Key, Right
from twinbus.server.config.entity_readers import (
    check_unique_names,
    field_readers,
    make_rule,
    read_correlation_filter,
    read_properties,
    read_values,
)
from twinbus.server.config.plan import DesiredEntity, DesiredProperties, Plan
from twinbus.server.config.section import Location, Section, boolean, choice, list_of, number, path, text, whole_number
from twinbus.server.config.settings import InvalidSetting, ServeSettings, parse_size

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from twinbus.model.rule import Filter, RuleDescription
    from twinbus.server.config.plan import DescriptionType
    from twinbus.server.config.section import InvalidConfig

PRIMARY_SECRET: Final = "secret"  # noqa: S105  # a key of the file, not a secret
SECONDARY_SECRET: Final = "secondary_secret"  # noqa: S105
SECRET_KEYS: Final = tuple(
    f"{name}{end}" for name in (PRIMARY_SECRET, SECONDARY_SECRET) for end in ("", "_file", "_env")
)
_OTHERS_MODE: Final = stat.S_IRWXG | stat.S_IRWXO
_MAX_SECRET_BYTES: Final = 4_096


def read_secret(section: Section, name: str) -> str | None:
    """Return the secret from the key `name`, `name_file` or `name_env`, or None if none of them is set."""
    present = [key for key in (name, f"{name}_file", f"{name}_env") if section.has(key)]
    if len(present) > 1:
        raise section.location.child(present[1]).error(f"{present[0]} is set too: set only one of them")
    return (
        section.get(name, _read_inline_secret)
        or section.get(f"{name}_file", _read_secret_file)
        or section.get(f"{name}_env", _read_secret_variable)
    )


def _read_inline_secret(location: Location, value: object) -> str:
    mode = location.file.stat().st_mode
    if mode & _OTHERS_MODE:
        raise location.error(
            f"a secret is not allowed in a file that other users may read (mode {stat.S_IMODE(mode):04o}): chmod 600 "
            "it, or use secret_file or secret_env"
        )
    return _check_not_empty(location, text(location, value))


def _read_secret_file(location: Location, value: object) -> str:
    file = path(location, value)
    try:
        with file.open("rb") as opened:
            content = opened.read(_MAX_SECRET_BYTES)
    except OSError as error:
        raise location.error(f"{file} cannot be read: {error.strerror}") from None
    return _check_not_empty(location, content.decode("utf-8", "replace").strip())


def _read_secret_variable(location: Location, value: object) -> str:
    name = text(location, value)
    if name not in os.environ:
        raise location.error(f"there is no environment variable {name!r:.60}")
    return _check_not_empty(location, os.environ[name].strip())


def _check_not_empty(location: Location, secret: str) -> str:
    if not secret:
        raise location.error("the secret is empty")
    return secret


def _read_size(location: Location, value: object) -> int:
    try:
        return parse_size("min_free", text(location, value))
    except InvalidSetting as error:
        raise location.error(f"{error.value}: {error.reason}") from None


def _read_port(location: Location, value: object) -> int | str:
    """Read a port number, or `"none"`, which stays a string because None would mean a missing key."""
    return whole_number(location, value) if value != "none" else "none"


def _read_paths(location: Location, value: object) -> tuple[Path, ...]:
    return tuple(list_of(path)(location, value))


def _read_texts(location: Location, value: object) -> tuple[str, ...]:
    return tuple(list_of(text)(location, value))


SETTING_READERS: Final[Mapping[str, tuple[str, Callable[[Location, object], object]]]] = {
    "name": ("name", text),
    "data": ("data", path),
    "host": ("host", text),
    "amqp_port": ("amqp_port", _read_port),
    "amqps_port": ("amqps_port", _read_port),
    "http_port": ("http_port", _read_port),
    "https_port": ("https_port", _read_port),
    "plaintext": ("plaintext", _read_texts),
    "workers": ("workers", whole_number),
    "worker_timeout": ("worker_timeout_s", number),
    "stores": ("stores", whole_number),
    "store_dirs": ("store_dirs", _read_paths),
    "ready_file": ("ready_file", path),
    "min_free": ("min_free_bytes", _read_size),
    "store_timeout": ("store_timeout_s", number),
    "max_connections": ("max_connections", whole_number),
    "max_unauthenticated": ("max_unauthenticated", whole_number),
    "link_idle": ("link_idle_s", number),
    "token_timeout": ("token_timeout_s", number),
    "allowed_hosts": ("allowed_hosts", _read_texts),
    "tls_cert": ("tls_cert", path),
    "tls_key": ("tls_key", path),
    "log_level": ("log_level", text),
    "log_format": ("log_format", text),
    "measure_pauses": ("measure_pauses", boolean),
    "metering": ("metering", boolean),
    "usage_days": ("usage_days", whole_number),
}
"""The field of ServeSettings and its reader, by key in the file."""
_OPTION: Final = re.compile(r"--[a-z-]+")
_TABLES: Final = ("limits", "keys", "queues", "topics")
_CORRELATION_KEYS: Final = {name: name for name in CorrelationFilter.__struct_fields__ if name != "properties"}
_RULE_KEYS: Final = ("name", "sql", "parameters", "correlation", "action", "action_parameters")


def entity_keys(description_type: DescriptionType) -> dict[str, str]:
    """Return the keys for an entity, each with the description field that it sets."""
    return {field.removesuffix("_ms"): field for field in field_readers(description_type)}


def read(file: Path, content: object) -> dict[str, Any]:
    """Return the fields of ServeSettings that the file sets."""
    top = Section(Location(file), content, (*SETTING_READERS, *_TABLES))
    settings: dict[str, Any] = {}
    for key, (field, reader) in SETTING_READERS.items():
        value = top.get(key, reader)
        if value is not None:
            settings[field] = None if value == "none" and reader is _read_port else value
    _check_settings(settings, top.location)
    limits = top.get("limits", _read_limits)
    if limits is not None:
        settings["limits"] = limits
    settings["keys"] = _read_keys(top)
    topics = [entity for topic in top.each("topics", _read_topic) for entity in topic]
    settings["plan"] = Plan((*top.each("queues", _read_queue), *topics))
    return settings


def _check_settings(settings: Mapping[str, Any], location: Location) -> None:
    """Raise InvalidConfig at the key of an invalid setting. Command-line options may still override the settings."""
    try:
        ServeSettings(**{"name": "open", "data": Path(), **settings})
    except InvalidSetting as error:
        raise error_at_key(error, location) from None


def error_at_key(error: InvalidSetting, location: Location) -> InvalidConfig:
    """Convert an error in an option to an error in the file, with keys instead of option names."""
    reason = _OPTION.sub(lambda option: _key_of_option(option[0]), error.reason)
    return location.child(_key_of_option(error.option)).error(f"{error.value}: {reason}")


def field_of_option(option: str) -> str | None:
    """Return the field of ServeSettings that a command-line option sets, or None if a file cannot set that field."""
    field, _ = SETTING_READERS.get(_key_of_option(option), (None, None))
    return field


def _key_of_option(option: str) -> str:
    key = option.removeprefix("--").replace("-", "_").lower()
    return f"{key}s" if f"{key}s" in SETTING_READERS else key  # a repeatable option is a list in the file


def _read_limits(location: Location, value: object) -> NamespaceLimits:
    names = [field.name for field in fields(NamespaceLimits)]
    section = Section(location, value, names)
    limits = {name: limit for name in names if (limit := section.get(name, whole_number)) is not None}
    for name, limit in limits.items():
        if limit < 1:
            raise location.child(name).error(f"{limit}: it can be 1 or more")
    return NamespaceLimits(**limits)


# --- keys -------------------------------------------------------------------------------------------------------------


def _read_keys(top: Section) -> tuple[Key, ...]:
    rules = top.each("keys", _read_authorization_rule)
    for number_, rule in enumerate(rules):
        location = top.location.child("keys").item(number_).child("name")
        if rule.name == ROOT_KEY_NAME:
            raise location.error(f"{rule.name!r} is the root key, which is in the data directory: give another name")
        if rule.name in [other.name for other in rules[:number_]]:
            raise location.error(f"{rule.name!r} is already the name of another key")
    return tuple(
        Key(rule.name, rule.primary_key, rule.secondary_key, frozenset(Right(right) for right in rule.rights))
        for rule in rules
    )


def _read_authorization_rule(location: Location, value: object) -> AuthorizationRule:
    section = Section(location, value, ("name", "rights", *SECRET_KEYS))
    name = section.require("name", text)
    rights = section.require("rights", list_of(choice(*RIGHTS)))
    primary = read_secret(section, PRIMARY_SECRET)
    if primary is None:
        raise location.child(PRIMARY_SECRET).error("is missing: set secret, secret_file or secret_env")
    secondary = read_secret(section, SECONDARY_SECRET) or primary
    try:
        rule = AuthorizationRule(name=name, rights=tuple(rights), primary_key=primary, secondary_key=secondary)
        for secret in (primary, secondary):
            check_new_secret(name, secret)
        return rule  # noqa: TRY300  # only after all checks
    except InvalidArgument as error:
        raise location.error(str(error)) from None


# --- entities ---------------------------------------------------------------------------------------------------------


def _read_queue(location: Location, value: object) -> DesiredEntity:
    keys = entity_keys(QueueDescription)
    section = Section(location, value, ("name", *keys, "authorization_rules"))
    return _read_entity(section, QueueDescription, keys, _checked_name(section, check_entity_path))


def _read_topic(location: Location, value: object) -> list[DesiredEntity]:
    keys = entity_keys(TopicDescription)
    section = Section(location, value, ("name", *keys, "authorization_rules", "subscriptions"))
    topic = _read_entity(section, TopicDescription, keys, _checked_name(section, check_entity_path))

    def subscription(location: Location, value: object) -> DesiredEntity:
        keys = entity_keys(SubscriptionDescription)
        section = Section(location, value, ("name", *keys, "rules"))
        path = subscription_path(topic.path, _checked_name(section, check_subscription_name))
        return _read_entity(
            section, SubscriptionDescription, keys, path, check_unique_names(section.each("rules", _read_rule))
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
    rules = tuple(section.each("authorization_rules", _read_authorization_rule))
    try:
        check_authorization_rules(rules)
    except InvalidArgument as error:
        raise location.error(str(error)) from None
    return DesiredProperties(
        values={**properties.values, "authorization_rules": rules},
        locations={**properties.locations, "authorization_rules": location},
    )


def _read_rule(location: Location, value: object) -> tuple[Location, RuleDescription]:
    section = Section(location, value, _RULE_KEYS)
    rule = make_rule(
        section.require("name", text),
        _read_filter(section),
        _read_action(section),
        name_location=location.child("name"),
        filter_location=location.child("correlation" if section.has("correlation") else "sql"),
        action_location=location.child("action"),
    )
    return location.child("name"), rule


def _read_filter(section: Section) -> Filter:
    expression = section.get("sql", text)
    correlation = section.get(
        "correlation", lambda location, value: read_correlation_filter(location, value, _CORRELATION_KEYS, "properties")
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
