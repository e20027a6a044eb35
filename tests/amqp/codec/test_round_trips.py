"""Round trips: every legal encoding decodes to the same value of the same type, and a truncated encoding is refused."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.amqp.codec.reference_encoder import encoding_choices, random_encoding
from tests.amqp.codec.value_strategies import (
    PRIMITIVES,
    Values,
    arrays_of,
    examples,
    lists_of,
    maps_of,
    primitives,
    values,
    with_type,
)
from twinbus.amqp.codec.decode import decode, skip
from twinbus.amqp.codec.encode import encode
from twinbus.amqp.errors import DecodeError
from twinbus.amqp.types import Array, Described, Float, Int, Pairs, Symbol, UInt, ULong

if TYPE_CHECKING:
    from random import Random

KINDS: dict[str, Values] = {
    **{kind.__name__: strategy for kind, strategy in PRIMITIVES.items()},
    "list": lists_of(primitives),
    "map": maps_of(primitives),
    "array": arrays_of(primitives),
    "nested": values,
}
SOME_BYTES = b"\x40\xff"


def decoded(data: bytes) -> object:
    value, end = decode(data)
    assert end == len(data)
    return value


@pytest.mark.parametrize("kind", KINDS)
@examples(40)
@given(data=st.data())
def test_a_value_is_decoded_as_it_was_encoded(kind: str, data: st.DataObject) -> None:
    value = data.draw(KINDS[kind])
    assert with_type(decoded(encode(value))) == with_type(value)


@examples(120)
@given(values, encoding_choices())
def test_every_legal_encoding_of_a_value_is_decoded_as_that_value(value: object, chance: Random) -> None:
    assert with_type(decoded(random_encoding(value, chance))) == with_type(value)


@examples(120)
@given(values, encoding_choices())
def test_decode_and_skip_stop_at_the_end_of_the_value(value: object, chance: Random) -> None:
    encoding = random_encoding(value, chance)
    data = SOME_BYTES + encoding + SOME_BYTES
    end = len(SOME_BYTES) + len(encoding)
    decoded_value, decode_end = decode(data, len(SOME_BYTES))
    assert with_type(decoded_value) == with_type(value)
    assert decode_end == end
    assert skip(data, len(SOME_BYTES)) == end


@examples(60)
@given(values, encoding_choices())
def test_a_truncated_encoding_is_refused(value: object, chance: Random) -> None:
    encoding = random_encoding(value, chance)
    for length in range(len(encoding)):
        with pytest.raises(DecodeError):
            decode(encoding[:length])
        with pytest.raises(DecodeError):
            skip(encoding[:length], 0)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Symbol("a"), "a"),
        (UInt(1), 1),
        (UInt(1), ULong(1)),
        (True, 1),
        (1.0, Float(1.0)),
        (1, 1.0),
        (0.0, -0.0),
        (b"a", "a"),
        ([1], Array(int, [1])),
        ([], {}),
        (Array(int, []), Array(Int, [])),
        (Array(int, [1]), Array(int, [1], (ULong(1),))),
        (Described(ULong(1), None), Described(Symbol("1"), None)),
        ({1: 2, 3: 4}, {3: 4, 1: 2}),
    ],
    ids=repr,
)
def test_values_that_python_may_take_for_equal_have_different_encodings(one: object, other: object) -> None:
    assert with_type(one) != with_type(other)
    assert encode(one) != encode(other)


def test_keys_that_are_equal_in_python_but_not_in_amqp_are_all_kept() -> None:
    pairs = Pairs([(1, "long"), (True, "boolean"), (UInt(1), "uint"), (1.0, "double"), ("a", 1), (Symbol("a"), 2)])
    assert with_type(decoded(encode(pairs))) == with_type(pairs)


def test_keys_that_python_cannot_hash_are_kept() -> None:
    pairs = Pairs([([1], "list"), ({}, "map"), (Array(int, []), "array"), (Described(1, [2]), "described")])
    assert with_type(decoded(encode(pairs))) == with_type(pairs)


def test_an_array_of_maps_may_hold_dicts_and_pairs() -> None:
    array = Array(dict, [{"a": 1}, Pairs([(1, "long"), (True, "boolean")]), {}])
    assert with_type(decoded(encode(array))) == with_type(array)


def test_pairs_that_a_dict_can_hold_are_decoded_as_a_dict() -> None:
    assert with_type(decoded(encode(Pairs([("a", 1), ("b", 2)])))) == with_type({"a": 1, "b": 2})


def test_a_uuid_a_number_and_a_described_value_may_be_keys() -> None:
    keys = {uuid.UUID(int=7): 1, -1: 2, -2: 3, Described(ULong(1), "a"): 4}
    assert with_type(decoded(encode(keys))) == with_type(keys)


@pytest.mark.parametrize("depth", [1, 2, 31])
def test_described_values_may_nest_in_descriptor_and_value(depth: int) -> None:
    value: object = ULong(1)
    for number in range(depth):
        value = Described(value, number) if number % 2 else Described(number, value)
    encoding = encode(value)
    assert with_type(decoded(encoding)) == with_type(value)
    assert skip(encoding, 0) == len(encoding)
