"""The description of a rule, to and from XML.

Owns: the elements of filters and actions, and how their values are written. What an expression means, and whether it
means anything, is for the namespace to say.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

from twinbus.model.errors import InvalidArgument
from twinbus.model.rule import (
    DEFAULT_RULE,
    CorrelationFilter,
    FalseFilter,
    RuleDescription,
    SqlAction,
    SqlFilter,
    TrueFilter,
    Value,
)
from twinbus.server.http import atom

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from xml.etree.ElementTree import Element

    from twinbus.model.rule import Filter

T = TypeVar("T")

TAG: Final = "RuleDescription"
SCHEMA: Final = "http://www.w3.org/2001/XMLSchema"
SERIALIZATION: Final = "http://schemas.microsoft.com/2003/10/Serialization/"
_LEVEL: Final = "20"
_CORRELATED: Final = {
    "CorrelationId": "correlation_id",
    "MessageId": "message_id",
    "To": "to",
    "ReplyTo": "reply_to",
    "Label": "label",
    "SessionId": "session_id",
    "ReplyToSessionId": "reply_to_session_id",
    "ContentType": "content_type",
}
_TYPES: Final = {"binary": "base64Binary"}
"""What XML calls a kind of `model.rule.KINDS`, where it is not the same word."""
_KINDS: Final = {name: kind for kind, name in _TYPES.items()}
_SAME: Final = {TrueFilter: "1=1", FalseFilter: "1=0"}
"""The expression that means the same: JavaScript knows filters by that they have one."""


# --- reading ----------------------------------------------------------------------------------------------------------


def read(root: Element, name: str | None = None) -> RuleDescription:
    """The rule that a client sent. `name` is that of the address, which the description must not contradict."""
    found = atom.children(root)
    given = atom.text(found["Name"]).strip() if "Name" in found else ""
    if name is not None and given and given.lower() != name.lower():
        raise InvalidArgument(f"Name is {given!r:.80}, and the address is that of the rule {name!r:.80}")
    return RuleDescription(
        name=name or given or DEFAULT_RULE,
        filter=_read_one("Filter", found["Filter"], _FILTERS) if "Filter" in found else TrueFilter(),
        action=_read_one("Action", found["Action"], _ACTIONS) if "Action" in found else None,
    )


def _read_one(name: str, element: Element, kinds: Mapping[str, Callable[[dict[str, Element]], T]]) -> T:
    kind = atom.type_of(element)
    if kind not in kinds:
        raise InvalidArgument(f"the type of {name} is {kind!r:.60}; it can be {', '.join(kinds)}")
    return kinds[kind](atom.children(element))


def _read_sql_filter(found: dict[str, Element]) -> Filter:
    return SqlFilter(expression=_expression(found), parameters=_values(found, "Parameters"))


def _read_correlation_filter(found: dict[str, Element]) -> Filter:
    values = {field: atom.text(found[name]) for name, field in _CORRELATED.items() if name in found}
    return CorrelationFilter(**values, properties=_values(found, "Properties"))


def _read_sql_action(found: dict[str, Element]) -> SqlAction:
    return SqlAction(expression=_expression(found), parameters=_values(found, "Parameters"))


def _expression(found: dict[str, Element]) -> str:
    return atom.text(found["SqlExpression"]) if "SqlExpression" in found else ""


def _values(found: dict[str, Element], name: str) -> dict[str, Value]:
    values: dict[str, Value] = {}
    for item in atom.items(found[name], "KeyValueOfstringanyType") if name in found else ():
        pair = atom.children(item)
        if "Key" not in pair or "Value" not in pair:
            raise InvalidArgument(f"{name} has a pair without a Key or a Value")
        key = atom.text(pair["Key"])
        if key in values:
            raise InvalidArgument(f"{name} has {key!r:.60} twice")
        kind = atom.type_of(pair["Value"])
        values[key] = Value(_KINDS.get(kind, kind), atom.text(pair["Value"]))
    return values


_FILTERS: Final[Mapping[str, Callable[[dict[str, Element]], Filter]]] = {
    "SqlFilter": _read_sql_filter,
    "TrueFilter": lambda _: TrueFilter(),
    "FalseFilter": lambda _: FalseFilter(),
    "CorrelationFilter": _read_correlation_filter,
}
_ACTIONS: Final[Mapping[str, Callable[[dict[str, Element]], SqlAction | None]]] = {
    "SqlRuleAction": _read_sql_action,
    "EmptyRuleAction": lambda _: None,
}


# --- writing ----------------------------------------------------------------------------------------------------------


def write(rule: RuleDescription) -> Element:
    """The description of a rule."""
    root = atom.new_description(TAG)
    _write_filter(root, rule.filter)
    if rule.action is None:
        atom.add(root, "Action", **{"i:type": "EmptyRuleAction"})
    else:
        _write_sql(root, "Action", "SqlRuleAction", rule.action.expression, rule.action.parameters)
    atom.add(root, "CreatedAt", atom.timestamp(rule.created_ms))
    atom.add(root, "Name", rule.name)
    return root


def _write_filter(root: Element, found: Filter) -> None:
    if isinstance(found, SqlFilter):
        _write_sql(root, "Filter", "SqlFilter", found.expression, found.parameters)
    elif isinstance(found, CorrelationFilter):
        element = atom.add(root, "Filter", **{"i:type": "CorrelationFilter"})
        for name, field in _CORRELATED.items():
            text = getattr(found, field)
            if text is not None:
                atom.add(element, name, text)
        _write_values(element, "Properties", found.properties)
    else:
        _write_sql(root, "Filter", type(found).__name__, _SAME[type(found)], {})


def _write_sql(root: Element, name: str, kind: str, expression: str, parameters: Mapping[str, Value]) -> None:
    element = atom.add(root, name, **{"i:type": kind})
    atom.add(element, "SqlExpression", expression)
    atom.add(element, "CompatibilityLevel", _LEVEL)
    _write_values(element, "Parameters", parameters)


def _write_values(parent: Element, name: str, values: Mapping[str, Value]) -> None:
    """JavaScript cuts five characters off the type, so the prefix has four."""
    if not values:
        return
    element = atom.add(parent, name)
    for key, value in values.items():
        pair = atom.add(element, "KeyValueOfstringanyType")
        atom.add(pair, "Key", key)
        of = SERIALIZATION if value.kind == "guid" else SCHEMA
        kind = f"d6p1:{_TYPES.get(value.kind, value.kind)}"
        atom.add(pair, "Value", value.text, **{"i:type": kind, "xmlns:d6p1": of})
