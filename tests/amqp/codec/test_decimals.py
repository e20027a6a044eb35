"""Decimals: exact conversion to and from IEEE 754-2008 binary integer encoding.

The fixed vectors include those that Intel publishes for its decimal library, and MongoDB for BSON's decimal128.
"""

from __future__ import annotations

import decimal
from decimal import Decimal
from typing import TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.amqp.codec.value_strategies import examples
from twinbus.amqp.types import Decimal32, Decimal64, Decimal128

DecimalType: TypeAlias = type[Decimal32] | type[Decimal64] | type[Decimal128]

WIDTHS: list[DecimalType] = [Decimal32, Decimal64, Decimal128]

CANONICAL: list[tuple[DecimalType, str, str]] = [
    # kind, number, bytes
    (Decimal32, "0", "32800000"),
    (Decimal32, "-0", "b2800000"),
    (Decimal32, "1", "32800001"),
    (Decimal32, "-1", "b2800001"),
    (Decimal32, "0.1", "32000001"),
    (Decimal32, "123.4567", "3092d687"),
    (Decimal32, "1E-101", "00000001"),
    (Decimal32, "8388607", "32ffffff"),
    (Decimal32, "8388608", "6ca00000"),
    (Decimal32, "9999999", "6cb8967f"),
    (Decimal32, "9.999999E+96", "77f8967f"),
    (Decimal32, "-9.999999E+96", "f7f8967f"),
    (Decimal32, "Infinity", "78000000"),
    (Decimal32, "-Infinity", "f8000000"),
    (Decimal32, "NaN", "7c000000"),
    (Decimal32, "-NaN", "fc000000"),
    (Decimal64, "0", "31c0000000000000"),
    (Decimal64, "1", "31c0000000000001"),
    (Decimal64, "-1", "b1c0000000000001"),
    (Decimal64, "1E-398", "0000000000000001"),
    (Decimal64, "9007199254740991", "31dfffffffffffff"),
    (Decimal64, "9007199254740992", "6c70000000000000"),
    (Decimal64, "9.999999999999999E+384", "77fb86f26fc0ffff"),
    (Decimal64, "Infinity", "7800000000000000"),
    (Decimal64, "-Infinity", "f800000000000000"),
    (Decimal64, "NaN", "7c00000000000000"),
    (Decimal128, "0", "30400000000000000000000000000000"),
    (Decimal128, "-0", "b0400000000000000000000000000000"),
    (Decimal128, "1", "30400000000000000000000000000001"),
    (Decimal128, "0.1", "303e0000000000000000000000000001"),
    (Decimal128, "0E+3", "30460000000000000000000000000000"),
    (Decimal128, "0.001234", "303400000000000000000000000004d2"),
    (Decimal128, "123456789012", "30400000000000000000001cbe991a14"),
    (Decimal128, "1.234567890123456789012345678901234E+34", "30423cde6fff9732de825cd07e96aff2"),
    (Decimal128, "1E-6176", "00000000000000000000000000000001"),
    (Decimal128, "9.999999999999999999999999999999999E+6144", "5fffed09bead87c0378d8e63ffffffff"),
    (Decimal128, "-9.999999999999999999999999999999999E+6144", "dfffed09bead87c0378d8e63ffffffff"),
    (Decimal128, "Infinity", "78000000000000000000000000000000"),
    (Decimal128, "-Infinity", "f8000000000000000000000000000000"),
    (Decimal128, "NaN", "7c000000000000000000000000000000"),
]

READ_ONLY: list[tuple[DecimalType, str, str]] = [
    # a coefficient with too many digits counts as zero, and keeps sign and exponent
    (Decimal32, "6cb89680", "0"),
    (Decimal32, "ecbfffff", "-0"),
    (Decimal64, "6c7386f26fc10000", "0"),
    (Decimal128, "3041ed09bead87c0378d8e6400000000", "0"),
    (Decimal128, "6c100000000000000000000000000000", "0"),
    (Decimal128, "dffffffffffffffffffffffffffffffe", "-0E+6111"),
    # the bits after an infinity or NaN are ignored, and a signalling NaN is read as NaN
    (Decimal32, "7bffffff", "Infinity"),
    (Decimal32, "7e000001", "NaN"),
    (Decimal64, "fe00000000000000", "-NaN"),
    (Decimal128, "7c000000000000000000000000000012", "NaN"),
    (Decimal128, "7affffffffffffffffffffffffffffff", "Infinity"),
]


@pytest.mark.parametrize(("kind", "number", "encoding"), CANONICAL, ids=repr)
def test_a_decimal_has_the_published_bytes(kind: DecimalType, number: str, encoding: str) -> None:
    packed = kind.from_decimal(Decimal(number))
    assert type(packed) is kind
    assert packed.hex() == encoding
    assert str(packed.to_decimal()) == str(Decimal(number))


