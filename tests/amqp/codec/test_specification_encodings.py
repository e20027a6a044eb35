"""Decoding of every constructor (1.6) and every printed example (1.2, 1.4) in part 1 of the specification.

The bytes are copied from the specification; none of them comes from our encoder.
"""

from __future__ import annotations

import math
import uuid

import pytest

from tests.amqp.codec.reference_encoder import CODES
from tests.amqp.codec.value_strategies import with_type
from twinbus.amqp.codec.decode import decode, skip
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

A_UUID = uuid.UUID("f81d4fae-7dec-11d0-a765-00a0c91e6bf6")

VECTORS: list[tuple[str, object]] = [
    # null
    ("40", None),
    # boolean: as constants, as a byte
    ("41", True),
    ("42", False),
    ("56 00", False),
    ("56 01", True),
    # ubyte, ushort
    ("50 00", UByte(0)),
    ("50 ff", UByte(255)),
    ("60 0000", UShort(0)),
    ("60 ffff", UShort(65_535)),
    # uint: zero, one byte, four
    ("43", UInt(0)),
    ("52 00", UInt(0)),
    ("52 ff", UInt(255)),
    ("70 00000000", UInt(0)),
    ("70 000000ff", UInt(255)),
    ("70 ffffffff", UInt(2**32 - 1)),
    # ulong: zero, one byte, eight
    ("44", ULong(0)),
    ("53 00", ULong(0)),
    ("53 ff", ULong(255)),
    ("80 0000000000000000", ULong(0)),
    ("80 0000000000000100", ULong(256)),
    ("80 ffffffffffffffff", ULong(2**64 - 1)),
    # byte, short
    ("51 7f", Byte(127)),
    ("51 80", Byte(-128)),
    ("61 7fff", Short(32_767)),
    ("61 8000", Short(-32_768)),
    # int: one byte, four
    ("54 00", Int(0)),
    ("54 ff", Int(-1)),
    ("71 ffffffff", Int(-1)),
    ("71 7fffffff", Int(2**31 - 1)),
    ("71 80000000", Int(-(2**31))),
    # long: one byte, eight
    ("55 00", 0),
    ("55 80", -128),
    ("81 ffffffffffffff80", -128),
    ("81 7fffffffffffffff", 2**63 - 1),
    ("81 8000000000000000", -(2**63)),
    # float, double
    ("72 3fc00000", Float(1.5)),
    ("72 80000000", Float(-0.0)),
    ("72 ff800000", Float(-math.inf)),
    ("72 7fc00000", Float(math.nan)),
    ("82 3ff8000000000000", 1.5),
    ("82 8000000000000000", -0.0),
    ("82 7ff0000000000000", math.inf),
    ("82 7ff8000000000000", math.nan),
    # decimals, as their bytes
    ("74 32800001", Decimal32(bytes.fromhex("32800001"))),
    ("84 31c0000000000001", Decimal64(bytes.fromhex("31c0000000000001"))),
    ("94 30400000000000000000000000000001", Decimal128(bytes.fromhex("30400000000000000000000000000001"))),
    # char: UTF-32BE
    ("73 00000041", Char("A")),
    ("73 0000feff", Char("\ufeff")),
    ("73 0010ffff", Char("\U0010ffff")),
    # timestamp: the specification's own example is 2011-07-26T18:21:03.521Z
    ("83 0000013167adb8a1", Timestamp(1_311_704_463_521)),
    ("83 ffffffffffffffff", Timestamp(-1)),
    # uuid
    ("98 f81d4fae7dec11d0a76500a0c91e6bf6", A_UUID),
    # binary
    ("a0 00", b""),
    ("a0 03 000102", b"\x00\x01\x02"),
    ("b0 00000000", b""),
    ("b0 00000003 000102", b"\x00\x01\x02"),
    # string
    ("a1 00", ""),
    ("a1 04 c3a9 c3bc", "éü"),
    ("b1 00000000", ""),
    ("b1 00000004 f09f9a8c", "🚌"),
    # symbol
    ("a3 00", Symbol("")),
    ("a3 03 55524c", Symbol("URL")),
    ("b3 00000003 55524c", Symbol("URL")),
    # list: empty, narrow, wide
    ("45", []),
    ("c0 01 00", []),
    ("c0 04 02 40 5507", [None, 7]),
    ("d0 00000004 00000000", []),
    ("d0 00000007 00000002 40 5507", [None, 7]),
    ("c0 04 03 45 45 45", [[], [], []]),
    # map: narrow, wide
    ("c1 01 00", {}),
    ("c1 06 02 a10161 5507", {"a": 7}),
    ("d1 00000004 00000000", {}),
    ("d1 00000009 00000002 a10161 5507", {"a": 7}),
    ("c1 06 04 41 40 5501 40", Pairs([(True, None), (1, None)])),
    # array: narrow, wide, empty, of arrays, described
    ("e0 02 00 a3", Array(Symbol, [])),
    ("e0 08 02 a3 0355524c 0141", Array(Symbol, [Symbol("URL"), Symbol("A")])),
    ("f0 00000005 00000000 a3", Array(Symbol, [])),
    ("f0 0000000d 00000002 71 00000001 ffffffff", Array(Int, [Int(1), Int(-1)])),
    ("e0 0a 02 e0 02 00 56 04 02 56 00 01", Array(Array, [Array(bool, []), Array(bool, [False, True])])),
    ("e0 08 02 00 a3 0164 52 07 08", Array(UInt, [UInt(7), UInt(8)], (Symbol("d"),))),
    ("e0 08 01 00 5301 00 5302 40", Array(type(None), [None], (ULong(1), ULong(2)))),
    # described
    ("00 5377 a10161", Described(ULong(0x77), "a")),
    ("00 00 5301 5302 40", Described(Described(ULong(1), ULong(2)), None)),
    ("00 5301 00 5302 40", Described(ULong(1), Described(ULong(2), None))),
]

