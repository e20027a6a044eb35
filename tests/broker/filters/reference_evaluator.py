"""A second implementation of filters that interprets syntax trees, without shortcuts or tables.

Shares nothing with the product but the AMQP types. Trees are tuples; `text_of` writes them as SQL, and
`possible_outcomes` returns the results a filter may have. If part of an expression fails, the order of evaluation
decides whether the failure is noticed. No order is promised, so several outcomes may be correct.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TYPE_CHECKING, Any
from uuid import UUID

from twinbus.amqp.types import Decimal128, Described, Timestamp

if TYPE_CHECKING:
    from collections.abc import Mapping
    from decimal import Decimal

TRUE, FALSE, UNKNOWN, ERROR = "true", "false", "unknown", "error"
Tree = tuple[Any, ...]


class EvaluationFailed(Exception):
    """An expression has no value, for example after a division by zero."""


# --- text -------------------------------------------------------------------------------------------------------------


def text_of(tree: Tree) -> str:  # noqa: C901, PLR0911  # one line for each node
    """Return the filter as SQL."""
    match tree:
        case ("constant", value):
            return _constant_text(value)
        case ("property", spelled):
            return str(spelled)
        case ("named", name):
            return f"p({text_of(name)})"
        case ("minus", inner):
            return f"-({text_of(inner)})"
        case ("chain", first, rest):  # no parentheses, so that the grammar decides the precedence
            return text_of(first) + "".join(f" {sign} {text_of(operand)}" for sign, operand in rest)
        case ("compare", sign, left, right):
            return f"{text_of(left)} {sign} {text_of(right)}"
        case ("in", value, choices):
            return f"{text_of(value)} IN ({', '.join(map(text_of, choices))})"
        case ("like", value, pattern, escape):
            ending = f" ESCAPE {text_of(escape)}" if escape is not None else ""
            return f"{text_of(value)} LIKE {text_of(pattern)}{ending}"
        case ("null", value):
            return f"{text_of(value)} IS NULL"
        case ("exists", spelled):
            return f"EXISTS({spelled})"
        case ("not", inner):
            return f"NOT ({text_of(inner)})"
        case ("and" | "or" as word, parts):
            return f" {word} ".join(f"({text_of(part)})" for part in parts)
    raise AssertionError(tree)


def _constant_text(value: object) -> str:
    if value is None or isinstance(value, bool):
        return {None: "NULL", True: "TRUE", False: "FALSE"}[value]
    return "'" + value.replace("'", "''") + "'" if isinstance(value, str) else repr(value)


# --- predicates -------------------------------------------------------------------------------------------------------


def possible_outcomes(tree: Tree, message: Mapping[str, object]) -> set[str]:
    """Return the results that a predicate may have for a message."""
    match tree:
        case ("and", parts):
            return _junction([possible_outcomes(part, message) for part in parts], FALSE, TRUE)
        case ("or", parts):
            return _junction([possible_outcomes(part, message) for part in parts], TRUE, FALSE)
        case ("not", inner):
            opposites = {TRUE: FALSE, FALSE: TRUE, UNKNOWN: UNKNOWN, ERROR: ERROR}
            return {opposites[outcome] for outcome in possible_outcomes(inner, message)}
        case ("exists", spelled):
            return {TRUE if _find(spelled, message) is not None else FALSE}
    try:
        return {_test(tree, message)}
    except EvaluationFailed:
        # The product may return unknown for a comparison with the constant NULL before it evaluates the operands.
        return {ERROR, UNKNOWN} if ("constant", None) in _parts(tree) else {ERROR}


def _parts(tree: Tree) -> list[object]:
    return [part for item in tree for part in (item if isinstance(item, list) else [item])]


def _junction(parts: list[set[str]], decisive: str, neutral: str) -> set[str]:
    """Combine the outcomes of all parts, in all combinations."""
    outcomes = {neutral}
    for part in parts:
        outcomes = {outcome for left in outcomes for right in part for outcome in _pair(left, right, decisive, neutral)}
    return outcomes


def _pair(left: str, right: str, decisive: str, neutral: str) -> set[str]:
    if ERROR in (left, right):
        other = right if left == ERROR else left
        return {ERROR} if other in (ERROR, neutral) else {ERROR, other}
    if decisive in (left, right):
        return {decisive}
    return {UNKNOWN} if UNKNOWN in (left, right) else {neutral}


def _test(tree: Tree, message: Mapping[str, object]) -> str:
    match tree:
        case ("compare", sign, left, right):
            return _compared(sign, value_of(left, message), value_of(right, message))
        case ("in", value, choices):
            operand, results = value_of(value, message), []
            for choice in choices:
                results.append(_compared("=", operand, value_of(choice, message)))
                if results[-1] == TRUE:
                    return TRUE
            return UNKNOWN if UNKNOWN in results else FALSE
        case ("like", value, pattern, escape):
            operand, like_pattern = value_of(value, message), value_of(pattern, message)
            escape_character = value_of(escape, message) if escape is not None else ("text", None)
            if operand[0] != "text" or like_pattern[0] != "text" or escape_character[0] != "text":
                return UNKNOWN
            return TRUE if _is_like(operand[1], like_pattern[1], escape_character[1]) else FALSE
        case ("null", value):
            return TRUE if value_of(value, message)[0] == "null" else FALSE
    raise AssertionError(tree)


def _compared(sign: str, left: tuple[str, Any], right: tuple[str, Any]) -> str:
    kind, first = left
    if (
        kind != right[0]
        or kind in ("null", "other")
        or (kind in ("uuid", "binary", "truth") and sign not in ("=", "<>", "!="))
    ):
        return UNKNOWN
    second = right[1]
    is_true = {
        "=": first == second,
        "<>": first != second,
        "!=": first != second,
        "<": first < second,
        "<=": first <= second,
        ">": first > second,
        ">=": first >= second,
    }[sign]
    return TRUE if is_true else FALSE


def _is_like(text: str, pattern: str, escape: str | None) -> bool:
    if not pattern:
        return not text
    if pattern[0] == escape:
        if len(pattern) == 1:
            raise EvaluationFailed
        return text[:1] == pattern[1] and _is_like(text[1:], pattern[2:], escape)
    if pattern[0] == "%":
        return any(_is_like(text[at:], pattern[1:], escape) for at in range(len(text) + 1))
    return text != "" and pattern[0] in ("_", text[0]) and _is_like(text[1:], pattern[1:], escape)


# --- values -----------------------------------------------------------------------------------------------------------


def value_of(tree: Tree, message: Mapping[str, object]) -> tuple[str, Any]:
    """Return a kind and a value; numbers are exact integers or doubles."""
    match tree:
        case ("constant", value):
            return _kind(value)
        case ("property", spelled):
            name = _find(spelled, message)
            return _kind(message[name]) if name is not None else ("null", None)
        case ("named", inner):
            kind, value = value_of(inner, message)
            if kind not in ("text", "null"):
                raise EvaluationFailed
            name = _find(value, message) if kind == "text" else None
            return _kind(message[name]) if name is not None else ("null", None)
        case ("minus", inner):
            negated = value_of(inner, message)
            if negated[0] == "time":
                raise EvaluationFailed
            zero = {"span": ("span", 0)}.get(negated[0], ("number", 0))
            if negated[0] == "number" and isinstance(negated[1], float):
                return "number", -negated[1]
            return _combined("-", zero, negated)
        case ("chain", first, rest):
            result = value_of(first, message)
            for sign, operand in rest:
                result = _combined(sign, result, value_of(operand, message))
            return result
    raise AssertionError(tree)


def _find(spelled: str, message: Mapping[str, object]) -> str | None:
    wanted = spelled.strip("[]").removeprefix("user.").lower()
    return next((name for name in message if name.lower() == wanted), None)


def _kind(value: object) -> tuple[str, Any]:  # noqa: C901, PLR0911  # one line for each type
    match value:
        case None:
            return "null", None
        case bool():
            return "truth", value
        case Timestamp():
            return "time", int(value) * 10_000
        case int():
            return "number", int(value)
        case float():
            return "number", float(value)
        case Decimal128():
            return _kind_of_decimal(value.to_decimal())
        case str():
            return "text", str(value)
        case UUID():
            return "uuid", value
        case bytes():
            return "binary", value
        case Described(descriptor="com.microsoft:timespan"):
            return "span", value.value
    return "other", None


def _kind_of_decimal(value: Decimal) -> tuple[str, Any]:
    exact = Fraction(value)
    return "number", exact.numerator if exact.denominator == 1 else float(value)


def _combined(sign: str, left: tuple[str, Any], right: tuple[str, Any]) -> tuple[str, Any]:
    kinds = (left[0], right[0])
    if "null" in kinds:
        return "null", None
    first, second = left[1], right[1]
    if kinds == ("number", "number"):
        return "number", _calculated(sign, first, second)
    if kinds == ("text", "text") and sign == "+":
        return "text", first + second
    times = {
        ("+", "time", "span"): "time",
        ("+", "span", "time"): "time",
        ("-", "time", "span"): "time",
        ("-", "time", "time"): "span",
        ("+", "span", "span"): "span",
        ("-", "span", "span"): "span",
    }
    if (sign, *kinds) not in times:
        raise EvaluationFailed
    return times[sign, *kinds], first + second if sign == "+" else first - second


def _calculated(sign: str, first: float, second: float) -> float:
    if sign in "/%" and second == 0:
        raise EvaluationFailed
    if not isinstance(first, int) or not isinstance(second, int):
        first, second = float(first), float(second)
        return (
            _divided(sign, first, second)
            if sign in "/%"
            else {"+": first + second, "-": first - second, "*": first * second}[sign]
        )
    quotient = math.trunc(Fraction(first, second)) if sign in "/%" else 0
    result = {
        "+": first + second,
        "-": first - second,
        "*": first * second,
        "/": quotient,
        "%": first - second * quotient,
    }[sign]
    if not -(2**63) <= result < 2**63:
        raise EvaluationFailed
    return result


def _divided(sign: str, first: float, second: float) -> float:
    return first / second if sign == "/" else math.fmod(first, second)