@pytest.mark.parametrize(("kind", "encoding", "number"), READ_ONLY, ids=repr)
def test_non_canonical_bytes_are_decoded_as_the_standard_requires(
    kind: DecimalType, encoding: str, number: str
) -> None:
    assert str(kind(bytes.fromhex(encoding)).to_decimal()) == number


@st.composite
def numbers(draw: st.DrawFn) -> tuple[DecimalType, Decimal]:
    """A width, and a number whose digits and exponent fit that width."""
    kind = draw(st.sampled_from(WIDTHS))
    layout = kind.layout
    coefficient = draw(st.integers(0, 10**layout.digits - 1))
    exponent = draw(st.integers(-layout.bias, 3 * 2 ** (layout.exponent_bits - 2) - 1 - layout.bias))
    sign = draw(st.integers(0, 1))
    return kind, Decimal((sign, tuple(map(int, str(coefficient))), exponent))


@examples(200)
@given(numbers())
def test_a_number_that_fits_keeps_sign_digits_and_exponent(chosen: tuple[DecimalType, Decimal]) -> None:
    kind, number = chosen
    assert kind.from_decimal(number).to_decimal().as_tuple() == number.as_tuple()


@examples(200)
@given(st.data())
def test_any_bytes_of_the_right_width_decode_to_a_number_that_can_be_encoded(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(WIDTHS))
    width = kind.layout.width
    number = kind(data.draw(st.binary(min_size=width, max_size=width))).to_decimal()
    packed = kind.from_decimal(number)
    assert len(packed) == width
    assert str(packed.to_decimal()) == str(number)


@pytest.mark.parametrize(
    ("kind", "number"),
    [
        (Decimal32, "12345678"),
        (Decimal32, "1.0000001"),
        (Decimal32, "1E+97"),
        (Decimal32, "9.9999995E+96"),
        (Decimal32, "1E-102"),
        (Decimal32, "1.1E-101"),
        (Decimal64, "12345678901234567"),
        (Decimal64, "1E+385"),
        (Decimal64, "1E-399"),
        (Decimal128, "1" * 35),
        (Decimal128, "-1E+6145"),
        (Decimal128, "1E-6177"),
        (Decimal128, "1E+999999"),
        (Decimal128, "1E-999999"),
    ],
)
def test_a_number_that_does_not_fit_exactly_is_refused_not_rounded(kind: DecimalType, number: str) -> None:
    with pytest.raises(ValueError, match="does not fit a decimal"):
        kind.from_decimal(Decimal(number))


@pytest.mark.parametrize(
    ("kind", "number", "same"),
    [
        (Decimal32, "1E+96", "1.000000E+96"),
        (Decimal32, "100000000", "1.000000E+8"),
        (Decimal32, "1.00000000", "1.000000"),
        (Decimal64, "1E+384", "1.000000000000000E+384"),
        (Decimal128, "1E+6144", "1.000000000000000000000000000000000E+6144"),
        (Decimal128, "0E+99999", "0E+6111"),
        (Decimal128, "-0E-99999", "-0E-6176"),
    ],
)
def test_a_number_that_fits_only_with_other_trailing_zeros_keeps_its_value(
    kind: DecimalType, number: str, same: str
) -> None:
    read = kind.from_decimal(Decimal(number)).to_decimal()
    assert str(read) == same
    assert read == Decimal(number)


@pytest.mark.parametrize("kind", WIDTHS)
@pytest.mark.parametrize("number", ["NaN123", "sNaN", "sNaN7"])
def test_every_kind_of_nan_is_written_as_nan(kind: DecimalType, number: str) -> None:
    assert str(kind.from_decimal(Decimal(number)).to_decimal()) == "NaN"


@pytest.mark.parametrize("kind", WIDTHS)
def test_the_programs_decimal_context_does_not_matter(kind: DecimalType) -> None:
    number = Decimal(1234567)
    with decimal.localcontext(decimal.Context(prec=2, Emax=3, Emin=-3, traps=[decimal.Inexact, decimal.Rounded])):
        packed = kind.from_decimal(number)
        unpacked = packed.to_decimal()
    assert unpacked.as_tuple() == number.as_tuple()


@pytest.mark.parametrize("kind", WIDTHS)
@pytest.mark.parametrize("extra_bytes", [-1, 1])
def test_bytes_of_the_wrong_length_are_refused(kind: DecimalType, extra_bytes: int) -> None:
    with pytest.raises(ValueError, match="are needed"):
        kind(bytes(kind.layout.width + extra_bytes)).to_decimal()