ELEMENTS: list[tuple[int, str, Array]] = [
    (0x40, "", Array(type(None), [None, None])),
    (0x41, "", Array(bool, [True, True])),
    (0x42, "", Array(bool, [False, False])),
    (0x43, "", Array(UInt, [UInt(0), UInt(0)])),
    (0x44, "", Array(ULong, [ULong(0), ULong(0)])),
    (0x45, "", Array(list, [[], []])),
    (0x50, "01 ff", Array(UByte, [UByte(1), UByte(255)])),
    (0x51, "01 ff", Array(Byte, [Byte(1), Byte(-1)])),
    (0x52, "01 ff", Array(UInt, [UInt(1), UInt(255)])),
    (0x53, "01 ff", Array(ULong, [ULong(1), ULong(255)])),
    (0x54, "01 ff", Array(Int, [Int(1), Int(-1)])),
    (0x55, "01 ff", Array(int, [1, -1])),
    (0x56, "01 00", Array(bool, [True, False])),
    (0x60, "0001 ffff", Array(UShort, [UShort(1), UShort(65_535)])),
    (0x61, "0001 ffff", Array(Short, [Short(1), Short(-1)])),
    (0x70, "00000001 ffffffff", Array(UInt, [UInt(1), UInt(2**32 - 1)])),
    (0x71, "00000001 ffffffff", Array(Int, [Int(1), Int(-1)])),
    (0x72, "3fc00000 ff800000", Array(Float, [Float(1.5), Float(-math.inf)])),
    (0x73, "00000041 0001f68c", Array(Char, [Char("A"), Char("🚌")])),
    (0x74, "32800001 78000000", Array(Decimal32, [Decimal32(b"\x32\x80\x00\x01"), Decimal32(b"\x78\x00\x00\x00")])),
    (0x80, "0000000000000001 ffffffffffffffff", Array(ULong, [ULong(1), ULong(2**64 - 1)])),
    (0x81, "0000000000000001 ffffffffffffffff", Array(int, [1, -1])),
    (0x82, "3ff8000000000000 7ff0000000000000", Array(float, [1.5, math.inf])),
    (0x83, "0000000000000001 ffffffffffffffff", Array(Timestamp, [Timestamp(1), Timestamp(-1)])),
    (0x84, "00" * 8 + "01" * 8, Array(Decimal64, [Decimal64(b"\x00" * 8), Decimal64(b"\x01" * 8)])),
    (0x94, "00" * 16 + "01" * 16, Array(Decimal128, [Decimal128(b"\x00" * 16), Decimal128(b"\x01" * 16)])),
    (0x98, "00" * 16 + A_UUID.hex, Array(uuid.UUID, [uuid.UUID(int=0), A_UUID])),
    (0xA0, "0161 00", Array(bytes, [b"a", b""])),
    (0xA1, "0161 00", Array(str, ["a", ""])),
    (0xA3, "0161 00", Array(Symbol, [Symbol("a"), Symbol("")])),
    (0xB0, "0000000161 00000000", Array(bytes, [b"a", b""])),
    (0xB1, "0000000161 00000000", Array(str, ["a", ""])),
    (0xB3, "0000000161 00000000", Array(Symbol, [Symbol("a"), Symbol("")])),
    (0xC0, "03 01 5507 01 00", Array(list, [[7], []])),
    (0xC1, "04 02 5507 41 01 00", Array(dict, [{7: True}, {}])),
    (0xD0, "00000006 00000001 5507 00000004 00000000", Array(list, [[7], []])),
    (0xD1, "00000007 00000002 5507 41 00000004 00000000", Array(dict, [{7: True}, {}])),
    (0xE0, "03 01 55 07 02 00 56", Array(Array, [Array(int, [7]), Array(bool, [])])),
    (0xF0, "00000006 00000001 55 07 00000005 00000000 56", Array(Array, [Array(int, [7]), Array(bool, [])])),
]

