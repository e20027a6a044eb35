"""What a rule costs: an estimate, made of its parsed form when the rule is made.

The unit is about a microsecond. A part of the cost is the same for every message (`fixed`), another one grows with the
message's size up to the largest property there can be (`sized`): patterns, and texts that are put together. Both are
what the worst message of that size costs, measured; most messages cost less.

Owns: the prices. What they are compared with is for `broker.work` (a turn of the loop) and for the limits of a
namespace (one rule, all rules of a topic) to say.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from twinbus.broker.filters.like import Pattern
from twinbus.broker.filters.nodes import (
    And,
    Chain,
    Compare,
    Constant,
    Exists,
    IsNull,
    Known,
    Like,
    Named,
    NewId,
    Not,
    OneOf,
    Or,
    Property,
    Remove,
    SetTo,
    Signed,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from twinbus.broker.filters.nodes import Node

SIZE_BITS: Final = 15
FULL_SIZE: Final = 1 << SIZE_BITS
"""Bytes of a message from which on a rule costs all of `sized`: no property is larger."""


class Cost(NamedTuple):
    """Units."""

    fixed: int
    sized: int = 0
    """For a message of FULL_SIZE; in proportion for smaller ones."""

    @property
    def total(self) -> int:
        """For the largest message."""
        return self.fixed + self.sized


_FREE: Final = Cost(0)
_STEP: Final = Cost(1)
_OF_COMPARISON: Final = Cost(1, 2)
"""Of two texts that may both be long."""
_OF_OPERAND: Final = Cost(1, 5)
"""A text that is put behind another is copied."""
_OF_NAME: Final = Cost(2, 220)
"""A text is made a property's name: in lower case, as UTF-8."""
_OF_NEW_ID: Final = Cost(3)
_READ_BY_CHARACTER: Final = 3_400
_MADE_PATTERN: Final = Cost(700, _READ_BY_CHARACTER)
"""A pattern that is not known before the message is."""
_FOR_LITERAL: Final = 16
"""`str.find` takes time in proportion to the text and, at worst, to what it looks for up to 100 characters."""
_LITERAL_MOST: Final = 1_600
_FOR_PLACES: Final = 80
"""Finding the places of one character."""
_FOR_SHIFT: Final = 2
_OF_ACTION: Final = Cost(60, 300)
"""A copy is written anew, and held until all are."""
_OF_STATEMENT: Final = Cost(5, 50)


def cost_of(node: Node) -> Cost:
    """What it costs to evaluate a filter, or a part of it."""
    return _PRICES[type(node)](node)


def cost_of_action(statements: Iterable[SetTo | Remove]) -> Cost:
    """What it costs to make a copy with an action."""
    costs = [_OF_ACTION]
    for statement in statements:
        costs.append(_OF_STATEMENT)
        if isinstance(statement, SetTo):
            costs.append(cost_of(statement.value))
    return _sum(costs)


def _sum(costs: Iterable[Cost]) -> Cost:
    fixed = sized = 0
    for cost in costs:
        fixed += cost.fixed
        sized += cost.sized
    return Cost(fixed, sized)


def _of_parts(node: And | Or) -> Cost:
    return _sum(map(cost_of, node.parts))


def _of_comparison(node: Compare) -> Cost:
    is_short = isinstance(node.left, Constant) or isinstance(node.right, Constant)
    return _sum([_STEP if is_short else _OF_COMPARISON, cost_of(node.left), cost_of(node.right)])


def _of_choices(node: OneOf) -> Cost:
    costs = [_STEP, cost_of(node.value)]
    for choice in node.choices:
        costs += [_STEP if isinstance(choice, Constant) else _OF_COMPARISON, cost_of(choice)]
    return _sum(costs)


def _of_like(node: Like) -> Cost:
    costs = [_STEP, cost_of(node.value)]
    if isinstance(node.pattern, Pattern):
        costs.append(_of_pattern(node.pattern))
    else:
        costs += [_MADE_PATTERN, cost_of(node.pattern), cost_of(node.escape) if node.escape is not None else _FREE]
    return _sum(costs)


def _of_pattern(pattern: Pattern) -> Cost:
    sized = 0
    for stretch in pattern.inner:
        if stretch.wanted:
            sized += _FOR_SHIFT * stretch.literals
        else:
            sized += min(_FOR_LITERAL * stretch.literals, _LITERAL_MOST)
    characters = len(pattern.wanted)
    sized += min(_FOR_PLACES * characters, _READ_BY_CHARACTER)
    return Cost(len(pattern.inner), sized)


def _of_chain(node: Chain) -> Cost:
    costs = [cost_of(node.first)]
    for _, operand in node.rest:
        costs += [_OF_OPERAND, cost_of(operand)]
    return _sum(costs)


_PRICES: Final[dict[type, Callable[[Any], Cost]]] = {
    Constant: lambda _: _FREE,
    Property: lambda _: _FREE,
    Known: lambda _: _FREE,
    Exists: lambda _: _STEP,
    NewId: lambda _: _OF_NEW_ID,
    Named: lambda node: _sum([_OF_NAME, cost_of(node.name)]),
    Signed: lambda node: _sum([_STEP, cost_of(node.operand)]),
    Chain: _of_chain,
    Compare: _of_comparison,
    OneOf: _of_choices,
    Like: _of_like,
    IsNull: lambda node: _sum([_STEP, cost_of(node.value)]),
    Not: lambda node: cost_of(node.operand),
    And: _of_parts,
    Or: _of_parts,
}
