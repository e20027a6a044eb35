"""The TOML configuration file of twinbus: settings, and the entities of the namespace.

    name = "contoso"
    data = "/var/lib/twinbus/contoso"

    [[queues]]
    name = "orders"
    lock_duration = "PT30S"

Owns: the keys of settings, which are named after the options of `twinbus serve`. `model.entity_file` reads entities.
`sample.toml` has all keys with their defaults.
"""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from twinbus.broker.filters.rule import compile_rule
from twinbus.model.entity_file.keys import read_authorization_rule
from twinbus.model.entity_file.section import (
    Location,
    Section,
    boolean,
    list_of,
    number,
    path,
    text,
    whole_number,
)
from twinbus.model.entity_file.toml import ENTITY_TABLES, read_entities
from twinbus.model.limits import NamespaceLimits
from twinbus.server.auth.keys import ROOT_KEY_NAME, Key, Right
from twinbus.server.config.settings import InvalidSetting, ServeSettings, parse_size

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from twinbus.model.entity_file.section import InvalidConfig


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
_TABLES: Final = ("limits", "keys", *ENTITY_TABLES)


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
    settings["plan"] = read_entities(top, compile_rule)
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
    rules = top.each("keys", read_authorization_rule)
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
