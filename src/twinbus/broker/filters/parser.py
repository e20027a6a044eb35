"""Parser of filters and actions: from text to `syntax_tree` nodes.

Everything that does not depend on a message is resolved here: constants are folded, parameters are substituted and
names are looked up. `1 = 1` becomes one constant node, and an expression that can never work is rejected with its
position.

Owns the translation of each construct of the grammar into nodes. Knows nothing of evaluation.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar, Final

from lark import Token, Tree

from twinbus.broker.filters import arithmetic, grammar
from twinbus.broker.filters.errors import FilterError
from twinbus.broker.filters.like_pattern import LikePattern
from twinbus.broker.filters.syntax_tree import (
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
    Property,
    RemoveStatement,
    SetStatement,
    UnaryOperation,
    conjunction,
    disjunction,
    negation,
    user_property_key,
)
from twinbus.broker.filters.system_properties import PROPERTY_NUMBERS, property_names
from twinbus.broker.filters.values import compare, equal, kind_name

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from uuid import UUID

    from twinbus.model.errors import InvalidArgument

MAX_DEPTH: Final = 50
"""Largest depth of an expression; a chain of ANDs or sums is one level, however long."""


class ExpressionParser:
    """Parser of one filter or action."""

    def __init__(self, text: str, kind: str, parameters: Mapping[str, object], new_id: Callable[[], UUID]) -> None:
        """Create a parser; `kind` is "filter" or "action". Parameter names ignore case and may start with @."""
        self._text = text
        self._kind = kind
        self._parameters = {name.removeprefix("@").lower(): value for name, value in parameters.items()}
        self._new_id = new_id

    def parse_filter(self) -> Node:
        """Parse the text as a filter; raise InvalidArgument if it is not valid."""
        return self._parse(grammar.parse(self._text, self._kind), 0)

    def parse_action(self) -> list[SetStatement | RemoveStatement]:
        """Parse the text as the statements of an action; raise InvalidArgument if it is not valid."""
        return [self._statement(tree) for tree in _trees(grammar.parse(self._text, self._kind))]

    def syntax_error(self, position: int, message: str) -> InvalidArgument:
        """Return an error with the line and column of the character at `position`."""
        return grammar.syntax_error(self._text, self._kind, position, message)

    def _error_at(self, node: Tree[Token] | Token, message: str) -> InvalidArgument:
        return self.syntax_error(_position_of(node), message)

    def _statement(self, tree: Tree[Token]) -> SetStatement | RemoveStatement:
        target, *values = _trees(tree)
        prop = self._property(target, 0)
        at = _position_of(target)
        return SetStatement(prop, self._parse(values[0], 0), at) if values else RemoveStatement(prop, at)

    def _parse(self, tree: Tree[Token], depth: int) -> Node:
        if depth > MAX_DEPTH:
            raise self._error_at(tree, f"the expression is nested deeper than {MAX_DEPTH} levels")
        node: Node = self._NODE_PARSERS[tree.data](self, tree, depth + 1)
        return node

    def _parse_children(self, tree: Tree[Token], depth: int) -> list[Node]:
        return [self._parse(child, depth) for child in _trees(tree)]

    # --- values -------------------------------------------------------------------------------------------------------

    def _constant(self, tree: Tree[Token], _depth: int) -> Constant:
        token = _tokens(tree)[0]
        if token.type == "TEXT":
            return Constant(token[1:-1].replace("''", "'"))
        if token.type in ("INTEGER", "DECIMAL"):
            return self._number(token, "")
        return Constant({"TRUE": True, "FALSE": False, "NULL": None}[token.type])

    def _number(self, token: Token, sign: str) -> Constant:
        """Parse a number together with its sign: 9223372036854775808 fits into 64 bits only with a minus sign."""
        number = int(sign + token) if token.type == "INTEGER" else float(sign + token)
        if math.isinf(number) if isinstance(number, float) else not arithmetic.fits_long(number):
            raise self._error_at(token, "the number does not fit into 64 bits")
        return Constant(number)

    def _parameter(self, tree: Tree[Token], _depth: int) -> Constant:
        token = _tokens(tree)[0]
        name = token[1:].lower()
        if name not in self._parameters:
            raise self._error_at(token, f"the parameter {token} has no value")
        return Constant(self._parameters[name])

    def _property(self, tree: Tree[Token], _depth: int) -> Property:
        tokens = _tokens(tree)
        name = _name_of(tokens[-1])
        scope = _name_of(tokens[0]).lower() if len(tokens) > 1 else "user"
        if not name:
            raise self._error_at(tokens[-1], "the name of a property must have at least one character")
        if scope == "user":
            return Property(user_property_key(name), name)
        if scope != "sys":
            raise self._error_at(tree, f"unknown scope {tokens[0]}: use sys or user; put a name with a dot in [ ]")
        number = PROPERTY_NUMBERS.get(name.lower())
        if number is None:
            raise self._error_at(tokens[-1], f"unknown system property {name!r:.60}; use one of {property_names()}")
        return Property(number, name)

    def _call(self, tree: Tree[Token], depth: int) -> Node:
        function = _tokens(tree)[0].lower()
        arguments = self._parse_children(tree, depth)
        if function == "newid" and not arguments:
            return NewId(self._new_id)
        if function not in ("property", "p") or len(arguments) != 1:
            raise self._error_at(tree, "unknown function; use newid(), property(name) or p(name)")
        (name,) = arguments
        if not isinstance(name, Constant):
            return DynamicProperty(name)
        if isinstance(name.value, str) and name.value:
            return Property(user_property_key(name.value), name.value)
        raise self._error_at(tree, f"the name of a property must be a non-empty string, not {kind_name(name.value)}")

    def _sign(self, tree: Tree[Token], depth: int) -> Node:
        op = str(_tokens(tree)[0])
        (inner,) = _trees(tree)
        if inner.data == "constant" and _tokens(inner)[0].type in ("INTEGER", "DECIMAL"):
            return self._number(_tokens(inner)[0], op)
        operand = self._parse(inner, depth)
        if not isinstance(operand, Constant):
            return UnaryOperation(op, operand)
        try:
            return Constant(arithmetic.UNARY_OPERATORS[op](operand.value))
        except FilterError as error:
            raise self._error_at(tree, str(error)) from None

    def _arithmetic(self, tree: Tree[Token], depth: int) -> Node:
        first, *operands = self._parse_children(tree, depth)
        rest: list[tuple[str, Node]] = []
        for op, operand in zip(map(str, _tokens(tree)), operands, strict=True):
            if rest or not isinstance(first, Constant) or not isinstance(operand, Constant):
                rest.append((op, operand))
                continue
            try:
                first = Constant(arithmetic.combine(op, first.value, operand.value))
            except FilterError as error:
                raise self._error_at(tree, str(error)) from None
        return ArithmeticChain(first, tuple(rest)) if rest else first

    # --- predicates ---------------------------------------------------------------------------------------------------

    def _conjunction(self, tree: Tree[Token], depth: int) -> Node:
        return conjunction(self._parse_children(tree, depth))

    def _disjunction(self, tree: Tree[Token], depth: int) -> Node:
        return disjunction(self._parse_children(tree, depth))

    def _negation(self, tree: Tree[Token], depth: int) -> Node:
        return negation(self._parse_children(tree, depth)[0])

    def _comparison(self, tree: Tree[Token], depth: int) -> Node:
        left, right = self._parse_children(tree, depth)
        op = str(_tokens(tree)[0])
        if Constant(None) in (left, right):
            return ConstantPredicate(value=None)
        if isinstance(left, Constant) and isinstance(right, Constant):
            return ConstantPredicate(compare(op, left.value, right.value))
        return Comparison(op, left, right)

    def _in(self, tree: Tree[Token], depth: int) -> Node:
        value_tree, choices_tree = _trees(tree)
        value, choices = self._parse(value_tree, depth), self._parse_children(choices_tree, depth)
        if value == Constant(None) or all(choice == Constant(None) for choice in choices):
            return ConstantPredicate(value=None)
        if isinstance(value, Constant) and all(isinstance(choice, Constant) for choice in choices):
            results = [equal(value.value, choice.value) for choice in choices if isinstance(choice, Constant)]
            return ConstantPredicate(value=True if True in results else None if None in results else False)
        return In(value, tuple(choices))

    def _not_in(self, tree: Tree[Token], depth: int) -> Node:
        return negation(self._in(tree, depth))

    def _like(self, tree: Tree[Token], depth: int) -> Node:
        value, pattern, *escapes = self._parse_children(tree, depth)
        escape = escapes[0] if escapes else None
        if Constant(None) in (value, pattern, escape):
            return ConstantPredicate(value=None)
        for node in (pattern, escape):
            if isinstance(node, Constant) and not isinstance(node.value, str):
                complaint = f"a pattern and its escape character must be strings, not {kind_name(node.value)}"
                raise self._error_at(_trees(tree)[1], complaint)
        compiled = self._pattern(_trees(tree)[1], pattern, escape)
        if not isinstance(value, Constant) or not isinstance(compiled, LikePattern):
            return Like(value, compiled, escape)
        return ConstantPredicate(compiled.matches(value.value) if isinstance(value.value, str) else None)

    def _pattern(self, tree: Tree[Token], pattern: Node, escape: Node | None) -> LikePattern | Node:
        if not isinstance(pattern, Constant) or not (escape is None or isinstance(escape, Constant)):
            return pattern
        try:
            return LikePattern(str(pattern.value), None if escape is None else str(escape.value))
        except FilterError as error:
            raise self._error_at(tree, str(error)) from None

    def _not_like(self, tree: Tree[Token], depth: int) -> Node:
        return negation(self._like(tree, depth))

    def _is_null(self, tree: Tree[Token], depth: int) -> Node:
        (value,) = self._parse_children(tree, depth)
        return ConstantPredicate(value.value is None) if isinstance(value, Constant) else IsNull(value)

    def _is_not_null(self, tree: Tree[Token], depth: int) -> Node:
        return negation(self._is_null(tree, depth))

    def _exists(self, tree: Tree[Token], depth: int) -> Node:
        return Exists(self._property(_trees(tree)[0], depth).key)

    _NODE_PARSERS: ClassVar[dict[str, Callable[[ExpressionParser, Tree[Token], int], Node]]] = {
        "constant": _constant,
        "parameter": _parameter,
        "property": _property,
        "call": _call,
        "sign": _sign,
        "sum": _arithmetic,
        "product": _arithmetic,
        "conjunction": _conjunction,
        "disjunction": _disjunction,
        "negation": _negation,
        "comparison": _comparison,
        "one_of": _in,
        "none_of": _not_in,
        "like": _like,
        "unlike": _not_like,
        "is_null": _is_null,
        "is_not_null": _is_not_null,
        "exists": _exists,
    }
    """Parsing methods by the names of grammar rules."""


def _trees(tree: Tree[Token]) -> list[Tree[Token]]:
    return [child for child in tree.children if isinstance(child, Tree)]


def _tokens(tree: Tree[Token]) -> list[Token]:
    return [child for child in tree.children if isinstance(child, Token)]


def _position_of(node: Tree[Token] | Token) -> int:
    while isinstance(node, Tree):
        node = node.children[0]
    return node.start_pos or 0


def _name_of(token: Token) -> str:
    if token.type == "BRACKETED":
        return token[1:-1].replace("]]", "]")
    return token[1:-1].replace('""', '"') if token.type == "QUOTED" else str(token)
