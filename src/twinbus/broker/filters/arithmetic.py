"""Sums, products and the like, as C# would do them.

Integers have 64 bits and do not wrap; a division of integers is cut towards zero; an integer with a fraction is a
double. A text can be put behind a text; times and durations can be added and subtracted where that means something.

Owns: the table of what can be combined with what. Anything else is a FilterError; with null the result is null.
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

MAX_TEXT_CHARACTERS: Final = 32_768
"""Characters that an expression can put together: no property holds more, and an action could double it each time."""
_MIN_LONG: Final = -(2**63)
_MAX_LONG: Final = 2**63 - 1


def combine(op: str, left: object, right: object) -> object:
    """What the two make together."""
    if left is None or right is None:
        return None
    operation = _OPERATIONS.get((op, KINDS.get(type(left), 0), KINDS.get(type(right), 0)))
    if operation is None:
        raise FilterError(f"{kind_name(left)} {op} {kind_name(right)} has no meaning")
    try:
        return operation(left, right)
    except OverflowError:  # a number beyond all doubles
        raise FilterError(f"{op} gives a number that is too large") from None


def negate(value: object) -> object:
    """The same number or duration, with the other sign."""
    if type(value) is Duration:
        return combine("-", Duration(0), value)
    if type(value) is float:
        return -value
    if value is not None and type(value) is not int:
        raise FilterError(f"- before {kind_name(value)} has no meaning")
    return combine("-", 0, value)


def plus(value: object) -> object:
    """The same number or duration."""
    if value is not None and KINDS.get(type(value), 0) not in (NUMBER, DURATION):
        raise FilterError(f"+ before {kind_name(value)} has no meaning")
    return value


def fits_long(number: int) -> bool:
    """Whether 64 bits are enough for it."""
    return _MIN_LONG <= number <= _MAX_LONG


def _check_long(number: int, op: str) -> int:
    if not fits_long(number):
        raise FilterError(f"{op} gives {number:.6g}, which 64 bits cannot hold")
    return number


def _add(left: int | float, right: int | float) -> int | float:  # noqa: PYI041  # exact: their types decide
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
        raise FilterError("a division by zero")
    if type(left) is int and type(right) is int:
        return _check_long(_quotient(left, right), "/")
    return float(left) / float(right)


def _remainder(left: int | float, right: int | float) -> int | float:  # noqa: PYI041
    if right == 0:
        raise FilterError("a remainder of a division by zero")
    if type(left) is int and type(right) is int:
        return _check_long(left - right * _quotient(left, right), "%")
    # Python refuses the remainder of an infinity; C# has no number for it either, and says so with NaN.
    return math.fmod(left, right) if math.isfinite(left) else math.nan


def _quotient(left: int, right: int) -> int:
    quotient = abs(left) // abs(right)
    return quotient if (left < 0) == (right < 0) else -quotient


def _concatenate(left: str, right: str) -> str:
    if len(left) + len(right) > MAX_TEXT_CHARACTERS:
        raise FilterError(f"+ gives a text of {len(left) + len(right)} characters; it can have {MAX_TEXT_CHARACTERS}")
    return left + right


def _instant(ticks: int) -> Instant:
    if not -EPOCH_TICKS <= ticks <= MAX_INSTANT_TICKS:
        raise FilterError("a time before the year 1 or after the year 9999")
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
"""What a sign means before a single value."""
