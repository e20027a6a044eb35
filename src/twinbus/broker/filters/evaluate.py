"""From the nodes of an expression to functions of a message.

Each node becomes a closure over what is known of it, so that evaluating an expression decides nothing that its text
decided already. Predicates are true, false or unknown (None), as in SQL; a filter matches where it is true.

Owns: evaluation. What values are, and how they combine, is for `values`, `arithmetic` and `like` to say.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias

from twinbus.broker.filters.arithmetic import SIGNS, combine
from twinbus.broker.filters.errors import FilterError
from twinbus.broker.filters.like import Pattern, pattern_of
from twinbus.broker.filters.lookup import in_order
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
    Node,
    Not,
    OneOf,
    Or,
    Property,
    Signed,
    user_address,
)
from twinbus.broker.filters.values import COMPARISONS, KINDS, compare, compares, described, equal

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinbus.broker.filters.view import View

    Evaluate: TypeAlias = Callable[[View], object]
    Truth: TypeAlias = Callable[[View], bool | None]
    Holds: TypeAlias = Callable[[View], bool]

# --- filters ----------------------------------------------------------------------------------------------------------


def holds(node: Node) -> Holds:
    """Whether a predicate is true.

    Unknown and false are the same here, so that a conjunction ends with its first part that is not true.
    """
    if isinstance(node, And):
        return _all([holds(part) for part in in_order(node)])
    if isinstance(node, Or):
        return _any([holds(part) for part in node.parts])
    test = truth(node)
    return lambda view: test(view) is True


def _all(parts: list[Holds]) -> Holds:
    def test(view: View) -> bool:
        for part in parts:  # noqa: SIM110  # a generator would take longer than the parts
            if not part(view):
                return False
        return True

    return test


def _any(parts: list[Holds]) -> Holds:
    def test(view: View) -> bool:
        for part in parts:  # noqa: SIM110
            if part(view):
                return True
        return False

    return test


# --- predicates -------------------------------------------------------------------------------------------------------


def truth(node: Node) -> Truth:
    """A predicate: true, false, or None where that is unknown."""
    return _PREDICATES[type(node)](node)


def _known(node: Known) -> Truth:
    known = node.truth
    return lambda _view: known


def _is_null(node: IsNull) -> Truth:
    inner = value(node.value)
    return lambda view: inner(view) is None


def _exists(node: Exists) -> Truth:
    address = node.address
    return lambda view: view.exists(address)


def _and(node: And) -> Truth:
    return _decided([truth(part) for part in node.parts], by=False)


def _or(node: Or) -> Truth:
    return _decided([truth(part) for part in node.parts], by=True)


def _comparison(node: Compare) -> Truth:
    sign = node.sign
    if isinstance(node.left, Property) and isinstance(node.right, Constant):
        return _comparison_with(node.left, sign, node.right.value)
    left, right = value(node.left), value(node.right)
    return lambda view: compare(sign, left(view), right(view))


def _comparison_with(left: Property, sign: str, constant: object) -> Truth:
    """What most filters consist of."""
    address, kind, test = left.address, KINDS.get(type(constant), 0), COMPARISONS[sign]
    if not compares(sign, kind):
        return lambda _view: None

    def compare_property(view: View) -> bool | None:
        found = view.value(address)
        return test(found, constant) if KINDS.get(type(found), 0) == kind else None

    return compare_property


def _one_of(node: OneOf) -> Truth:
    inner, choices = value(node.value), [value(choice) for choice in node.choices]

    def test(view: View) -> bool | None:
        found = inner(view)
        answer: bool | None = False
        for choice in choices:
            is_equal = equal(found, choice(view))
            if is_equal:
                return True
            if is_equal is None:
                answer = None
        return answer

    return test


def _like(node: Like) -> Truth:
    inner = value(node.value)
    if isinstance(node.pattern, Pattern):
        ready = node.pattern

        def test_known(view: View) -> bool | None:
            found = inner(view)
            return ready.matches(found) if isinstance(found, str) else None

        return test_known
    pattern = value(node.pattern)
    escape: Evaluate = value(node.escape) if node.escape is not None else lambda _view: ""

    def test(view: View) -> bool | None:
        found, wanted, escaping = inner(view), pattern(view), escape(view)
        if not isinstance(found, str) or not isinstance(wanted, str) or not isinstance(escaping, str):
            return None
        return pattern_of(wanted, escaping if node.escape is not None else None).matches(found)

    return test


def _not(node: Not) -> Truth:
    inner = truth(node.operand)

    def test(view: View) -> bool | None:
        found = inner(view)
        return None if found is None else not found

    return test


def _decided(parts: list[Truth], *, by: bool) -> Truth:
    """The first part that is so decides; else the opposite, or unknown if any part is."""

    def test(view: View) -> bool | None:
        answer: bool | None = not by
        for part in parts:
            found = part(view)
            if found is by:
                return by
            if found is None:
                answer = None
        return answer

    return test


_PREDICATES: Final[dict[type, Callable[[Any], Truth]]] = {
    Compare: _comparison,
    OneOf: _one_of,
    Like: _like,
    IsNull: _is_null,
    Exists: _exists,
    Not: _not,
    And: _and,
    Or: _or,
    Known: _known,
}


# --- values -----------------------------------------------------------------------------------------------------------


def value(node: Node) -> Evaluate:
    """A value."""
    if isinstance(node, Property):
        address = node.address
        return lambda view: view.value(address)
    if isinstance(node, Constant):
        constant = node.value
        return lambda _view: constant
    if isinstance(node, Named):
        return _named(value(node.name))
    if isinstance(node, NewId):
        make = node.make
        return lambda _view: make()
    if isinstance(node, Signed):
        inner, operation = value(node.operand), SIGNS[node.sign]
        return lambda view: operation(inner(view))
    assert isinstance(node, Chain)
    return _chain(value(node.first), [(sign, value(operand)) for sign, operand in node.rest])


def _named(name: Evaluate) -> Evaluate:
    def find(view: View) -> object:
        found = name(view)
        if found is None:
            return None
        if not isinstance(found, str):
            raise FilterError(f"a property is named by a text, not by {described(found)}")
        return view.value(user_address(found))

    return find


def _chain(first: Evaluate, rest: list[tuple[str, Evaluate]]) -> Evaluate:
    def work_out(view: View) -> object:
        result = first(view)
        for sign, operand in rest:
            result = combine(sign, result, operand(view))
        return result

    return work_out
