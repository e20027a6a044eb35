"""One rule, ready for messages.

Owns: the way from a description to what can be evaluated. A rule that cannot be is refused here, when it is made.
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
    """All of its conditions; a filter without any is true for all messages."""
    wanted: list[Node] = []
    for field, name in _CORRELATION_FIELDS.items():
        text = getattr(description, field)
        if text is not None:
            wanted.append(Comparison("=", Property(property_number(name), name), Constant(text)))
    for name, value in parse_values(description.properties, "the property").items():
        wanted.append(Comparison("=", Property(user_property_key(name), name), Constant(value)))
    return conjunction(wanted)


class CompiledRule:
    """What is made of a description; it has no state, and can be shared."""

    __slots__ = ("_filter", "action", "cost", "is_always_true", "is_never_true", "lookups", "name")

    def __init__(self, name: str, predicate: Node, action: Action | None = None) -> None:
        """`predicate` is the filter; `action` is what is done to messages that it is true for."""
        self.name = name
        self.action = action
        self.cost = filter_cost(predicate)
        """Of the filter; the action has its own."""
        self.is_always_true = predicate == ConstantPredicate(value=True)
        self.is_never_true = isinstance(predicate, ConstantPredicate) and not predicate.value
        self.lookups: list[EqualityLookup] = find_lookups(predicate)
        self._filter = compile_filter(predicate)

    @property
    def total_cost(self) -> int:
        """What the rule costs for the largest message, in units of `cost`; at least one."""
        return max(1, self.cost.total + (self.action.cost.total if self.action is not None else 0))

    def matches(self, view: MessageView) -> bool:
        """Whether the filter is true for a message. FilterError if that cannot be said."""
        return self._filter(view)


def compile_rule(description: RuleDescription, new_id: Callable[[], UUID] = uuid4) -> CompiledRule:
    """A rule, or InvalidArgument: what is wrong with it, and where. `new_id` is what newid() gives."""
    predicate = _compile_predicate(description, new_id)
    action = None
    if description.action is not None:
        parameters = parse_values(description.action.parameters, "the parameter")
        reader = _make_parser(description.action.expression, "action", parameters, new_id)
        action = compile_action(reader, description.name)
    return CompiledRule(description.name, predicate, action)


def _compile_predicate(description: RuleDescription, new_id: Callable[[], UUID]) -> Node:
    wanted = description.filter
    if isinstance(wanted, SqlFilter):
        parameters = parse_values(wanted.parameters, "the parameter")
        return _make_parser(wanted.expression, "filter", parameters, new_id).parse_filter()
    if isinstance(wanted, CorrelationFilter):
        return correlation_predicate(wanted)
    assert isinstance(wanted, TrueFilter | FalseFilter)
    return ConstantPredicate(isinstance(wanted, TrueFilter))


def _make_parser(
    text: str, kind: str, parameters: Mapping[str, object], new_id: Callable[[], UUID]
) -> ExpressionParser:
    from twinbus.broker.filters.parser import ExpressionParser  # noqa: PLC0415  # brings a parser: a server starts sooner without

    return ExpressionParser(text, kind, parameters, new_id)
