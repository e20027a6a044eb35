"""Encoding of values: writes each AMQP type in a short legal encoding.

`encode` picks the AMQP type from the value's Python class (see `types`). The `write_...` functions encode fields whose
type the specification fixes, so that a plain int can fill an AMQP uint. Must not know what the values mean.
"""

from __future__ import annotations

import struct
import uuid
from typing import TYPE_CHECKING, Any, Final

from twinbus.amqp.errors import EncodeError
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
    from collections.abc import Callable, Iterable
    from typing import TypeAlias

    WriteInteger: TypeAlias = Callable[[bytearray, int], None]

_MAX_NARROW: Final = 255
_MAX_DEPTH: Final = 64
"""Nesting limit, higher than the limit of any known decoder. The limit also stops values that contain themselves."""

_U32: Final = struct.Struct(">I").pack


def encode(value: object) -> bytes:
    """Return the encoding of `value`. Raises EncodeError, and no other exception, if `value` has no AMQP encoding."""
    out = bytearray()
    write(out, value)
    return bytes(out)


def write(out: bytearray, value: object, depth: int = 0) -> None:
    """Append the encoding of `value` to `out`."""
    kind = type(value)
    try:
        writer = _WRITERS.get(kind)
        if writer is not None:
            writer(out, value)
        else:
            _write_nested(out, value, depth + 1)
    except (struct.error, ValueError, OverflowError) as error:
        raise EncodeError(f"{_shown(value)} is not a valid AMQP {kind.__name__}: {error}") from None


def _shown(value: object) -> str:
    try:
        return f"{value!r:.100}"
    except ValueError:  # an integer of thousands of digits, a decimal of the wrong length
        return "a value that cannot be displayed"


def _write_nested(out: bytearray, value: object, depth: int) -> None:
    _check_depth(depth)
    if isinstance(value, Described):
        out.append(0)
        write(out, value.descriptor, depth)
        write(out, value.value, depth)
    elif isinstance(value, list):
        body = bytearray()
        for item in value:
            write(body, item, depth)
        write_list(out, body, len(value))
    elif isinstance(value, dict | Pairs):
        out += _map_constructor(*_map_body(value, depth))
    elif isinstance(value, Array):
        code, elements = _array_body(value, depth)
        out.append(code)
        out += elements
    else:
        raise EncodeError(f"{type(value).__name__} has no AMQP type")


def _check_depth(depth: int) -> None:
    if depth > _MAX_DEPTH:
        raise EncodeError(f"the value is nested deeper than {_MAX_DEPTH} levels")


# --- fields of a known type -------------------------------------------------------------------------------------------


def write_boolean(out: bytearray, value: object) -> None:
    """Append an AMQP boolean to `out`; any truthy value is true."""
    out.append(0x41 if value else 0x42)


def _shortest(*choices: tuple[int, int, int, str]) -> WriteInteger:
    """Return a function that writes an integer in the first encoding whose range includes the integer.

    Each choice is (lowest value, highest value, constructor, layout).
    """
    plans = tuple((low, high, struct.Struct(f">B{layout}"), code) for low, high, code, layout in choices)

    def write_integer(out: bytearray, value: int) -> None:
        for low, high, plan, code in plans:
            if low <= value <= high:
                out += plan.pack(code, value)
                return
        raise EncodeError(f"{int(value)} is not between {plans[-1][0]} and {plans[-1][1]}")

    return write_integer


write_ubyte: Final[WriteInteger] = _shortest((0, 255, 0x50, "B"))
write_ushort: Final[WriteInteger] = _shortest((0, 65_535, 0x60, "H"))
write_uint: Final[WriteInteger] = _shortest((0, 255, 0x52, "B"), (0, 2**32 - 1, 0x70, "I"))
write_ulong: Final[WriteInteger] = _shortest((0, 255, 0x53, "B"), (0, 2**64 - 1, 0x80, "Q"))
write_byte: Final[WriteInteger] = _shortest((-128, 127, 0x51, "b"))
write_short: Final[WriteInteger] = _shortest((-(2**15), 2**15 - 1, 0x61, "h"))
write_int: Final[WriteInteger] = _shortest((-128, 127, 0x54, "b"), (-(2**31), 2**31 - 1, 0x71, "i"))
write_long: Final[WriteInteger] = _shortest((-128, 127, 0x55, "b"), (-(2**63), 2**63 - 1, 0x81, "q"))
write_timestamp: Final[WriteInteger] = _shortest((-(2**63), 2**63 - 1, 0x83, "q"))


