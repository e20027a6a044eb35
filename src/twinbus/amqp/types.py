"""Python types for the AMQP types, one for each, so that a decoded value keeps its AMQP type when it is encoded again.

| AMQP | Python | | AMQP | Python |
|---|---|---|---|---|
| null | None | | char | Char |
| boolean | bool | | timestamp | Timestamp (ms since 1970) |
| ubyte, ushort, uint, ulong | UByte, UShort, UInt, ULong | | uuid | uuid.UUID |
| byte, short, int | Byte, Short, Int | | binary | bytes |
| long | int | | string | str |
| float | Float | | symbol | Symbol |
| double | float | | list | list |
| decimal32, 64, 128 | Decimal32, 64, 128 | | map | dict (or Pairs) |
| described | Described | | array | Array |

Owns these classes. Must not know their encodings, which are in `codec.encode` and `codec.decode`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Self

from twinbus.amqp.codec import decimals

if TYPE_CHECKING:
    import decimal


class _Number(int):
    """AMQP integer of a specific type. The range is checked when the number is encoded."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({int(self)})"


class UByte(_Number):
    """AMQP ubyte: 0 to 255."""

    __slots__ = ()


class UShort(_Number):
    """AMQP ushort: 0 to 2^16 - 1."""

    __slots__ = ()


class UInt(_Number):
    """AMQP uint: 0 to 2^32 - 1."""

    __slots__ = ()


class ULong(_Number):
    """AMQP ulong: 0 to 2^64 - 1."""

    __slots__ = ()


class Byte(_Number):
    """AMQP byte: -128 to 127."""

    __slots__ = ()


class Short(_Number):
    """AMQP short: -2^15 to 2^15 - 1."""

    __slots__ = ()


class Int(_Number):
    """AMQP int: -2^31 to 2^31 - 1. A plain Python int is an AMQP long."""

    __slots__ = ()


class Timestamp(_Number):
    """Milliseconds since 1970-01-01T00:00Z as a signed 64-bit number, a wider range than datetime has."""

    __slots__ = ()


class Float(float):
    """AMQP float with 32 bits. A plain Python float is an AMQP double."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"Float({float(self)})"


class Char(str):
    """AMQP char: one Unicode character."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"Char({str(self)!r})"


class Symbol(str):
    """AMQP symbol: an ASCII name. A symbol equals the string of the same text but has a different type on the wire."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"Symbol({str(self)!r})"


class _Decimal(bytes):
    """Bytes of an IEEE 754 decimal, which keep the value exact; use `to_decimal()` for arithmetic."""

    __slots__ = ()
    layout: ClassVar[decimals.Layout]

    @classmethod
    def from_decimal(cls, value: decimal.Decimal) -> Self:
        """Encode `value`, or raise ValueError if this width cannot represent it exactly."""
        return cls(decimals.pack(value, cls.layout))

    def to_decimal(self) -> decimal.Decimal:
        """Return the number, infinity or NaN that the bytes encode."""
        return decimals.unpack(self, self.layout)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.to_decimal()})"


class Decimal32(_Decimal):
    """AMQP decimal32: 4 bytes, 7 digits."""

    __slots__ = ()
    layout = decimals.DECIMAL32


class Decimal64(_Decimal):
    """AMQP decimal64: 8 bytes, 16 digits."""

    __slots__ = ()
    layout = decimals.DECIMAL64


class Decimal128(_Decimal):
    """AMQP decimal128: 16 bytes, 34 digits."""

    __slots__ = ()
    layout = decimals.DECIMAL128


@dataclass(frozen=True, slots=True)
class Described:
    """Value with a descriptor that gives its meaning; both may themselves be described values."""

    descriptor: object
    value: object


@dataclass(frozen=True, slots=True)
class Array:
    """Values that share one type and one constructor. `element_type` is known even for an empty array."""

    element_type: type
    items: list[object]
    descriptors: tuple[object, ...] = field(default=())
    """Descriptors of the elements, outermost first; empty for a plain array."""


class Pairs(tuple[tuple[object, object], ...]):
    """Map that a dict cannot hold: its keys are unhashable, or equal in Python but not in AMQP (1 and true)."""

    __slots__ = ()
