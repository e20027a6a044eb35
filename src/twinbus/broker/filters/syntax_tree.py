"""Syntax trees of filters and actions, built once for each rule.

Owns the node classes and the functions that combine predicates. `parser` builds the nodes from text, and `evaluator`
compiles them to functions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable
    from uuid import UUID

    from twinbus.broker.filters.like_pattern import LikePattern

PropertyKey: TypeAlias = "int | bytes"
"""Index into `system_properties.SYSTEM_PROPERTIES`, or the name of a user property in lower case as UTF-8."""

# --- values -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Constant:
    """Constant value."""

    value: object


@dataclass(frozen=True, slots=True)
class Property:
    """Reference to a property of the message."""

    key: PropertyKey
    name: str
    """Name as the expression spells it."""


@dataclass(frozen=True, slots=True)
class DynamicProperty:
    """`property(name)` with a name that depends on the message."""

    name: Node


@dataclass(frozen=True, slots=True)
class NewId:
    """Call to `newid()`."""

    make: Callable[[], UUID]


@dataclass(frozen=True, slots=True)
class UnaryOperation:
    """Unary plus or minus."""

    op: str
    operand: Node


@dataclass(frozen=True, slots=True)
class ArithmeticChain:
    """Values combined from left to right by arithmetic operators."""

    first: Node
    rest: tuple[tuple[str, Node], ...]


# --- predicates -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ConstantPredicate:
    """Predicate with the same result for every message: true, false or unknown (None)."""

    value: bool | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """Comparison of two values by an operator of `values.COMPARISONS`."""

    op: str
    left: Node
    right: Node


@dataclass(frozen=True, slots=True)
class In:
    """`IN`: whether a value equals any of the choices."""

    value: Node
    choices: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Like:
    """`LIKE`; a constant pattern is already compiled."""

    value: Node
    pattern: LikePattern | Node
    escape: Node | None


@dataclass(frozen=True, slots=True)
class IsNull:
    """`IS NULL`: whether a value is null or its property is absent."""

    value: Node


@dataclass(frozen=True, slots=True)
class Exists:
    """`EXISTS`: whether a property is present, even if it is null."""

    property_key: PropertyKey


@dataclass(frozen=True, slots=True)
class Not:
    """`NOT`: the opposite of a predicate; the opposite of unknown is unknown."""

    operand: Node


@dataclass(frozen=True, slots=True)
class And:
    """Conjunction of at least two operands, none of which is an And."""

    operands: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Or:
    """Disjunction of at least two operands, none of which is an Or."""

    operands: tuple[Node, ...]


Node: TypeAlias = (
    "Constant | Property | DynamicProperty | NewId | UnaryOperation | ArithmeticChain"
    " | ConstantPredicate | Comparison | In | Like | IsNull | Exists | Not | And | Or"
)


def conjunction(operands: list[Node]) -> Node:
    """Return the conjunction of predicates, flattened and simplified."""
    flat = [inner for operand in operands for inner in (operand.operands if isinstance(operand, And) else (operand,))]
    if ConstantPredicate(value=False) in flat:
        return ConstantPredicate(value=False)
    remaining = [operand for operand in flat if operand != ConstantPredicate(value=True)]
    if len(remaining) > 1:
        return And(tuple(remaining))
    return remaining[0] if remaining else ConstantPredicate(value=True)


def disjunction(operands: list[Node]) -> Node:
    """Return the disjunction of predicates, flattened and simplified."""
    flat = [inner for operand in operands for inner in (operand.operands if isinstance(operand, Or) else (operand,))]
    if ConstantPredicate(value=True) in flat:
        return ConstantPredicate(value=True)
    remaining = [operand for operand in flat if operand != ConstantPredicate(value=False)]
    if len(remaining) > 1:
        return Or(tuple(remaining))
    return remaining[0] if remaining else ConstantPredicate(value=False)


def negation(node: Node) -> Node:
    """Return the negation of a predicate, folded if it is constant."""
    if isinstance(node, ConstantPredicate):
        return ConstantPredicate(value=None if node.value is None else not node.value)
    return Not(node)


def user_property_key(name: str) -> bytes:
    """Return the key of a user property; names are case-insensitive."""
    return name.lower().encode("utf-8", "surrogatepass")


# --- statements -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SetStatement:
    """`SET property = value`."""

    target: Property
    value: Node
    position: int
    """Position of the property's name in the action's text."""


@dataclass(frozen=True, slots=True)
class RemoveStatement:
    """`REMOVE property`."""

    target: Property
    position: int
