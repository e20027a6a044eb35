"""Decoder limits: nesting depth, string length, number of elements, and comparisons of colliding map keys."""

from __future__ import annotations

import struct
import uuid
from typing import TYPE_CHECKING

import pytest

from tests.amqp.codec.value_strategies import with_type
from twinbus.amqp.codec.decode import DEFAULT_LIMITS, decode, skip
from twinbus.amqp.codec.encode import encode
from twinbus.amqp.errors import RESOURCE_LIMIT_EXCEEDED, DecodeError
from twinbus.amqp.settings import Limits
from twinbus.amqp.types import Array, Described, Pairs, Symbol, ULong

if TYPE_CHECKING:
    from collections.abc import Callable


def refused(data: bytes, limits: Limits = DEFAULT_LIMITS) -> bool:
    """Return whether `data` exceeds a limit; any other decode error is raised."""
    try:
        decode(data, 0, limits)
    except DecodeError as error:
        if error.condition == RESOURCE_LIMIT_EXCEEDED:
            return True
        raise
    return False


# --- depth ------------------------------------------------------------------------------------------------------------

NESTINGS: dict[str, tuple[Callable[[object], object], int]] = {
    # function that adds a level, and the number of levels that it adds
    "list": (lambda inner: [inner], 1),
    "map value": (lambda inner: {"a": inner}, 1),
    "map key": (lambda inner: Pairs([(inner, 1)]), 1),
    "description": (lambda inner: Described(ULong(1), inner), 1),
    "descriptor": (lambda inner: Described(inner, 1), 1),
    "list in an array": (lambda inner: Array(list, [[inner]]), 2),
    "descriptor of an array": (lambda inner: Array(int, [], (inner,)), 2),
    "elements of a described array": (lambda inner: Array(list, [[inner]], (ULong(1),)), 3),
}


@pytest.mark.parametrize("nesting", NESTINGS)
@pytest.mark.parametrize("times", [1, 2, 10])
def test_a_value_may_be_nested_up_to_the_depth_limit_and_no_deeper(nesting: str, times: int) -> None:
    nest, levels = NESTINGS[nesting]
    value: object = 1
    for _ in range(times):
        value = nest(value)
    assert not refused(encode(value), Limits(max_depth=times * levels))
    assert refused(encode(value), Limits(max_depth=times * levels - 1))


@pytest.mark.parametrize("times", [1, 2, 10])
def test_arrays_may_be_nested_up_to_the_depth_limit_and_no_deeper(times: int) -> None:
    value = Array(int, [1])
    for _ in range(times - 1):
        value = Array(Array, [value])
    assert not refused(encode(value), Limits(max_depth=times))
    assert refused(encode(value), Limits(max_depth=times - 1))


