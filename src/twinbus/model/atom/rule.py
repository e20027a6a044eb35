"""Conversion of rule descriptions to and from XML.

Owns the elements of filters and actions and the format of their values. Must not know what expressions mean or whether
they are valid; the namespace checks expressions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from twinbus.model.atom import envelope
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

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from xml.etree.ElementTree import Element

    from twinbus.model.rule import Filter

T = TypeVar("T")

RULE_TAG: Final = "RuleDescription"
XML_SCHEMA: Final = "http://www.w3.org/2001/XMLSchema"
SERIALIZATION_SCHEMA: Final = "http://schemas.microsoft.com/2003/10/Serialization/"
_COMPATIBILITY_LEVEL: Final = "20"
_CORRELATION_FIELDS: Final = {
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
"""XML type names of those `model.rule.VALUE_KINDS` that have a different name in XML."""
_KINDS: Final = {name: kind for kind, name in _TYPES.items()}
_EQUIVALENT_EXPRESSIONS: Final = {TrueFilter: "1=1", FalseFilter: "1=0"}
"""Equivalent SQL expression of each filter: the JavaScript SDK recognizes a filter by its expression."""


# --- reading ----------------------------------------------------------------------------------------------------------


def read(root: Element, name: str | None = None) -> RuleDescription:
    """Read a rule from a client's request; the description must not contradict `name`, which comes from the address."""
    children = envelope.children_by_name(root)
    element_name = envelope.element_text(children["Name"]).strip() if "Name" in children else ""
    if name is not None and element_name and element_name.lower() != name.lower():
        raise InvalidArgument(f"Name is {element_name!r:.80}, but the address names the rule {name!r:.80}")
    return RuleDescription(
        name=name or element_name or DEFAULT_RULE,
        filter=_read_by_type("Filter", children["Filter"], _FILTERS) if "Filter" in children else TrueFilter(),
        action=_read_by_type("Action", children["Action"], _ACTIONS) if "Action" in children else None,
    )


def read_response(root: Element) -> RuleDescription:
    """Read a rule from a service's response."""
    created_at = envelope.children_by_name(root).get("CreatedAt")
    created_ms = 0 if created_at is None else envelope.parse_timestamp(envelope.element_text(created_at))
    return msgspec.structs.replace(read(root), created_ms=created_ms)


def _read_by_type(name: str, element: Element, kinds: Mapping[str, Callable[[dict[str, Element]], T]]) -> T:
    kind = envelope.xsi_type(element)
    if kind not in kinds:
        raise InvalidArgument(f"the type of {name} is {kind!r:.60}; it can be {', '.join(kinds)}")
    return kinds[kind](envelope.children_by_name(element))


def _read_sql_filter(children: dict[str, Element]) -> Filter:
    return SqlFilter(expression=_expression(children), parameters=_values(children, "Parameters"))


def _read_correlation_filter(children: dict[str, Element]) -> Filter:
    values = {
        field: envelope.element_text(children[name]) for name, field in _CORRELATION_FIELDS.items() if name in children
    }
    return CorrelationFilter(**values, properties=_values(children, "Properties"))


def _read_sql_action(children: dict[str, Element]) -> SqlAction:
    return SqlAction(expression=_expression(children), parameters=_values(children, "Parameters"))


def _expression(children: dict[str, Element]) -> str:
    return envelope.element_text(children["SqlExpression"]) if "SqlExpression" in children else ""


def _values(children: dict[str, Element], name: str) -> dict[str, Value]:
    values: dict[str, Value] = {}
    for item in envelope.children_named(children[name], "KeyValueOfstringanyType") if name in children else ():
        pair = envelope.children_by_name(item)
        if "Key" not in pair or "Value" not in pair:
            raise InvalidArgument(f"{name} has a pair without a Key or a Value")
        key = envelope.element_text(pair["Key"])
        if key in values:
            raise InvalidArgument(f"{name} has {key!r:.60} twice")
        kind = envelope.xsi_type(pair["Value"])
        values[key] = Value(_KINDS.get(kind, kind), envelope.element_text(pair["Value"]))
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
    """Write an existing rule for a response."""
    root = _write_filter_and_action(rule, RULE_TAG)
    envelope.add_element(root, "CreatedAt", envelope.format_timestamp(rule.created_ms))
    envelope.add_element(root, "Name", rule.name)
    return root


def write_request(rule: RuleDescription, tag: str = RULE_TAG) -> Element:
    """Write a rule for a client's request."""
    root = _write_filter_and_action(rule, tag)
    envelope.add_element(root, "Name", rule.name)
    return root


def _write_filter_and_action(rule: RuleDescription, tag: str) -> Element:
    root = envelope.new_description(tag)
    _write_filter(root, rule.filter)
    if rule.action is None:
        envelope.add_element(root, "Action", **{"i:type": "EmptyRuleAction"})
    else:
        _write_sql(root, "Action", "SqlRuleAction", rule.action.expression, rule.action.parameters)
    return root


def _write_filter(root: Element, rule_filter: Filter) -> None:
    if isinstance(rule_filter, SqlFilter):
        _write_sql(root, "Filter", "SqlFilter", rule_filter.expression, rule_filter.parameters)
    elif isinstance(rule_filter, CorrelationFilter):
        element = envelope.add_element(root, "Filter", **{"i:type": "CorrelationFilter"})
        for name, field in _CORRELATION_FIELDS.items():
            text = getattr(rule_filter, field)
            if text is not None:
                envelope.add_element(element, name, text)
        _write_values(element, "Properties", rule_filter.properties)
    else:
        _write_sql(root, "Filter", type(rule_filter).__name__, _EQUIVALENT_EXPRESSIONS[type(rule_filter)], {})


def _write_sql(root: Element, name: str, kind: str, expression: str, parameters: Mapping[str, Value]) -> None:
    element = envelope.add_element(root, name, **{"i:type": kind})
    envelope.add_element(element, "SqlExpression", expression)
    envelope.add_element(element, "CompatibilityLevel", _COMPATIBILITY_LEVEL)
    _write_values(element, "Parameters", parameters)


def _write_values(parent: Element, name: str, values: Mapping[str, Value]) -> None:
    """Write typed values.

    The type's prefix has four characters, because the JavaScript SDK strips five characters (prefix and colon).
    """
    if not values:
        return
    element = envelope.add_element(parent, name)
    for key, value in values.items():
        pair = envelope.add_element(element, "KeyValueOfstringanyType")
        envelope.add_element(pair, "Key", key)
        schema = SERIALIZATION_SCHEMA if value.kind == "guid" else XML_SCHEMA
        kind = f"d6p1:{_TYPES.get(value.kind, value.kind)}"
        envelope.add_element(pair, "Value", value.text, **{"i:type": kind, "xmlns:d6p1": schema})
