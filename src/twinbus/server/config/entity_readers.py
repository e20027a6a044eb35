"""Properties of entities, as a file has them and as descriptions have them.

Owns: which type of value each field of a description takes in a file, and that a value that no entity can have is
refused at its own key. What is valid is for the model to say.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import fields
from typing import TYPE_CHECKING, Final, TypeAlias

from twinbus.broker.filters.rule import compile_rule
from twinbus.model.atom import durations
from twinbus.model.description import SETTABLE_RANGES
from twinbus.model.errors import InvalidArgument
from twinbus.model.path import canonical_key
from twinbus.model.rule import CorrelationFilter, RuleDescription, Value
from twinbus.server.config.plan import DesiredProperties
from twinbus.server.config.section import Section, boolean, duration_ms, text, unexpected_type, whole_number

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from twinbus.server.config.plan import DescriptionType
    from twinbus.server.config.section import Location

    Ranges: TypeAlias = Mapping[str, tuple[int, int]]
    from collections.abc import Iterable, Mapping

    from twinbus.model.rule import Filter, SqlAction

_INT_MAX: Final = 2**31 - 1


def make_rule(
    name: str,
    rule_filter: Filter,
    action: SqlAction | None,
    *,
    name_location: Location,
    filter_location: Location,
    action_location: Location,
) -> RuleDescription:
    """A rule that is known to work; the places are those of its name and of its expressions."""
    at = name_location
    try:
        rule = RuleDescription(name=name)
        at = filter_location
        rule = RuleDescription(name=name, filter=rule_filter)
        compile_rule(rule)
        if action is not None:
            at = action_location
            rule = RuleDescription(name=name, filter=rule_filter, action=action)
            compile_rule(rule)
    except InvalidArgument as error:
        raise at.error(str(error)) from None
    return rule


def check_unique_names(rules: Iterable[tuple[Location, RuleDescription]]) -> tuple[RuleDescription, ...]:
    """The rules of one subscription. Each place is that of a name."""
    taken: dict[str, Location] = {}
    found = []
    for place, rule in rules:
        other = taken.setdefault(canonical_key(rule.name), place)
        if other is not place:
            raise place.error(f"{rule.name!r} is the name at {other.key} already")
        found.append(rule)
    return tuple(found)


def read_correlation_filter(
    location: Location, value: object, keys: Mapping[str, str], properties_key: str
) -> CorrelationFilter:
    """A correlation filter; `keys` says which field each key is, `properties` is the key of the sender's own."""
    section = Section(location, value, (*keys, properties_key))
    texts = {field: section.get(key, text) for key, field in keys.items()}
    wanted = CorrelationFilter(**texts, properties=section.get(properties_key, read_values) or {})
    if wanted == CorrelationFilter():
        raise location.error("has no condition, and would be true for every message: name at least one")
    return wanted


def read_values(location: Location, value: object) -> dict[str, Value]:
    """Named values, of the types that the file gives them."""
    if not isinstance(value, dict):
        raise unexpected_type(location, "a table of names and values", value)
    return {name: _to_value(location.child(name), one) for name, one in value.items()}


def _to_value(location: Location, value: object) -> Value:
    if isinstance(value, bool):
        return Value("boolean", str(value).lower())
    if isinstance(value, int):
        return Value("int" if -_INT_MAX - 1 <= value <= _INT_MAX else "long", str(value))
    if isinstance(value, float):
        return Value("double", repr(value))
    if isinstance(value, dt.datetime):
        return Value("dateTime", value.isoformat())
    if isinstance(value, str):
        return Value("string", value)
    raise unexpected_type(location, "a text, a number, a time, true or false", value)


_READER_BY_TYPE: Final[Mapping[str, Callable[[Location, object], object]]] = {
    "int": whole_number,
    "bool": boolean,
    "str": text,
    "str | None": text,
}


def field_readers(description_type: DescriptionType) -> dict[str, Callable[[Location, object], object]]:
    """How each field of a description is read. Those that are no single value are not here."""
    found: dict[str, Callable[[Location, object], object]] = {}
    for field in fields(description_type):
        if field.name.endswith("_ms"):
            found[field.name] = duration_ms
        elif field.type in _READER_BY_TYPE:
            found[field.name] = _READER_BY_TYPE[str(field.type)]
    return found


def read_properties(
    section: Section, description_type: DescriptionType, keys: Mapping[str, str], ranges: Ranges = SETTABLE_RANGES
) -> DesiredProperties:
    """Read all of these keys that are there; `keys` says which field each is, `ranges` which durations it can have."""
    readers = field_readers(description_type)
    values: dict[str, object] = {}
    places: dict[str, Location] = {}
    for key, field in keys.items():
        value = section.get(key, readers[field])
        if value is None:
            continue
        place = section.location.child(key)
        values[field] = None if value == "" else value  # an empty text says that there is none
        places[field] = place
        _check_value(description_type, field, values[field], place, ranges)
    try:
        description_type(**values)  # type: ignore[arg-type]  # each is of the type that its reader gives
    except InvalidArgument as error:
        raise section.location.error(str(error)) from None
    return DesiredProperties(values=values, locations=places)


def _check_value(
    description_type: DescriptionType, field: str, value: object, location: Location, ranges: Ranges
) -> None:
    """Whether an entity can have this value at all."""
    if field.endswith("_ms") and isinstance(value, int):
        lowest, highest = ranges[field]
        if not lowest <= value <= highest:
            bounds = f"{durations.format_duration(lowest)} to {durations.format_duration(highest)}"
            raise location.error(f"{durations.format_duration(value)}: it can be {bounds}")
    try:
        description_type(**{field: value})  # type: ignore[arg-type]  # as above
    except InvalidArgument as error:
        raise location.error(str(error)) from None
