"""Reference encoder: every legal encoding of a value, written from the specification (part 1), not from our encoder."""

from __future__ import annotations

import struct
import uuid
from typing import TYPE_CHECKING, Any, Final

from hypothesis import strategies as st

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

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

NULL: Final = b"\x40"

CODES: Final[dict[type, tuple[int, ...]]] = {
    type(None): (0x40,),
    bool: (0x41, 0x42, 0x56),
    UByte: (0x50,),
    UShort: (0x60,),
    UInt: (0x43, 0x52, 0x70),
    ULong: (0x44, 0x53, 0x80),
    Byte: (0x51,),
    Short: (0x61,),
    Int: (0x54, 0x71),
    int: (0x55, 0x81),
    Float: (0x72,),
    float: (0x82,),
    Decimal32: (0x74,),
    Decimal64: (0x84,),
    Decimal128: (0x94,),
    Char: (0x73,),
    Timestamp: (0x83,),
    uuid.UUID: (0x98,),
    bytes: (0xA0, 0xB0),
    str: (0xA1, 0xB1),
    Symbol: (0xA3, 0xB3),
    list: (0x45, 0xC0, 0xD0),
    dict: (0xC1, 0xD1),
    Array: (0xE0, 0xF0),
}
"""Constructors of each type; together they are all constructors of the specification."""

_CONTENT: Final[dict[type, Callable[[Any], bytes]]] = {
    UByte: struct.Struct(">B").pack,
    UShort: struct.Struct(">H").pack,
    Byte: struct.Struct(">b").pack,
    Short: struct.Struct(">h").pack,
    Float: struct.Struct(">f").pack,
    float: struct.Struct(">d").pack,
    Timestamp: struct.Struct(">q").pack,
    Decimal32: bytes,
    Decimal64: bytes,
    Decimal128: bytes,
    Char: lambda value: struct.pack(">I", ord(value)),
    uuid.UUID: lambda value: value.bytes,
}
"""Types that have only one encoding, of fixed width."""
_TEXT: Final[dict[type, Callable[[Any], bytes]]] = {bytes: bytes, str: str.encode, Symbol: str.encode}
_CONSTANTS: Final[dict[int, object]] = {0x40: None, 0x41: True, 0x42: False, 0x43: 0, 0x44: 0}
_INTEGERS: Final = {0x52: ">B", 0x53: ">B", 0x54: ">b", 0x55: ">b", 0x70: ">I", 0x71: ">i", 0x80: ">Q", 0x81: ">q"}
_NARROW: Final = 255


def encoding_choices() -> st.SearchStrategy[Random]:
    """Random choices between encodings, which hypothesis can shrink to the simplest choices that still fail."""
    return st.randoms(use_true_random=False)


def random_encoding(value: object, chance: Random) -> bytes:
    """Return one of the legal encodings of `value`."""
    if isinstance(value, Described):
        return b"\x00" + random_encoding(value.descriptor, chance) + random_encoding(value.value, chance)
    code, body = chance.choice(list(_forms(value, chance).items()))
    return bytes((code,)) + body


def random_list_encoding(fields: list[bytes], chance: Random) -> bytes:
    """Return one of the legal encodings of a list whose fields are already encoded."""
    code, body = chance.choice(list(_list_forms(fields).items()))
    return bytes((code,)) + body


def _forms(value: object, chance: Random) -> dict[int, bytes]:
    """Return the bytes after the constructor, for each constructor that `value` may have."""
    if isinstance(value, list):
        return _list_forms([random_encoding(item, chance) for item in value])
    if isinstance(value, dict | Pairs):
        pairs = value if isinstance(value, Pairs) else value.items()
        encoded = [random_encoding(part, chance) for pair in pairs for part in pair]
        return _compound_forms(0xC1, len(encoded), b"".join(encoded))
    if isinstance(value, Array):
        return _array_forms(value, chance)
    if type(value) in _CONTENT:
        return {CODES[type(value)][0]: _CONTENT[type(value)](value)}
    if type(value) in _TEXT:
        return _variable_forms(CODES[type(value)][0], _TEXT[type(value)](value))
    return _number_forms(value)


def _number_forms(value: object) -> dict[int, bytes]:
    forms: dict[int, bytes] = {}
    for code in CODES[type(value)]:
        if code in _CONSTANTS:
            if value == _CONSTANTS[code]:
                forms[code] = b""
        elif code == 0x56:
            forms[code] = b"\x01" if value else b"\x00"
        else:
            try:
                forms[code] = struct.pack(_INTEGERS[code], value)
            except struct.error:  # too large for the short form
                continue
    return forms


def _variable_forms(narrow: int, data: bytes) -> dict[int, bytes]:
    forms = {narrow + 0x10: struct.pack(">I", len(data)) + data}
    if len(data) <= _NARROW:
        forms[narrow] = bytes((len(data),)) + data
    return forms


def _compound_forms(narrow: int, count: int, body: bytes) -> dict[int, bytes]:
    forms = {narrow + 0x10: struct.pack(">II", len(body) + 4, count) + body}
    if len(body) < _NARROW and count <= _NARROW:
        forms[narrow] = bytes((len(body) + 1, count)) + body
    return forms


def _list_forms(fields: list[bytes]) -> dict[int, bytes]:
    forms = _compound_forms(0xC0, len(fields), b"".join(fields))
    if not fields:
        forms[0x45] = b""
    return forms


def _array_forms(array: Array, chance: Random) -> dict[int, bytes]:
    constructor = b"".join(b"\x00" + random_encoding(descriptor, chance) for descriptor in array.descriptors)
    forms = [_forms(item, chance) for item in array.items]
    codes = [code for code in CODES[array.element_type] if all(code in form for form in forms)]
    code = chance.choice(codes)
    body = constructor + bytes((code,)) + b"".join(form[code] for form in forms)
    return _compound_forms(0xE0, len(array.items), body)