def write_binary(out: bytearray, value: bytes) -> None:
    """Append an AMQP binary to `out`."""
    _write_bytes(out, 0xA0, value)


def write_string(out: bytearray, value: str) -> None:
    """Append an AMQP string to `out`."""
    _write_bytes(out, 0xA1, value.encode("utf-8"))


def write_symbol(out: bytearray, value: str) -> None:
    """Append an AMQP symbol to `out`."""
    _write_bytes(out, 0xA3, value.encode("ascii"))


def write_symbols(out: bytearray, values: Iterable[str]) -> None:
    """Append `values` to `out` as an array of symbols, the encoding of fields that may hold several symbols."""
    write(out, Array(Symbol, [Symbol(value) for value in values]))


def write_list(out: bytearray, body: bytes | bytearray, count: int) -> None:
    """Append a list to `out`; its `count` elements are already encoded in `body`."""
    if not count:
        out.append(0x45)
    elif count <= _MAX_NARROW and len(body) < _MAX_NARROW:
        out += bytes((0xC0, len(body) + 1, count))
        out += body
    else:
        out.append(0xD0)
        out += _U32(len(body) + 4)
        out += _U32(count)
        out += body


def _write_bytes(out: bytearray, narrow: int, data: bytes) -> None:
    if len(data) <= _MAX_NARROW:
        out.append(narrow)
        out.append(len(data))
    else:
        out.append(narrow + 0x10)
        out += _U32(len(data))
    out += data


# --- any value --------------------------------------------------------------------------------------------------------


def _fixed(code: int, layout: str) -> Callable[[bytearray, object], None]:
    pack = struct.Struct(layout).pack

    def write_fixed(out: bytearray, value: object) -> None:
        out.append(code)
        out += pack(value)

    return write_fixed


def _write_null(out: bytearray, _value: object) -> None:
    out.append(0x40)


def _write_exact(code: int, width: int) -> Callable[[bytearray, bytes], None]:
    def write_exact(out: bytearray, value: bytes) -> None:
        if len(value) != width:
            raise ValueError(f"{len(value)} bytes where {width} are needed")
        out.append(code)
        out += value

    return write_exact


def _write_char(out: bytearray, value: Char) -> None:
    out.append(0x73)
    out += _one_character(value)


def _one_character(value: str) -> bytes:
    if len(value) != 1:
        raise ValueError("a char must be exactly one character")
    return value.encode("utf-32-be")


def _write_uuid(out: bytearray, value: uuid.UUID) -> None:
    out.append(0x98)
    out += value.bytes


def _map_body(value: dict[object, object] | Pairs, depth: int) -> tuple[int, bytearray]:
    pairs = value if isinstance(value, Pairs) else value.items()
    body = bytearray()
    for key, item in pairs:
        write(body, key, depth)
        write(body, item, depth)
    return len(value) * 2, body


def _map_constructor(count: int, body: bytearray) -> bytes:
    if count <= _MAX_NARROW and len(body) < _MAX_NARROW:
        return bytes((0xC1, len(body) + 1, count)) + body
    return b"\xd1" + _U32(len(body) + 4) + _U32(count) + body


def _array_body(array: Array, depth: int) -> tuple[int, bytes]:
    """Return an array's constructor and the bytes after it: size, count, element constructor, and bare elements."""
    _check_depth(depth)
    constructor = bytearray()
    for descriptor in array.descriptors:
        constructor.append(0)
        write(constructor, descriptor, depth)
    code, strip = _ELEMENTS.get(array.element_type, (None, None))
    if code is None or strip is None:
        raise EncodeError(f"{array.element_type.__name__} has no AMQP type")
    constructor.append(code)
    body = bytearray()
    for item in array.items:
        if type(item) is not array.element_type and not (array.element_type is dict and type(item) is Pairs):
            raise EncodeError(f"an array of {array.element_type.__name__} holds {_shown(item)}")
        strip(body, item, depth)
    size = len(constructor) + len(body)
    if size < _MAX_NARROW and len(array.items) <= _MAX_NARROW:
        return 0xE0, bytes((size + 1, len(array.items))) + constructor + body
    return 0xF0, _U32(size + 4) + _U32(len(array.items)) + constructor + body


