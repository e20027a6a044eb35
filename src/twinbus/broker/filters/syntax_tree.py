"""What filters and actions say: trees of small nodes, made once for each rule.

Owns: the nodes, and how predicates are put together. `reader` makes them of text, `evaluate` functions of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable
    from uuid import UUID

    from twinbus.broker.filters.like_pattern import LikePattern

PropertyKey: TypeAlias = "int | bytes"
"""Which property: a line of `system.SYSTEM`, or the name of one of the sender's, in lower case, as UTF-8."""

# --- values -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Constant:
    """A value that is known."""

    value: object


@dataclass(frozen=True, slots=True)
class Property:
    """A property of the message."""

    key: PropertyKey
    name: str
    """As it was written."""


@dataclass(frozen=True, slots=True)
class DynamicProperty:
    """`property(name)`, where the name is not known before the message is."""

    name: Node


@dataclass(frozen=True, slots=True)
class NewId:
    """`newid()`."""

    make: Callable[[], UUID]


@dataclass(frozen=True, slots=True)
class UnaryOperation:
    """A sign before a value."""

    op: str
    operand: Node


@dataclass(frozen=True, slots=True)
class ArithmeticChain:
    """Values that are combined from left to right."""

    first: Node
    rest: tuple[tuple[str, Node], ...]


# --- predicates -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ConstantPredicate:
    """True, false or unknown (None), for any message."""

    value: bool | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two values and one of the signs of `values.COMPARISONS`."""

    op: str
    left: Node
    right: Node


@dataclass(frozen=True, slots=True)
class In:
    """IN: equal to any of these."""

    value: Node
    choices: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Like:
    """LIKE. A pattern that is known is ready."""

    value: Node
    pattern: LikePattern | Node
    escape: Node | None


@dataclass(frozen=True, slots=True)
class IsNull:
    """Null, or not there."""

    value: Node


@dataclass(frozen=True, slots=True)
class Exists:
    """There, be it null."""

    property_key: PropertyKey


@dataclass(frozen=True, slots=True)
class Not:
    """The opposite; of unknown: unknown."""

    operand: Node


@dataclass(frozen=True, slots=True)
class And:
    """All of these; at least two, and none of them an And."""

    operands: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Or:
    """Any of these; at least two, and none of them an Or."""

    operands: tuple[Node, ...]


Node: TypeAlias = (
    "Constant | Property | DynamicProperty | NewId | UnaryOperation | ArithmeticChain"
    " | ConstantPredicate | Comparison | In | Like | IsNull | Exists | Not | And | Or"
)


def conjunction(operands: list[Node]) -> Node:
    """Their conjunction, without what is true anyway."""
    flat = [inner for part in operands for inner in (part.operands if isinstance(part, And) else (part,))]
    if ConstantPredicate(value=False) in flat:
        return ConstantPredicate(value=False)
    left = [part for part in flat if part != ConstantPredicate(value=True)]
    if len(left) > 1:
        return And(tuple(left))
    return left[0] if left else ConstantPredicate(value=True)


def disjunction(operands: list[Node]) -> Node:
    """Their disjunction, without what is false anyway."""
    flat = [inner for part in operands for inner in (part.operands if isinstance(part, Or) else (part,))]
    if ConstantPredicate(value=True) in flat:
        return ConstantPredicate(value=True)
    left = [part for part in flat if part != ConstantPredicate(value=False)]
    if len(left) > 1:
        return Or(tuple(left))
    return left[0] if left else ConstantPredicate(value=False)


def negation(node: Node) -> Node:
    """NOT."""
    if isinstance(node, ConstantPredicate):
        return ConstantPredicate(value=None if node.value is None else not node.value)
    return Not(node)


def user_property_key(name: str) -> bytes:
    """Where a property of the sender's is found: case does not matter."""
    return name.lower().encode("utf-8", "surrogatepass")


# --- statements -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SetStatement:
    """`SET property = value`."""

    target: Property
    value: Node
    position: int
    """The character of the text where the property is named."""


@dataclass(frozen=True, slots=True)
class RemoveStatement:
    """`REMOVE property`."""

    target: Property
    position: int
