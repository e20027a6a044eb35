"""Decoding of values: reads every AMQP type in every legal encoding, within limits.

`decode` reads one value. `skip` finds the end of a value without decoding it, which is how the broker leaves message
bodies undecoded. Owns the constructors of part 1 of the specification. Must not know what the values mean.
"""

from __future__ import annotations

import struct
import uuid
from typing import TYPE_CHECKING, Any, Final

from twinbus.amqp.codec.encode import encode
from twinbus.amqp.codec.message_layout import uint32_at
from twinbus.amqp.errors import RESOURCE_LIMIT_EXCEEDED, DecodeError, EncodeError
from twinbus.amqp.settings import Limits
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

DEFAULT_LIMITS: Final = Limits()

_U32: Final = struct.Struct(">I").unpack_from
_EMPTY_CATEGORY: Final = 0x4
"""Category of constructors that are followed by no bytes."""
_MAX_EMPTY_ELEMENTS: Final = 256
"""Limit on zero-width array elements in one value. Ten bytes of input can declare any number of such elements, and each
element takes memory."""


class _DecodeContext:
    """State of one call to `decode`: the bytes, the limits, and how many more elements the value may have."""

    __slots__ = ("data", "described_left", "empty_left", "items_left", "limits", "max_items")

    def __init__(self, data: bytes, limits: Limits, max_items: int) -> None:
        self.data = data
        self.limits = limits
        self.max_items = self.items_left = self.described_left = max_items
        self.empty_left = _MAX_EMPTY_ELEMENTS

    def take_items(self, count: int) -> None:
        # Elements may occupy no bytes (an array of nulls), so the length of the input does not bound their number.
        self.items_left -= count
        if self.items_left < 0:
            raise DecodeError(f"more than {self.max_items} elements in one value", RESOURCE_LIMIT_EXCEEDED)

    def take_description(self) -> None:
        # A descriptor is not an element but takes as much memory, and two input bytes are enough for a descriptor.
        self.described_left -= 1
        if self.described_left < 0:
            raise DecodeError(f"more than {self.max_items} descriptors in one value", RESOURCE_LIMIT_EXCEEDED)

    def take_empty(self, count: int) -> None:
        self.empty_left -= count
        if self.empty_left < 0:
            raise DecodeError(
                f"more than {_MAX_EMPTY_ELEMENTS} zero-width elements in one value", RESOURCE_LIMIT_EXCEEDED
            )

    def check_span(self, at: int, length: int, value_name: str) -> int:
        end = at + length
        if end > len(self.data):
            raise DecodeError(f"{value_name} of {length} bytes runs past the end of the input")
        return end


if TYPE_CHECKING:
    Read = Callable[[_DecodeContext, int, int], tuple[object, int]]
    """Function that reads the value after a constructor, at a nesting depth; returns the value and its end offset."""


def decode(data: bytes, at: int = 0, limits: Limits = DEFAULT_LIMITS) -> tuple[object, int]:
    """Decode the value at `at`; return the value and its end offset. Raises DecodeError, and no other exception."""
    return _decode(_DecodeContext(data, limits, limits.max_items), at)


def decode_performative(data: bytes, at: int, limits: Limits) -> tuple[object, int]:
    """Decode a performative as `decode` does, within the smaller element limit for performatives."""
    return _decode(_DecodeContext(data, limits, limits.max_performative_items), at)


def _decode(context: _DecodeContext, at: int) -> tuple[object, int]:
    try:
        return _read_value(context, at, 0)
    except (IndexError, struct.error):
        raise DecodeError("a value runs past the end of the input") from None


def skip(data: bytes, at: int, depth: int = 0) -> int:
    """Return the end offset of the value at `at`, computed from constructors and sizes alone."""
    try:
        code = data[at]
        width = _FIXED_WIDTHS[code >> 4]
        if width <= _WIDEST:
            end = at + 1 + width
        elif width == _ONE_BYTE_SIZE:
            end = at + 2 + data[at + 1]
        elif width == _FOUR_BYTE_SIZE:
            end = at + 5 + uint32_at(data, at + 1)
        elif code == 0:
            end = _skip_described(data, at, depth)
        else:
            raise _unknown(code)
    except (IndexError, struct.error):
        end = len(data) + 1
    if end > len(data):
        raise DecodeError("a value runs past the end of the input")
    return end


_WIDEST: Final = 16
_ONE_BYTE_SIZE: Final = 253
_FOUR_BYTE_SIZE: Final = 254
_NO_TYPE: Final = 255
_FIXED_WIDTHS: Final = bytes((*(_NO_TYPE,) * 4, 0, 1, 2, 4, 8, _WIDEST, *(_ONE_BYTE_SIZE, _FOUR_BYTE_SIZE) * 3))
"""Number of bytes after a constructor, by its upper four bits, or a marker for the width of the size that follows.

This constant is `bytes` because mypyc creates a new object for every lookup in a constant tuple.
"""


