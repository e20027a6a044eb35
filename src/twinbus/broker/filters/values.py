"""Expression values, and their comparison.

AMQP has a dozen number types, several string types, and more; expressions have eight kinds of values and compare values
of the same kind only. Any other value (a list, a map, a value that cannot be decoded) exists but is not comparable.

| kind | Python here | AMQP |
|---|---|---|
| string | str | string, symbol, char, com.microsoft:uri |
| number | int, float | all integers, float, double, decimals |
| time | Instant | timestamp, com.microsoft:datetime-offset |
| duration | Duration | com.microsoft:timespan |
| boolean | bool | boolean |
| uuid, binary | UUID, bytes | uuid, binary |
| null | None | null, or an absent property |

Owns the kinds, equality and order. Knows nothing of messages or expressions.
"""

from __future__ import annotations

import operator
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from uuid import UUID

from twinbus.amqp.types import (
    Byte,
    Char,
    Decimal32,
    Decimal64,
    Decimal128,
    Described,
    Float,
    Int,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
)
from twinbus.model.times import TICKS_PER_MS, TIMESPAN

if TYPE_CHECKING:
    from collections.abc import Callable

EPOCH_TICKS: Final = 621_355_968_000_000_000
"""Ticks from the year 1, the epoch of .NET, to 1970."""
MAX_INSTANT_TICKS: Final = 3_155_378_975_999_999_999 - EPOCH_TICKS
"""End of the year 9999, .NET's largest time, in ticks since 1970."""
MAX_DURATION_TICKS: Final = 2**63 - 1
"""P10675199DT2H48M5.4775807S, .NET's largest duration."""
_DATETIME_OFFSET: Final = "com.microsoft:datetime-offset"
_URI: Final = "com.microsoft:uri"


class Instant(NamedTuple):
    """A point in time."""

    ticks: int
    """Ticks of 100 ns since 1970-01-01T00:00Z."""


class Duration(NamedTuple):
    """A duration in ticks of 100 ns."""

    ticks: int


class Opaque:
    """A value that exists but cannot be compared with any other."""

    __slots__ = ()


OPAQUE: Final = Opaque()

TEXT: Final = 1
NUMBER: Final = 2
INSTANT: Final = 3
DURATION: Final = 4
_LAST_ORDERED_KIND: Final = DURATION
_BOOLEAN: Final = 5
_UUID: Final = 6
_BINARY: Final = 7
KINDS: Final[dict[type, int]] = {
    str: TEXT,
    int: NUMBER,
    float: NUMBER,
    Instant: INSTANT,
    Duration: DURATION,
    bool: _BOOLEAN,
    UUID: _UUID,
    bytes: _BINARY,
}
"""Kinds by Python type; a value of any other type cannot be compared."""
KIND_NAMES: Final = {
    TEXT: "a string",
    NUMBER: "a number",
    INSTANT: "a time",
    DURATION: "a duration",
    _BOOLEAN: "a boolean",
    _UUID: "a uuid",
    _BINARY: "a binary",
}


def kind_name(value: object) -> str:
    """Return the kind of a value in words, for error texts."""
    return KIND_NAMES.get(KINDS.get(type(value), 0), "null" if value is None else "a list or map")


# --- comparing --------------------------------------------------------------------------------------------------------

COMPARISONS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_EQUALITY_OPERATORS: Final = ("=", "<>", "!=")


def is_comparable(op: str, kind: int) -> bool:
    """Return whether `op` applies to values of this kind: only strings, numbers, times and durations are ordered."""
    return 0 < kind <= _LAST_ORDERED_KIND or (kind > 0 and op in _EQUALITY_OPERATORS)


def compare(op: str, left: object, right: object) -> bool | None:
    """Compare two values; return None (unknown) if either is null or they are of different kinds."""
    kind = KINDS.get(type(left), 0)
    if kind != KINDS.get(type(right), 0) or not is_comparable(op, kind):
        return None
    return COMPARISONS[op](left, right)


def equal(left: object, right: object) -> bool | None:
    """Return whether two values are equal, or None (unknown) if either is null or they are of different kinds."""
    kind = KINDS.get(type(left), 0)
    if kind == 0 or kind != KINDS.get(type(right), 0):
        return None
    return left == right


def index_key(value: object) -> object:
    """Return a dictionary key for a value; two keys are equal if and only if the two values are equal.

    The keys of some values contain the type, because Python considers True equal to 1, and an Instant equal to a
    Duration with the same ticks.
    """
    kind = type(value)
    return (kind, value) if kind is bool or kind is Instant or kind is Duration else value


# --- from and to AMQP -------------------------------------------------------------------------------------------------


def from_amqp(value: object) -> object:
    """Convert an AMQP value to an expression value, or to OPAQUE."""
    kind = type(value)
    if kind in _UNCHANGED_TYPES:
        return value
    make = _CONVERTERS.get(kind)
    return make(value) if make is not None else OPAQUE


def to_amqp(value: object) -> object:
    """Convert the result of an expression to an AMQP value."""
    if type(value) is Instant:
        return Timestamp(value.ticks // TICKS_PER_MS)
    if type(value) is Duration:
        return Described(TIMESPAN, value.ticks)
    return value


def id_as_string(value: object) -> object:
    """Convert an id of any AMQP type to a string: senders choose the type, but filters compare ids with strings."""
    if type(value) is bytes:
        return value.hex()
    if isinstance(value, UUID | int):
        return str(int(value)) if isinstance(value, int) else str(value)
    return from_amqp(value)


def _from_decimal(value: Decimal32 | Decimal64 | Decimal128) -> int | float:
    number: Decimal = value.to_decimal()
    sign, digits, exponent = number.as_tuple()
    # A decimal has up to 6,144 digits, of which 34 are significant; int(number) would parse all of them.
    if isinstance(exponent, int) and exponent > 0:
        power: int = 10**exponent
        return int(Decimal((sign, digits, 0))) * power
    is_whole = number.is_finite() and number == number.to_integral_value()
    return int(number) if is_whole else float(number)


def _from_described(value: Described) -> object:
    content = value.value
    if value.descriptor == TIMESPAN and type(content) is int:
        return Duration(content)
    if value.descriptor == _DATETIME_OFFSET and type(content) is int:
        return Instant(content - EPOCH_TICKS)
    return content if value.descriptor == _URI and type(content) is str else OPAQUE


_UNCHANGED_TYPES: Final = frozenset({str, int, float, bool, UUID, bytes, type(None)})
_CONVERTERS: Final[dict[type, Callable[[Any], object]]] = {
    **dict.fromkeys((UByte, UShort, UInt, ULong, Byte, Short, Int), int),
    **dict.fromkeys((Symbol, Char), str),
    **dict.fromkeys((Decimal32, Decimal64, Decimal128), _from_decimal),
    Float: float,
    Timestamp: lambda value: Instant(int(value) * TICKS_PER_MS),
    Described: _from_described,
}
