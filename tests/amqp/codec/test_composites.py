"""Composites: encoded with all fields, and decoded by their declarations from every legal encoding."""

from __future__ import annotations

from dataclasses import MISSING
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.amqp.codec.composite_strategies import DECLARED, WRONG, composites, described, fields, minimal, read
from tests.amqp.codec.reference_encoder import encoding_choices, random_encoding
from tests.amqp.codec.value_strategies import examples
from twinbus.amqp.codec.composite import Composite, from_described
from twinbus.amqp.errors import DecodeError
from twinbus.amqp.types import Array, Described, Symbol, UInt, ULong

if TYPE_CHECKING:
    from random import Random

SPECIFIED = {
    0x10: "amqp:open:list",
    0x11: "amqp:begin:list",
    0x12: "amqp:attach:list",
    0x13: "amqp:flow:list",
    0x14: "amqp:transfer:list",
    0x15: "amqp:disposition:list",
    0x16: "amqp:detach:list",
    0x17: "amqp:end:list",
    0x18: "amqp:close:list",
    0x1D: "amqp:error:list",
    0x23: "amqp:received:list",
    0x24: "amqp:accepted:list",
    0x25: "amqp:rejected:list",
    0x26: "amqp:released:list",
    0x27: "amqp:modified:list",
    0x28: "amqp:source:list",
    0x29: "amqp:target:list",
    0x30: "amqp:coordinator:list",
    0x31: "amqp:declare:list",
    0x32: "amqp:discharge:list",
    0x33: "amqp:declared:list",
    0x34: "amqp:transactional-state:list",
    0x40: "amqp:sasl-mechanisms:list",
    0x41: "amqp:sasl-init:list",
    0x42: "amqp:sasl-challenge:list",
    0x43: "amqp:sasl-response:list",
    0x44: "amqp:sasl-outcome:list",
    0x70: "amqp:header:list",
    0x73: "amqp:properties:list",
}

each = pytest.mark.parametrize("cls", DECLARED, ids=lambda cls: cls.__name__)
each_field = pytest.mark.parametrize(
    ("cls", "index"),
    [
        pytest.param(cls, index, id=f"{cls.__name__}.{name}")
        for cls in DECLARED
        for index, (name, _, _) in enumerate(cls.field_specs)
    ],
)


def test_every_composite_of_the_specification_is_declared_with_its_descriptors() -> None:
    assert {cls.code: cls.symbol for cls in DECLARED} == SPECIFIED


@each
@examples(12)
@given(data=st.data())
def test_a_composite_survives_a_round_trip(cls: type[Composite], data: st.DataObject) -> None:
    written = data.draw(composites(cls))
    decoded = from_described(described(written.encode()))
    assert type(decoded) is cls
    assert decoded == written
    assert decoded.encode() == written.encode()


@each
@examples(12)
@given(data=st.data(), chance=encoding_choices())
def test_a_composite_is_decoded_from_every_legal_encoding(
    cls: type[Composite], data: st.DataObject, chance: Random
) -> None:
    written = data.draw(composites(cls))
    descriptor = data.draw(st.sampled_from([ULong(cls.code), Symbol(cls.symbol)]))
    encoding = random_encoding(Described(descriptor, fields(written)), chance)
    assert from_described(described(encoding)) == written


@each
@pytest.mark.parametrize("descriptor", ["53", "80", "a3", "b3"])
def test_both_descriptors_are_decoded_in_both_widths(cls: type[Composite], descriptor: str) -> None:
    written = minimal(cls)
    encoding = written.encode()
    assert encoding[:3] == bytes((0x00, 0x53, cls.code))
    name = cls.symbol.encode()
    descriptors = {
        "53": bytes((0x53, cls.code)),
        "80": b"\x80" + cls.code.to_bytes(8, "big"),
        "a3": bytes((0xA3, len(name))) + name,
        "b3": b"\xb3" + len(name).to_bytes(4, "big") + name,
    }
    assert from_described(described(b"\x00" + descriptors[descriptor] + encoding[3:])) == written


@each
def test_all_fields_are_encoded_even_if_they_have_their_defaults(cls: type[Composite]) -> None:
    assert len(fields(minimal(cls))) == len(cls.field_specs)


@each
@examples(5)
@given(data=st.data())
def test_omitted_trailing_fields_have_their_defaults(cls: type[Composite], data: st.DataObject) -> None:
    written = data.draw(composites(cls))
    values = fields(written)
    mandatory = [index for index, (_, _, default) in enumerate(cls.field_specs) if default is MISSING]
    for count in range(len(values) + 1):
        missing = [index for index in mandatory if index >= count]
        if missing:
            with pytest.raises(DecodeError, match=f"{cls.symbol}: {cls.field_specs[missing[0]][0]} is mandatory"):
                read(cls, values[:count])
        else:
            given_fields = {name: getattr(written, name) for name, _, _ in cls.field_specs[:count]}
            assert read(cls, values[:count]) == cls(**given_fields)


@each_field
def test_null_means_the_default_and_is_refused_for_a_mandatory_field(cls: type[Composite], index: int) -> None:
    name, _, default = cls.field_specs[index]
    values = fields(minimal(cls))
    values[index] = None
    if default is MISSING:
        with pytest.raises(DecodeError, match=f"{cls.symbol}: {name} is mandatory"):
            read(cls, values)
    else:
        assert getattr(read(cls, values), name) == default


@each_field
def test_the_error_for_a_field_of_the_wrong_type_names_the_field(cls: type[Composite], index: int) -> None:
    name, kind, _ = cls.field_specs[index]
    wrong = WRONG.get(kind.name, [])
    assert bool(wrong) == (kind.name != "any value")
    for value in wrong:
        values = fields(minimal(cls))
        values[index] = value
        with pytest.raises(DecodeError, match=f"{cls.symbol}: {name} is .*, not a {kind.name}"):
            read(cls, values)


@each
def test_a_composite_with_too_many_fields_is_refused(cls: type[Composite]) -> None:
    with pytest.raises(DecodeError, match=f"{cls.symbol} has {len(cls.field_specs) + 1} fields"):
        read(cls, [*fields(minimal(cls)), None])


@each
@pytest.mark.parametrize("value", [None, {}, Array(list, [[]]), "a", Described(ULong(1), [])], ids=repr)
def test_a_composite_that_is_not_a_list_is_refused(cls: type[Composite], value: object) -> None:
    with pytest.raises(DecodeError, match=f"{cls.symbol} is not a list"):
        from_described(Described(Symbol(cls.symbol), value))


@pytest.mark.parametrize(
    "descriptor",
    [ULong(0x1F), ULong(2**40), Symbol("amqp:open"), "amqp:open:list", 0x10, UInt(0x10), b"amqp:open:list", None],
    ids=repr,
)
def test_a_value_with_an_unknown_descriptor_is_returned_unchanged(descriptor: object) -> None:
    value = Described(descriptor, ["a"])
    assert from_described(value) is value
