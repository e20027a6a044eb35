"""The values that expressions deal in, and how two of them compare.

AMQP has a dozen types of numbers, two of texts, and more; expressions know eight kinds of values, and compare within a
kind only. Anything else (lists, maps, what cannot be read) is there, but compares with nothing.

| kind | Python here | AMQP |
|---|---|---|
| text | str | string, symbol, char, com.microsoft:uri |
| number | int, float | all integers, float, double, decimals |
| time | Instant | timestamp, com.microsoft:datetime-offset |
| duration | Span | com.microsoft:timespan |
| truth | bool | boolean |
| uuid, binary | UUID, bytes | uuid, binary |
| null | None | null, or not there |

Owns: the kinds, equality and order. Knows nothing of messages or expressions.
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
"""From the year 1, where .NET counts from, to 1970."""
MAX_INSTANT_TICKS: Final = 3_155_378_975_999_999_999 - EPOCH_TICKS
"""The end of the year 9999, .NET's largest time."""
MAX_DURATION_TICKS: Final = 2**63 - 1
"""P10675199DT2H48M5.4775807S, .NET's largest duration."""
_DATETIME_OFFSET: Final = "com.microsoft:datetime-offset"
_URI: Final = "com.microsoft:uri"


class Instant(NamedTuple):
    """A time."""

    ticks: int
    """Since 1970-01-01T00:00Z."""


class Duration(NamedTuple):
    """A duration."""

    ticks: int


class Opaque:
    """A value that is there, but cannot be compared."""

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
"""What has no kind compares with nothing."""
KIND_NAMES: Final = {
    TEXT: "a text",
    NUMBER: "a number",
    INSTANT: "a time",
    DURATION: "a duration",
    _BOOLEAN: "a truth value",
    _UUID: "a uuid",
    _BINARY: "a binary",
}


def kind_name(value: object) -> str:
    """What kind of value that is, in words."""
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
    """Whether values of that kind can be compared so: texts, numbers, times and durations have an order."""
    return 0 < kind <= _LAST_ORDERED_KIND or (kind > 0 and op in _EQUALITY_OPERATORS)


def compare(op: str, left: object, right: object) -> bool | None:
    """Whether it is so; None where that is unknown: one is null, or they are of different kinds."""
    kind = KINDS.get(type(left), 0)
    if kind != KINDS.get(type(right), 0) or not is_comparable(op, kind):
        return None
    return COMPARISONS[op](left, right)


def equal(left: object, right: object) -> bool | None:
    """Whether they are equal; None where that is unknown."""
    kind = KINDS.get(type(left), 0)
    if kind == 0 or kind != KINDS.get(type(right), 0):
        return None
    return left == right


def index_key(value: object) -> object:
    """What stands for a value in a dictionary: keys are equal where the values are, and only there.

    Python calls True and 1 equal, and a time and a duration that count as many ticks.
    """
    kind = type(value)
    return (kind, value) if kind is bool or kind is Instant or kind is Duration else value


# --- from and to AMQP -------------------------------------------------------------------------------------------------


def from_amqp(value: object) -> object:
    """A value of a message, as expressions see it."""
    kind = type(value)
    if kind in _UNCHANGED_TYPES:
        return value
    make = _CONVERTERS.get(kind)
    return make(value) if make is not None else OPAQUE


def to_amqp(value: object) -> object:
    """A value that an expression gave, as it is written into a message."""
    if type(value) is Instant:
        return Timestamp(value.ticks // TICKS_PER_MS)
    if type(value) is Duration:
        return Described(TIMESPAN, value.ticks)
    return value


def id_as_text(value: object) -> object:
    """An id of any type as text: clients may choose the type, but who compares them writes text."""
    if type(value) is bytes:
        return value.hex()
    if isinstance(value, UUID | int):
        return str(int(value)) if isinstance(value, int) else str(value)
    return from_amqp(value)


def _from_decimal(value: Decimal32 | Decimal64 | Decimal128) -> int | float:
    number: Decimal = value.to_decimal()
    sign, digits, exponent = number.as_tuple()
    if isinstance(exponent, int) and exponent > 0:  # up to 6,144 digits, of which 34 are not zero: int() reads them all
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
