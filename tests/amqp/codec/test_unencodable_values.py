"""Values without an AMQP encoding: encoding raises EncodeError, and no other exception."""

from __future__ import annotations

import datetime as dt
import decimal

import pytest

from twinbus.amqp.codec.encode import encode
from twinbus.amqp.errors import EncodeError
from twinbus.amqp.states import SenderSettleMode
from twinbus.amqp.types import (
    Array,
    Byte,
    Char,
    Decimal32,
    Described,
    Float,
    Int,
    Pairs,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
)

RANGES: dict[type[int], tuple[int, int]] = {
    UByte: (0, 2**8 - 1),
    UShort: (0, 2**16 - 1),
    UInt: (0, 2**32 - 1),
    ULong: (0, 2**64 - 1),
    Byte: (-(2**7), 2**7 - 1),
    Short: (-(2**15), 2**15 - 1),
    Int: (-(2**31), 2**31 - 1),
    int: (-(2**63), 2**63 - 1),
    Timestamp: (-(2**63), 2**63 - 1),
}


@pytest.mark.parametrize("kind", RANGES)
def test_an_integer_can_be_encoded_only_within_the_range_of_its_type(kind: type[int]) -> None:
    low, high = RANGES[kind]
    for inside in (low, high):
        encode(kind(inside))
        encode(Array(kind, [kind(inside)]))
    for outside in (low - 1, high + 1, 10**5000, -(10**5000)):
        with pytest.raises(EncodeError):
            encode(kind(outside))
        with pytest.raises(EncodeError):
            encode(Array(kind, [kind(outside)]))


UNENCODABLE: dict[str, object] = {
    "an object": object(),
    "a set": {1},
    "a tuple": (1,),
    "a bytearray": bytearray(b"a"),
    "a memoryview": memoryview(b"a"),
    "a complex number": 1j,
    "a datetime": dt.datetime(2026, 1, 1, tzinfo=dt.UTC),
    "a decimal of no width": decimal.Decimal(1),
    "an enumeration": SenderSettleMode.MIXED,
    "a class": int,
    "half a surrogate pair": "\ud800",
    "half a surrogate pair as a char": Char("\udfff"),
    "a char of none": Char(""),
    "a char of two": Char("ab"),
    "a symbol beyond ASCII": Symbol("é"),
    "a float too large for 32 bits": Float(1e300),
    "a decimal32 of 3 bytes": Decimal32(b"abc"),
    "a decimal32 of 50 bytes": Decimal32(b"\x01" * 50),
}


@pytest.mark.parametrize("name", UNENCODABLE)
def test_a_value_without_an_encoding_is_refused_at_any_nesting_position(name: str) -> None:
    value = UNENCODABLE[name]
    containers: list[object] = [
        value,
        [1, [value]],
        {"key": value},
        Pairs([(value, 1)]),
        Described(ULong(1), value),
        Described(value, None),
        Array(type(value), [value]),
        Array(int, [], (value,)),
        Array(int, [value]),
    ]
    for container in containers:
        with pytest.raises(EncodeError):
            encode(container)


def test_an_array_holds_one_type_only() -> None:
    with pytest.raises(EncodeError, match=r"array of UInt holds 1"):
        encode(Array(UInt, [UInt(1), 1]))
    with pytest.raises(EncodeError, match=r"array of int holds True"):
        encode(Array(int, [True]))
    with pytest.raises(EncodeError, match=r"array of str holds Symbol\('a'\)"):
        encode(Array(str, ["a", Symbol("a")]))


def test_an_array_cannot_have_described_values_as_elements() -> None:
    with pytest.raises(EncodeError):
        encode(Array(Described, [Described(ULong(1), 1)]))


def test_a_list_that_holds_itself_is_refused() -> None:
    endless: list[object] = []
    endless += [endless, endless]
    with pytest.raises(EncodeError, match="nested deeper than 64"):
        encode(endless)


def test_a_map_that_holds_itself_is_refused() -> None:
    endless: dict[str, object] = {}
    endless["self"] = [endless]
    with pytest.raises(EncodeError, match="nested deeper than 64"):
        encode(endless)


def test_an_array_that_holds_itself_is_refused() -> None:
    endless = Array(Array, [])
    endless.items.append(endless)
    with pytest.raises(EncodeError, match="nested deeper than 64"):
        encode(endless)


def test_the_encode_error_shows_the_value_in_few_characters() -> None:
    with pytest.raises(EncodeError, match="-1 is not between 0 and 255"):
        encode(UByte(-1))
    with pytest.raises(EncodeError) as raised:
        encode(["\ud800" * 100_000])
    assert len(str(raised.value)) < 300
