"""Readers for the properties and rules of entities in a configuration file.

Owns: the type of value that each field of a description has in a file. An invalid value is reported at its own key. The
model decides which values are valid.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import fields
from typing import TYPE_CHECKING, Final, TypeAlias

from twinbus.model.atom import durations
from twinbus.model.description import SETTABLE_RANGES
from twinbus.model.entity_file.plan import DesiredProperties
from twinbus.model.entity_file.section import Section, boolean, duration_ms, text, unexpected_type, whole_number
from twinbus.model.errors import InvalidArgument
from twinbus.model.path import canonical_key
from twinbus.model.rule import CorrelationFilter, RuleDescription, Value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from twinbus.model.entity_file.plan import DescriptionType
    from twinbus.model.entity_file.section import Location
    from twinbus.model.rule import Filter, SqlAction

    Ranges: TypeAlias = Mapping[str, tuple[int, int]]
    RuleCheck: TypeAlias = Callable[[RuleDescription], object]
    """Check of the expressions of a rule, which raises InvalidArgument. Only the broker knows the language of
    expressions. Without this check, the namespace refuses an invalid rule later."""

_INT_MAX: Final = 2**31 - 1


def unchecked(_rule: RuleDescription) -> None:
    """Accept any rule."""


def make_rule(
    name: str,
    rule_filter: Filter,
    action: SqlAction | None,
    *,
    name_location: Location,
    filter_location: Location,
    action_location: Location,
    check_rule: RuleCheck,
) -> RuleDescription:
    """Return a rule that `check_rule` accepts. Raise InvalidConfig at the location of the invalid part."""
    at = name_location
    try:
        rule = RuleDescription(name=name)
        at = filter_location
        rule = RuleDescription(name=name, filter=rule_filter)
        check_rule(rule)
        if action is not None:
            at = action_location
            rule = RuleDescription(name=name, filter=rule_filter, action=action)
            check_rule(rule)
    except InvalidArgument as error:
        raise at.error(str(error)) from None
    return rule


def check_unique_names(rules: Iterable[tuple[Location, RuleDescription]]) -> tuple[RuleDescription, ...]:
    """Return a subscription's rules, which are passed with the locations of their names.

    Raise InvalidConfig if two rules have the same name.
    """
    taken: dict[str, Location] = {}
    unique = []
    for location, rule in rules:
        other = taken.setdefault(canonical_key(rule.name), location)
        if other is not location:
            raise location.error(f"{rule.name!r} is already the name at {other.key}")
        unique.append(rule)
    return tuple(unique)


def read_correlation_filter(
    location: Location, value: object, keys: Mapping[str, str], properties_key: str
) -> CorrelationFilter:
    """Read a correlation filter.

    `keys` maps each key in the file to a field; `properties_key` is the key for application properties.
    """
    section = Section(location, value, (*keys, properties_key))
    texts = {field: section.get(key, text) for key, field in keys.items()}
    correlation = CorrelationFilter(**texts, properties=section.get(properties_key, read_values) or {})
    if correlation == CorrelationFilter():
        raise location.error("has no condition and would match every message: give at least one")
    return correlation


def read_values(location: Location, value: object) -> dict[str, Value]:
    """Read a table of named values, which keep the types they have in the file."""
    if not isinstance(value, dict):
        raise unexpected_type(location, "a table of names and values", value)
    return {name: _to_value(location.child(name), item) for name, item in value.items()}


def _to_value(location: Location, item: object) -> Value:
    if isinstance(item, dict):
        return _read_typed_value(location, item)
    value = plain_value(item)
    if value is None:
        raise unexpected_type(location, "a string, a number, a time, true or false", item)
    return value


def plain_value(value: object) -> Value | None:
    """Return a value of a file with its type; None if files have no such values."""
    if isinstance(value, bool):
        return Value("boolean", str(value).lower())
    if isinstance(value, int):
        return Value("int" if -_INT_MAX - 1 <= value <= _INT_MAX else "long", str(value))
    if isinstance(value, float):
        return Value("double", repr(value))
    if isinstance(value, dt.datetime):
        return Value("dateTime", value.isoformat())
    return Value("string", value) if isinstance(value, str) else None


def _read_typed_value(location: Location, value: object) -> Value:
    """Read `{ type = "guid", value = "..." }`, for types that the file format does not have."""
    section = Section(location, value, ("type", "value"))
    try:
        return Value(section.require("type", text), section.require("value", text))
    except InvalidArgument as error:
        raise location.child("type").error(str(error)) from None


_READER_BY_TYPE: Final[Mapping[str, Callable[[Location, object], object]]] = {
    "int": whole_number,
    "bool": boolean,
    "str": text,
    "str | None": text,
}


def field_readers(description_type: DescriptionType) -> dict[str, Callable[[Location, object], object]]:
    """Return the reader for each field of a description, except for fields with more than one value."""
    readers: dict[str, Callable[[Location, object], object]] = {}
    for field in fields(description_type):
        if field.name.endswith("_ms"):
            readers[field.name] = duration_ms
        elif field.type in _READER_BY_TYPE:
            readers[field.name] = _READER_BY_TYPE[str(field.type)]
    return readers


def read_properties(
    section: Section, description_type: DescriptionType, keys: Mapping[str, str], ranges: Ranges = SETTABLE_RANGES
) -> DesiredProperties:
    """Read the `keys` that are present in the section.

    `keys` maps each key to a field of the description; `ranges` has the valid range of each duration.
    """
    readers = field_readers(description_type)
    values: dict[str, object] = {}
    locations: dict[str, Location] = {}
    for key, field in keys.items():
        value = section.get(key, readers[field])
        if value is None:
            continue
        location = section.location.child(key)
        values[field] = None if value == "" else value  # an empty string clears the property
        locations[field] = location
        _check_value(description_type, field, values[field], location, ranges)
    try:
        description_type(**values)  # type: ignore[arg-type]  # the readers return the types of the fields
    except InvalidArgument as error:
        raise section.location.error(str(error)) from None
    return DesiredProperties(values=values, locations=locations)


def _check_value(
    description_type: DescriptionType, field: str, value: object, location: Location, ranges: Ranges
) -> None:
    """Raise InvalidConfig if no entity can have this value."""
    if field.endswith("_ms") and isinstance(value, int):
        lowest, highest = ranges[field]
        if not lowest <= value <= highest:
            bounds = f"{durations.format_duration(lowest)} to {durations.format_duration(highest)}"
            raise location.error(f"{durations.format_duration(value)}: it can be {bounds}")
    try:
        description_type(**{field: value})  # type: ignore[arg-type]  # as above
    except InvalidArgument as error:
        raise location.error(str(error)) from None