def _element(layout: str) -> Callable[[bytearray, object, int], None]:
    pack = struct.Struct(layout).pack

    def write_element(out: bytearray, item: object, _depth: int) -> None:
        out += pack(item)

    return write_element


def _bytes_element(width: int | None, convert: Callable[[Any], bytes]) -> Callable[[bytearray, object, int], None]:
    def write_element(out: bytearray, item: object, _depth: int) -> None:
        data = convert(item)
        if width is None:
            out += _U32(len(data))
        elif len(data) != width:
            raise ValueError(f"{len(data)} bytes where {width} are needed")
        out += data

    return write_element


def _list_element(out: bytearray, item: object, depth: int) -> None:
    assert isinstance(item, list)  # checked by _array_body
    body = bytearray()
    for inner in item:
        write(body, inner, depth)
    out += _U32(len(body) + 4) + _U32(len(item)) + body


def _map_element(out: bytearray, item: object, depth: int) -> None:
    assert isinstance(item, dict | Pairs)  # checked by _array_body
    count, body = _map_body(item, depth)
    out += _U32(len(body) + 4) + _U32(count) + body


def _array_element(out: bytearray, item: object, depth: int) -> None:
    assert isinstance(item, Array)  # checked by _array_body
    code, body = _array_body(item, depth + 1)
    if code == 0xE0:  # all elements share the wide constructor
        body = _U32(body[0] + 3) + _U32(body[1]) + body[2:]
    out += body


_WRITERS: Final[dict[type, Callable[[bytearray, Any], None]]] = {
    type(None): _write_null,
    bool: write_boolean,
    UByte: write_ubyte,
    UShort: write_ushort,
    UInt: write_uint,
    ULong: write_ulong,
    Byte: write_byte,
    Short: write_short,
    Int: write_int,
    int: write_long,
    Float: _fixed(0x72, ">f"),
    float: _fixed(0x82, ">d"),
    Decimal32: _write_exact(0x74, 4),
    Decimal64: _write_exact(0x84, 8),
    Decimal128: _write_exact(0x94, 16),
    Char: _write_char,
    Timestamp: write_timestamp,
    uuid.UUID: _write_uuid,
    bytes: write_binary,
    str: write_string,
    Symbol: write_symbol,
}

_ELEMENTS: Final[dict[type, tuple[int, Callable[[bytearray, Any, int], None]]]] = {
    type(None): (0x40, lambda _out, _item, _depth: None),
    bool: (0x56, _element(">B")),
    UByte: (0x50, _element(">B")),
    UShort: (0x60, _element(">H")),
    UInt: (0x70, _element(">I")),
    ULong: (0x80, _element(">Q")),
    Byte: (0x51, _element(">b")),
    Short: (0x61, _element(">h")),
    Int: (0x71, _element(">i")),
    int: (0x81, _element(">q")),
    Float: (0x72, _element(">f")),
    float: (0x82, _element(">d")),
    Timestamp: (0x83, _element(">q")),
    Char: (0x73, _bytes_element(4, _one_character)),
    Decimal32: (0x74, _bytes_element(4, bytes)),
    Decimal64: (0x84, _bytes_element(8, bytes)),
    Decimal128: (0x94, _bytes_element(16, bytes)),
    uuid.UUID: (0x98, _bytes_element(16, lambda item: item.bytes)),
    bytes: (0xB0, _bytes_element(None, bytes)),
    str: (0xB1, _bytes_element(None, lambda item: str(item).encode("utf-8"))),
    Symbol: (0xB3, _bytes_element(None, lambda item: str(item).encode("ascii"))),
    list: (0xD0, _list_element),
    dict: (0xD1, _map_element),
    Array: (0xF0, _array_element),
}
