"""From the text of a filter or an action to what it says.

What is known when the rule is made is worked out here: constants are combined, parameters are put in, names are looked
up. So `1 = 1` is one node that says true, and what can never work is refused with its place.

Owns: the meaning of each construct of the grammar, short of evaluating it.
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
"""Levels of an expression; a chain of ANDs or sums is one level, however long."""


class ExpressionParser:
    """Makes nodes of one text."""

    def __init__(self, text: str, kind: str, parameters: Mapping[str, object], new_id: Callable[[], UUID]) -> None:
        """`what` is "filter" or "action". Parameters go with or without their @; case does not matter."""
        self._text = text
        self._kind = kind
        self._parameters = {name.removeprefix("@").lower(): value for name, value in parameters.items()}
        self._new_id = new_id

    def parse_filter(self) -> Node:
        """All of it, as a filter."""
        return self._parse(grammar.parse(self._text, self._kind), 0)

    def parse_action(self) -> list[SetStatement | RemoveStatement]:
        """All of it, as an action."""
        return [self._statement(tree) for tree in _trees(grammar.parse(self._text, self._kind))]

    def syntax_error(self, position: int, message: str) -> InvalidArgument:
        """What is wrong at that character."""
        return grammar.syntax_error(self._text, self._kind, position, message)

    def _error_at(self, node: Tree[Token] | Token, message: str) -> InvalidArgument:
        return self.syntax_error(_position_of(node), message)

    def _statement(self, tree: Tree[Token]) -> SetStatement | RemoveStatement:
        target, *rest = _trees(tree)
        found = self._property(target, 0)
        at = _position_of(target)
        return SetStatement(found, self._parse(rest[0], 0), at) if rest else RemoveStatement(found, at)

    def _parse(self, tree: Tree[Token], depth: int) -> Node:
        if depth > MAX_DEPTH:
            raise self._error_at(tree, f"it is nested deeper than {MAX_DEPTH} levels")
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
        """The sign belongs to it: -9223372036854775808 is a number, without its sign it is none."""
        number = int(sign + token) if token.type == "INTEGER" else float(sign + token)
        if math.isinf(number) if isinstance(number, float) else not arithmetic.fits_long(number):
            raise self._error_at(token, "the number is too large: 64 bits cannot hold it")
        return Constant(number)

    def _parameter(self, tree: Tree[Token], _depth: int) -> Constant:
        token = _tokens(tree)[0]
        name = token[1:].lower()
        if name not in self._parameters:
            raise self._error_at(token, f"no value is given for the parameter {token}")
        return Constant(self._parameters[name])

    def _property(self, tree: Tree[Token], _depth: int) -> Property:
        tokens = _tokens(tree)
        name = _name_of(tokens[-1])
        scope = _name_of(tokens[0]).lower() if len(tokens) > 1 else "user"
        if not name:
            raise self._error_at(tokens[-1], "a property has a name of at least one character")
        if scope == "user":
            return Property(user_property_key(name), name)
        if scope != "sys":
            raise self._error_at(tree, f"{tokens[0]} is no scope, only sys and user are; a name with a dot goes in [ ]")
        number = PROPERTY_NUMBERS.get(name.lower())
        if number is None:
            raise self._error_at(tokens[-1], f"there is no system property {name!r:.60}; there are {property_names()}")
        return Property(number, name)

    def _call(self, tree: Tree[Token], depth: int) -> Node:
        function = _tokens(tree)[0].lower()
        arguments = self._parse_children(tree, depth)
        if function == "newid" and not arguments:
            return NewId(self._new_id)
        if function not in ("property", "p") or len(arguments) != 1:
            raise self._error_at(tree, "there is no such function; there are newid(), property(name) and p(name)")
        (name,) = arguments
        if not isinstance(name, Constant):
            return DynamicProperty(name)
        if isinstance(name.value, str) and name.value:
            return Property(user_property_key(name.value), name.value)
        raise self._error_at(tree, f"a property is named by a text, not by {kind_name(name.value)}")

    def _sign(self, tree: Tree[Token], depth: int) -> Node:
        sign = str(_tokens(tree)[0])
        (inner,) = _trees(tree)
        if inner.data == "constant" and _tokens(inner)[0].type in ("INTEGER", "DECIMAL"):
            return self._number(_tokens(inner)[0], sign)
        operand = self._parse(inner, depth)
        if not isinstance(operand, Constant):
            return UnaryOperation(sign, operand)
        try:
            return Constant(arithmetic.UNARY_OPERATORS[sign](operand.value))
        except FilterError as error:
            raise self._error_at(tree, str(error)) from None

    def _arithmetic(self, tree: Tree[Token], depth: int) -> Node:
        first, *operands = self._parse_children(tree, depth)
        rest: list[tuple[str, Node]] = []
        for sign, operand in zip(map(str, _tokens(tree)), operands, strict=True):
            if rest or not isinstance(first, Constant) or not isinstance(operand, Constant):
                rest.append((sign, operand))
                continue
            try:
                first = Constant(arithmetic.combine(sign, first.value, operand.value))
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
        sign = str(_tokens(tree)[0])
        if Constant(None) in (left, right):
            return ConstantPredicate(value=None)
        if isinstance(left, Constant) and isinstance(right, Constant):
            return ConstantPredicate(compare(sign, left.value, right.value))
        return Comparison(sign, left, right)

    def _in(self, tree: Tree[Token], depth: int) -> Node:
        value_tree, choices_tree = _trees(tree)
        value, choices = self._parse(value_tree, depth), self._parse_children(choices_tree, depth)
        if value == Constant(None) or all(choice == Constant(None) for choice in choices):
            return ConstantPredicate(value=None)
        if isinstance(value, Constant) and all(isinstance(choice, Constant) for choice in choices):
            known = [equal(value.value, choice.value) for choice in choices if isinstance(choice, Constant)]
            return ConstantPredicate(value=True if True in known else None if None in known else False)
        return In(value, tuple(choices))

    def _not_in(self, tree: Tree[Token], depth: int) -> Node:
        return negation(self._in(tree, depth))

    def _like(self, tree: Tree[Token], depth: int) -> Node:
        value, pattern, *rest = self._parse_children(tree, depth)
        escape = rest[0] if rest else None
        if Constant(None) in (value, pattern, escape):
            return ConstantPredicate(value=None)
        for node in (pattern, escape):
            if isinstance(node, Constant) and not isinstance(node.value, str):
                complaint = f"a pattern and its escape character are texts, not {kind_name(node.value)}"
                raise self._error_at(_trees(tree)[1], complaint)
        ready = self._pattern(_trees(tree)[1], pattern, escape)
        if not isinstance(value, Constant) or not isinstance(ready, LikePattern):
            return Like(value, ready, escape)
        return ConstantPredicate(ready.matches(value.value) if isinstance(value.value, str) else None)

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
    """By the names that the grammar gives."""


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
