"""Hypothesis strategies for values of every AMQP type, and `with_type` to compare two values including their types."""

from __future__ import annotations

import struct
import uuid
from typing import TYPE_CHECKING, Final, TypeAlias

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from twinbus.amqp.codec.encode import encode
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

Values: TypeAlias = st.SearchStrategy[object]


def examples(count: int) -> settings:
    """Hypothesis settings for `count` examples, without deadlines or health checks for slow machines."""
    slow = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
    return settings(max_examples=count, deadline=None, suppress_health_check=slow)


def with_type(value: object) -> object:
    """Return a form of `value` that equals only the same AMQP value's form: 1, true and 1.0 differ, NaN equals NaN."""
    content: object = value
    if isinstance(value, float):
        content = struct.pack(">f" if type(value) is Float else ">d", value)
    elif isinstance(value, Array):
        content = with_type([value.element_type, value.items, value.descriptors])
    elif isinstance(value, Described):
        content = with_type([value.descriptor, value.value])
    elif isinstance(value, dict):
        content = with_type(list(value.items()))
    elif isinstance(value, list | tuple):
        content = [with_type(item) for item in value]
    return type(value).__name__, content


def _integers(bits: int, make: Callable[[int], object] = int) -> Values:
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1).map(make)


def _naturals(bits: int, make: Callable[[int], object]) -> Values:
    return st.integers(0, 2**bits - 1).map(make)


def _width(width: int, make: Callable[[bytes], object]) -> Values:
    return st.binary(min_size=width, max_size=width).map(make)


ABOUT_255: Final = st.integers(250, 260)
"""Sizes around 255, the longest length that a narrow encoding can hold."""

ascii_texts: Final = st.text(st.characters(max_codepoint=127), max_size=20)

PRIMITIVES: Final[dict[type, Values]] = {
    type(None): st.none(),
    bool: st.booleans(),
    UByte: _naturals(8, UByte),
    UShort: _naturals(16, UShort),
    UInt: _naturals(32, UInt) | _naturals(8, UInt),
    ULong: _naturals(64, ULong) | _naturals(8, ULong),
    Byte: _integers(8, Byte),
    Short: _integers(16, Short),
    Int: _integers(32, Int) | _integers(8, Int),
    int: _integers(64) | _integers(8),
    Float: st.floats(width=32).map(Float),
    float: st.floats(),
    Decimal32: _width(4, Decimal32),
    Decimal64: _width(8, Decimal64),
    Decimal128: _width(16, Decimal128),
    Char: st.characters(exclude_categories=["Cs"]).map(Char),
    Timestamp: _integers(64, Timestamp),
    uuid.UUID: _width(16, lambda data: uuid.UUID(bytes=data)),
    bytes: st.binary(max_size=20) | ABOUT_255.map(bytes),
    str: st.text(max_size=20) | ABOUT_255.map(lambda size: "é" * (size // 2) + "x" * (size % 2)),
    Symbol: ascii_texts.map(Symbol) | ABOUT_255.map(lambda size: Symbol("s" * size)),
}

primitives: Final[Values] = st.one_of(*PRIMITIVES.values())


def map_of(pairs: list[tuple[object, object]]) -> object:
    """Return the type that `decode` returns for a map: a dict if Python can tell the keys apart, else `Pairs`."""
    try:
        mapping = dict(pairs)
    except TypeError:
        return Pairs(pairs)
    return mapping if len(mapping) == len(pairs) else Pairs(pairs)


def maps_of(children: Values) -> Values:
    """Maps with keys that are distinct in AMQP, although they may be equal in Python."""
    return st.lists(st.tuples(children, children), max_size=4, unique_by=lambda pair: encode(pair[0])).map(map_of)


def lists_of(children: Values) -> Values:
    """Short lists, and sometimes a list with more elements than one byte can count."""
    return st.lists(children, max_size=4) | ABOUT_255.map(lambda count: [None] * count)


@st.composite
def arrays_of(draw: st.DrawFn, children: Values) -> Array:
    """Arrays of any element type, described or not."""
    elements: dict[type, Values] = {
        **PRIMITIVES,
        list: st.lists(children, max_size=3),
        dict: maps_of(children),
        Array: _small_arrays(),
    }
    element_type = draw(st.sampled_from(list(elements)))
    items = draw(st.lists(elements[element_type], max_size=4))
    return Array(element_type, items, tuple(draw(st.lists(children, max_size=2))))


@st.composite
def _small_arrays(draw: st.DrawFn) -> Array:
    element_type = draw(st.sampled_from(list(PRIMITIVES)))
    return Array(element_type, draw(st.lists(PRIMITIVES[element_type], max_size=3)))


def without_repr(strategy: Values) -> Values:
    """Return `strategy` with a short repr: in a recursion, each level would repeat the repr of the level below."""

    @st.composite
    def inner(draw: st.DrawFn) -> object:
        return draw(strategy)

    return inner()


def _nested(children: Values) -> Values:
    inner = without_repr(children)
    return st.one_of(lists_of(inner), maps_of(inner), arrays_of(inner), st.builds(Described, inner, inner))


values: Final[Values] = st.recursive(primitives, _nested, max_leaves=8)
"""Any AMQP value."""