EXAMPLES: list[tuple[bytes, object]] = [
    (b"\xa1\x1eHello Glorious Messaging World", "Hello Glorious Messaging World"),
    (
        b"\x00\xa1\x03URL\xa1\x1ehttp://example.org/hello-world",
        Described("URL", "http://example.org/hello-world"),
    ),
    (
        (
            b"\x00\xa3\x11example:book:list\xc0\x40\x03"
            b"\xa1\x15AMQP for & by Dummies"
            b"\xe0\x25\x02\xa1\x0eRob J. Godfrey\x13Rafael H. Schloming"
            b"\x40"
        ),
        Described(
            Symbol("example:book:list"),
            ["AMQP for & by Dummies", Array(str, ["Rob J. Godfrey", "Rafael H. Schloming"]), None],
        ),
    ),
]
"""A string (1.2), the described URL (1.2.1) and the book (1.4) as the specification prints them."""


@pytest.mark.parametrize(("encoding", "value"), VECTORS, ids=lambda part: part if isinstance(part, str) else "")
def test_an_encoding_of_the_specification_is_decoded(encoding: str, value: object) -> None:
    data = bytes.fromhex(encoding)
    decoded, end = decode(data)
    assert with_type(decoded) == with_type(value)
    assert end == skip(data, 0) == len(data)


@pytest.mark.parametrize(("code", "elements", "array"), ELEMENTS, ids=[f"{code:#x}" for code, _, _ in ELEMENTS])
@pytest.mark.parametrize("is_wide", [False, True], ids=["array8", "array32"])
def test_an_array_is_decoded_with_every_element_constructor(
    code: int, elements: str, array: Array, *, is_wide: bool
) -> None:
    body = bytes((code,)) + bytes.fromhex(elements)
    if is_wide:
        data = b"\xf0" + (len(body) + 4).to_bytes(4, "big") + b"\x00\x00\x00\x02" + body
    else:
        data = bytes((0xE0, len(body) + 1, 2)) + body
    decoded, end = decode(data)
    assert with_type(decoded) == with_type(array)
    assert end == skip(data, 0) == len(data)


@pytest.mark.parametrize(("data", "value"), EXAMPLES, ids=["string", "url", "book"])
def test_an_example_printed_in_the_specification_is_decoded(data: bytes, value: object) -> None:
    decoded, end = decode(data)
    assert with_type(decoded) == with_type(value)
    assert end == skip(data, 0) == len(data)


def test_the_vectors_cover_every_constructor_of_the_specification() -> None:
    known = {code for codes in CODES.values() for code in codes}
    assert {code for code, _, _ in ELEMENTS} == known
    assert {bytes.fromhex(encoding)[0] for encoding, _ in VECTORS} == known | {0x00}
