"""Rules of subscriptions, as files have them.

Owns: the types that values of a file have in a rule, and at which key a rule that cannot be is refused. What filters
and actions mean is for `broker.filters` to say.
"""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Final

from twinbus.broker.filters.rule import compile_rule
from twinbus.model.errors import InvalidArgument
from twinbus.model.path import canonical_key
from twinbus.model.rule import CorrelationFilter, RuleDescription, Value
from twinbus.server.config.section import Section, text, unexpected_type

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from twinbus.model.rule import Filter, SqlAction
    from twinbus.server.config.place import Location

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