@pytest.mark.parametrize("prefix", [b"\x00", b"\x00\x53\x01", b"\xc0\x7f\x01", b"\xd0\x00\x00\x00\x7f\x00\x00\x00\x01"])
def test_a_megabyte_of_nesting_is_refused_and_does_not_exhaust_the_stack(prefix: bytes) -> None:
    assert refused(prefix * (1_048_576 // len(prefix)))


@pytest.mark.parametrize("prefix", [b"\x00", b"\x00\x53\x01"])
def test_skip_limits_nested_described_values_like_decode(prefix: bytes) -> None:
    deepest = prefix * DEFAULT_LIMITS.max_depth + b"\x40" * (DEFAULT_LIMITS.max_depth + 1)
    assert skip(deepest, 0) == decode(deepest)[1]
    with pytest.raises(DecodeError) as raised:
        skip(prefix + deepest, 0)
    assert raised.value.condition == RESOURCE_LIMIT_EXCEEDED
    assert refused(prefix + deepest)


# --- lengths ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [0xA0, 0xA1, 0xA3, 0xB0, 0xB1, 0xB3])
def test_a_string_symbol_or_binary_may_be_up_to_the_length_limit_and_no_longer(code: int) -> None:
    length = b"\x64" if code < 0xB0 else b"\x00\x00\x00\x64"
    data = bytes((code,)) + length + b"x" * 100
    assert not refused(data, Limits(max_string_bytes=100))
    assert refused(data, Limits(max_string_bytes=99))
    assert refused(b"\xc0" + bytes((len(data) + 1, 1)) + data, Limits(max_string_bytes=99))


def test_a_length_beyond_the_limit_is_refused_before_its_content_arrives() -> None:
    assert refused(b"\xb0\xff\xff\xff\xff")


def test_the_default_limit_accepts_a_string_of_one_mebibyte() -> None:
    assert not refused(encode("x" * 1_048_576))
    assert refused(encode("x" * 1_048_577))


# --- elements ---------------------------------------------------------------------------------------------------------

ELEMENTS: dict[str, tuple[object, int]] = {
    # value, and its number of elements
    "list": ([None] * 10, 10),
    "map": (dict.fromkeys(range(5)), 10),
    "array": (Array(int, [1] * 10), 10),
    "array of nothing": (Array(type(None), [None] * 10), 10),
    "lists in a list": ([[1, 2], [3, 4, 5], [], [6]], 10),
    "lists in a map": ({1: [2, 3], 4: [5, 6, 7]}, 9),
    "arrays in an array": (Array(Array, [Array(int, [1, 2]), Array(int, [3] * 6)]), 10),
    "described list": (Described([1, 2, 3], [4] * 7), 10),
    "descriptor of an array": (Array(int, [1], ([2, 3],)), 3),
}


@pytest.mark.parametrize("name", ELEMENTS)
def test_a_value_may_have_up_to_the_limit_of_elements_and_no_more(name: str) -> None:
    value, count = ELEMENTS[name]
    assert not refused(encode(value), Limits(max_items=count))
    assert refused(encode(value), Limits(max_items=count - 1))


BOMBS: dict[str, str] = {
    "four thousand million nulls in ten bytes": "f0 00000005 ffffffff 40",
    "as many empty lists": "f0 00000005 ffffffff 45",
    "as many trues": "f0 00000005 ffffffff 41",
    "described as well": "f0 00000008 ffffffff 00 5301 40",
    "in a list that has no room for them": "d0 00000004 ffffffff",
    "in a map that has no room for them": "d1 00000004 fffffffe",
    "arrays of arrays of nulls": "f0 00000015 00000002 f0 00000005 00008000 40 00000005 00008001 40",
}


@pytest.mark.parametrize("name", BOMBS)
def test_zero_width_elements_count_towards_the_element_limit(name: str) -> None:
    assert refused(bytes.fromhex(BOMBS[name]))


@pytest.mark.parametrize(("kind", "element"), [(type(None), None), (list, [])])
def test_zero_width_array_elements_have_a_limit_of_their_own(kind: type, element: object) -> None:
    code = "40" if element is None else "45"
    assert not refused(bytes.fromhex(f"f0 00000005 00000100 {code}"))
    assert refused(bytes.fromhex(f"f0 00000005 00000101 {code}"))
    assert not refused(bytes.fromhex(f"c0 09 02 e0 02 80 {code} e0 02 80 {code}"))
    assert refused(bytes.fromhex(f"c0 09 02 e0 02 80 {code} e0 02 81 {code}"))
    assert not refused(encode([element] * 1_000))
    assert decode(bytes.fromhex(f"e0 02 ff {code}"))[0] == Array(kind, [element] * 255)


def test_the_element_count_starts_at_zero_for_each_value() -> None:
    data = encode([None] * 10) * 3
    at = 0
    for _ in range(3):
        _, at = decode(data, at, Limits(max_items=10))
    assert at == len(data)


# --- comparisons ------------------------------------------------------------------------------------------------------

MODULUS = 2**61 - 1
"""Modulus of integer hashes in Python on 64-bit machines; a UUID has the hash of its integer."""


def colliding(count: int) -> list[uuid.UUID]:
    keys = [uuid.UUID(int=7 + number * MODULUS) for number in range(count)]
    assert len({hash(key) for key in keys}) == 1
    return keys


@pytest.mark.parametrize("wrap", [lambda key: key, lambda key: Described(ULong(1), key)], ids=["uuid", "described"])
def test_keys_with_colliding_hashes_are_not_compared_pairwise(
    wrap: Callable[[object], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    compared = 0
    compare = uuid.UUID.__eq__

    def count(one: uuid.UUID, other: object) -> bool:
        nonlocal compared
        compared += 1
        return compare(one, other)

    data = encode(Pairs((wrap(key), None) for key in colliding(1_000)))
    monkeypatch.setattr(uuid.UUID, "__eq__", count)
    value, _ = decode(data)
    assert compared < 1_000
    assert isinstance(value, Pairs)
    assert len(value) == 1_000


def test_a_duplicate_key_is_found_among_colliding_keys() -> None:
    keys = colliding(1_000)
    with pytest.raises(DecodeError, match="the same key twice"):
        decode(encode(Pairs((key, None) for key in [*keys, keys[500]])))


@pytest.mark.parametrize("count", [2, 60])
def test_a_few_colliding_keys_are_decoded_as_a_dict(count: int) -> None:
    keys = dict.fromkeys(colliding(count), "x")
    assert with_type(decode(encode(keys))[0]) == with_type(keys)


def test_a_large_map_of_ordinary_keys_is_decoded_as_a_dict() -> None:
    for keys in (range(-5_000, 5_000), map(str, range(10_000)), map(Symbol, map(str, range(10_000)))):
        ordinary = dict.fromkeys(keys)
        assert with_type(decode(encode(ordinary))[0]) == with_type(ordinary)


def test_a_map_with_random_uuid_keys_is_decoded_as_a_dict() -> None:
    keys = dict.fromkeys(uuid.UUID(bytes=struct.pack(">QQ", number, number * 7 + 1)) for number in range(10_000))
    assert with_type(decode(encode(keys))[0]) == with_type(keys)
