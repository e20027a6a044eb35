"""Application properties, each with the type it was sent as.

    {"type": "uint", "long": 3}
    {"type": "string", "string": "high"}

Owns: which field of such an entry holds a value of which AMQP type, and the way back: a property that is read and
written again is the same to the bit. Knows nothing of messages or columns.

| type | field | |
|---|---|---|
| string, symbol, char | string | |
| ubyte, ushort, uint, byte, short, int, long | long | |
| ulong | long | in `string` from 2^63 on |
| float, double | double | |
| boolean | boolean | |
| timestamp | timestamp | in `string`, as milliseconds since 1970, outside the years 1 to 9999 |
| uuid, decimal32, decimal64, decimal128 | string | |
| binary | binary | |
| timespan | long | .NET's durations, in hundreds of nanoseconds |
| null | none | |
| amqp | binary | whatever else: its AMQP encoding |
"""

from __future__ import annotations

import datetime as dt
import decimal
import uuid
from typing import TYPE_CHECKING, Final, TypeAlias

from twinbus.amqp.decode import decode
from twinbus.amqp.encode import encode
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
Entry: TypeAlias = "tuple[str, str | None, int | None, float | None, bool | None, int | None, bytes | None]"
"""The fields in this order; the timestamp in microseconds since 1970."""

EARLIEST_MS: Final = -62_135_596_800_000
LATEST_MS: Final = 253_402_300_799_999
"""What Python's datetime, and so whoever collects rows, can hold: the years 1 to 9999."""
_LONG_END: Final = 2**63
_INTEGERS: Final[dict[type, str]] = {
    int: "long",
    Int: "int",
    UInt: "uint",
    ULong: "ulong",
    Short: "short",
    UShort: "ushort",
    Byte: "byte",
    UByte: "ubyte",
}
_TEXTS: Final[dict[type, str]] = {str: "string", Symbol: "symbol", Char: "char", uuid.UUID: "uuid"}
_DECIMALS: Final[dict[type, str]] = {Decimal32: "decimal32", Decimal64: "decimal64", Decimal128: "decimal128"}


def entry_of(value: object) -> Entry:  # noqa: PLR0911  # one for each field
    """A property's value, as AMQP has it, taken to its field."""
    kind = type(value)
    if kind is str:
        assert isinstance(value, str)
        return "string", value, None, None, None, None, None
    if isinstance(value, bool):
        return "boolean", None, None, None, value, None, None
    if kind in _INTEGERS:
        assert isinstance(value, int)
        number = int(value)
        if number < _LONG_END:
            return _INTEGERS[kind], None, number, None, None, None, None
        return _INTEGERS[kind], format(number, "d"), None, None, None, None, None  # compiled, it may still be an ULong
    if isinstance(value, float):
        return "float" if kind is Float else "double", None, None, float(value), None, None, None
    if kind in _TEXTS:
        return _TEXTS[kind], str(value), None, None, None, None, None
    return _rare_entry_of(value)


def _rare_entry_of(value: object) -> Entry:  # noqa: PLR0911
    if value is None:
        return "null", None, None, None, None, None, None
    if isinstance(value, Timestamp):
        if EARLIEST_MS <= value <= LATEST_MS:
            return "timestamp", None, None, None, None, int(value) * 1000, None
        return "timestamp", format(value, "d"), None, None, None, None, None
    if isinstance(value, Decimal32 | Decimal64 | Decimal128):
        number = value.to_decimal()
        if number.is_finite() and type(value).from_decimal(number) == value:
            return _DECIMALS[type(value)], str(number), None, None, None, None, None
    elif isinstance(value, bytes):
        return "binary", None, None, None, None, None, value
    elif isinstance(value, Described) and value.descriptor == TIMESPAN and type(value.value) is int:
        return "timespan", None, value.value, None, None, None, None
    return "amqp", None, None, None, None, None, encode(value)


def value_of(entry: Mapping[str, object]) -> object:
    """The value that an entry stands for, as AMQP has it; ValueError says what is wrong with the entry.

    An entry without a type is taken by the one field that it has: `{"string": "high"}`.
    """
    kind = entry.get("type")
    given = {name: found for name in FIELDS[1:] if (found := entry.get(name)) is not None}
    if kind is None:
        kind = _type_of(given)
    make = MAKERS.get(str(kind))
    if make is None:
        raise ValueError(f"a property has the type {kind!r:.40}; it can have {', '.join(MAKERS)}")
    if kind == "null":
        return None
    try:
        return make(given)
    except (KeyError, TypeError, ValueError, decimal.DecimalException, AmqpError) as error:
        raise ValueError(f"a property of the type {kind} has {given!r:.80}: {_reason(error)}") from error


def _type_of(given: Mapping[str, object]) -> str:
    if len(given) > 1:
        raise ValueError(f"a property without a type has {', '.join(given)}: say which of them counts, as its type")
    return next(iter(given), "null")


def _reason(error: Exception) -> str:
    return f"it needs the field {error}" if isinstance(error, KeyError) else str(error)


def _whole(given: Mapping[str, object]) -> int:
    return int(str(given["string"] if "string" in given else given["long"]))


# `kind` gives an object: what is said to give an int, or a float, gives a plain one where this is compiled.


def _integer(kind: Callable[[int], object]) -> Callable[[Mapping[str, object]], object]:
    return lambda given: kind(_whole(given))


def _text(kind: Callable[[str], object]) -> Callable[[Mapping[str, object]], object]:
    return lambda given: kind(str(given["string"]))


def _decimal(kind: type[Decimal32 | Decimal64 | Decimal128]) -> Callable[[Mapping[str, object]], object]:
    return lambda given: kind.from_decimal(decimal.Decimal(str(given["string"])))


def _timestamp(given: Mapping[str, object]) -> object:
    moment = given.get("timestamp")
    if isinstance(moment, dt.datetime):
        return Timestamp(milliseconds_of(moment))
    if isinstance(moment, int):  # microseconds, as Arrow has them
        return Timestamp(moment // 1000)
    return Timestamp(_whole(given))


def _binary(given: Mapping[str, object]) -> bytes:
    found = given["binary"]
    if not isinstance(found, bytes | bytearray | memoryview):
        raise TypeError(f"{type(found).__name__} is no binary")
    return bytes(found)


def _any(given: Mapping[str, object]) -> object:
    encoded = _binary(given)
    value, end = decode(encoded)
    if end != len(encoded):
        raise ValueError("there is more than one value in it")
    return value


def _float(kind: Callable[[float], object]) -> Callable[[Mapping[str, object]], object]:
    return lambda given: kind(float(str(given["double"])))


MAKERS: Final[dict[str, Callable[[Mapping[str, object]], object]]] = {
    **{name: _integer(kind) for kind, name in _INTEGERS.items()},
    "string": _text(str),
    "symbol": _text(Symbol),
    "char": _text(Char),
    "uuid": _text(uuid.UUID),
    "decimal32": _decimal(Decimal32),
    "decimal64": _decimal(Decimal64),
    "decimal128": _decimal(Decimal128),
    "float": _float(Float),
    "double": _float(float),
    "boolean": lambda given: bool(given["boolean"]),
    "timestamp": _timestamp,
    "binary": _binary,
    "timespan": lambda given: Described(TIMESPAN, _whole(given)),
    "amqp": _any,
    "null": lambda _: None,
}
"""By the name of the type."""
