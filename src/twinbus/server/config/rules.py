"""Rules of subscriptions, as files have them.

Owns: the types that values of a file have in a rule, and at which key a rule that cannot be is refused. What filters
and actions mean is for `broker.filters` to say.
"""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Final

from twinbus.broker.filters.rule import compile_rule
from twinbus.model.errors import InvalidArgument
from twinbus.model.path import key_of
from twinbus.model.rule import CorrelationFilter, RuleDescription, Value
from twinbus.server.config.section import Section, expected, text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from twinbus.model.rule import Filter, SqlAction
    from twinbus.server.config.place import Place

_INT_MAX: Final = 2**31 - 1


def make_rule(
    name: str, wanted: Filter, action: SqlAction | None, *, place: Place, filter_place: Place, action_place: Place
) -> RuleDescription:
    """A rule that is known to work; the places are those of its name and of its expressions."""
    at = place
    try:
        rule = RuleDescription(name=name)
        at = filter_place
        rule = RuleDescription(name=name, filter=wanted)
        compile_rule(rule)
        if action is not None:
            at = action_place
            rule = RuleDescription(name=name, filter=wanted, action=action)
            compile_rule(rule)
    except InvalidArgument as error:
        raise at.refusal(str(error)) from None
    return rule


def check_names(rules: Iterable[tuple[Place, RuleDescription]]) -> tuple[RuleDescription, ...]:
    """The rules of one subscription. Each place is that of a name."""
    taken: dict[str, Place] = {}
    found = []
    for place, rule in rules:
        other = taken.setdefault(key_of(rule.name), place)
        if other is not place:
            raise place.refusal(f"{rule.name!r} is the name at {other.key} already")
        found.append(rule)
    return tuple(found)


def read_correlation(place: Place, value: object, keys: Mapping[str, str], properties: str) -> CorrelationFilter:
    """A correlation filter; `keys` says which field each key is, `properties` is the key of the sender's own."""
    section = Section(place, value, (*keys, properties))
    texts = {field: section.get(key, text) for key, field in keys.items()}
    wanted = CorrelationFilter(**texts, properties=section.get(properties, values) or {})
    if wanted == CorrelationFilter():
        raise place.refusal("has no condition, and would be true for every message: name at least one")
    return wanted


def values(place: Place, value: object) -> dict[str, Value]:
    """Named values, of the types that the file gives them."""
    if not isinstance(value, dict):
        raise expected(place, "a table of names and values", value)
    return {name: _value(place.below(name), one) for name, one in value.items()}


def _value(place: Place, value: object) -> Value:
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
    raise expected(place, "a text, a number, a time, true or false", value)
