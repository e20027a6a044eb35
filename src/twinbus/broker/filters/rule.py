"""One rule, ready for messages.

Owns: the way from a description to what can be evaluated. A rule that cannot be is refused here, when it is made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID, uuid4

from twinbus.broker.filters import correlation
from twinbus.broker.filters.action import Action, compile_action
from twinbus.broker.filters.constants import constants
from twinbus.broker.filters.cost import cost_of
from twinbus.broker.filters.evaluate import holds
from twinbus.broker.filters.lookup import Lookup, lookups_of
from twinbus.broker.filters.nodes import Known, Node
from twinbus.model.rule import CorrelationFilter, FalseFilter, RuleDescription, SqlFilter, TrueFilter

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from twinbus.broker.filters.reader import Reader
    from twinbus.broker.filters.view import View


class CompiledRule:
    """What is made of a description; it has no state, and can be shared."""

    __slots__ = ("_holds", "action", "cost", "is_always", "is_never", "lookups", "name")

    def __init__(self, name: str, predicate: Node, action: Action | None = None) -> None:
        """`predicate` is the filter; `action` is what is done to messages that it is true for."""
        self.name = name
        self.action = action
        self.cost = cost_of(predicate)
        """Of the filter; the action has its own."""
        self.is_always = predicate == Known(truth=True)
        self.is_never = isinstance(predicate, Known) and not predicate.truth
        self.lookups: list[Lookup] = lookups_of(predicate)
        self._holds = holds(predicate)

    @property
    def total_cost(self) -> int:
        """What the rule costs for the largest message, in units of `cost`; at least one."""
        return max(1, self.cost.total + (self.action.cost.total if self.action is not None else 0))

    def matches(self, view: View) -> bool:
        """Whether the filter is true for a message. FilterError if that cannot be said."""
        return self._holds(view)


def compile_rule(description: RuleDescription, new_id: Callable[[], UUID] = uuid4) -> CompiledRule:
    """A rule, or InvalidArgument: what is wrong with it, and where. `new_id` is what newid() gives."""
    predicate = _predicate_of(description, new_id)
    action = None
    if description.action is not None:
        parameters = constants(description.action.parameters, "the parameter")
        reader = _reader(description.action.expression, "action", parameters, new_id)
        action = compile_action(reader, description.name)
    return CompiledRule(description.name, predicate, action)


def _predicate_of(description: RuleDescription, new_id: Callable[[], UUID]) -> Node:
    wanted = description.filter
    if isinstance(wanted, SqlFilter):
        parameters = constants(wanted.parameters, "the parameter")
        return _reader(wanted.expression, "filter", parameters, new_id).predicate()
    if isinstance(wanted, CorrelationFilter):
        return correlation.predicate_of(wanted)
    assert isinstance(wanted, TrueFilter | FalseFilter)
    return Known(isinstance(wanted, TrueFilter))


def _reader(text: str, what: str, parameters: Mapping[str, object], new_id: Callable[[], UUID]) -> Reader:
    from twinbus.broker.filters.reader import Reader  # noqa: PLC0415  # brings a parser: a server starts sooner without

    return Reader(text, what, parameters, new_id)
