"""IEEE 754-2008 decimals in binary integer encoding, converted to and from Python's Decimal.

AMQP encodes decimals as fixed-width values (.NET sends its `decimal` as decimal128). Owns only the bit layout.
"""

from __future__ import annotations

import decimal
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Layout:
    """Bit layout of one decimal width: 1 sign bit, `exponent_bits`, and the coefficient in the remaining bits."""

    width: int
    """Width in bytes."""
    exponent_bits: int
    bias: int
    digits: int

    @property
    def coefficient_bits(self) -> int:
        """Number of coefficient bits in the usual form. The long form has two fewer, and an implicit prefix 0b100."""
        return self.width * 8 - 1 - self.exponent_bits

    @property
    def context(self) -> decimal.Context:
        """Decimal context that fits a number to this width's digits and exponents, or raises Inexact."""
        # The two leading bits of an exponent are never both set: that pattern marks the long form and special values.
        largest = (3 << (self.exponent_bits - 2)) - 1 - self.bias
        largest_adjusted = largest + self.digits - 1
        return decimal.Context(
            prec=self.digits, Emax=largest_adjusted, Emin=1 - largest_adjusted, clamp=1, traps=[decimal.Inexact]
        )


DECIMAL32: Final = Layout(4, 8, 101, 7)
DECIMAL64: Final = Layout(8, 10, 398, 16)
DECIMAL128: Final = Layout(16, 14, 6176, 34)

_INFINITY: Final = 0b11110
_NAN: Final = 0b11111
_LONG_FORM: Final = 0b11


def unpack(data: bytes, layout: Layout) -> decimal.Decimal:
    """Decode `data` as a decimal. A coefficient out of range counts as zero, as IEEE 754 requires."""
    if len(data) != layout.width:
        raise ValueError(f"{len(data)} bytes where {layout.width} are needed")
    bits = int.from_bytes(data, "big")
    width_bits = layout.width * 8
    sign = bits >> (width_bits - 1)
    special = (bits >> (width_bits - 6)) & 0b11111
    if special == _INFINITY:
        return decimal.Decimal("-Infinity" if sign else "Infinity")
    if special == _NAN:
        return decimal.Decimal("-NaN" if sign else "NaN")
    exponent_mask = (1 << layout.exponent_bits) - 1
    if special >> 3 == _LONG_FORM:
        shift = layout.coefficient_bits - 2
        coefficient = (0b100 << shift) | (bits & ((1 << shift) - 1))
    else:
        shift = layout.coefficient_bits
        coefficient = bits & ((1 << shift) - 1)
    exponent = ((bits >> shift) & exponent_mask) - layout.bias
    if coefficient >= 10**layout.digits:
        coefficient = 0
    return decimal.Decimal((sign, tuple(map(int, str(coefficient))), exponent))


def pack(value: decimal.Decimal, layout: Layout) -> bytes:
    """Encode `value` as a decimal of this layout; raise ValueError if the layout cannot represent `value` exactly."""
    try:
        sign, digits, exponent = layout.context.create_decimal(value).as_tuple()
    except decimal.Inexact:
        bits = layout.width * 8
        raise ValueError(f"{value} does not fit a decimal of {bits} bits ({layout.digits} digits)") from None
    top = sign << (layout.width * 8 - 1)
    if not isinstance(exponent, int):
        special = _INFINITY if exponent == "F" else _NAN
        return (top | special << (layout.width * 8 - 6)).to_bytes(layout.width, "big")
    biased = exponent + layout.bias
    coefficient = int("".join(map(str, digits)))
    if coefficient >> layout.coefficient_bits:
        shift = layout.coefficient_bits - 2
        bits = top | _LONG_FORM << (layout.width * 8 - 3) | biased << shift | coefficient & ((1 << shift) - 1)
    else:
        bits = top | biased << layout.coefficient_bits | coefficient
    return bits.to_bytes(layout.width, "big")