def _skip_described(data: bytes, at: int, depth: int) -> int:
    # Both the descriptor and the described value may themselves be described values.
    if depth >= DEFAULT_LIMITS.max_depth:
        raise DecodeError("described values are nested too deep", RESOURCE_LIMIT_EXCEEDED)
    return skip(data, skip(data, at + 1, depth + 1), depth + 1)


def open_list(data: bytes, at: int) -> tuple[int, int]:
    """Return the element count of the list at `at` and the offset of its first element, for reading single elements."""
    if data[at : at + 1] == b"\x45":
        return 0, at + 1
    return _open(data, at, 0xC0)


def open_map(data: bytes, at: int) -> tuple[int, int]:
    """Return the number of keys plus values in the map at `at`, and the offset of its first key."""
    return _open(data, at, 0xC1)


def _open(data: bytes, at: int, narrow: int) -> tuple[int, int]:
    try:
        if data[at] == narrow:
            return data[at + 2], at + 3
        if data[at] == narrow + 0x10:
            return uint32_at(data, at + 5), at + 9
    except (IndexError, struct.error):
        raise DecodeError("a list or map runs past the end of the input") from None
    raise DecodeError(f"constructor 0x{data[at]:02x} instead of a list or map")


def _unknown(code: int) -> DecodeError:
    return DecodeError(f"unknown AMQP constructor 0x{code:02x}")


def _deeper(context: _DecodeContext, depth: int) -> int:
    if depth >= context.limits.max_depth:
        raise DecodeError(f"a value is nested deeper than {context.limits.max_depth} levels", RESOURCE_LIMIT_EXCEEDED)
    return depth + 1


def _read_value(context: _DecodeContext, at: int, depth: int) -> tuple[object, int]:
    code = context.data[at]
    if code == 0:
        depth = _deeper(context, depth)
        context.take_description()
        descriptor, at = _read_value(context, at + 1, depth)
        value, at = _read_value(context, at, depth)
        return Described(descriptor, value), at
    read = _READERS.get(code)
    if read is None:
        raise _unknown(code)
    return read(context, at + 1, depth)


def _constant(value: object) -> Read:
    def read(_context: _DecodeContext, at: int, _depth: int) -> tuple[object, int]:
        return value, at

    return read


def _fixed(layout: str, make: Callable[[Any], object] | None = None) -> Read:
    layout_struct = struct.Struct(layout)
    unpack, width = layout_struct.unpack_from, layout_struct.size

    def read_plain(context: _DecodeContext, at: int, _depth: int) -> tuple[object, int]:
        return unpack(context.data, at)[0], at + width

    def read_made(context: _DecodeContext, at: int, _depth: int) -> tuple[object, int]:
        return make(unpack(context.data, at)[0]), at + width  # type: ignore[misc]  # make is not None here

    return read_plain if make is None else read_made


def _boolean(value: int) -> bool:
    if value > 1:
        raise DecodeError(f"0x{value:02x} is not a boolean")
    return value == 1


def _char(data: bytes) -> Char:
    try:
        return Char(data.decode("utf-32-be"))
    except UnicodeDecodeError:
        raise DecodeError(f"0x{data.hex()} is not a Unicode character") from None


def _uuid(value: bytes) -> uuid.UUID:
    return uuid.UUID(bytes=value)


def _variable(size_width: int, make: Callable[[bytes], object]) -> Read:
    def read(context: _DecodeContext, at: int, _depth: int) -> tuple[object, int]:
        length = context.data[at] if size_width == 1 else _U32(context.data, at)[0]
        at += size_width
        if length > context.limits.max_string_bytes:
            raise DecodeError(
                f"a string, symbol or binary has {length} bytes; the limit is {context.limits.max_string_bytes}",
                RESOURCE_LIMIT_EXCEEDED,
            )
        end = context.check_span(at, length, "a string, symbol or binary")
        return make(context.data[at:end]), end

    return read


def _string(data: bytes) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise DecodeError("a string is not UTF-8") from None


def _symbol(data: bytes) -> Symbol:
    try:
        return Symbol(data.decode("ascii"))
    except UnicodeDecodeError:
        raise DecodeError("a symbol is not ASCII") from None


def _compound(size_width: int, fill: Callable[[_DecodeContext, int, int, int], tuple[object, int]]) -> Read:
    """Return a reader of lists, maps or arrays: a size, a count, and elements that `fill` reads.

    The reader raises DecodeError if the elements do not end where the size says.
    """

    def read(context: _DecodeContext, at: int, depth: int) -> tuple[object, int]:
        data = context.data
        size = data[at] if size_width == 1 else _U32(data, at)[0]
        at += size_width
        end = context.check_span(at, size, "a list, map or array")
        count = data[at] if size_width == 1 else _U32(data, at)[0]
        context.take_items(count)
        value, elements_end = fill(context, at + size_width, count, _deeper(context, depth))
        if elements_end != end:
            raise DecodeError(f"a list, map or array declares {size} bytes but its elements have {elements_end - at}")
        return value, end

    return read


def _fill_list(context: _DecodeContext, at: int, count: int, depth: int) -> tuple[list[object], int]:
    items = []
    for _ in range(count):
        item, at = _read_value(context, at, depth)
        items.append(item)
    return items, at


