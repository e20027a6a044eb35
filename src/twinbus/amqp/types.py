"""The Python face of each AMQP type: one for one, so that a value read and written again keeps its type.

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

Owns: these classes. Knows nothing of bytes on the wire: `encode` and `decode` do that.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Self

from twinbus.amqp import decimals

if TYPE_CHECKING:
    import decimal


class _Number(int):
    """An int that remembers which AMQP integer it is. Its range is checked where it is encoded."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({int(self)})"


class UByte(_Number):
    """0 to 255."""

    __slots__ = ()


class UShort(_Number):
    """0 to 2^16 - 1."""

    __slots__ = ()


class UInt(_Number):
    """0 to 2^32 - 1."""

    __slots__ = ()


class ULong(_Number):
    """0 to 2^64 - 1."""

    __slots__ = ()


class Byte(_Number):
    """-128 to 127."""

    __slots__ = ()


class Short(_Number):
    """-2^15 to 2^15 - 1."""

    __slots__ = ()


class Int(_Number):
    """-2^31 to 2^31 - 1. A plain Python int is an AMQP long."""

    __slots__ = ()


class Timestamp(_Number):
    """Milliseconds since 1970-01-01T00:00Z, as a signed 64-bit number; a wider range than datetime has."""

    __slots__ = ()


class Float(float):
    """A 32-bit float. A plain Python float is an AMQP double."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"Float({float(self)})"


class Char(str):
    """One Unicode character."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"Char({str(self)!r})"


class Symbol(str):
    """An ASCII name that both ends know. Equal to the string of the same text, but another type on the wire."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"Symbol({str(self)!r})"


class _Decimal(bytes):
    """An IEEE 754 decimal as its bytes: it passes through exactly; arithmetic is done on `to_decimal()`."""

    __slots__ = ()
    layout: ClassVar[decimals.Layout]

    @classmethod
    def from_decimal(cls, value: decimal.Decimal) -> Self:
        """The encoding of `value`; ValueError where it does not fit exactly."""
        return cls(decimals.pack(value, cls.layout))

    def to_decimal(self) -> decimal.Decimal:
        """The number, infinity or NaN these bytes stand for."""
        return decimals.unpack(self, self.layout)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.to_decimal()})"


class Decimal32(_Decimal):
    """4 bytes, 7 digits."""

    __slots__ = ()
    layout = decimals.DECIMAL32


class Decimal64(_Decimal):
    """8 bytes, 16 digits."""

    __slots__ = ()
    layout = decimals.DECIMAL64


class Decimal128(_Decimal):
    """16 bytes, 34 digits."""

    __slots__ = ()
    layout = decimals.DECIMAL128


@dataclass(frozen=True, slots=True)
class Described:
    """A value with a descriptor in front that says what it means; both may be described in turn."""

    descriptor: object
    value: object


@dataclass(frozen=True, slots=True)
class Array:
    """Values of one type with one constructor. `element_type` is known even when there are none."""

    element_type: type
    items: list[object]
    descriptors: tuple[object, ...] = field(default=())
    """What describes each element, outermost first; empty for a plain array."""


class Pairs(tuple[tuple[object, object], ...]):
    """A map that a dict cannot hold: keys that are lists, or that Python calls equal and AMQP does not (1 and true)."""

    __slots__ = ()
