"""Compiler from syntax tree nodes to functions that evaluate a message.

Each node becomes a closure, so that decisions that depend only on the expression's text are made once, at compile time.
Predicates are true, false or unknown (None), as in SQL; a filter matches a message if its predicate is true.

Owns evaluation. `values`, `arithmetic` and `like_pattern` define the values and the operations on them.
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
    """Compile a predicate to a function that returns whether the predicate is true for a message.

    Unknown counts as false, so evaluating a conjunction stops at the first operand that is not true.
    """
    if isinstance(node, And):
        return _all([compile_filter(operand) for operand in evaluation_order(node)])
    if isinstance(node, Or):
        return _any([compile_filter(operand) for operand in node.operands])
    test = compile_predicate(node)
    return lambda view: test(view) is True


def _all(operands: list[Test]) -> Test:
    def test(view: MessageView) -> bool:
        for operand in operands:  # noqa: SIM110  # a generator would take longer than the operands
            if not operand(view):
                return False
        return True

    return test


def _any(operands: list[Test]) -> Test:
    def test(view: MessageView) -> bool:
        for operand in operands:  # noqa: SIM110
            if operand(view):
                return True
        return False

    return test


# --- predicates -------------------------------------------------------------------------------------------------------


def compile_predicate(node: Node) -> Predicate:
    """Compile a predicate to a function that returns True, False, or None if the result is unknown."""
    return _PREDICATES[type(node)](node)


def _constant(node: ConstantPredicate) -> Predicate:
    value = node.value
    return lambda _view: value


def _is_null(node: IsNull) -> Predicate:
    value = compile_value(node.value)
    return lambda view: value(view) is None


def _exists(node: Exists) -> Predicate:
    key = node.property_key
    return lambda view: view.exists(key)


def _and(node: And) -> Predicate:
    return _first_decisive([compile_predicate(operand) for operand in node.operands], deciding=False)


def _or(node: Or) -> Predicate:
    return _first_decisive([compile_predicate(operand) for operand in node.operands], deciding=True)


def _comparison(node: Comparison) -> Predicate:
    op = node.op
    if isinstance(node.left, Property) and isinstance(node.right, Constant):
        return _comparison_with_constant(node.left, op, node.right.value)
    left, right = compile_value(node.left), compile_value(node.right)
    return lambda view: compare(op, left(view), right(view))


def _comparison_with_constant(target: Property, op: str, constant: object) -> Predicate:
    """Compile the comparison of a property with a constant, the most common predicate of filters."""
    key, kind, test = target.key, KINDS.get(type(constant), 0), COMPARISONS[op]
    if not is_comparable(op, kind):
        return lambda _view: None

    def compare_property(view: MessageView) -> bool | None:
        value = view.value(key)
        return test(value, constant) if KINDS.get(type(value), 0) == kind else None

    return compare_property


def _in(node: In) -> Predicate:
    value_of, choices = compile_value(node.value), [compile_value(choice) for choice in node.choices]

    def test(view: MessageView) -> bool | None:
        value = value_of(view)
        result: bool | None = False
        for choice in choices:
            is_equal = equal(value, choice(view))
            if is_equal:
                return True
            if is_equal is None:
                result = None
        return result

    return test


def _like(node: Like) -> Predicate:
    value_of = compile_value(node.value)
    if isinstance(node.pattern, LikePattern):
        compiled = node.pattern

        def test_compiled(view: MessageView) -> bool | None:
            value = value_of(view)
            return compiled.matches(value) if isinstance(value, str) else None

        return test_compiled
    pattern = compile_value(node.pattern)
    escape: Evaluator = compile_value(node.escape) if node.escape is not None else lambda _view: ""

    def test(view: MessageView) -> bool | None:
        value, pattern_text, escape_character = value_of(view), pattern(view), escape(view)
        if not isinstance(value, str) or not isinstance(pattern_text, str) or not isinstance(escape_character, str):
            return None
        return cached_pattern(pattern_text, escape_character if node.escape is not None else None).matches(value)

    return test


def _not(node: Not) -> Predicate:
    operand = compile_predicate(node.operand)

    def test(view: MessageView) -> bool | None:
        result = operand(view)
        return None if result is None else not result

    return test


def _first_decisive(operands: list[Predicate], *, deciding: bool) -> Predicate:
    """Return the predicate for AND (`deciding` is False) or OR (`deciding` is True).

    The result is `deciding` if any operand has this value, else unknown if any operand is unknown, else the opposite of
    `deciding`.
    """

    def test(view: MessageView) -> bool | None:
        result: bool | None = not deciding
        for operand in operands:
            value = operand(view)
            if value is deciding:
                return deciding
            if value is None:
                result = None
        return result

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
    """Compile a value expression to a function that returns its value for a message."""
    if isinstance(node, Property):
        key = node.key
        return lambda view: view.value(key)
    if isinstance(node, Constant):
        constant = node.value
        return lambda _view: constant
    if isinstance(node, DynamicProperty):
        return _dynamic_property(compile_value(node.name))
    if isinstance(node, NewId):
        new_id = node.make
        return lambda _view: new_id()
    if isinstance(node, UnaryOperation):
        operand_of, operation = compile_value(node.operand), UNARY_OPERATORS[node.op]
        return lambda view: operation(operand_of(view))
    assert isinstance(node, ArithmeticChain)
    return _arithmetic(compile_value(node.first), [(op, compile_value(operand)) for op, operand in node.rest])


def _dynamic_property(name: Evaluator) -> Evaluator:
    def find(view: MessageView) -> object:
        value = name(view)
        if value is None:
            return None
        if not isinstance(value, str):
            raise FilterError(f"the name of a property must be a string, not {kind_name(value)}")
        return view.value(user_property_key(value))

    return find


def _arithmetic(first: Evaluator, rest: list[tuple[str, Evaluator]]) -> Evaluator:
    def calculate(view: MessageView) -> object:
        result = first(view)
        for op, operand in rest:
            result = combine(op, result, operand(view))
        return result

    return calculate
