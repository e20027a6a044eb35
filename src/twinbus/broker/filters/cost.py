"""What a rule costs: an estimate, made of its parsed form when the rule is made.

The unit is about a microsecond. A part of the cost is the same for every message (`fixed`), another one grows with the
message's size up to the largest property there can be (`sized`): patterns, and texts that are put together. Both are
what the worst message of that size costs, measured; most messages cost less.

Owns: the prices. What they are compared with is for `broker.work` (a turn of the loop) and for the limits of a
namespace (one rule, all rules of a topic) to say.
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
"""Bytes of a message from which on a rule costs all of `sized`: no property is larger."""


class Cost(NamedTuple):
    """Units."""

    fixed: int
    variable: int = 0
    """For a message of FULL_SIZE; in proportion for smaller ones."""

    @property
    def total(self) -> int:
        """For the largest message."""
        return self.fixed + self.variable


_NO_COST: Final = Cost(0)
_STEP_COST: Final = Cost(1)
_COMPARISON_COST: Final = Cost(1, 2)
"""Of two texts that may both be long."""
_OPERAND_COST: Final = Cost(1, 5)
"""A text that is put behind another is copied."""
_DYNAMIC_NAME_COST: Final = Cost(2, 220)
"""A text is made a property's name: in lower case, as UTF-8."""
_NEW_ID_COST: Final = Cost(3)
_CHARACTER_SCAN_COST: Final = 3_400
_DYNAMIC_PATTERN_COST: Final = Cost(700, _CHARACTER_SCAN_COST)
"""A pattern that is not known before the message is."""
_LITERAL_COST: Final = 16
"""`str.find` takes time in proportion to the text and, at worst, to what it looks for up to 100 characters."""
_MAX_LITERAL_COST: Final = 1_600
_POSITIONS_COST: Final = 80
"""Finding the places of one character."""
_SHIFT_COST: Final = 2
_ACTION_COST: Final = Cost(60, 300)
"""A copy is written anew, and held until all are."""
_STATEMENT_COST: Final = Cost(5, 50)


def filter_cost(node: Node) -> Cost:
    """What it costs to evaluate a filter, or a part of it."""
    return _COST_FUNCTIONS[type(node)](node)


def action_cost(statements: Iterable[SetStatement | RemoveStatement]) -> Cost:
    """What it costs to make a copy with an action."""
    costs = [_ACTION_COST]
    for statement in statements:
        costs.append(_STATEMENT_COST)
        if isinstance(statement, SetStatement):
            costs.append(filter_cost(statement.value))
    return _sum(costs)


def _sum(costs: Iterable[Cost]) -> Cost:
    fixed = sized = 0
    for cost in costs:
        fixed += cost.fixed
        sized += cost.variable
    return Cost(fixed, sized)


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
    sized = 0
    for stretch in pattern.inner_segments:
        if stretch.distinct_characters:
            sized += _SHIFT_COST * stretch.literal_count
        else:
            sized += min(_LITERAL_COST * stretch.literal_count, _MAX_LITERAL_COST)
    characters = len(pattern.distinct_characters)
    sized += min(_POSITIONS_COST * characters, _CHARACTER_SCAN_COST)
    return Cost(len(pattern.inner_segments), sized)


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
