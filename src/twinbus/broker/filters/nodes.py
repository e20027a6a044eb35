"""What filters and actions say: trees of small nodes, made once for each rule.

Owns: the nodes, and how predicates are put together. `reader` makes them of text, `evaluate` functions of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable
    from uuid import UUID

    from twinbus.broker.filters.like import Pattern

Address: TypeAlias = "int | bytes"
"""Which property: a line of `system.SYSTEM`, or the name of one of the sender's, in lower case, as UTF-8."""

# --- values -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Constant:
    """A value that is known."""

    value: object


@dataclass(frozen=True, slots=True)
class Property:
    """A property of the message."""

    address: Address
    name: str
    """As it was written."""


@dataclass(frozen=True, slots=True)
class Named:
    """`property(name)`, where the name is not known before the message is."""

    name: Node


@dataclass(frozen=True, slots=True)
class NewId:
    """`newid()`."""

    make: Callable[[], UUID]


@dataclass(frozen=True, slots=True)
class Signed:
    """A sign before a value."""

    sign: str
    operand: Node


@dataclass(frozen=True, slots=True)
class Chain:
    """Values that are combined from left to right."""

    first: Node
    rest: tuple[tuple[str, Node], ...]


# --- predicates -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Known:
    """True, false or unknown (None), for any message."""

    truth: bool | None


@dataclass(frozen=True, slots=True)
class Compare:
    """Two values and one of the signs of `values.COMPARISONS`."""

    sign: str
    left: Node
    right: Node


@dataclass(frozen=True, slots=True)
class OneOf:
    """IN: equal to any of these."""

    value: Node
    choices: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Like:
    """LIKE. A pattern that is known is ready."""

    value: Node
    pattern: Pattern | Node
    escape: Node | None


@dataclass(frozen=True, slots=True)
class IsNull:
    """Null, or not there."""

    value: Node


@dataclass(frozen=True, slots=True)
class Exists:
    """There, be it null."""

    address: Address


@dataclass(frozen=True, slots=True)
class Not:
    """The opposite; of unknown: unknown."""

    operand: Node


@dataclass(frozen=True, slots=True)
class And:
    """All of these; at least two, and none of them an And."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Or:
    """Any of these; at least two, and none of them an Or."""

    parts: tuple[Node, ...]


Node: TypeAlias = (
    "Constant | Property | Named | NewId | Signed | Chain"
    " | Known | Compare | OneOf | Like | IsNull | Exists | Not | And | Or"
)


def all_of(parts: list[Node]) -> Node:
    """Their conjunction, without what is true anyway."""
    flat = [inner for part in parts for inner in (part.parts if isinstance(part, And) else (part,))]
    if Known(truth=False) in flat:
        return Known(truth=False)
    left = [part for part in flat if part != Known(truth=True)]
    if len(left) > 1:
        return And(tuple(left))
    return left[0] if left else Known(truth=True)


def any_of(parts: list[Node]) -> Node:
    """Their disjunction, without what is false anyway."""
    flat = [inner for part in parts for inner in (part.parts if isinstance(part, Or) else (part,))]
    if Known(truth=True) in flat:
        return Known(truth=True)
    left = [part for part in flat if part != Known(truth=False)]
    if len(left) > 1:
        return Or(tuple(left))
    return left[0] if left else Known(truth=False)


def opposite(node: Node) -> Node:
    """NOT."""
    if isinstance(node, Known):
        return Known(truth=None if node.truth is None else not node.truth)
    return Not(node)


def user_address(name: str) -> bytes:
    """Where a property of the sender's is found: case does not matter."""
    return name.lower().encode("utf-8", "surrogatepass")


# --- statements -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SetTo:
    """`SET property = value`."""

    target: Property
    value: Node
    at: int
    """The character of the text where the property is named."""


@dataclass(frozen=True, slots=True)
class Remove:
    """`REMOVE property`."""

    target: Property
    at: int
