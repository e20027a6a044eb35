"""Compiled rules.

Owns the compilation of a rule's description into a filter and an action. An invalid rule is rejected here, when it is
created.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from uuid import UUID, uuid4

from twinbus.broker.filters.action import Action, compile_action
from twinbus.broker.filters.cost import filter_cost
from twinbus.broker.filters.equality_lookup import EqualityLookup, find_lookups
from twinbus.broker.filters.evaluator import compile_filter
from twinbus.broker.filters.syntax_tree import (
    Comparison,
    Constant,
    ConstantPredicate,
    Node,
    Property,
    conjunction,
    user_property_key,
)
from twinbus.broker.filters.system_properties import property_number
from twinbus.broker.filters.xml_values import parse_values
from twinbus.model.rule import CorrelationFilter, FalseFilter, RuleDescription, SqlFilter, TrueFilter

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from twinbus.broker.filters.message_view import MessageView
    from twinbus.broker.filters.parser import ExpressionParser

_CORRELATION_FIELDS: Final = {
    "correlation_id": "CorrelationId",
    "message_id": "MessageId",
    "to": "To",
    "reply_to": "ReplyTo",
    "label": "Label",
    "session_id": "SessionId",
    "reply_to_session_id": "ReplyToSessionId",
    "content_type": "ContentType",
}


def correlation_predicate(description: CorrelationFilter) -> Node:
    """Return the conjunction of a correlation filter's conditions; a filter without conditions is always true."""
    conditions: list[Node] = []
    for field, name in _CORRELATION_FIELDS.items():
        text = getattr(description, field)
        if text is not None:
            conditions.append(Comparison("=", Property(property_number(name), name), Constant(text)))
    for name, value in parse_values(description.properties, "the property").items():
        conditions.append(Comparison("=", Property(user_property_key(name), name), Constant(value)))
    return conjunction(conditions)


class CompiledRule:
    """Compiled filter and action of a rule; stateless, so it can be shared."""

    __slots__ = ("_filter", "action", "cost", "is_always_true", "is_never_true", "lookups", "name")

    def __init__(self, name: str, predicate: Node, action: Action | None = None) -> None:
        """Compile a filter given as a predicate; `action` changes the copies of messages that match."""
        self.name = name
        self.action = action
        self.cost = filter_cost(predicate)
        """Cost of the filter, without the cost of the action."""
        self.is_always_true = predicate == ConstantPredicate(value=True)
        self.is_never_true = isinstance(predicate, ConstantPredicate) and not predicate.value
        self.lookups: list[EqualityLookup] = find_lookups(predicate)
        self._filter = compile_filter(predicate)

    @property
    def total_cost(self) -> int:
        """Cost of filter and action for the largest message, in units of `cost.Cost`; at least one."""
        return max(1, self.cost.total + (self.action.cost.total if self.action is not None else 0))

    def matches(self, view: MessageView) -> bool:
        """Return whether the filter is true for a message; raise FilterError if it cannot be evaluated."""
        return self._filter(view)


def compile_rule(description: RuleDescription, new_id: Callable[[], UUID] = uuid4) -> CompiledRule:
    """Compile a rule; raise InvalidArgument with position and reason if it is invalid. newid() calls `new_id`."""
    predicate = _compile_predicate(description, new_id)
    action = None
    if description.action is not None:
        parameters = parse_values(description.action.parameters, "the parameter")
        parser = _make_parser(description.action.expression, "action", parameters, new_id)
        action = compile_action(parser, description.name)
    return CompiledRule(description.name, predicate, action)


def _compile_predicate(description: RuleDescription, new_id: Callable[[], UUID]) -> Node:
    filter_description = description.filter
    if isinstance(filter_description, SqlFilter):
        parameters = parse_values(filter_description.parameters, "the parameter")
        return _make_parser(filter_description.expression, "filter", parameters, new_id).parse_filter()
    if isinstance(filter_description, CorrelationFilter):
        return correlation_predicate(filter_description)
    assert isinstance(filter_description, TrueFilter | FalseFilter)
    return ConstantPredicate(isinstance(filter_description, TrueFilter))


def _make_parser(
    text: str, kind: str, parameters: Mapping[str, object], new_id: Callable[[], UUID]
) -> ExpressionParser:
    from twinbus.broker.filters.parser import ExpressionParser  # noqa: PLC0415  # imports lark, which would slow down the server's start

    return ExpressionParser(text, kind, parameters, new_id)
