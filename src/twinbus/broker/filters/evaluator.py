"""From the nodes of an expression to functions of a message.

Each node becomes a closure over what is known of it, so that evaluating an expression decides nothing that its text
decided already. Predicates are true, false or unknown (None), as in SQL; a filter matches where it is true.

Owns: evaluation. What values are, and how they combine, is for `values`, `arithmetic` and `like` to say.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias

from twinbus.broker.filters.arithmetic import UNARY_OPERATORS, combine
from twinbus.broker.filters.equality_lookup import evaluation_order
from twinbus.broker.filters.errors import FilterError
from twinbus.broker.filters.like_pattern import LikePattern, cached_pattern
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
    Node,
    Not,
    Or,
    Property,
    UnaryOperation,
    user_property_key,
)
from twinbus.broker.filters.values import COMPARISONS, KINDS, compare, equal, is_comparable, kind_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinbus.broker.filters.message_view import MessageView

    Evaluator: TypeAlias = Callable[[MessageView], object]
    Predicate: TypeAlias = Callable[[MessageView], bool | None]
    Test: TypeAlias = Callable[[MessageView], bool]

# --- filters ----------------------------------------------------------------------------------------------------------


def compile_filter(node: Node) -> Test:
    """Whether a predicate is true.

    Unknown and false are the same here, so that a conjunction ends with its first part that is not true.
    """
    if isinstance(node, And):
        return _all([compile_filter(part) for part in evaluation_order(node)])
    if isinstance(node, Or):
        return _any([compile_filter(part) for part in node.operands])
    test = compile_predicate(node)
    return lambda view: test(view) is True


def _all(operands: list[Test]) -> Test:
    def test(view: MessageView) -> bool:
        for part in operands:  # noqa: SIM110  # a generator would take longer than the parts
            if not part(view):
                return False
        return True

    return test


def _any(operands: list[Test]) -> Test:
    def test(view: MessageView) -> bool:
        for part in operands:  # noqa: SIM110
            if part(view):
                return True
        return False

    return test


# --- predicates -------------------------------------------------------------------------------------------------------


def compile_predicate(node: Node) -> Predicate:
    """A predicate: true, false, or None where that is unknown."""
    return _PREDICATES[type(node)](node)


def _constant(node: ConstantPredicate) -> Predicate:
    known = node.value
    return lambda _view: known


def _is_null(node: IsNull) -> Predicate:
    inner = compile_value(node.value)
    return lambda view: inner(view) is None


def _exists(node: Exists) -> Predicate:
    address = node.property_key
    return lambda view: view.exists(address)


def _and(node: And) -> Predicate:
    return _first_decisive([compile_predicate(part) for part in node.operands], deciding=False)


def _or(node: Or) -> Predicate:
    return _first_decisive([compile_predicate(part) for part in node.operands], deciding=True)


def _comparison(node: Comparison) -> Predicate:
    sign = node.op
    if isinstance(node.left, Property) and isinstance(node.right, Constant):
        return _comparison_with_constant(node.left, sign, node.right.value)
    left, right = compile_value(node.left), compile_value(node.right)
    return lambda view: compare(sign, left(view), right(view))


def _comparison_with_constant(target: Property, op: str, constant: object) -> Predicate:
    """What most filters consist of."""
    address, kind, test = target.key, KINDS.get(type(constant), 0), COMPARISONS[op]
    if not is_comparable(op, kind):
        return lambda _view: None

    def compare_property(view: MessageView) -> bool | None:
        found = view.value(address)
        return test(found, constant) if KINDS.get(type(found), 0) == kind else None

    return compare_property


def _in(node: In) -> Predicate:
    inner, choices = compile_value(node.value), [compile_value(choice) for choice in node.choices]

    def test(view: MessageView) -> bool | None:
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


def _like(node: Like) -> Predicate:
    inner = compile_value(node.value)
    if isinstance(node.pattern, LikePattern):
        ready = node.pattern

        def test_known(view: MessageView) -> bool | None:
            found = inner(view)
            return ready.matches(found) if isinstance(found, str) else None

        return test_known
    pattern = compile_value(node.pattern)
    escape: Evaluator = compile_value(node.escape) if node.escape is not None else lambda _view: ""

    def test(view: MessageView) -> bool | None:
        found, wanted, escaping = inner(view), pattern(view), escape(view)
        if not isinstance(found, str) or not isinstance(wanted, str) or not isinstance(escaping, str):
            return None
        return cached_pattern(wanted, escaping if node.escape is not None else None).matches(found)

    return test


def _not(node: Not) -> Predicate:
    inner = compile_predicate(node.operand)

    def test(view: MessageView) -> bool | None:
        found = inner(view)
        return None if found is None else not found

    return test


def _first_decisive(operands: list[Predicate], *, deciding: bool) -> Predicate:
    """The first part that is so decides; else the opposite, or unknown if any part is."""

    def test(view: MessageView) -> bool | None:
        answer: bool | None = not deciding
        for part in operands:
            found = part(view)
            if found is deciding:
                return deciding
            if found is None:
                answer = None
        return answer

    return test


_PREDICATES: Final[dict[type, Callable[[Any], Predicate]]] = {
    Comparison: _comparison,
    In: _in,
    Like: _like,
    IsNull: _is_null,
    Exists: _exists,
    Not: _not,
    And: _and,
    Or: _or,
    ConstantPredicate: _constant,
}


# --- values -----------------------------------------------------------------------------------------------------------


def compile_value(node: Node) -> Evaluator:
    """A value."""
    if isinstance(node, Property):
        address = node.key
        return lambda view: view.value(address)
    if isinstance(node, Constant):
        constant = node.value
        return lambda _view: constant
    if isinstance(node, DynamicProperty):
        return _dynamic_property(compile_value(node.name))
    if isinstance(node, NewId):
        make = node.make
        return lambda _view: make()
    if isinstance(node, UnaryOperation):
        inner, operation = compile_value(node.operand), UNARY_OPERATORS[node.op]
        return lambda view: operation(inner(view))
    assert isinstance(node, ArithmeticChain)
    return _arithmetic(compile_value(node.first), [(sign, compile_value(operand)) for sign, operand in node.rest])


def _dynamic_property(name: Evaluator) -> Evaluator:
    def find(view: MessageView) -> object:
        found = name(view)
        if found is None:
            return None
        if not isinstance(found, str):
            raise FilterError(f"a property is named by a text, not by {kind_name(found)}")
        return view.value(user_property_key(found))

    return find


def _arithmetic(first: Evaluator, rest: list[tuple[str, Evaluator]]) -> Evaluator:
    def work_out(view: MessageView) -> object:
        result = first(view)
        for sign, operand in rest:
            result = combine(sign, result, operand(view))
        return result

    return work_out