def _fill_map(context: _DecodeContext, at: int, count: int, depth: int) -> tuple[object, int]:
    if count % 2:
        raise DecodeError("a map has a key that has no value")
    items, at = _fill_list(context, at, count, depth)
    pairs = list(zip(items[::2], items[1::2], strict=True))
    try:
        mapping = {} if _keys_collide(pairs) else dict(pairs)
    except TypeError:  # a key that Python cannot hash, such as a list or a map
        return _exact_pairs(pairs), at
    return (mapping if len(mapping) == len(pairs) else _exact_pairs(pairs)), at


_MAX_COLLISIONS: Final = 64


def _keys_collide(pairs: list[tuple[object, object]]) -> bool:
    # Hashes of numbers and UUIDs are predictable. A peer can send thousands of keys with equal hashes, and building a
    # dict from these keys takes minutes.
    if len(pairs) <= _MAX_COLLISIONS:
        return False
    return len(pairs) - len({hash(key) for key, _ in pairs}) > _MAX_COLLISIONS


def _exact_pairs(pairs: list[tuple[object, object]]) -> Pairs:
    try:
        keys = {encode(key) for key, _ in pairs}
    except EncodeError:
        raise DecodeError("a map has a key that cannot be compared") from None
    if len(keys) != len(pairs):
        raise DecodeError("a map has the same key twice")
    return Pairs(pairs)


def _fill_array(context: _DecodeContext, at: int, count: int, depth: int) -> tuple[Array, int]:
    descriptors = []
    while context.data[at] == 0:
        depth = _deeper(context, depth)
        descriptor, at = _read_value(context, at + 1, depth)
        descriptors.append(descriptor)
    code = context.data[at]
    at += 1
    read = _READERS.get(code)
    if read is None:
        raise _unknown(code)
    if code >> 4 == _EMPTY_CATEGORY:
        context.take_empty(count)
    items = []
    for _ in range(count):
        item, at = read(context, at, depth)
        items.append(item)
    return Array(_ELEMENT_TYPES[code], items, tuple(descriptors)), at


_READERS: Final[dict[int, Read]] = {
    0x40: _constant(None),
    0x41: _constant(True),
    0x42: _constant(False),
    0x43: _constant(UInt(0)),
    0x44: _constant(ULong(0)),
    0x45: lambda _reading, at, _depth: ([], at),
    0x50: _fixed(">B", UByte),
    0x51: _fixed(">b", Byte),
    0x52: _fixed(">B", UInt),
    0x53: _fixed(">B", ULong),
    0x54: _fixed(">b", Int),
    0x55: _fixed(">b"),
    0x56: _fixed(">B", _boolean),
    0x60: _fixed(">H", UShort),
    0x61: _fixed(">h", Short),
    0x70: _fixed(">I", UInt),
    0x71: _fixed(">i", Int),
    0x72: _fixed(">f", Float),
    0x73: _fixed(">4s", _char),
    0x74: _fixed(">4s", Decimal32),
    0x80: _fixed(">Q", ULong),
    0x81: _fixed(">q"),
    0x82: _fixed(">d"),
    0x83: _fixed(">q", Timestamp),
    0x84: _fixed(">8s", Decimal64),
    0x94: _fixed(">16s", Decimal128),
    0x98: _fixed(">16s", _uuid),
    0xA0: _variable(1, bytes),
    0xA1: _variable(1, _string),
    0xA3: _variable(1, _symbol),
    0xB0: _variable(4, bytes),
    0xB1: _variable(4, _string),
    0xB3: _variable(4, _symbol),
    0xC0: _compound(1, _fill_list),
    0xC1: _compound(1, _fill_map),
    0xD0: _compound(4, _fill_list),
    0xD1: _compound(4, _fill_map),
    0xE0: _compound(1, _fill_array),
    0xF0: _compound(4, _fill_array),
}

_ELEMENT_TYPES: Final[dict[int, type]] = {
    **dict.fromkeys((0x41, 0x42, 0x56), bool),
    **dict.fromkeys((0x43, 0x52, 0x70), UInt),
    **dict.fromkeys((0x44, 0x53, 0x80), ULong),
    **dict.fromkeys((0x54, 0x71), Int),
    **dict.fromkeys((0x55, 0x81), int),
    **dict.fromkeys((0xA0, 0xB0), bytes),
    **dict.fromkeys((0xA1, 0xB1), str),
    **dict.fromkeys((0xA3, 0xB3), Symbol),
    **dict.fromkeys((0x45, 0xC0, 0xD0), list),
    **dict.fromkeys((0xC1, 0xD1), dict),
    **dict.fromkeys((0xE0, 0xF0), Array),
    0x40: type(None),
    0x50: UByte,
    0x51: Byte,
    0x60: UShort,
    0x61: Short,
    0x72: Float,
    0x73: Char,
    0x74: Decimal32,
    0x82: float,
    0x83: Timestamp,
    0x84: Decimal64,
    0x94: Decimal128,
    0x98: uuid.UUID,
}
