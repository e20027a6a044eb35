"""Estimated cost of evaluating a rule, computed from its syntax tree when the rule is created.

One unit is about a microsecond. A cost has a part that is the same for every message (`fixed`) and a part that grows
with the size of the message, up to the size of the largest possible property (`variable`). Operations such as pattern
matching and string concatenation have a variable cost. Both parts are measured for the worst message of a given size;
most messages cost less.

Owns the cost of each operation. The limits that costs are compared with belong to the callers: the work done in one
turn of the event loop, and the namespace's limits for one rule and for all rules of a topic.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from twinbus.broker.filters.like_pattern import LikePattern
from twinbus.broker.filters.syntax_tree import (
    And,
    ArithmeticChain,
    Comparison,
    Constant,
    ConstantPredicate,
    DynamicProperty,
    Exists,
    In,
    IsNull,
    Like,
    NewId,
    Not,
    Or,
    Property,
    RemoveStatement,
    SetStatement,
    UnaryOperation,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from twinbus.broker.filters.syntax_tree import Node

SIZE_BITS: Final = 15
FULL_SIZE: Final = 1 << SIZE_BITS
"""Message size in bytes at which a rule costs all of `Cost.variable`, because no property is larger."""


class Cost(NamedTuple):
    """Cost in units of about a microsecond."""

    fixed: int
    variable: int = 0
    """Additional cost for a message of FULL_SIZE bytes; proportionally less for smaller messages."""

    @property
    def total(self) -> int:
        """Cost for a message of FULL_SIZE bytes or more."""
        return self.fixed + self.variable


_NO_COST: Final = Cost(0)
_STEP_COST: Final = Cost(1)
_COMPARISON_COST: Final = Cost(1, 2)
"""Cost of comparing two strings that may both be long."""
_OPERAND_COST: Final = Cost(1, 5)
"""Cost of one operand of an arithmetic chain: concatenation copies strings."""
_DYNAMIC_NAME_COST: Final = Cost(2, 220)
"""Cost of converting a string to a property key: lower case, encoded as UTF-8."""
_NEW_ID_COST: Final = Cost(3)
_CHARACTER_SCAN_COST: Final = 3_400
_DYNAMIC_PATTERN_COST: Final = Cost(700, _CHARACTER_SCAN_COST)
"""Cost of a LIKE pattern that depends on the message, so it is compiled during evaluation."""
_LITERAL_COST: Final = 16
"""Cost per literal character: the worst case of `str.find` grows with the needle's length, up to 100 characters."""
_MAX_LITERAL_COST: Final = 1_600
_POSITIONS_COST: Final = 80
"""Cost of finding all positions of one character in a string."""
_SHIFT_COST: Final = 2
_ACTION_COST: Final = Cost(60, 300)
"""Cost of encoding the changed record, which is held in memory until all copies of the message are made."""
_STATEMENT_COST: Final = Cost(5, 50)


def filter_cost(node: Node) -> Cost:
    """Return the cost of evaluating a filter or one of its subexpressions."""
    return _COST_FUNCTIONS[type(node)](node)


def action_cost(statements: Iterable[SetStatement | RemoveStatement]) -> Cost:
    """Return the cost of copying a message and applying an action with these statements to the copy."""
    costs = [_ACTION_COST]
    for statement in statements:
        costs.append(_STATEMENT_COST)
        if isinstance(statement, SetStatement):
            costs.append(filter_cost(statement.value))
    return _sum(costs)


def _sum(costs: Iterable[Cost]) -> Cost:
    fixed = variable = 0
    for cost in costs:
        fixed += cost.fixed
        variable += cost.variable
    return Cost(fixed, variable)


def _operands_cost(node: And | Or) -> Cost:
    return _sum(map(filter_cost, node.operands))


def _comparison_cost(node: Comparison) -> Cost:
    is_short = isinstance(node.left, Constant) or isinstance(node.right, Constant)
    return _sum([_STEP_COST if is_short else _COMPARISON_COST, filter_cost(node.left), filter_cost(node.right)])


def _in_cost(node: In) -> Cost:
    costs = [_STEP_COST, filter_cost(node.value)]
    for choice in node.choices:
        costs += [_STEP_COST if isinstance(choice, Constant) else _COMPARISON_COST, filter_cost(choice)]
    return _sum(costs)


def _like_cost(node: Like) -> Cost:
    costs = [_STEP_COST, filter_cost(node.value)]
    if isinstance(node.pattern, LikePattern):
        costs.append(_pattern_cost(node.pattern))
    else:
        costs += [
            _DYNAMIC_PATTERN_COST,
            filter_cost(node.pattern),
            filter_cost(node.escape) if node.escape is not None else _NO_COST,
        ]
    return _sum(costs)


def _pattern_cost(pattern: LikePattern) -> Cost:
    variable = 0
    for segment in pattern.inner_segments:
        if segment.distinct_characters:
            variable += _SHIFT_COST * segment.literal_count
        else:
            variable += min(_LITERAL_COST * segment.literal_count, _MAX_LITERAL_COST)
    characters = len(pattern.distinct_characters)
    variable += min(_POSITIONS_COST * characters, _CHARACTER_SCAN_COST)
    return Cost(len(pattern.inner_segments), variable)


def _arithmetic_cost(node: ArithmeticChain) -> Cost:
    costs = [filter_cost(node.first)]
    for _, operand in node.rest:
        costs += [_OPERAND_COST, filter_cost(operand)]
    return _sum(costs)


_COST_FUNCTIONS: Final[dict[type, Callable[[Any], Cost]]] = {
    Constant: lambda _: _NO_COST,
    Property: lambda _: _NO_COST,
    ConstantPredicate: lambda _: _NO_COST,
    Exists: lambda _: _STEP_COST,
    NewId: lambda _: _NEW_ID_COST,
    DynamicProperty: lambda node: _sum([_DYNAMIC_NAME_COST, filter_cost(node.name)]),
    UnaryOperation: lambda node: _sum([_STEP_COST, filter_cost(node.operand)]),
    ArithmeticChain: _arithmetic_cost,
    Comparison: _comparison_cost,
    In: _in_cost,
    Like: _like_cost,
    IsNull: lambda node: _sum([_STEP_COST, filter_cost(node.value)]),
    Not: lambda node: filter_cost(node.operand),
    And: _operands_cost,
    Or: _operands_cost,
}
