"""Choice of encoding: the encoder uses a short encoding, and always the same one."""

from __future__ import annotations

import uuid

import pytest

from twinbus.amqp.codec.encode import encode, write_list
from twinbus.amqp.types import (
    Array,
    Byte,
    Char,
    Decimal32,
    Decimal64,
    Decimal128,
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

CHOICES: list[tuple[object, str]] = [
    (None, "40"),
    (True, "41"),
    (False, "42"),
    (UByte(7), "50 07"),
    (UShort(7), "60 0007"),
    (UInt(0), "52 00"),
    (UInt(255), "52 ff"),
    (UInt(256), "70 00000100"),
    (ULong(0), "53 00"),
    (ULong(255), "53 ff"),
    (ULong(256), "80 0000000000000100"),
    (Byte(-7), "51 f9"),
    (Short(-7), "61 fff9"),
    (Int(-128), "54 80"),
    (Int(127), "54 7f"),
    (Int(128), "71 00000080"),
    (Int(-129), "71 ffffff7f"),
    (-128, "55 80"),
    (127, "55 7f"),
    (128, "81 0000000000000080"),
    (-129, "81 ffffffffffffff7f"),
    (Float(1.5), "72 3fc00000"),
    (1.5, "82 3ff8000000000000"),
    (Decimal32(b"\x32\x80\x00\x01"), "74 32800001"),
    (Decimal64(b"\x01" * 8), "84" + "01" * 8),
    (Decimal128(b"\x02" * 16), "94" + "02" * 16),
    (Char("A"), "73 00000041"),
    (Timestamp(0), "83 0000000000000000"),
    (uuid.UUID(int=1), "98" + "00" * 15 + "01"),
    (b"", "a0 00"),
    (b"\xff" * 255, "a0 ff" + "ff" * 255),
    (b"\xff" * 256, "b0 00000100" + "ff" * 256),
    ("é", "a1 02 c3a9"),
    ("é" * 127 + "x", "a1 ff" + "c3a9" * 127 + "78"),
    ("é" * 128, "b1 00000100" + "c3a9" * 128),
    (Symbol("a"), "a3 01 61"),
    (Symbol("a" * 255), "a3 ff" + "61" * 255),
    (Symbol("a" * 256), "b3 00000100" + "61" * 256),
    ([], "45"),
    ([7], "c0 03 01 5507"),
    ([None] * 254, "c0 ff fe" + "40" * 254),
    ([None] * 255, "d0 00000103 000000ff" + "40" * 255),
    ({}, "c1 01 00"),
    ({"a": 7}, "c1 06 02 a10161 5507"),
    (Pairs([(True, 7)]), "c1 04 02 41 5507"),
    ({1: b"\xff" * 249}, "c1 fe 02 5501 a0 f9" + "ff" * 249),
    ({1: b"\xff" * 250}, "c1 ff 02 5501 a0 fa" + "ff" * 250),
    ({1: b"\xff" * 251}, "d1 00000103 00000002 5501 a0 fb" + "ff" * 251),
    (Array(Symbol, []), "e0 02 00 b3"),
    (Array(Symbol, [Symbol("a")]), "e0 07 01 b3 00000001 61"),
    (Array(bool, [True, False]), "e0 04 02 56 01 00"),
    (Array(bytes, [b"\xff" * 249]), "e0 ff 01 b0 000000f9" + "ff" * 249),
    (Array(bytes, [b"\xff" * 250]), "f0 00000103 00000001 b0 000000fa" + "ff" * 250),
    (Array(type(None), [None] * 255), "e0 02 ff 40"),
    (Array(type(None), [None] * 256), "f0 00000005 00000100 40"),
    (Array(UInt, [UInt(1)], (ULong(5),)), "e0 09 01 00 5305 70 00000001"),
    (Described(ULong(0x24), []), "00 5324 45"),
    (Described(Symbol("d"), None), "00 a30164 40"),
]


@pytest.mark.parametrize(("value", "encoding"), CHOICES, ids=[encoding[:40] for _, encoding in CHOICES])
def test_a_value_is_encoded_in_a_short_form(value: object, encoding: str) -> None:
    assert encode(value).hex() == encoding.replace(" ", "")


def test_maps_are_encoded_in_insertion_order() -> None:
    assert encode({"a": 1, "b": 2}) != encode({"b": 2, "a": 1})


def test_write_list_with_encoded_elements_gives_the_same_bytes_as_encode() -> None:
    for items in ([], [1], [None] * 254, [None] * 255, ["x" * 300]):
        out = bytearray()
        write_list(out, b"".join(encode(item) for item in items), len(items))
        assert bytes(out) == encode(list(items))
