"""A second opinion on filters: trees are interpreted as they are, shortcuts and tables aside.

Shares nothing with the product but the types of AMQP. Trees are tuples; `text_of` writes them as SQL, `outcomes` says
what a filter may answer. Where something fails, the order of evaluation decides whether that is noticed, and no order
is promised for the parts of an expression: then several outcomes are right.
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
    """The value of something that has none."""


# --- text -------------------------------------------------------------------------------------------------------------


def text_of(tree: Tree) -> str:  # noqa: C901, PLR0911  # one line for each node
    """The filter as SQL."""
    match tree:
        case ("constant", value):
            return _constant_text(value)
        case ("property", spelled):
            return str(spelled)
        case ("named", name):
            return f"p({text_of(name)})"
        case ("minus", inner):
            return f"-({text_of(inner)})"
        case ("chain", first, rest):  # no parentheses: what binds closer is for the grammar to know
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
    """What a predicate may be for a message."""
    match tree:
        case ("and", parts):
            return _junction([possible_outcomes(part, message) for part in parts], FALSE, TRUE)
        case ("or", parts):
            return _junction([possible_outcomes(part, message) for part in parts], TRUE, FALSE)
        case ("not", inner):
            opposites = {TRUE: FALSE, FALSE: TRUE, UNKNOWN: UNKNOWN, ERROR: ERROR}
            return {opposites[found] for found in possible_outcomes(inner, message)}
        case ("exists", spelled):
            return {TRUE if _find(spelled, message) is not None else FALSE}
    try:
        return {_test(tree, message)}
    except EvaluationFailed:
        # A comparison with the constant NULL is unknown before anything is worked out.
        return {ERROR, UNKNOWN} if ("constant", None) in _parts(tree) else {ERROR}


def _parts(tree: Tree) -> list[object]:
    return [part for item in tree for part in (item if isinstance(item, list) else [item])]


def _junction(parts: list[set[str]], decisive: str, neutral: str) -> set[str]:
    """One outcome of each part, in all combinations."""
    found = {neutral}
    for part in parts:
        found = {outcome for left in found for right in part for outcome in _pair(left, right, decisive, neutral)}
    return found


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
            found, answers = value_of(value, message), []
            for choice in choices:
                answers.append(_compared("=", found, value_of(choice, message)))
                if answers[-1] == TRUE:
                    return TRUE
            return UNKNOWN if UNKNOWN in answers else FALSE
        case ("like", value, pattern, escape):
            found, wanted = value_of(value, message), value_of(pattern, message)
            escaping = value_of(escape, message) if escape is not None else ("text", None)
            if found[0] != "text" or wanted[0] != "text" or escaping[0] != "text":
                return UNKNOWN
            return TRUE if _is_like(found[1], wanted[1], escaping[1]) else FALSE
        case ("null", value):
            return TRUE if value_of(value, message)[0] == "null" else FALSE
    raise AssertionError(tree)


def _compared(sign: str, left: tuple[str, Any], right: tuple[str, Any]) -> str:
    kind, one = left
    if (
        kind != right[0]
        or kind in ("null", "other")
        or (kind in ("uuid", "binary", "truth") and sign not in ("=", "<>", "!="))
    ):
        return UNKNOWN
    two = right[1]
    answer = {
        "=": one == two,
        "<>": one != two,
        "!=": one != two,
        "<": one < two,
        "<=": one <= two,
        ">": one > two,
        ">=": one >= two,
    }[sign]
    return TRUE if answer else FALSE


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
    """A kind and a value; numbers are whole numbers or doubles, exactly."""
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
            found = value_of(inner, message)
            if found[0] == "time":
                raise EvaluationFailed
            zero = {"span": ("span", 0)}.get(found[0], ("number", 0))
            if found[0] == "number" and isinstance(found[1], float):
                return "number", -found[1]
            return _combined("-", zero, found)
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
    one, two = left[1], right[1]
    if kinds == ("number", "number"):
        return "number", _calculated(sign, one, two)
    if kinds == ("text", "text") and sign == "+":
        return "text", one + two
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
    return times[sign, *kinds], one + two if sign == "+" else one - two


def _calculated(sign: str, one: float, two: float) -> float:
    if sign in "/%" and two == 0:
        raise EvaluationFailed
    if not isinstance(one, int) or not isinstance(two, int):
        one, two = float(one), float(two)
        return _parted(sign, one, two) if sign in "/%" else {"+": one + two, "-": one - two, "*": one * two}[sign]
    quotient = math.trunc(Fraction(one, two)) if sign in "/%" else 0
    result = {"+": one + two, "-": one - two, "*": one * two, "/": quotient, "%": one - two * quotient}[sign]
    if not -(2**63) <= result < 2**63:
        raise EvaluationFailed
    return result


def _parted(sign: str, one: float, two: float) -> float:
    return one / two if sign == "/" else math.fmod(one, two)
