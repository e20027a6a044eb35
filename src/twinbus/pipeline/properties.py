"""Application properties as structs that keep the AMQP type.

    {"type": "uint", "long": 3}
    {"type": "string", "string": "high"}

Owns the mapping of AMQP types to the fields of such a struct, in both directions: reading and writing a property
preserves every bit. Knows nothing of messages or columns.

| type | field | |
|---|---|---|
| string, symbol, char | string | |
| ubyte, ushort, uint, byte, short, int, long | long | |
| ulong | long | `string` for values from 2^63 |
| float, double | double | |
| boolean | boolean | |
| timestamp | timestamp | `string`, in milliseconds since 1970, outside the years 1 to 9999 |
| uuid, decimal32, decimal64, decimal128 | string | |
| binary | binary | |
| timespan | long | a .NET duration in units of 100 nanoseconds |
| null | none | |
| amqp | binary | any other value, AMQP-encoded |
"""

from __future__ import annotations

import datetime as dt
import decimal
import uuid
from typing import TYPE_CHECKING, Final, TypeAlias

from twinbus.amqp.codec.decode import decode
from twinbus.amqp.codec.encode import encode
from twinbus.amqp.errors import AmqpError
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
from twinbus.model.times import TIMESPAN, milliseconds_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

FIELDS: Final = ("type", "string", "long", "double", "boolean", "timestamp", "binary")
PropertyEntry: TypeAlias = "tuple[str, str | None, int | None, float | None, bool | None, int | None, bytes | None]"
"""The values of the fields in `FIELDS`, in the same order; the timestamp is in microseconds since 1970."""

MIN_TIMESTAMP_MS: Final = -62_135_596_800_000
MAX_TIMESTAMP_MS: Final = 253_402_300_799_999
"""`MIN_TIMESTAMP_MS` and `MAX_TIMESTAMP_MS` limit times to the years 1 to 9999.

Spark converts the times in collected rows to Python's datetime, which has this range.
"""
_LONG_END: Final = 2**63
_INTEGER_TYPES: Final[dict[type, str]] = {
    int: "long",
    Int: "int",
    UInt: "uint",
    ULong: "ulong",
    Short: "short",
    UShort: "ushort",
    Byte: "byte",
    UByte: "ubyte",
}
_TEXT_TYPES: Final[dict[type, str]] = {str: "string", Symbol: "symbol", Char: "char", uuid.UUID: "uuid"}
_DECIMAL_TYPES: Final[dict[type, str]] = {Decimal32: "decimal32", Decimal64: "decimal64", Decimal128: "decimal128"}


def to_entry(value: object) -> PropertyEntry:  # noqa: PLR0911  # one return per field
    """Convert a decoded AMQP value to an entry."""
    kind = type(value)
    if kind is str:
        assert isinstance(value, str)
        return "string", value, None, None, None, None, None
    if isinstance(value, bool):
        return "boolean", None, None, None, value, None, None
    if kind in _INTEGER_TYPES:
        assert isinstance(value, int)
        number = int(value)
        if number < _LONG_END:
            return _INTEGER_TYPES[kind], None, number, None, None, None, None
        return (
            _INTEGER_TYPES[kind],
            format(number, "d"),
            None,
            None,
            None,
            None,
            None,
        )  # in compiled code `number` may still be a ULong
    if isinstance(value, float):
        return "float" if kind is Float else "double", None, None, float(value), None, None, None
    if kind in _TEXT_TYPES:
        return _TEXT_TYPES[kind], str(value), None, None, None, None, None
    return _to_rare_entry(value)


def _to_rare_entry(value: object) -> PropertyEntry:  # noqa: PLR0911
    if value is None:
        return "null", None, None, None, None, None, None
    if isinstance(value, Timestamp):
        if MIN_TIMESTAMP_MS <= value <= MAX_TIMESTAMP_MS:
            return "timestamp", None, None, None, None, int(value) * 1000, None
        return "timestamp", format(value, "d"), None, None, None, None, None
    if isinstance(value, Decimal32 | Decimal64 | Decimal128):
        number = value.to_decimal()
        if number.is_finite() and type(value).from_decimal(number) == value:
            return _DECIMAL_TYPES[type(value)], str(number), None, None, None, None, None
    elif isinstance(value, bytes):
        return "binary", None, None, None, None, None, value
    elif isinstance(value, Described) and value.descriptor == TIMESPAN and type(value.value) is int:
        return "timespan", None, value.value, None, None, None, None
    return "amqp", None, None, None, None, None, encode(value)


