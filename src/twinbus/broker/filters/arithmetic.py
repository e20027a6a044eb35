"""Arithmetic in expressions, with the semantics of C#.

Integers have 64 bits; an overflow is an error. Integer division truncates towards zero. An integer combined with a
double gives a double. `+` also concatenates strings, and times and durations can be added and subtracted.

Owns the table of operators and the kinds of values they combine. Any other combination raises FilterError; an operation
on null gives null.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from twinbus.broker.filters.errors import FilterError
from twinbus.broker.filters.values import (
    DURATION,
    EPOCH_TICKS,
    INSTANT,
    KINDS,
    MAX_INSTANT_TICKS,
    NUMBER,
    TEXT,
    Duration,
    Instant,
    kind_name,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    Operation: TypeAlias = Callable[[Any, Any], object]

MAX_STRING_CHARACTERS: Final = 32_768
"""Longest string that `+` may produce: no property holds more, and each SET in an action could double the string."""
_MIN_LONG: Final = -(2**63)
_MAX_LONG: Final = 2**63 - 1


def combine(op: str, left: object, right: object) -> object:
    """Return the result of `left op right`, None if either is null; raise FilterError if it cannot be computed."""
    if left is None or right is None:
        return None
    operation = _OPERATIONS.get((op, KINDS.get(type(left), 0), KINDS.get(type(right), 0)))
    if operation is None:
        raise FilterError(f"cannot compute {kind_name(left)} {op} {kind_name(right)}")
    try:
        return operation(left, right)
    except OverflowError:  # an integer too large for a double
        raise FilterError(f"the result of {op} is too large for a double") from None


def negate(value: object) -> object:
    """Return the negative of a number or duration, or None for null; raise FilterError for any other value."""
    if type(value) is Duration:
        return combine("-", Duration(0), value)
    if type(value) is float:
        return -value
    if value is not None and type(value) is not int:
        raise FilterError(f"- cannot be applied to {kind_name(value)}")
    return combine("-", 0, value)


def plus(value: object) -> object:
    """Return a number or duration unchanged; raise FilterError for any other kind of value except null."""
    if value is not None and KINDS.get(type(value), 0) not in (NUMBER, DURATION):
        raise FilterError(f"+ cannot be applied to {kind_name(value)}")
    return value


def fits_long(number: int) -> bool:
    """Return whether `number` fits into a signed 64-bit integer."""
    return _MIN_LONG <= number <= _MAX_LONG


def _check_long(number: int, op: str) -> int:
    if not fits_long(number):
        raise FilterError(f"the result of {op}, {number:.6g}, does not fit into 64 bits")
    return number


def _add(left: int | float, right: int | float) -> int | float:  # noqa: PYI041  # int and float take different branches
    if type(left) is int and type(right) is int:
        return _check_long(left + right, "+")
    return float(left) + float(right)


def _subtract(left: int | float, right: int | float) -> int | float:  # noqa: PYI041
    if type(left) is int and type(right) is int:
        return _check_long(left - right, "-")
    return float(left) - float(right)


def _multiply(left: int | float, right: int | float) -> int | float:  # noqa: PYI041
    if type(left) is int and type(right) is int:
        return _check_long(left * right, "*")
    return float(left) * float(right)


def _divide(left: int | float, right: int | float) -> int | float:  # noqa: PYI041
    if right == 0:
        raise FilterError("division by zero")
    if type(left) is int and type(right) is int:
        return _check_long(_quotient(left, right), "/")
    return float(left) / float(right)


def _remainder(left: int | float, right: int | float) -> int | float:  # noqa: PYI041
    if right == 0:
        raise FilterError("remainder of a division by zero")
    if type(left) is int and type(right) is int:
        return _check_long(left - right * _quotient(left, right), "%")
    # math.fmod raises ValueError for an infinite dividend, where C# returns NaN.
    return math.fmod(left, right) if math.isfinite(left) else math.nan


def _quotient(left: int, right: int) -> int:
    quotient = abs(left) // abs(right)
    return quotient if (left < 0) == (right < 0) else -quotient


def _concatenate(left: str, right: str) -> str:
    if len(left) + len(right) > MAX_STRING_CHARACTERS:
        raise FilterError(
            f"+ makes a string of {len(left) + len(right)} characters; the limit is {MAX_STRING_CHARACTERS}"
        )
    return left + right


def _instant(ticks: int) -> Instant:
    if not -EPOCH_TICKS <= ticks <= MAX_INSTANT_TICKS:
        raise FilterError("the resulting time is before the year 1 or after the year 9999")
    return Instant(ticks)


def _duration(ticks: int) -> Duration:
    return Duration(_check_long(ticks, "a difference of times"))


_OPERATIONS: Final[dict[tuple[str, int, int], Operation]] = {
    ("+", NUMBER, NUMBER): _add,
    ("-", NUMBER, NUMBER): _subtract,
    ("*", NUMBER, NUMBER): _multiply,
    ("/", NUMBER, NUMBER): _divide,
    ("%", NUMBER, NUMBER): _remainder,
    ("+", TEXT, TEXT): _concatenate,
    ("+", INSTANT, DURATION): lambda left, right: _instant(left.ticks + right.ticks),
    ("+", DURATION, INSTANT): lambda left, right: _instant(left.ticks + right.ticks),
    ("-", INSTANT, DURATION): lambda left, right: _instant(left.ticks - right.ticks),
    ("-", INSTANT, INSTANT): lambda left, right: _duration(left.ticks - right.ticks),
    ("+", DURATION, DURATION): lambda left, right: _duration(left.ticks + right.ticks),
    ("-", DURATION, DURATION): lambda left, right: _duration(left.ticks - right.ticks),
}
UNARY_OPERATORS: Final[dict[str, Callable[[object], object]]] = {"+": plus, "-": negate}
"""Functions for unary plus and minus."""