def from_entry(entry: Mapping[str, object]) -> object:
    """Convert an entry to the AMQP value it represents. Raise ValueError if the entry is invalid.

    The type of an entry without `type` follows from its only field: `{"string": "high"}`.
    """
    kind = entry.get("type")
    fields = {name: value for name in FIELDS[1:] if (value := entry.get(name)) is not None}
    if kind is None:
        kind = _type_of_fields(fields)
    make = VALUE_PARSERS.get(str(kind))
    if make is None:
        raise ValueError(f"a property has the type {kind!r:.40}; use one of {', '.join(VALUE_PARSERS)}")
    if kind == "null":
        return None
    try:
        return make(fields)
    except (KeyError, TypeError, ValueError, decimal.DecimalException, AmqpError) as error:
        raise ValueError(f"a property of the type {kind} has {fields!r:.80}: {_reason(error)}") from error


def _type_of_fields(fields: Mapping[str, object]) -> str:
    if len(fields) > 1:
        raise ValueError(f"a property without a type has {', '.join(fields)}: set its type")
    return next(iter(fields), "null")


def _reason(error: Exception) -> str:
    return f"it needs the field {error}" if isinstance(error, KeyError) else str(error)


def _integer_field(fields: Mapping[str, object]) -> int:
    return int(str(fields["string"] if "string" in fields else fields["long"]))


# `to_type` returns `object`: in compiled code a callable that is declared to return int or float returns a plain
# number.


def _integer_parser(to_type: Callable[[int], object]) -> Callable[[Mapping[str, object]], object]:
    return lambda fields: to_type(_integer_field(fields))


def _text_parser(to_type: Callable[[str], object]) -> Callable[[Mapping[str, object]], object]:
    return lambda fields: to_type(str(fields["string"]))


def _decimal_parser(decimal_type: type[Decimal32 | Decimal64 | Decimal128]) -> Callable[[Mapping[str, object]], object]:
    return lambda fields: decimal_type.from_decimal(decimal.Decimal(str(fields["string"])))


def _parse_timestamp(fields: Mapping[str, object]) -> object:
    moment = fields.get("timestamp")
    if isinstance(moment, dt.datetime):
        return Timestamp(milliseconds_of(moment))
    if isinstance(moment, int):  # microseconds, Arrow's unit
        return Timestamp(moment // 1000)
    return Timestamp(_integer_field(fields))


def _parse_binary(fields: Mapping[str, object]) -> bytes:
    value = fields["binary"]
    if not isinstance(value, bytes | bytearray | memoryview):
        raise TypeError(f"{type(value).__name__} is not binary")
    return bytes(value)


def _parse_amqp(fields: Mapping[str, object]) -> object:
    encoded = _parse_binary(fields)
    value, end = decode(encoded)
    if end != len(encoded):
        raise ValueError("it encodes more than one value")
    return value


def _float_parser(to_type: Callable[[float], object]) -> Callable[[Mapping[str, object]], object]:
    return lambda fields: to_type(float(str(fields["double"])))


VALUE_PARSERS: Final[dict[str, Callable[[Mapping[str, object]], object]]] = {
    **{name: _integer_parser(kind) for kind, name in _INTEGER_TYPES.items()},
    "string": _text_parser(str),
    "symbol": _text_parser(Symbol),
    "char": _text_parser(Char),
    "uuid": _text_parser(uuid.UUID),
    "decimal32": _decimal_parser(Decimal32),
    "decimal64": _decimal_parser(Decimal64),
    "decimal128": _decimal_parser(Decimal128),
    "float": _float_parser(Float),
    "double": _float_parser(float),
    "boolean": lambda fields: bool(fields["boolean"]),
    "timestamp": _parse_timestamp,
    "binary": _parse_binary,
    "timespan": lambda fields: Described(TIMESPAN, _integer_field(fields)),
    "amqp": _parse_amqp,
    "null": lambda _: None,
}
"""Functions that convert the fields of an entry to an AMQP value, by type name."""
